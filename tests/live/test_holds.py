"""Requests that wait for an operator, through a running proxy: no byte passes before the verdict."""

import asyncio
import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.live.kit import Json, Message, Peer, Stage, bare, request_bytes, stage, until
from tests.live.loops import NAMES, Dialect, Loop, Said
from tests.live.recorded import pairs
from tests.live.test_restart import Model

TURN: Json = {"name": "turn", "scope": "turn", "limits": {"steps": 2}, "on_exhausted": "hold"}


async def post(live: Stage, path: str, value: Json | None = None) -> Any:
    """Ask the admin port; with a value: order something."""
    base, _, token = live.running.admin_url.partition("/?token=")
    fields = {"Authorization": f"Bearer {token}"}
    async with aiohttp.ClientSession(headers=fields) as session:
        method = "GET" if value is None else "POST"
        async with session.request(method, f"{base}/api/v1/{path}", json=value) as answer:
            assert answer.status == 200, await answer.text()
            return await answer.json()


def lobby(live: Stage) -> list[Json]:
    return live.running.parts.treasury.held()


class Agent:
    """A client's loop, of which one request after the other is sent on a connection of its own."""

    def __init__(self, live: Stage, model: Model, dialect: Dialect) -> None:
        self.live, self.model, self.loop = live, model, Loop(dialect)
        self.number = 0
        self.loop.user("a long task")

    def next(self) -> tuple[Said, bytes]:
        said = Said(self.number, calls=(f"question {self.number}",))
        self.number += 1
        play = self.model.play = self.loop.ask(said)
        fields = pairs(play.line["request_headers"])
        return said, request_bytes("POST", play.target, fields, play.request_body)

    async def step(self) -> None:
        """One whole step."""
        said, data = self.next()
        peer = await self.live.connect()
        await peer.send(data)
        assert (await answer(peer)).status == 200
        self.loop.took(said)
        await self.live.idle()

    async def wait(self) -> tuple[Said, Peer]:
        """Send the next request, which has to wait."""
        before = len(lobby(self.live))
        said, data = self.next()
        peer = await self.live.connect()
        await peer.send(data)
        await until(lambda: len(lobby(self.live)) > before)
        return said, peer


async def answer(peer: Peer) -> Message:
    head = await peer.head()
    assert head is not None
    await peer.body(head)
    peer.close()
    return head


@pytest.mark.parametrize(
    "dialect", [NAMES[0], *(pytest.param(one, marks=pytest.mark.real) for one in NAMES[1:])]
)
async def test_nothing_passes_before_a_yes_and_the_turn_goes_on_after_it(
    dialect: Dialect, tmp_path: Path
) -> None:
    model = Model()
    async with stage(tmp_path, model.respond, budgets=[TURN]) as live:
        agent = Agent(live, model, dialect)
        await agent.step()
        await agent.step()
        said, peer = await agent.wait()
        (told,) = await post(live, "held")
        await live.running.flush()
        (row,) = await post(live, "turns")
        assert (told["facts"]["budget"], told["adds"], told["turn"], row["held"]) == (
            "turn",
            1,
            row["id"],
            True,
        )
        assert (len(live.upstream.seen), peer.reader._buffer) == (2, b"")  # type: ignore[attr-defined]
        done = await post(live, "allow", {"id": told["id"]})
        assert (done["id"], done["budget"], done["adds"]) == (told["id"], "turn", 1)
        assert (await answer(peer)).status == 200
        agent.loop.took(said)
        await live.idle()
        said, peer = await agent.wait()
        await post(live, "stop", {"id": row["id"]})
        assert b"looptap_stopped" in (await answer(peer)).body
        await live.idle()
        tree = await live.live_tree()
        (turn,) = tree["sessions"][0]["threads"][0]["turns"]
        assert (turn["cause"], len(turn["steps"])) == ("interrupted", 3)
        log = await live.write_log(tmp_path / "log.jsonl")
        assert ["t_verdict" in json.loads(line) for line in log.read_text().splitlines()] == [
            False, False, True, True,
        ]  # fmt: skip
        assert bare(live.replay(log)) == bare(tree)


