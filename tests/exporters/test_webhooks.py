"""Webhooks: the events that were asked for, as JSON, tried again, and given up without harm."""

from collections.abc import Callable
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from exporters.webhooks import WebhookExporter, WebhookFailed
from proxy.model import Record

ALERT = Record(1_700_000_000_000_000_000, "budget/alert", turn="trn_1", data={"share": 0.8})
ITEM = Record(1, "item", data={})


class Receiver:
    def __init__(self, *statuses: int) -> None:
        self.statuses = list(statuses)
        self.got: list[tuple[dict[str, Any], str | None]] = []

    async def take(self, request: web.Request) -> web.Response:
        self.got.append((await request.json(), request.headers.get("Authorization")))
        return web.Response(status=self.statuses.pop(0) if self.statuses else 200)


@pytest.fixture
def receiver() -> Receiver:
    return Receiver()


@pytest.fixture
async def url(receiver: Receiver, aiohttp_server: Callable[..., Any]) -> str:
    app = web.Application()
    app.router.add_post("/hook", receiver.take)
    server: TestServer = await aiohttp_server(app)
    return str(server.make_url("/hook"))


async def export(url: str, *records: Record) -> None:
    exporter = WebhookExporter(url, {"Authorization": "Bearer t"}, ["budget/alert"], pauses_s=(0, 0))
    try:
        await exporter.export(records)
    finally:
        await exporter.close()


async def test_only_what_was_asked_for_is_posted(receiver: Receiver, url: str) -> None:
    await export(url, ITEM, ALERT, ITEM)
    event = {
        "time": "2023-11-14T22:13:20.000000Z", "type": "budget/alert", "turn": "trn_1",
        "data": {"share": 0.8},
    }  # fmt: skip
    assert receiver.got == [(event, "Bearer t")]


async def test_a_failed_post_is_tried_again(receiver: Receiver, url: str) -> None:
    receiver.statuses = [500, 503, 200]
    await export(url, ALERT)
    assert len(receiver.got) == 3


async def test_what_stays_undeliverable_is_given_up_and_the_next_is_tried(
    receiver: Receiver, url: str
) -> None:
    receiver.statuses = [500, 500, 302, 200]
    with pytest.raises(WebhookFailed, match="status 302"):
        await export(url, ALERT, ALERT)
    assert len(receiver.got) == 4


async def test_a_receiver_that_is_not_there_is_named_by_no_url() -> None:
    with pytest.raises(WebhookFailed) as caught:
        await export("http://127.0.0.1:9/secret-path", ALERT)
    assert "secret" not in str(caught.value)
