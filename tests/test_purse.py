"""What the purse does about one exchange: cut in time, refused at the door, let through after a top-up."""

import asyncio
import json
import re
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from policies.budgets import Budget
from proxy.core import Opened
from proxy.model import Exchange, Identity, ResponseHead
from proxy.money import deferred
from proxy.money.purse import Posture
from proxy.money.storms import Storms
from proxy.verdict import Claim, Grant, Reply
from proxy.wire.guard import Asked
from tests.live.kit import Json
from tests.live.loops import NAMES, Dialect, Loop, Said
from tests.purse import House

EVENT = re.compile(rb".*?(?:\r?\n){2}", re.DOTALL)
SOON = Budget("turn", "turn", "life", {"wall_clock": 1}, on_exhausted="cut")
"""One millisecond. Nothing else runs between the answer to ``ask`` and the next await."""
HOUR_NS = 3_600_000_000_000
MESSAGES = "/anthropic/v1/messages"


@pytest.mark.parametrize("dialect", NAMES)
@pytest.mark.parametrize("missing", [0, 1, 2])
async def test_a_reply_is_cut_in_time_unless_all_of_it_has_come(dialect: Dialect, missing: int) -> None:
    """In chat completions the choice ends two events before the end mark."""
    house, loop = House(SOON), Loop(dialect)
    loop.user("a long task")
    play = loop.ask(Said(0, text="an answer", calls=("one",)))
    opened = await house.ask(play.target, play.request_body, ahead_ns=HOUR_NS)  # however slow this machine is
    assert isinstance(opened, Opened)
    opened.on_cut = lambda: None
    opened.respond(ResponseHead(200, b"OK", ((b"content-type", b"text/event-stream"),)), 1)
    events = EVENT.findall(play.response)
    for event in events[: len(events) - missing]:
        opened.feed(event, 2)
    await opened.tab.clock  # type: ignore[union-attr, misc]
    whole = missing <= {"anthropic": 0, "chat": 2, "responses": 0, "gemini": 0}[dialect]
    assert (opened.ended_by is None) is whole
    assert [one["action"] for one in house.told("budget/exhausted")] == ([] if whole else ["cut"])


async def test_what_its_client_has_is_not_cut_though_it_is_not_closed_yet() -> None:
    house = House(SOON)
    opened = await house.ask(MESSAGES, asks("a task"), ahead_ns=HOUR_NS)
    assert isinstance(opened, Opened)
    opened.on_cut = lambda: None
    opened.respond(ResponseHead(200, b"OK", ((b"content-type", b"application/json"),)), 1)
    opened.feed(b"{", 2)
    opened.over()
    await opened.tab.clock  # type: ignore[union-attr, misc]
    assert (opened.ended_by, house.told("budget/exhausted")) == (None, [])


# -- refused at the door


STEPS = {"name": "key", "scope": "key", "window": "total", "limits": {"steps": 1}}
SPEND = {"name": "key", "scope": "key", "window": "total", "limits": {"spend_usd": "0.01"}}
TURN = {"name": "turn", "scope": "turn", "limits": {"steps": 3}}
CUSTOMER = {"name": "customer", "scope": "label:customer", "window": "total", "limits": {"steps": 1}}


def asks(text: str, *before: Json, **more: Any) -> Json:
    messages = [*before, {"role": "user", "content": text}]
    return {"model": "claude-sonnet-4-5", "max_tokens": 64, "messages": messages, **more}


async def refuse(house: House, count: int, body: Callable[[int], Json]) -> list[Reply]:
    """Ask so often; every answer is a refusal."""
    said = [await house.ask(MESSAGES, body(number)) for number in range(count)]
    replies = [one.refusal if isinstance(one, Opened) else one for one in said]
    assert None not in replies
    return [reply for reply in replies if reply is not None]


def plain(reply: Reply) -> tuple[Any, ...]:
    """A refusal less the id that it bears, and less what it counts down to."""
    kept = [(name, re.sub(rb"exc_\w+", b"", value)) for name, value in reply.headers]
    return reply.status, kept, re.sub(rb"exc_\w+|\"created(_at)?\":\d+", b"", reply.body)


