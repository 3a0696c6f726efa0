"""Several proxies as processes of their own on one Redis: one turn, whichever of them its steps come to."""

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from proxy.record import Reader
from proxy.trees import Forest
from tests.live.kit import Json, Respond, Upstream, until
from tests.live.loops import NAMES, Dialect, Loop, Said
from tests.live.test_restart import Model, Process, serving
from tests.stores.ledger.kit import RedisServer

pytestmark = pytest.mark.real


class Fleet:
    """Some instances, the model behind them, and what each of them recorded."""

    def __init__(self, place: Path, model: Model, configs: list[Path]) -> None:
        self.place = place
        self.model = model
        self.configs = configs
        self.proxies: list[Process] = []

    async def step(self, at: int, loop: Loop, said: Said, status: int = 200) -> Any:
        """One request of a loop to one instance, and its answer taken in."""
        play = self.model.play = loop.ask(said)
        answer = await self.proxies[at].ask(play)
        assert answer.status == status, answer.body
        if status == 200:
            assert answer.body == play.response
            loop.took(said)
        return json.loads(answer.body) if status != 200 else None

    async def stop(self) -> list[Json]:
        """End those that still run, and read what each of them recorded."""
        running = [at for at, proxy in enumerate(self.proxies) if proxy.process.returncode is None]
        for at in running:
            self.proxies[at].process.terminate()
            assert await self.proxies[at].process.wait() == 0
        return [self.tree(at) for at in running]

    def tree(self, at: int) -> Json:
        with Reader(self.place / f"data{at}") as reader:
            return Forest(record for _, record in reader.events()).tree()


@asynccontextmanager
async def fleet(
    place: Path, redis: RedisServer, size: int = 2, respond: Respond | None = None, **more: Any
) -> AsyncIterator[Fleet]:
    redis.command("FLUSHALL")
    scripted = Model()
    upstream = Upstream(respond or scripted.respond)
    await upstream.start()
    configs = []
    for at in range(size):
        told = {
            "listen": "127.0.0.1:0",
            "admin": "127.0.0.1:0",
            "upstreams": {
                name: {"url": upstream.url, "api": name} for name in ("anthropic", "openai", "gemini")
            },
            "store": {"path": str(place / f"data{at}")},
            "ledger": {"url": redis.url},
            "prices": [{"model": "*", "input": 1, "output": 1}],
            **more,
        }
        configs.append(place / f"looptap{at}.yaml")
        configs[-1].write_text(json.dumps(told))
    running = Fleet(place, scripted, configs)
    try:
        async with AsyncExitStack() as stack:
            for config in configs:
                running.proxies.append(await stack.enter_async_context(serving(config)))
            yield running
    finally:
        await upstream.stop()


def only_turn(tree: Json) -> tuple[str, str, Json]:
    (session,) = tree["sessions"]
    (thread,) = session["threads"]
    (turn,) = thread["turns"]
    return session["id"], thread["id"], turn


STEPS = {"budgets": [{"name": "turn", "scope": "turn", "limits": {"steps": 6}}]}


@pytest.mark.parametrize("dialect", NAMES)
async def test_one_loop_over_two_instances_is_one_turn_under_one_cap(
    dialect: Dialect, tmp_path: Path, redis: RedisServer
) -> None:
    async with fleet(tmp_path, redis, **STEPS) as two:
        loop = Loop(dialect)
        loop.user("a long task")
        for number in range(6):
            await two.step(number % 2, loop, Said(number, calls=(f"question {number}",)))
        for at in range(2):
            refused = await two.step(
                at, loop, Said(9, text="done"), status=402 if dialect == "anthropic" else 400
            )
            assert "6 of 6 steps" in refused["error"]["message"]
        one, other = await two.stop()
    session, thread, turn = only_turn(one)
    assert (session, thread, turn["id"]) == (*only_turn(other)[:2], only_turn(other)[2]["id"])
    assert len(turn["steps"]) == len(only_turn(other)[2]["steps"]) == 3
    assert {step["id"] for step in turn["steps"]}.isdisjoint(
        step["id"] for step in only_turn(other)[2]["steps"]
    )
    assert turn["cause"] == only_turn(other)[2]["cause"] == "steps"


class Chain:
    """A client that leaves its history to the provider and sends what is new."""

    def __init__(self) -> None:
        self.inner = Loop("responses", more={"store": True})
        self.previous: str | None = None

    def user(self, text: str) -> None:
        self.inner.user(text)

    def ask(self, said: Said) -> Any:
        if self.previous is not None:
            self.inner.more["previous_response_id"] = self.previous
        play = self.inner.ask(said)
        for line in play.response.decode().splitlines():
            if line.startswith("data: ") and "response.completed" in line:
                self.previous = json.loads(line[6:])["response"]["id"]
        return play

    def took(self, said: Said) -> None:
        self.inner.history.clear()
        before = len(self.inner.history)
        self.inner.took(said)
        self.inner.history[before:] = [
            item for item in self.inner.history if item.get("type") == "function_call_output"
        ]


