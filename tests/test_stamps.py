"""Where the settings ask for it, an answer says where it stands in the tree; else nothing is added."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from proxy import app
from proxy.config import BUILT_IN, Settings

REPLY = {
    "id": "msg_1", "type": "message", "role": "assistant", "model": "claude-sonnet-4-5",
    "stop_reason": "end_turn", "content": [{"type": "text", "text": "hello"}],
    "usage": {"input_tokens": 3, "output_tokens": 1},
}  # fmt: skip
ASK = {"model": "claude-sonnet-4-5", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}
NAMES = ("session", "thread", "turn", "step")


async def model(request: web.Request) -> web.Response:
    return web.json_response(REPLY)


@pytest.mark.parametrize("asked_for", [True, False])
async def test_answers_carry_ids_only_where_asked_for(
    asked_for: bool, tmp_path: Path, aiohttp_server: Callable[..., Any]
) -> None:
    upstream_app = web.Application()
    upstream_app.router.add_route("*", "/{tail:.*}", model)
    upstream = await aiohttp_server(upstream_app)
    url = str(upstream.make_url("")).rstrip("/")
    settings = Settings.model_validate(
        {
            "listen": "127.0.0.1:0",
            "admin": "127.0.0.1:0",
            "upstreams": {"anthropic": BUILT_IN["anthropic"].model_copy(update={"url": url})},
            "store": {"path": str(tmp_path)},
            "response_headers": asked_for,
        }
    )
    running = await app.start(settings)
    try:
        async with aiohttp.ClientSession() as session:
            answer = await session.post(f"{running.data_url}/anthropic/v1/messages", json=ASK)
            assert await answer.json() == REPLY
            other = await session.get(f"{running.data_url}/anthropic/v1/models")
    finally:
        await running.stop(1)
    stamps = {name: answer.headers.get(f"x-looptap-{name}", "") for name in NAMES}
    prefixes = {"session": "ses_", "thread": "thr_", "turn": "trn_", "step": "stp_"}
    assert {n: v[:4] for n, v in stamps.items()} == (prefixes if asked_for else dict.fromkeys(NAMES, ""))
    assert not any(name.lower().startswith("x-looptap") for name in other.headers)
