"""The proxy as a process of its own: killed in mid-turn, started again, asked to stop in mid-stream."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from proxy.record import Reader, RecordMissing
from proxy.trees import Forest
from tests.live.kit import (
    LARGEST,
    LAST,
    PATIENCE_S,
    Json,
    Message,
    Peer,
    Upstream,
    frame,
    request_bytes,
    until,
)
from tests.live.loops import NAMES, Dialect, Loop, Said
from tests.live.recorded import Play, pairs

pytestmark = pytest.mark.real  # many processes: too long for every run

ROOT = Path(__file__).parents[2]


@dataclass
class Process:
    """``looptap serve`` on free ports."""

    process: asyncio.subprocess.Process
    port: int

    async def kill(self) -> None:
        self.process.kill()
        await self.process.wait()

    async def connect(self) -> Peer:
        return Peer(*await asyncio.open_connection("127.0.0.1", self.port, limit=LARGEST))

    async def ask(self, play: Play) -> Message:
        """One exchange, on a connection of its own."""
        peer = await self.connect()
        fields = pairs(play.line["request_headers"])
        await peer.send(request_bytes("POST", play.target, fields, play.request_body))
        answer = await peer.head()
        assert answer is not None
        await peer.body(answer)
        peer.close()
        return answer


@asynccontextmanager
async def serving(config: Path) -> AsyncIterator[Process]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith("LOOPTAP")}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "proxy", "--config", str(config), "--json", "serve", cwd=ROOT, env=kept,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    try:
        async with asyncio.timeout(PATIENCE_S):
            told = json.loads(await process.stdout.readline())
        yield Process(process, int(told["data_url"].rsplit(":", 1)[1]))
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


class Model:
    """An upstream that answers each request as the exchange that is under way says."""

    def __init__(self) -> None:
        self.play: Play | None = None
        self.hold = asyncio.Event()
        self.hold.set()
        self.begun = asyncio.Event()

    async def respond(self, request: Message, peer: Peer) -> None:
        play = self.play
        assert play is not None
        fields = "".join(f"{name}: {value}\r\n" for name, value in pairs(play.line["response_headers"]))
        body = play.response
        head = f"HTTP/1.1 {play.line['status']} OK\r\n{fields}Transfer-Encoding: chunked\r\n\r\n".encode()
        await peer.send(head + frame(body[: len(body) // 2]))
        self.begun.set()
        await self.hold.wait()
        await peer.send(frame(body[len(body) // 2 :]) + LAST)


@asynccontextmanager
async def model(place: Path) -> AsyncIterator[tuple[Model, Path]]:
    """A scripted upstream, and a configuration that leads to it."""
    scripted = Model()
    upstream = Upstream(scripted.respond)
    await upstream.start()
    config = place / "looptap.yaml"
    names = ("anthropic", "openai", "gemini")
    told = {
        "listen": "127.0.0.1:0",
        "admin": "127.0.0.1:0",
        "upstreams": {name: {"url": upstream.url, "api": name} for name in names},
        "store": {"path": str(place / "data")},
    }
    config.write_text(json.dumps(told))
    try:
        yield scripted, config
    finally:
        await upstream.stop()


def tree_of(place: Path) -> Json:
    with Reader(place / "data") as reader:
        return Forest(record for _, record in reader.events()).tree()


def steps_of(place: Path) -> list[Json]:
    """The steps of the only turn."""
    (session,) = tree_of(place)["sessions"]
    (thread,) = session["threads"]
    (turn,) = thread["turns"]
    found: list[Json] = turn["steps"]
    return found


def heads_hold(place: Path, steps: int, *, whole: bool = True) -> bool:
    """Whether the record knows the thread as it is after so many steps."""
    try:
        with Reader(place / "data") as reader:
            (head,) = reader.heads()
    except (RecordMissing, ValueError):
        return False
    return len(head["steps"]) == steps and bool(head["steps"][-1]["whole"]) is whole


def ids(tree: Json) -> list[Any]:
    return [
        [
            session["id"],
            [[thread["id"], [turn["id"] for turn in thread["turns"]]] for thread in session["threads"]],
        ]
        for session in tree["sessions"]
    ]


@pytest.mark.parametrize("dialect", NAMES)
async def test_a_turn_goes_on_after_a_kill(dialect: Dialect, tmp_path: Path) -> None:
    async with model(tmp_path) as (scripted, config):
        loop = Loop(dialect)
        loop.user("a long task")

        async def step(proxy: Process, said: Said) -> None:
            scripted.play = loop.ask(said)
            answer = await proxy.ask(scripted.play)
            assert (answer.status, answer.body) == (200, scripted.play.response)
            loop.took(said)

        async with serving(config) as proxy:
            for number in range(2):
                await step(proxy, Said(number, calls=(f"question {number}",)))
            await until(lambda: heads_hold(tmp_path, 2))
            before = ids(tree_of(tmp_path))
            await proxy.kill()
        async with serving(config) as proxy:
            await step(proxy, Said(2, text="done"))
            await until(lambda: heads_hold(tmp_path, 3))
            proxy.process.send_signal(signal.SIGTERM)
            assert await proxy.process.wait() == 0
    tree = tree_of(tmp_path)
    assert ids(tree) == before
    (turn,) = tree["sessions"][0]["threads"][0]["turns"]
    assert (turn["cause"], turn["open"]) == ("completed", False)
    assert [len(s["tool_results"]) for s in turn["steps"]] == [1, 1, 0]
    assert len({s["id"] for s in turn["steps"]}) == 3


@pytest.mark.parametrize("dialect", NAMES)
async def test_a_request_that_went_down_with_the_proxy_is_asked_again_as_an_attempt(
    dialect: Dialect, tmp_path: Path
) -> None:
    async with model(tmp_path) as (scripted, config):
        loop = Loop(dialect)
        loop.user("a long task")
        said = Said(0, calls=("question",))
        async with serving(config) as proxy:
            scripted.play = loop.ask(said)
            await proxy.ask(scripted.play)
            loop.took(said)
            scripted.play = loop.ask(Said(1, text="done"))
            scripted.hold.clear()
            peer = await proxy.connect()
            await peer.send(scripted.play.request)
            assert await peer.head() is not None
            await until(lambda: heads_hold(tmp_path, 2, whole=False))
            await proxy.kill()
            await peer.ended()
            peer.close()
        scripted.hold.set()
        async with serving(config) as proxy:
            answer = await proxy.ask(scripted.play)
            assert answer.body == scripted.play.response
            await until(lambda: heads_hold(tmp_path, 2))
            proxy.process.send_signal(signal.SIGTERM)
            assert await proxy.process.wait() == 0
    first, second = steps_of(tmp_path)
    assert (len(first["exchanges"]), first["stop_reason"] is None) == (1, False)
    assert second["stop_reason"] is not None
    with Reader(tmp_path / "data") as reader:
        lost, good = reader.attempts(second["id"])
        assert (lost.end, good.end) == (None, "complete")
        assert reader.body(lost.request_body) == reader.body(good.request_body) == scripted.play.request_body


async def test_a_stream_that_runs_when_the_proxy_is_asked_to_stop_comes_to_its_end(tmp_path: Path) -> None:
    async with model(tmp_path) as (scripted, config), serving(config) as proxy:
        loop = Loop("anthropic")
        loop.user("hello")
        scripted.play = loop.ask(Said(0, text="a long answer"))
        scripted.hold.clear()
        peer = await proxy.connect()
        await peer.send(scripted.play.request)
        answer = await peer.head()
        assert answer is not None
        body = await peer.chunk()
        proxy.process.send_signal(signal.SIGTERM)
        while True:  # once it takes no more connections it is stopping
            try:
                (await proxy.connect()).close()
            except ConnectionError:
                break
        scripted.hold.set()
        while piece := await peer.chunk():
            body += piece
        assert body == scripted.play.response
        peer.close()
        assert await proxy.process.wait() == 0
    (step,) = steps_of(tmp_path)
    assert step["stop_reason"] == "end_turn"
    with Reader(tmp_path / "data") as reader:
        (exchange,) = reader.exchanges()
        assert (exchange.end, reader.body(exchange.response_body)) == ("complete", body)