async def finish(opened: Opened | Reply, words: str = "an answer of some length") -> Json:
    """A whole reply comes; it as a message of the history."""
    assert isinstance(opened, Opened)
    content = [{"type": "text", "text": words}]
    told = {
        "id": "msg_1", "type": "message", "role": "assistant", "model": "claude-sonnet-4-5",
        "content": content, "stop_reason": "end_turn", "stop_sequence": None,
        "usage": {"input_tokens": 9, "output_tokens": 9},
    }  # fmt: skip
    opened.respond(ResponseHead(200, b"OK", ((b"content-type", b"application/json"),)), 1)
    opened.feed(json.dumps(told).encode(), 2)
    opened.close("complete", opened.exchange.arrived_ns)
    return {"role": "assistant", "content": content}


@pytest.mark.parametrize("dialect", NAMES)
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("on_exhausted", ["deny", "message"])
async def test_who_is_refused_at_the_door_reads_the_same_as_who_is_refused_inside(
    dialect: Dialect, stream: bool, on_exhausted: str
) -> None:
    house = House({**STEPS, "on_exhausted": on_exhausted})
    said = []
    for number in range(30):
        loop = Loop(dialect, stream)
        loop.user(f"task {number}")
        said.append(await house.ask(loop.ask(Said(0, text="x")).target, json.dumps(loop.body()).encode()))
    inside, at_the_door = said[1:20], said[22:]
    assert [type(one) for one in inside] == [Opened] * 19
    assert {str(plain(one)) for one in at_the_door if isinstance(one, Reply)} == {
        str(plain(one.refusal)) for one in inside if isinstance(one, Opened) and one.refusal is not None
    }


async def test_what_an_answer_that_is_complete_had_held_refuses_nobody_at_the_door() -> None:
    house = House(SPEND)
    held = await house.ask(MESSAGES, asks("a task", max_tokens=600))
    await refuse(house, 30, lambda number: asks(f"task {number}", max_tokens=600))

    async def caught_up() -> None:
        await finish(held)

    house.purse.door.caught_up = caught_up
    opened = await house.ask(MESSAGES, asks("another task", max_tokens=600))
    assert isinstance(opened, Opened)
    assert opened.refusal is None


@pytest.mark.parametrize("budget", [STEPS, SPEND])
async def test_ERR_01_a_conversation_that_says_it_otherwise_each_time_is_only_counted(budget: Json) -> None:
    house = House(budget, TURN)
    first = asks("a task")
    answer = await finish(await house.ask(MESSAGES, first))
    grown = [*first["messages"], answer]
    if budget is SPEND:
        await house.spend(budget, "0.0097")
    said = await refuse(house, 100, lambda number: asks(f"please try again ({number})", *grown))
    assert {reply.status for reply in said} == {402}
    assert house.opened < 40  # twenty-two, and one for each time that this machine stood still for seconds
    assert len(house.told("budget/exhausted")) == 1
    house.purse.book.tell_rest(2**62)
    more = [event["more"] for event in house.told("budget/exhausted") if "more" in event]
    assert 1 + sum(more) == 100
    assert len(house.lines) == 2
    assert [event["cause"] for event in house.told("turn/end")][-1] == budget_cause(budget)
    await house.topup(budget, 1)
    opened = await house.ask(MESSAGES, asks("please try again (100)", *grown))
    assert isinstance(opened, Opened)
    assert opened.refusal is None
    await finish(opened)
    steps = next(one for one in await house.balances() if one.name == "turn" and one.used)
    turns = {record.turn for record in house.records if record.type == "turn/resume"}
    assert (len(turns), steps.subject in turns, steps.used, steps.reserved) == (1, True, 1, 0)


def budget_cause(budget: Json) -> str:
    return "steps" if budget is STEPS else "spend"


async def test_what_costs_no_step_passes_the_door_of_a_budget_of_steps() -> None:
    house = House(STEPS)
    first = await house.ask(MESSAGES, asks("a task"))
    assert isinstance(first, Opened)
    first.close("upstream_reset", first.exchange.arrived_ns)  # its retry is no step of its own
    await refuse(house, 40, lambda number: asks(f"question {number}"))
    counted = await house.ask(MESSAGES + "/count_tokens", asks("question"))
    again = await house.ask(MESSAGES, asks("a task"))
    for one in (counted, again):
        assert isinstance(one, Opened)
        assert one.refusal is None


