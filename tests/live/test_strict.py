"""Thirty steps before a model that refuses any history but its own: nudges, reasoning that the client loses,
restarts, other instances."""

import json
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from proxy import app
from tests.live.kit import Message, request_bytes, stage
from tests.live.strict import BOUND, MODELS, Agent, Strict
from tests.live.test_instances import Fleet, fleet
from tests.live.test_restart import Process, serving
from tests.stores.ledger.kit import RedisServer

NUDGING = {"repeats": {"action": "nudge"}}
REPAIRING = {**NUDGING, "thinking": {"action": "repair"}}
PLACES = [4, 6, 9]
"""Requests that are the first to carry a nudge."""


def nudged(model: Strict) -> list[int]:
    """How many texts of ours each answered request carried."""
    return [sum(one.get("role") in ("system", "developer") for one in history[1:]) for history in model.seen]


def all_well(model: Strict, *, killed: bool = False) -> None:
    """Nothing was refused. Who is killed may not have counted its last step: its nudges come later then."""
    assert model.refusals == []
    assert len(model.seen) == 30
    found = nudged(model)
    if killed:
        assert found == sorted(found)
        assert (found[2], found[3], found[-1]) == (0, 1, len(PLACES))
    else:
        assert found == [sum(step >= place for place in PLACES) for step in range(1, 31)]


@pytest.mark.parametrize("forgets", [False, True])
@pytest.mark.parametrize("name", sorted(MODELS))
async def test_a_strict_model_refuses_nothing_over_restarts(name: str, forgets: bool, tmp_path: Path) -> None:
    model = MODELS[name]()
    async with stage(tmp_path, model.respond, policies=REPAIRING) as here:
        agent = Agent(model, here.ask, forgets=forgets)
        for number in range(1, 31):
            assert (await agent.step(last=number == 30)).status == 200
            if number in (4, 13):
                await here.running.stop(0)
                here.running = await app.start(here.settings, here.warnings.append)
        all_well(model)
        assert here.warnings == []


@pytest.mark.parametrize("name", sorted(MODELS))
async def test_the_same_loop_is_refused_where_nudges_are_not_put_back(name: str, tmp_path: Path) -> None:
    """The model is as strict as it is meant to be; and what we do then."""
    model = MODELS[name]()
    async with stage(tmp_path, model.respond, policies=NUDGING) as here:
        agent = Agent(model, here.ask)
        for _ in range(4):
            await agent.step()
        (thread,) = here.running.parts.core.tracker.shelf.threads.values()
        kept, thread.nudges = thread.nudges, []
        assert (await agent.step()).status == 400
        assert BOUND in model.refusals[0]
        thread.nudges = kept
        assert (await agent.step()).status == 200


@pytest.mark.parametrize("name", sorted(MODELS))
async def test_a_client_that_forgets_is_refused_without_repair(name: str, tmp_path: Path) -> None:
    model = MODELS[name]()
    async with stage(tmp_path, model.respond) as here:
        agent = Agent(model, here.ask, forgets=True)
        assert [(await agent.step()).status for _ in range(2)] == [200, 400]


@pytest.mark.real
@pytest.mark.parametrize("forgets", [False, True])
@pytest.mark.parametrize("name", sorted(MODELS))
async def test_a_strict_model_refuses_nothing_over_instances(
    name: str, forgets: bool, tmp_path: Path, redis: RedisServer
) -> None:
    model = MODELS[name]()
    async with AsyncExitStack() as stack:
        two = await stack.enter_async_context(
            fleet(tmp_path, redis, respond=model.respond, policies=REPAIRING)
        )
        at = 0

        async def ask(target: str, body: bytes) -> Message:
            return await asked(two, at, target, body)

        agent = Agent(model, ask, forgets=forgets)
        for number in range(1, 31):
            at = 0 if number <= 8 else 1 if number <= 15 else number % 2
            if number == 5:  # gone behind the first nudge, and started again
                await gone(two.proxies[0], killed=not forgets)
                two.proxies[0] = await stack.enter_async_context(serving(two.configs[0]))
            await agent.step(last=number == 30)
        all_well(model, killed=True)


async def gone(proxy: Process, *, killed: bool) -> None:
    """Who is killed may take the newest reply along, whose reasoning only a client that keeps it then has."""
    if killed:
        await proxy.kill()
        return
    proxy.process.terminate()
    assert await proxy.process.wait() == 0


async def asked(two: Fleet, at: int, target: str, body: bytes) -> Message:
    peer = await two.proxies[at].connect()
    await peer.send(request_bytes("POST", target, [("Content-Type", "application/json")], body))
    answer = await peer.head()
    assert answer is not None
    await peer.body(answer)
    peer.close()
    assert answer.status == 200, json.dumps(answer.json())
    return answer
