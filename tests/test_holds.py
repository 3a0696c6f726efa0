"""Requests that wait for an operator: what lets them go, what refuses them, and what is told of it."""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from policies.base import Policy
from policies.tools import Tools, ToolsOptions
from proxy.chain import Chain, Link
from proxy.core import Opened
from proxy.model import ResponseHead
from proxy.money.demands import ran_ms
from proxy.money.lobby import YES
from proxy.money.purse import Posture
from proxy.ports import View
from proxy.tracker import Tracker
from proxy.tracking.heads import head, revive
from proxy.tracking.waits import waited_ns
from proxy.verdict import Claim
from tests.purse import House, budgets
from tests.test_landing import Loop

MESSAGES = "/anthropic/v1/messages"
MODEL = "claude-sonnet-4-5"
STEPS = {"name": "key", "scope": "key", "window": "total", "limits": {"steps": 1}, "on_exhausted": "hold"}
SPEND = {**STEPS, "limits": {"spend_usd": "0.01"}}
CLOCK = {"name": "turn", "scope": "turn", "limits": {"wall_clock": "1s"}, "on_exhausted": "hold"}


def asks(text: str, **more: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": text}]
    return {"model": MODEL, "max_tokens": 64, "messages": messages, **more}


def guarded(action: str = "hold") -> Chain:
    """A policy that wants an operator's word on every request that offers a shell."""
    return Chain([Link(Tools(ToolsOptions(deny=("bash",), refuse="offered")), action)])  # type: ignore[arg-type]


SHELL = {"tools": [{"name": "bash", "input_schema": {"type": "object"}}]}


async def waits(house: House, body: Mapping[str, Any]) -> "asyncio.Task[Any]":
    """Ask, and come back when the request waits."""
    before = len(house.purse.lobby)
    task = asyncio.create_task(house.ask(MESSAGES, body))
    async with asyncio.timeout(5):
        while len(house.purse.lobby) == before:
            assert not task.done(), task.result()
            await asyncio.sleep(0)
    return task


async def answered(house: House, body: Mapping[str, Any], status: int = 200) -> Opened:
    """A whole exchange."""
    opened = await house.ask(MESSAGES, body)
    assert isinstance(opened, Opened)
    finish(opened, status)
    await house.purse.drain()
    return opened


def finish(opened: Opened, status: int = 200) -> None:
    assert opened.refusal is None
    opened.sent(opened.exchange.arrived_ns)
    opened.respond(ResponseHead(status, b"OK", ((b"content-type", b"application/json"),)), 1)
    reply = {
        "id": "msg_1", "type": "message", "role": "assistant", "model": MODEL,
        "content": [{"type": "text", "text": "done"}], "stop_reason": "end_turn",
        "usage": {"input_tokens": 3, "output_tokens": 2},
    }  # fmt: skip
    opened.feed(json.dumps(reply if status == 200 else {"error": {"type": "x", "message": "no"}}).encode(), 1)
    opened.over()
    opened.close("complete", opened.exchange.arrived_ns + 1)


async def say(house: House, name: str) -> None:
    """What the operator writes into the ledger's store, as the proxy notices it."""
    await house.ledger.stop(name, now_ns=1)
    house.purse.lobby.heed(await house.ledger.stops())


def slowly(work: Any) -> Any:
    """A ledger's operation, with others in between."""

    async def done(*args: Any, **more: Any) -> Any:
        await asyncio.sleep(0)
        told = await work(*args, **more)
        await asyncio.sleep(0)
        return told

    return done


async def leave(tasks: list["asyncio.Task[Any]"]) -> None:
    """Clients that wait no longer."""
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


def waited(house: House) -> list[str]:
    """How waits ended."""
    return [str(one["verdict"]) for one in house.told("intervention") if one["kind"] == "hold_over"]


async def test_a_request_waits_for_room_and_holds_nothing_until_a_topup_makes_it() -> None:
    house = House(STEPS)
    await answered(house, asks("one"))
    task = await waits(house, asks("two"))
    (counter,) = await house.balances()
    assert (counter.used, counter.reserved) == (1, 0)
    (told,) = house.purse.lobby.listing()
    assert (told["policy"], told["model"], told["facts"]["used"], told["adds"]) == (
        "budgets",
        MODEL,
        1,
        1,
    )
    (event,) = [one for one in house.told("intervention") if one["kind"] == "hold"]
    assert (event["budget"], event["limit"], event["model"]) == ("key", 1, MODEL)
    assert [one["action"] for one in house.told("budget/exhausted")] == ["hold"]
    (line,) = house.lines
    assert line.startswith("waits for an operator (looptap allow --list): budget 'key' of key unnamed")
    await house.topup(STEPS, 1)
    house.purse.lobby.heed({})
    opened = await task
    assert (opened.refusal, waited(house), len(house.purse.lobby)) == (None, ["room"], 0)
    finish(opened)
    (counter,) = await house.balances()
    assert (counter.used, counter.limit) == (2, 2)


@pytest.mark.parametrize("budget", [STEPS, SPEND])
async def test_a_yes_raises_the_limit_by_what_the_request_needs_and_no_further(
    budget: dict[str, Any],
) -> None:
    house = House(budget)
    if budget is SPEND:
        await house.spend(SPEND, "0.0099")
    else:
        await answered(house, asks("one"))
    task = await waits(house, asks("two"))
    (told,) = house.purse.lobby.listing()
    await say(house, YES + told["id"])
    opened = await task
    assert opened.refusal is None
    (counter,) = await house.balances()
    assert counter.used + counter.reserved == counter.limit == counter.hard
    (raised,) = [one for one in house.told("intervention") if one["kind"] == "topup"]
    assert (raised["policy"], raised["budget"], raised["add"]) == ("operator", "key", told["adds"])
    assert (waited(house), await house.ledger.stops()) == (["yes"], {})
    finish(opened)
    await waits(house, asks("three"))  # the yes was to that one request


async def test_a_stop_of_its_turn_is_a_no() -> None:
    house = House(STEPS)
    await answered(house, asks("one"))
    task = await waits(house, asks("two"))
    await say(house, house.purse.lobby.listing()[0]["turn"])
    opened = await task
    assert opened.refusal is not None
    assert b"looptap_stopped" in opened.refusal.body
    assert waited(house) == ["no"]
    ends = house.told("turn/end")
    assert (ends[-1]["cause"], ends[-1]["by"], ends[-1]["steps"]) == ("interrupted", "operator", 0)


async def test_whom_nobody_answers_is_refused_in_words_and_waits_anew_the_next_time() -> None:
    house = House(STEPS, posture=Posture(patience="10m", patience_s=0))
    await answered(house, asks("one"))
    for _ in range(8):  # more often than a storm is let in
        opened = await house.ask(MESSAGES, asks("two"))
        assert isinstance(opened, Opened)
        assert opened.refusal is not None
        assert opened.refusal.status == 402
        error = json.loads(opened.refusal.body)["error"]
        assert "nobody answered" in error["message"]
        assert "It waited 10m for an operator" in error["message"]
    assert waited(house) == ["nobody"] * 8


async def test_a_client_that_leaves_while_it_waits_has_made_no_step_and_may_come_again() -> None:
    house = House(STEPS)
    await answered(house, asks("one"))
    task = asyncio.create_task(house.ask(MESSAGES, asks("two")))
    opened: list[Opened] = []
    take = house.core.open
    house.core.open = lambda *a, **k: opened.append(take(*a, **k)) or opened[-1]  # type: ignore[method-assign, func-returns-value]
    while not len(house.purse.lobby):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait({task})
    opened[0].close("client_gone", opened[0].exchange.arrived_ns + 9)
    assert (len(house.purse.lobby), waited(house)) == (0, ["gone"])
    attempt = house.told("step/attempt")[-1]
    assert (attempt["outcome"], attempt["end"], attempt["refused"]["action"]) == (
        "refused",
        "client_gone",
        "hold",
    )
    (counter,) = await house.balances()
    assert (counter.used, counter.reserved) == (1, 0)
    await house.topup(STEPS, 1)
    again = await house.ask(MESSAGES, asks("two"))
    assert isinstance(again, Opened)
    assert again.placement is not None
    assert (again.placement.relation, again.placement.attempt) == ("attempt", 1)
    finish(again)
    (counter,) = await house.balances()
    assert counter.used == 2
    assert house.told("turn/end")[-1]["steps"] == 1


async def test_a_policys_hold_lets_one_request_go_and_its_further_attempts() -> None:
    house = House(chain=guarded())
    task = await waits(house, asks("one", **SHELL))
    (told,) = house.purse.lobby.listing()
    assert (told["policy"], "adds" in told) == ("tools", False)
    await say(house, YES + told["id"])
    opened = await task
    finish(opened, 529)
    again = await answered(house, asks("one", **SHELL))  # asked again by itself
    assert again.placement is not None
    assert again.placement.step == opened.placement.step
    await waits(house, asks("two", **SHELL))
    assert waited(house) == ["yes"]


async def test_a_policys_hold_is_refused_by_a_stop_or_by_nobody() -> None:
    house = House(chain=guarded(), posture=Posture(patience_s=0))
    opened = await house.ask(MESSAGES, asks("one", **SHELL))
    assert isinstance(opened, Opened)
    assert opened.refusal is not None
    error = json.loads(opened.refusal.body)["error"]
    assert (error["looptap"]["policy"], "nobody answered" in error["message"]) == ("tools", True)
    house.purse.posture = Posture()
    task = await waits(house, asks("two", **SHELL))
    await say(house, "unnamed")
    opened = await task
    assert b"looptap_stopped" in opened.refusal.body
    assert waited(house) == ["nobody", "no"]


class Counting(Policy):
    """Has one request an hour held of its own."""

    name = "counting"

    def claims(self, view: View) -> list[Claim]:
        return [Claim("hourly", "key", "unnamed", "counted", "hour", amount=1, limit=1)]


async def test_a_yes_to_what_a_policy_claims_lets_one_request_pass_and_counts_it() -> None:
    house = House(chain=Chain([Link(Counting(), "hold")]))
    await answered(house, asks("one"))
    task = await waits(house, asks("two"))
    (told,) = house.purse.lobby.listing()
    assert (told["policy"], told["facts"]["budget"], "adds" in told) == ("counting", "counting/hourly", False)
    await say(house, YES + told["id"])
    finish(await task)
    (counter,) = await house.balances()
    assert (counter.used, counter.limit) == (2, 1)


async def test_a_yes_to_a_policy_is_none_to_a_budget() -> None:
    house = House(STEPS, chain=guarded())
    await answered(house, asks("one"))
    task = await waits(house, asks("two", **SHELL))
    (told,) = house.purse.lobby.listing()
    await say(house, YES + told["id"])
    while not (listed := house.purse.lobby.listing()) or listed[0]["policy"] != "budgets":
        await asyncio.sleep(0)
    assert not task.done()
    house.purse.lobby.heed(await house.ledger.stops())
    await house.ledger.stop(YES + told["id"], now_ns=2)
    house.purse.lobby.heed(await house.ledger.stops())
    assert (await task).refusal is None
    assert waited(house) == ["yes", "yes"]


async def test_beyond_the_room_for_bodies_nobody_waits() -> None:
    house = House(STEPS, posture=Posture(waiting_bytes=0))
    await answered(house, asks("one"))
    opened = await house.ask(MESSAGES, asks("two"))
    assert isinstance(opened, Opened)
    assert opened.refusal is not None
    assert b"Too many requests wait for an operator" in opened.refusal.body
    assert waited(house) == []


async def test_what_nobody_reads_has_no_turn_to_wait_in_and_is_refused() -> None:
    house = House(SPEND, posture=Posture(unmodelled=2 * 10**9))
    refused = await house.ask("/openai/v1/images/generations", {"model": "x", "prompt": "y"})
    assert isinstance(refused, Opened)
    assert refused.refusal is not None
    assert b"looptap_budget_exceeded" in refused.refusal.body
    assert (len(house.purse.lobby), [one["action"] for one in house.told("budget/exhausted")]) == (
        0,
        ["deny"],
    )


async def test_where_nothing_acts_it_is_told_and_nobody_waits() -> None:
    house = House(STEPS, posture=Posture(enforce=False), chain=Chain(guarded().links, mode="observe"))
    await answered(house, asks("one"))
    await answered(house, asks("two", **SHELL))
    kinds = [(one["policy"], one["kind"]) for one in house.told("intervention")]
    assert kinds == [("tools", "would_hold"), ("budgets", "would_hold")]


async def test_who_waits_when_we_go_is_told_to_come_again_and_its_turn_stays_open() -> None:
    house = House(STEPS)
    await answered(house, asks("one"))
    tasks = [await waits(house, asks(text)) for text in ("two", "three")]
    house.purse.lobby.close()
    for task in tasks:
        opened = await task
        assert (opened.refusal.status, b"looptap_stopping" in opened.refusal.body) == (429, True)
        assert (b"retry-after", b"1") in opened.refusal.headers
    assert (waited(house), len(house.told("turn/end"))) == (["shutdown", "shutdown"], 1)


async def test_parallel_requests_all_wait_and_each_goes_by_itself() -> None:
    house = House(STEPS)
    await answered(house, asks("one"))
    tasks = [await waits(house, asks("two")) for _ in range(3)]  # best of three
    ids = [one["id"] for one in house.purse.lobby.listing()]
    await say(house, YES + ids[1])
    assert (await tasks[1]).refusal is None
    assert [task.done() for task in tasks] == [False, True, False]
    await say(house, YES + ids[0])
    assert (await tasks[0]).refusal is None
    assert not tasks[2].done()
    tasks[2].cancel()


SECOND_NS = 1_000_000_000


async def test_a_yes_lets_go_whom_it_was_said_to_and_nobody_beside(monkeypatch: pytest.MonkeyPatch) -> None:
    house = House(STEPS)
    await answered(house, asks("one"))
    tasks = [await waits(house, asks(f"more {number}")) for number in range(8)]
    ids = [one["id"] for one in house.purse.lobby.listing()]
    for name in ("reserve", "topup", "resume"):
        monkeypatch.setattr(house.ledger, name, slowly(getattr(house.ledger, name)))
    for one in ids[1::2]:
        await house.ledger.stop(YES + one, now_ns=1)
    house.purse.lobby.heed(await house.ledger.stops())
    async with asyncio.timeout(5):
        for task in tasks[1::2]:
            finish(await task)
    assert [one["id"] for one in house.purse.lobby.listing()] == ids[0::2]
    assert (waited(house), house.purse.lobby.raising) == (["yes"] * 4, set())
    (counter,) = await house.balances()
    assert (counter.used, counter.limit, counter.reserved) == (5, 5, 0)
    await leave(tasks[0::2])


async def test_a_yes_stands_until_its_request_is_out(monkeypatch: pytest.MonkeyPatch) -> None:
    house = House(STEPS)
    await answered(house, asks("one"))
    task = await waits(house, asks("two"))
    topup, newcomers = house.ledger.topup, list[Opened]()

    async def overtaken(*args: Any, **more: Any) -> Any:
        raised = await topup(*args, **more)
        if not newcomers:
            newcomers.append(await answered(house, asks("a newcomer")))
        return raised

    monkeypatch.setattr(house.ledger, "topup", overtaken)
    await say(house, YES + house.purse.lobby.listing()[0]["id"])
    async with asyncio.timeout(5):
        finish(await task)
    (counter,) = await house.balances()
    assert (counter.used, counter.limit, waited(house)) == (3, 3, ["yes"])


async def test_who_waits_obeys_the_settings_that_hold_by_now() -> None:
    last = {"name": "turn", "scope": "turn", "limits": {"steps": 2}, "on_exhausted": "land"}
    key = {**STEPS, "limits": {"steps": 2}}
    house = House(key, last)
    loop = Loop(house)
    for _ in range(2):  # the second is the turn's last step
        await loop.step()
    task = asyncio.create_task(loop.ask())
    while not house.purse.lobby:
        await asyncio.sleep(0)
    house.purse.rules = budgets(key)
    await house.topup(key, 1)
    house.purse.lobby.heed({})
    assert (await task).refusal is None
    assert {one.name: one.reserved for one in await house.balances() if one.dimension == "steps"} == {
        "key": 1, "turn": 1,
    }  # fmt: skip

    house = House(STEPS, chain=guarded())
    task = await waits(house, {**asks("x"), **SHELL})
    house.purse.posture = Posture(enforce=False)
    house.purse.lobby.heed({})
    assert (await task).refusal is None
    assert (waited(house), len(house.purse.lobby)) == (["room"], 0)


async def test_no_clock_runs_while_a_request_waits() -> None:
    house = House(CLOCK)
    opened = await house.ask(MESSAGES, asks("one"))
    assert isinstance(opened, Opened)
    placement = opened.placement
    assert placement is not None
    tracker: Tracker = house.core.tracker
    thread, at = placement.thread_state, opened.exchange.arrived_ns
    tracker.hold(placement, at)
    tracker.let_go(placement, at + 5 * SECOND_NS)
    clocks = (placement.step_state, placement.step_state.turn, thread, thread.session)
    assert [waited_ns(one, at + 9 * SECOND_NS) for one in clocks] == [5 * SECOND_NS] * 4
    assert ran_ms(placement, at + 9 * SECOND_NS) == dict.fromkeys(
        ("step", "turn", "thread", "session"), 4_000
    )
    other = replace(placement)
    tracker.hold(placement, at + 10 * SECOND_NS)
    tracker.hold(other, at + 11 * SECOND_NS)  # both at once: the clock stands once
    tracker.let_go(placement, at + 12 * SECOND_NS)
    assert waited_ns(thread, at + 13 * SECOND_NS) == 8 * SECOND_NS
    tracker.let_go(other, at + 14 * SECOND_NS)
    again = revive(json.loads(json.dumps(head(thread))), House().core.tracker.shelf)
    assert again is not None
    assert again.turn is not None
    assert [waited_ns(one, 0) for one in (again, again.turn, again.session)] == [9 * SECOND_NS] * 3