async def test_what_went_out_once_is_no_further_step_though_others_of_its_thread_are_refused() -> None:
    house = House(STEPS)
    first = await house.ask(MESSAGES, asks("a task"))
    assert isinstance(first, Opened)
    first.close("upstream_reset", first.exchange.arrived_ns)
    await refuse(house, 40, lambda number: asks(f"or rather {number}", *asks("a task")["messages"]))
    assert house.opened < 30
    again = await house.ask(MESSAGES, asks("a task"))
    assert isinstance(again, Opened)
    assert again.refusal is None


async def test_what_another_instance_sent_in_vain_passes_the_door_of_a_budget_of_steps() -> None:
    there, here = House(STEPS), House(STEPS)
    for _ in range(99):
        there.exchange(MESSAGES)  # else ids here and there would be the same
    sent = await there.ask(MESSAGES, asks("a task"))
    assert isinstance(sent, Opened)
    assert sent.placement is not None
    sent.close("upstream_reset", sent.exchange.arrived_ns)
    head = json.loads(json.dumps(there.core.tracker.shared_head(sent.placement.thread_state)))

    async def look(exchange: Exchange, asked: Asked) -> None:
        here.core.tracker.absorb([head], exchange.arrived_ns)

    await finish(await here.ask(MESSAGES, asks("another task")))
    await refuse(here, 25, lambda number: asks(f"question {number}"))
    here.purse.door.look = look
    again = await here.ask(MESSAGES, asks("a task"))
    assert isinstance(again, Opened)
    assert again.refusal is None
    assert isinstance(await here.ask(MESSAGES, asks("one more question")), Reply)


async def test_where_budgets_only_observe_a_lifted_stop_leaves_nothing_refused_at_the_door() -> None:
    house = House(STEPS, posture=Posture(enforce=False))
    await finish(await house.ask(MESSAGES, asks("a task")))
    await house.ledger.stop("unnamed", now_ns=1)
    await refuse(house, 10, lambda _: asks("the same"))
    assert house.opened < 10
    assert await house.ledger.resume("unnamed", now_ns=2)
    opened = await house.ask(MESSAGES, asks("the same"))
    assert isinstance(opened, Opened)
    assert opened.refusal is None


async def test_of_a_refused_request_no_long_option_is_remembered() -> None:
    storms, schema = Storms(), {"type": "object", "description": "x" * 10_000}
    house, loop = House(STEPS), Loop("chat", more={"n": 2, "response_format": schema})
    loop.user("a task")
    opened = await house.ask(loop.ask(Said(0, text="x")).target, json.dumps(loop.body()).encode())
    assert isinstance(opened, Opened)
    assert opened.dialect is not None
    assert opened.request is not None
    for _ in range(5):
        storms.note(opened.exchange, b"", opened.dialect, opened.request, (), ())
    known = storms.find(opened.exchange, b"")
    assert known is not None
    assert (known.request.options["n"], known.request.options.get("response_format")) == (2, None)


async def test_a_stop_refuses_at_the_door_until_it_is_lifted() -> None:
    house = House()
    await house.ledger.stop("unnamed", now_ns=1)
    said = await refuse(house, 50, lambda number: asks(f"question {number}"))
    assert {b"looptap_stopped" in reply.body for reply in said} == {True}
    assert house.opened <= 21
    assert await house.ledger.resume("unnamed", now_ns=2)
    opened = await house.ask(MESSAGES, asks("question"))
    assert isinstance(opened, Opened)
    assert opened.refusal is None


async def test_at_the_door_each_falls_under_its_own_label() -> None:
    house = House(CUSTOMER)
    who = [Identity(labels={"customer": name} if name else {}) for name in ("c1", "c2", "")]
    for one in who[::2]:
        for number in range(40):
            await house.ask(MESSAGES, asks(f"question {number}"), identity=one)
    assert house.opened <= 2 * 22
    opened = await house.ask(MESSAGES, asks("question"), identity=who[1])
    assert isinstance(opened, Opened)
    assert opened.refusal is None


async def test_of_many_at_the_door_the_ledger_is_asked_for_the_least() -> None:
    """All at once: the small one fits, the large ones do not."""
    house = House(SPEND)
    await house.spend(SPEND, "0.005")
    large = {"max_tokens": 60_000}
    await refuse(house, 30, lambda number: asks(f"question {number}", **large))
    asked = [house.ask(MESSAGES, asks(f"more {number}", **large)) for number in range(5)]
    *refused, small = await asyncio.gather(*asked, house.ask(MESSAGES, asks("little")))
    assert isinstance(small, Opened)
    assert small.refusal is None
    for one in refused:
        assert isinstance(one, Reply) or one.refusal is not None


