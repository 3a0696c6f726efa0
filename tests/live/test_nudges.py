"""Nudges on the wire: a doom loop of each dialect through a real proxy, its record, log and replay."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import zstandard

from proxy import app
from tests.live.kit import Json, Message, Peer, Stage, answer_head, bare, stage
from tests.live.loops import NAMES, Dialect, Loop, Said
from tests.live.recorded import Play, pairs

NUDGING = {"repeats": {"action": "nudge"}}
LISTS = {"anthropic": "messages", "chat": "messages", "responses": "input", "gemini": "contents"}


class Model:
    """An upstream that answers as the exchange under way says."""

    def __init__(self) -> None:
        self.play: Play | None = None

    async def respond(self, request: Message, peer: Peer) -> None:
        assert self.play is not None
        body = self.play.response
        await peer.send(
            answer_head(self.play.line["status"], pairs(self.play.line["response_headers"]), len(body))
        )
        await peer.send(body)


class Client:
    """One agent whose model calls the same tool with the same result, again and again."""

    def __init__(self, here: Stage, model: Model, loop: Loop) -> None:
        self.here, self.model, self.loop = here, model, loop
        self.count = 0

    async def ask(self, *, status: int = 200, last: bool = False, coded: bool = False) -> bytes:
        """One exchange; answers the body that went upstream."""
        self.count += 1
        said = Said(self.count, "Done." if last else "", () if last else ("the same",), status=status)
        self.model.play = play = self.loop.ask(said)
        body, fields = play.request_body, pairs(play.line["request_headers"])
        if coded:
            body, fields = zstandard.compress(body), [*fields, ("Content-Encoding", "zstd")]
        answer = await self.here.ask(play.target, body, fields)
        assert answer.status == status
        assert answer.body == play.response
        if status == 200:
            self.loop.took(said, "seen")
        return self.here.upstream.seen[-1].body


@asynccontextmanager
async def looping(place: Path, dialect: Dialect, **more: Any) -> AsyncIterator[Client]:
    model = Model()
    more.setdefault("policies", NUDGING)
    async with stage(place, model.respond, **more) as here:
        loop = Loop(dialect, stream=True)
        loop.user("look around")
        yield Client(here, model, loop)


async def started_anew(here: Stage) -> None:
    """The proxy stops, and another process takes over its data directory."""
    await here.running.stop(0)
    here.running = await app.start(here.settings, here.warnings.append)


def events(here: Stage, kind: str) -> list[Json]:
    with here.read() as reader:
        return [dict(record.data) for _, record in reader.events(types=[kind])]


def listed(body: bytes, dialect: Dialect) -> list[Any]:
    found: list[Any] = json.loads(body)[LISTS[dialect]]
    return found


async def loop_on(client: Client, *, anew_after: int = -1) -> tuple[list[bytes], list[bytes]]:
    """Ten rounds; answers what the client sent and what went upstream."""
    asked, sent = [], []
    for number in range(10):
        asked.append(json.dumps(client.loop.body()).encode())
        sent.append(await client.ask(last=number == 9))
        if number == anew_after:
            await started_anew(client.here)
    for before, after in pairwise(sent):
        known = listed(before, client.loop.dialect)
        assert listed(after, client.loop.dialect)[: len(known)] == known
    assert [body == raw for body, raw in zip(sent, asked, strict=True)] == [True] * 3 + [False] * 7
    texts = [e["quotes"]["text"] for e in await told(client.here) if e["kind"] == "nudge"]
    assert [text[:4] for text in texts] == ["Note", "Stop", "Stop"]
    assert [sent[-1].count(json.dumps(text).encode()) for text in texts] == [1, 1, 1]
    return asked, sent


@pytest.mark.parametrize("dialect", NAMES)
async def test_a_doom_loop_is_nudged_and_goes_on(dialect: Dialect, tmp_path: Path) -> None:
    async with looping(tmp_path, dialect) as client:
        await hold_equal(client.here, tmp_path, *await loop_on(client))


@pytest.mark.parametrize("dialect", NAMES)
async def test_a_restart_changes_nothing_of_it(dialect: Dialect, tmp_path: Path) -> None:
    async with looping(tmp_path, dialect) as client:
        await loop_on(client, anew_after=4)


async def told(here: Stage) -> list[Json]:
    await here.running.flush()
    return events(here, "intervention")


async def hold_equal(here: Stage, place: Path, asked: list[bytes], sent: list[bytes]) -> None:
    """The record has what the model saw, the log what the client sent, and the replay says the same."""
    await here.idle()
    live = bare(await here.live_tree())
    log = await here.write_log(place / "log.jsonl")
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [line["request_body"].encode() for line in lines] == asked
    for line, body in zip(lines, sent, strict=True):
        told = line["request_body"].encode()
        for at, text in reversed(line.get("inserted", [])):
            told = told[:at] + text.encode() + told[at:]
        assert told == body
    assert bare(here.replay(log)) == live
    with here.read() as reader:
        last = [exchange.step for exchange in reader.exchanges()][-1]
    assert last is not None
    assert here.looptap("show", last, "--request") == sent[-1]
    assert here.warnings == []


async def test_a_coded_body_is_nudged_too_and_its_log_replays(tmp_path: Path) -> None:
    async with looping(tmp_path, "responses") as client:
        for _ in range(3):
            await client.ask(coded=True)
        asked = json.dumps(client.loop.body())
        sent = zstandard.decompress(await client.ask(coded=True))
        assert b"3 times in a row" in sent
        await client.here.idle()
        live = bare(await client.here.live_tree())
        log = await client.here.write_log(tmp_path / "log.jsonl")
        last = json.loads(log.read_text().splitlines()[-1])
        assert last["request_body"] == asked
        ((at, text),) = last["inserted"]
        assert (asked[:at] + text + asked[at:]).encode() == sent
        assert bare(client.here.replay(log)) == live


async def test_a_retry_and_a_count_carry_the_same_bytes(tmp_path: Path) -> None:
    async with looping(tmp_path, "anthropic") as client:
        for _ in range(3):
            await client.ask()
        refused = await client.ask(status=529)
        assert b"3 times in a row" in refused
        await started_anew(client.here)
        assert await client.ask(status=529) == refused
        client.model.play = client.loop.ask(Said(99, "1"))
        body = json.dumps(client.loop.body()).encode()
        await client.here.ask("/anthropic/v1/messages/count_tokens", body)
        assert client.here.upstream.seen[-1].body == refused
        assert [e["kind"] for e in await told(client.here)] == ["nudge"]


async def test_a_cap_holds_the_bytes_of_a_nudge_too(tmp_path: Path) -> None:
    budgets = [{"name": "day", "scope": "key", "window": "day", "limits": {"total_tokens": 10_000_000}}]
    async with looping(tmp_path, "anthropic", budgets=budgets) as client:
        for _ in range(6):
            await client.ask()
        kinds = [e["kind"] for e in await told(client.here)]
        assert kinds == ["nudge", "nudge"]
        holds = [e["holds"][0]["held"] for e in events(client.here, "budget/reserve")]
        grown = [after - before for before, after in pairwise(holds)]
        assert grown[2] > grown[1] + 100


async def test_a_nudge_that_finds_no_store_is_not_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with looping(tmp_path, "anthropic") as client:
        monkeypatch.setattr(app, "_KEEP_S", 0)
        for _ in range(4):
            asked = json.dumps(client.loop.body()).encode()
            assert await client.ask() == asked
        assert [e["kind"] for e in await told(client.here)] == ["would_nudge"]


async def test_an_agent_that_repeats_nothing_is_left_alone(tmp_path: Path) -> None:
    async with looping(tmp_path, "responses", policies={"repeats": {"action": "observe"}}) as client:
        for _ in range(9):
            asked = json.dumps(client.loop.body()).encode()
            assert await client.ask() == asked
        assert {e["kind"] for e in await told(client.here)} == {"would_nudge"}
