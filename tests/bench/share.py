"""How much of a cap an agent can use, as requests hold their worst case, and never crossing it.

    python -m tests.bench.share

A sequential agent with ``max_tokens`` 64,000 at 25 USD per million under a cap of 5 USD, as it is and
with ``clamp: true``: once with short conversations, once with one history that grows to its end. The
growing one also as Anthropic's own API bills it, by what a request marks for its cache (no sockets there).
"""

import asyncio
import json
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

from aiohttp import ClientSession

from proxy.core import Opened
from proxy.model import ResponseHead, Upstream
from tests.live.kit import Json, Message, Peer, Stage, answer_head, stage
from tests.purse import House

CAP = 5
PRICES = [{"model": "acme-*", "input": 5, "output": 25, "cache_read": "0.5", "cache_write": "6.25"}]
MAX_TOKENS = 64_000
WRITES = 4_000
"""Tokens of a reply, where it is let."""
JSON_FIELDS = [("Content-Type", "application/json")]


@dataclass(frozen=True, slots=True)
class Share:
    """What one agent could use until it was refused."""

    used: Decimal
    calls: int
    lowered: int
    """Calls that went out with a lower limit than they asked for."""

    def __str__(self) -> str:
        part = f"{float(self.used) / CAP:6.1%}"
        return f"{part} of the cap used, {self.calls} calls, {self.lowered} of them with a lower limit"


def reply(number: int, usage: Json) -> Json:
    """A chapter."""
    return {
        "id": f"msg_{number}", "type": "message", "role": "assistant", "model": "acme-1",
        "content": [{"type": "text", "text": f"{number} " + "word " * (WRITES // 2)}],
        "stop_reason": "end_turn", "stop_sequence": None, "usage": usage,
    }  # fmt: skip


class Model:
    """Writes as much as it is let; what it read before comes from the cache."""

    def __init__(self) -> None:
        self.read = 0
        self.limits: list[int] = []

    async def respond(self, request: Message, peer: Peer) -> None:
        asked = request.json()
        self.limits.append(asked["max_tokens"])
        tokens = len(request.body) // 4
        cached = self.read if len(asked["messages"]) > 1 else 0
        self.read = tokens
        usage = {
            "input_tokens": 0, "cache_read_input_tokens": cached,
            "cache_creation_input_tokens": tokens - cached,
            "output_tokens": min(WRITES, asked["max_tokens"]),
        }  # fmt: skip
        body = json.dumps(reply(len(self.limits), usage)).encode()
        await peer.send(answer_head(200, JSON_FIELDS, len(body)) + body)


def conversations(grows: bool) -> Iterator[list[Json]]:
    """The messages of each call; ``send`` gets the reply's content."""
    messages: list[Json] = []
    for number in range(10_000):
        messages = [*messages, {"role": "user", "content": f"Write chapter {number}."}]
        content = yield messages
        messages = [*messages, {"role": "assistant", "content": content}] if grows else []


async def use_up(place: Path, *, clamp: bool, grows: bool) -> Share:
    """Let the agent work until it is refused. Raises AssertionError where the cap was crossed."""
    model = Model()
    budget = {"name": "cap", "scope": "key", "window": "total", "limits": {"spend_usd": CAP}, "clamp": clamp}
    async with stage(place, model.respond, prices=PRICES, budgets=[budget]) as here:
        turns = conversations(grows)
        messages = next(turns)
        while True:
            body = {"model": "acme-1", "max_tokens": MAX_TOKENS, "messages": messages}
            answer = await here.ask("/anthropic/v1/messages", json.dumps(body).encode(), JSON_FIELDS)
            used = await _used(here)
            assert used <= CAP
            if answer.status != 200:
                lowered = sum(limit < MAX_TOKENS for limit in model.limits)
                return Share(used, len(model.limits), lowered)
            messages = turns.send(answer.json()["content"])  # type: ignore[attr-defined]


async def use_up_marked(ttl: str | None) -> Share:
    """The same history, clamped, at Anthropic's own prices; ``ttl``: how its prompts are marked."""
    upstream = Upstream("anthropic", "https://api.anthropic.com", "anthropic")
    budget = {"name": "cap", "scope": "key", "window": "total", "limits": {"spend_usd": CAP}, "clamp": True}
    house, turns, limits, read = House(budget, upstreams={"anthropic": upstream}), conversations(True), [], 0
    messages = next(turns)
    while True:
        body: Json = {"model": "claude-opus-5", "max_tokens": MAX_TOKENS, "messages": messages}
        if ttl is not None:
            body["cache_control"] = {"type": "ephemeral", "ttl": ttl}
        opened = await house.ask("/anthropic/v1/messages", body)
        (balance,) = await house.balances()
        assert balance.used <= balance.hard
        if not isinstance(opened, Opened) or opened.refusal is not None:
            lowered = sum(limit < MAX_TOKENS for limit in limits)
            return Share(Decimal(balance.used).scaleb(-9), len(limits), lowered)
        limits.append(json.loads(opened.body)["max_tokens"])
        tokens = len(opened.body) // 4
        written = {"5m": "ephemeral_5m_input_tokens", "1h": "ephemeral_1h_input_tokens"}.get(ttl or "")
        usage: Json = {"input_tokens": tokens, "output_tokens": min(WRITES, limits[-1])}
        if written is not None:
            usage |= {
                "input_tokens": 0, "cache_read_input_tokens": read,
                "cache_creation_input_tokens": tokens - read, "cache_creation": {written: tokens - read},
            }  # fmt: skip
            read = tokens
        told = reply(len(limits), usage)
        opened.respond(ResponseHead(200, b"OK", ((b"content-type", b"application/json"),)), time.time_ns())
        opened.feed(json.dumps(told).encode(), time.time_ns())
        opened.close("complete", time.time_ns())
        await house.balances()
        messages = turns.send(told["content"])  # type: ignore[attr-defined]


async def _used(here: Stage) -> Decimal:
    """What the ledger says once nothing is held."""
    base, _, token = here.running.admin_url.partition("/?token=")
    async with ClientSession(headers={"Authorization": f"Bearer {token}"}) as http:
        while True:
            async with http.get(f"{base}/api/v1/budgets") as answer:
                (one,) = await answer.json()
            if float(one["reserved"]) == 0:
                return Decimal(one["used"])


async def main() -> None:
    for grows in (False, True):
        for clamp in (False, True):
            with tempfile.TemporaryDirectory(prefix="looptap-share-") as place:
                share: Any = await use_up(Path(place), clamp=clamp, grows=grows)
            kind = "one growing history" if grows else "short conversations"
            print(f"{kind:20} {'clamp: true' if clamp else 'as it is':11}  {share}", flush=True)
    for ttl in ("1h", "5m", None):
        marks = f"marked {ttl}" if ttl is not None else "no marks"
        print(f"{'at Anthropic':20} {marks:11}  {await use_up_marked(ttl)}", flush=True)


if __name__ == "__main__":
    asyncio.run(main())