@pytest.mark.parametrize("budget", [STEPS, SPEND])
async def test_to_ask_at_the_door_takes_nothing_from_others(budget: Json) -> None:
    house, held = House(budget), []
    reserve = house.ledger.reserve
    await finish(await house.ask(MESSAGES, asks("a task")))
    if budget is SPEND:
        await house.spend(budget, "0.0097")
    await refuse(house, 30, lambda number: asks(f"question {number}", max_tokens=1000))

    async def told(claims: Sequence[Claim], **more: Any) -> Grant:
        grant = await reserve(claims, **more)
        held.append(len(grant.holds))
        return grant

    house.ledger.reserve = told  # type: ignore[method-assign]
    await house.topup(budget, 1)
    opened = await house.ask(MESSAGES, asks("one more question", max_tokens=1000))
    assert isinstance(opened, Opened)
    assert opened.refusal is None
    assert held == [0, 1]
    assert [one.name for one in await house.balances()] == ["key"]


async def test_what_would_be_refused_is_one_line_and_one_event_a_minute() -> None:
    house = House(STEPS, posture=Posture(enforce=False))
    for number in range(50):
        await finish(await house.ask(MESSAGES, asks(f"question {number}")))
    (told,) = house.told("budget/exhausted")
    assert told["action"] == "would_deny"
    house.purse.book.tell_rest(2**62)
    assert [event.get("more") for event in house.told("budget/exhausted")] == [None, 48]
    assert [line.partition(":")[0] for line in house.lines] == ["would refuse"] * 2


async def test_what_was_only_counted_is_told_though_the_clock_was_put_back() -> None:
    house = House(STEPS)
    await finish(await house.ask(MESSAGES, asks("a task")))
    await refuse(house, 3, lambda number: asks(f"question {number}"))
    house.purse.book.tell_rest(1)
    assert [event.get("more") for event in house.told("budget/exhausted")] == [None, 2]


async def test_what_is_held_for_a_background_reply_is_found_again_in_its_thread() -> None:
    house = House({**SPEND, "alert_at": [0.5, 1.0]})
    order = {"model": "gpt-4o", "input": "a task", "background": True, "max_output_tokens": 50}
    opened = await house.ask("/openai/v1/responses", order)
    assert isinstance(opened, Opened)
    assert opened.placement is not None
    grant = opened.tab.grant  # type: ignore[union-attr]
    opened.respond(ResponseHead(200, b"OK", ((b"content-type", b"application/json"),)), 1)
    opened.feed(json.dumps({"id": "resp_1", "status": "queued", "output": [], "usage": None}).encode(), 2)
    opened.close("complete", opened.exchange.arrived_ns)
    memories = opened.placement.thread_state.memories
    memories[deferred.MEMORY] = json.loads(json.dumps(memories[deferred.MEMORY]))  # as a store keeps it
    assert deferred.found(opened.placement, "resp_1") == grant
    assert deferred.found(opened.placement, "resp_2") is None
    assert deferred.struck_out(opened.placement, "resp_1") == {deferred.MEMORY: {}}
    (balance,) = await house.balances()
    assert (balance.used, balance.reserved > 0) == (0, True)


async def test_of_equal_tries_refused_at_once_the_next_goes_on_in_the_thread_with_a_past() -> None:
    house = House(STEPS)
    reserve = house.ledger.reserve

    async def late(claims: Sequence[Claim], **more: Any) -> Grant:
        await asyncio.sleep(0)
        return await reserve(claims, **more)

    first = asks("a task")
    opened = await house.ask(MESSAGES, first)
    assert isinstance(opened, Opened)
    assert opened.placement is not None
    tried = asks("go on", *first["messages"], await finish(opened))
    house.ledger.reserve = late  # type: ignore[method-assign]
    said = await asyncio.gather(*(house.ask(MESSAGES, tried) for _ in range(4)))
    assert len({one.placement.thread for one in said if isinstance(one, Opened) and one.placement}) == 4
    await house.topup(STEPS, 1)
    again = await house.ask(MESSAGES, tried)
    assert isinstance(again, Opened)
    assert again.placement is not None
    assert (again.refusal, again.placement.thread) == (None, opened.placement.thread)
