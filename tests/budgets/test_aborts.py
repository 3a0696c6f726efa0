"""Clients that leave: what their requests cost is settled, by the provider's count or by an honest estimate.

The whole product in the test's own loop; the upstream says when it goes on.
"""

import asyncio
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession

from tests.live.kit import (
    LAST,
    PATIENCE_S,
    Json,
    Message,
    Peer,
    Stage,
    answer_head,
    frame,
    request_bytes,
    sse,
    stage,
    until,
)

JSON_FIELDS = [("Content-Type", "application/json")]
STREAM_FIELDS = [("Content-Type", "text/event-stream")]
PRICES = [{"model": "acme-*", "input": 3, "output": 15}]
KEY = {"name": "key", "scope": "key", "window": "day", "limits": {"spend_usd": 10, "output_tokens": 10**6}}
WORDS = 40
DELIVERED = 5
WHOLE_USD = (25 * 3 + 511 * 15) / Decimal(10**6)


def asked(*, stream: bool) -> bytes:
    messages = [{"role": "user", "content": "Tell me a story."}]
    return json.dumps(
        {"model": "acme-1", "max_tokens": 2000, "messages": messages, "stream": stream}
    ).encode()


def told(text: str, output_tokens: int) -> Json:
    usage = {"input_tokens": 25, "output_tokens": output_tokens}
    return {
        "id": "msg_1", "type": "message", "role": "assistant", "model": "acme-1", "stop_sequence": None,
        "content": [{"type": "text", "text": text}], "stop_reason": "end_turn", "usage": usage,
    }  # fmt: skip


def events() -> list[Json]:
    """Forty deltas between a start that counts one token and an end that counts 511."""
    begun = {**told("", 1), "content": [], "stop_reason": None}
    delta = {"type": "content_block_delta", "index": 0}
    return [
        {"type": "message_start", "message": begun},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        *(delta | {"delta": {"type": "text_delta", "text": f"word number {n:02} "}} for n in range(WORDS)),
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 511}},
        {"type": "message_stop"},
    ]  # fmt: skip


class Provider:
    """Answers up to the fifth delta, or not at all yet; then waits until it may go on, or is left."""

    def __init__(self) -> None:
        self.go_on, self.left, self.asked = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def respond(self, request: Message, peer: Peer) -> None:
        streams = request.json()["stream"]
        if streams:
            await peer.send(answer_head(200, STREAM_FIELDS, None) + frame(sse(*events()[: 2 + DELIVERED])))
        self.asked.set()
        ended = asyncio.ensure_future(peer.ended())
        going = asyncio.ensure_future(self.go_on.wait())
        await asyncio.wait({ended, going}, return_when=asyncio.FIRST_COMPLETED)
        if ended.done():
            self.left.set()
            going.cancel()
            return
        ended.cancel()
        await asyncio.gather(ended, return_exceptions=True)
        if streams:
            await peer.send(frame(sse(*events()[2 + DELIVERED :])) + LAST)
        else:
            body = json.dumps(told("word " * 400, 511)).encode()
            await peer.send(answer_head(200, JSON_FIELDS, len(body)) + body)


@dataclass(frozen=True)
class Booked:
    """One request as the four places tell it that know of it."""

    attempt: Json
    counters: dict[str, Json]
    metric: float

    @property
    def tokens(self) -> Json:
        """What was booked: as counted, or as estimated beside what had been counted by then."""
        tokens: Json = self.attempt.get("estimate", self.attempt["usage"])
        return tokens

    def agree(self) -> None:
        """Tokens times price is the cost in row, ledger and metric."""
        usage = self.tokens
        cost = (usage["input_tokens"] * 3 + usage["output_tokens"] * 15) / Decimal(10**6)
        assert Decimal(self.attempt["cost_usd"]) == cost
        assert Decimal(self.counters["spend_usd"]["used"]) == cost
        assert self.counters["output_tokens"]["used"] == usage["output_tokens"]
        assert self.metric == pytest.approx(float(cost))
        assert [float(one["reserved"]) for one in self.counters.values()] == [0, 0]