async def test_what_a_policy_held_is_replayed_as_it_was(tmp_path: Path) -> None:
    model = Model()
    wanted = {"tools": {"deny": ["look"], "refuse": "offered", "action": "hold"}}
    async with stage(tmp_path, model.respond, policies=wanted) as live:
        agent = Agent(live, model, "anthropic")
        said, peer = await agent.wait()
        await post(live, "allow", {"id": lobby(live)[0]["id"]})
        assert (await answer(peer)).status == 200
        agent.loop.took(said)
        await live.idle()
        said, peer = await agent.wait()
        await post(live, "stop", {"id": lobby(live)[0]["turn"]})
        assert b"looptap_stopped" in (await answer(peer)).body
        await live.idle()
        tree = await live.live_tree()
        (turn,) = tree["sessions"][0]["threads"][0]["turns"]
        assert (turn["cause"], turn["by"], len(turn["steps"])) == ("interrupted", "operator", 1)
        assert bare(live.replay(await live.write_log(tmp_path / "log.jsonl"))) == bare(tree)


async def test_a_client_that_leaves_and_comes_back_is_replayed_as_it_was(tmp_path: Path) -> None:
    model = Model()
    async with stage(tmp_path, model.respond, budgets=[TURN]) as live:
        agent = Agent(live, model, "anthropic")
        await agent.step()
        await agent.step()
        said, peer = await agent.wait()
        peer.close()
        await until(lambda: not lobby(live))
        await live.idle()
        agent.number -= 1
        said, peer = await agent.wait()
        (told,) = lobby(live)
        await post(live, "topup", {"budget": "turn", "subject": told["turn"], "add": 1})
        assert (await answer(peer)).status == 200
        agent.loop.took(said)
        await live.idle()
        tree = await live.live_tree()
        (turn,) = tree["sessions"][0]["threads"][0]["turns"]
        assert [step["exchanges"] for step in turn["steps"]] == [[0], [1], [2, 3]]
        log = await live.write_log(tmp_path / "log.jsonl")
        lines = [json.loads(line) for line in log.read_text().splitlines()]
        assert (lines[2]["end"], lines[2]["status"], lines[2]["t_verdict"]) == ("client_gone", None, None)
        assert bare(live.replay(log)) == bare(tree)


async def test_a_log_has_who_waited_where_it_came_and_a_replay_lets_it_wait_as_long(tmp_path: Path) -> None:
    model = Model()
    async with stage(tmp_path, model.respond, budgets=[TURN]) as live:
        agent, other = Agent(live, model, "anthropic"), Agent(live, model, "chat")
        await agent.step()
        await agent.step()
        _, peer = await agent.wait()
        asked = model.play
        _, data = other.next()
        beside = await live.connect()
        await beside.send(data)
        assert (await answer(beside)).status == 200
        model.play = asked
        (told,) = await post(live, "held")
        await post(live, "allow", {"id": told["id"]})
        assert (await answer(peer)).status == 200
        await live.idle()
        log = await live.write_log(tmp_path / "log.jsonl")
        lines = [json.loads(line) for line in log.read_text().splitlines()]
        assert ["t_verdict" in line for line in lines] == [False, False, True, False]
        assert lines[2]["t"] < lines[3]["t"] < lines[3]["t_end"] < lines[2]["t_verdict"] <= lines[2]["t_end"]
        assert bare(live.replay(log)) == bare(await live.live_tree())


async def test_who_waits_when_the_proxy_stops_is_answered(tmp_path: Path) -> None:
    model = Model()
    async with stage(tmp_path, model.respond, budgets=[TURN]) as live:
        agent = Agent(live, model, "anthropic")
        await agent.step()
        await agent.step()
        _, peer = await agent.wait()
        stopped = asyncio.create_task(live.running.stop(30))
        told = await answer(peer)
        assert (told.status, b"looptap_stopping" in told.body) == (429, True)
        await stopped