async def test_a_history_held_by_the_provider_goes_on_at_another_instance(
    tmp_path: Path, redis: RedisServer
) -> None:
    async with fleet(tmp_path, redis, **STEPS) as two:
        loop: Any = Chain()
        loop.user("a long task")
        for number in range(4):
            await two.step(number % 2, loop, Said(number, calls=(f"question {number}",)))
        await two.step(0, loop, Said(4, text="done"))
        one, other = await two.stop()
    assert only_turn(one)[:2] == only_turn(other)[:2]
    assert only_turn(one)[2]["id"] == only_turn(other)[2]["id"]
    assert [len(only_turn(tree)[2]["steps"]) for tree in (one, other)] == [3, 2]


@pytest.mark.parametrize("dialect", ["anthropic", "responses"])
async def test_an_instance_killed_in_mid_turn_leaves_its_turn_to_the_other(
    dialect: Dialect, tmp_path: Path, redis: RedisServer
) -> None:
    async with fleet(tmp_path, redis, **STEPS) as two:
        loop = Loop(dialect)
        loop.user("a long task")
        for number in range(3):
            await two.step(number % 2, loop, Said(number, calls=(f"question {number}",)))
        play = two.model.play = loop.ask(Said(3, calls=("question 3",)))
        two.model.hold.clear()
        peer = await two.proxies[0].connect()
        await peer.send(play.request)
        assert await peer.head() is not None
        await two.proxies[0].kill()
        await peer.ended()
        peer.close()
        two.model.hold.set()
        for number in (3, 4, 5):  # the client asks again, and the same step goes on
            await two.step(1, loop, Said(number, calls=(f"question {number}",)))
        await two.step(1, loop, Said(6), status=402 if dialect == "anthropic" else 400)
        (tree,) = await two.stop()
    _, _, turn = only_turn(tree)
    assert turn["cause"] == "steps"
    assert [len(step["exchanges"]) for step in turn["steps"]] == [1, 1, 1, 1]


async def test_a_sub_agent_at_another_instance_is_charged_to_its_parents_turn(
    tmp_path: Path, redis: RedisServer
) -> None:
    session = {"x-claude-code-session-id": "run-1", "user-agent": "claude-cli/2.0.0"}
    async with fleet(tmp_path, redis, **STEPS) as two:
        main = Loop("anthropic", headers=session)
        main.user("a long task")
        await two.step(0, main, Said(0, calls=("go and look into every corner",)))
        agent = Loop("anthropic", headers={**session, "x-claude-code-agent-id": "helper"})
        agent.user("look into it")
        for number in range(1, 5):
            await two.step(1 - number % 2, agent, Said(number, calls=(f"question {number}",)))
        await two.step(1, main, Said(5, calls=("question",)))
        await two.step(0, agent, Said(6), status=402)
        await two.step(0, main, Said(7), status=402)
        trees = await two.stop()
    sessions = {session["id"] for tree in trees for session in tree["sessions"]}
    threads = {thread["id"]: thread for tree in trees for s in tree["sessions"] for thread in s["threads"]}
    assert len(sessions) == 1
    assert sorted(thread["kind"] for thread in threads.values()) == ["main", "subagent"]


async def test_without_redis_each_instance_goes_on_by_itself(tmp_path: Path) -> None:
    server = RedisServer()
    server.start()
    try:
        async with fleet(tmp_path, server) as two:
            loop = Loop("anthropic")
            loop.user("a long task")
            await two.step(0, loop, Said(0, calls=("question 0",)))
            server.kill()
            await two.step(0, loop, Said(1, calls=("question 1",)))
            await two.step(1, loop, Said(2, calls=("question 2",)))
            server.start()

            def all_told() -> bool:
                return server.command("ZCARD", "looptap:{threads}:used").startswith(b":2")

            await until(all_told)
            await two.step(0, loop, Said(3, text="done"))
            one, other = await two.stop()
        _, _, turn = only_turn(other)
        assert other["sessions"][0]["threads"][0]["partial"]
        turns = {t["id"]: t for session in one["sessions"] for t in session["threads"][0]["turns"]}
        assert [len(t["steps"]) for t in (*turns.values(), turn)] == [2, 1, 1]
        assert turns[turn["id"]]["cause"] == "completed"  # it went on from where the other had come to
    finally:
        server.close()