async def booked(here: Stage) -> Booked:
    """What was booked once all is idle."""
    await here.idle()
    base, _, token = here.running.admin_url.partition("/?token=")
    async with ClientSession(headers={"Authorization": f"Bearer {token}"}) as http:
        counters: dict[str, Json] = {}
        costs: list[str] = []
        async with asyncio.timeout(PATIENCE_S):
            while not counters or any(float(one["reserved"]) for one in counters.values()):
                async with http.get(f"{base}/api/v1/budgets") as answer:
                    counters = {one["dimension"]: one for one in await answer.json()}
            while not costs:  # metrics have a lane of their own
                async with http.get(f"{base}/metrics") as answer:
                    text = await answer.text()
                costs = re.findall(r"^looptap_cost_usd_total\{.*?\} (\S+)", text, re.M)
    await here.running.flush()
    with here.read() as reader:
        (attempt,) = [dict(r.data) for _, r in reader.events() if r.type == "step/attempt"]
    return Booked(attempt, counters, sum(map(float, costs)))


async def leave(here: Stage, provider: Provider, *, stream: bool) -> None:
    """Ask, wait until the provider is at it (and has said five words), and hang up."""
    peer = await here.connect()
    await peer.send(request_bytes("POST", "/anthropic/v1/messages", JSON_FIELDS, asked(stream=stream)))
    if stream:
        assert await peer.head() is not None
        seen = b""
        while f"number {DELIVERED - 1:02}".encode() not in seen:
            seen += await peer.chunk()
    async with asyncio.timeout(PATIENCE_S):
        await provider.asked.wait()
    peer.close()


def settings(on_abort: str) -> dict[str, Any]:
    return {"on_abort": on_abort, "prices": PRICES, "budgets": [KEY]}


async def test_COST_05_under_cancel_the_upstream_is_let_go_and_what_was_delivered_is_charged(
    tmp_path: Path,
) -> None:
    provider = Provider()
    async with stage(tmp_path, provider.respond, **settings("cancel")) as here:
        await leave(here, provider, stream=True)
        async with asyncio.timeout(PATIENCE_S):
            await provider.left.wait()
        found = await booked(here)
    assert (found.attempt["outcome"], found.attempt["cost_quality"]) == ("client_gone", "estimated")
    assert found.tokens["input_tokens"] == 25
    assert found.tokens["output_tokens"] >= DELIVERED * len("word number 00 ") / 4
    found.agree()


@pytest.mark.parametrize("stream", [True, False], ids=["COST_05_streamed", "COST_08_whole"])
async def test_COST_07_under_drain_the_providers_own_count_is_booked_everywhere(
    stream: bool, tmp_path: Path
) -> None:
    provider = Provider()
    async with stage(tmp_path, provider.respond, **settings("drain")) as here:
        await leave(here, provider, stream=stream)
        await until(lambda: here.running.parts.server.shell.draining)
        provider.go_on.set()
        found = await booked(here)
    assert (found.attempt["outcome"], found.attempt["cost_quality"]) == ("complete", "measured")
    assert (found.tokens["input_tokens"], found.tokens["output_tokens"]) == (25, 511)
    assert Decimal(found.attempt["cost_usd"]) == WHOLE_USD
    found.agree()


async def test_COST_08_under_cancel_a_whole_reply_that_nobody_awaits_is_let_go_and_estimated(
    tmp_path: Path,
) -> None:
    provider = Provider()
    async with stage(tmp_path, provider.respond, **settings("cancel")) as here:
        await leave(here, provider, stream=False)
        async with asyncio.timeout(PATIENCE_S):
            await provider.left.wait()
        found = await booked(here)
    assert (found.attempt["outcome"], found.attempt["cost_quality"]) == ("client_gone", "estimated")
    assert Decimal(found.attempt["cost_usd"]) > 0
    found.agree()


BOUNDS: Sequence[Json] = ({"drain_s": 0.0}, {"drain_bytes": 0})


@pytest.mark.parametrize("bound", BOUNDS, ids=["time", "size"])
async def test_COST_05_a_drain_ends_at_its_bounds(bound: dict[str, Any], tmp_path: Path) -> None:
    provider = Provider()
    async with stage(tmp_path, provider.respond, **settings("drain")) as here:
        shell = here.running.parts.server.shell
        await leave(here, provider, stream=True)
        await until(lambda: shell.draining)
        (exchange,) = shell.draining
        exchange.relay.drained += 1  # something came after the client had gone
        shell.limits = replace(shell.limits, **bound)
        async with asyncio.timeout(PATIENCE_S):
            await provider.left.wait()
        found = await booked(here)
    assert (found.attempt["outcome"], found.attempt["cost_quality"]) == ("client_gone", "estimated")
    found.agree()
