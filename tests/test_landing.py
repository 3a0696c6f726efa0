"""A turn's last step: given once, held like everything else, and nothing of its turn goes out behind it."""

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import pytest

from policies.repeats import Repeats, RepeatsOptions
from proxy.chain import Chain, Link
from proxy.core import Opened
from proxy.core.landing import WORDS
from proxy.model import ResponseHead
from proxy.money.orders import Operator
from proxy.money.purse import Posture
from proxy.verdict import Balance, Reply
from tests.purse import House, budgets
from tests.test_nudges import Says, Stage

Json = dict[str, Any]
CLAUDE = "claude-sonnet-4-5"
ROUTES = {
    "anthropic": "anthropic/v1/messages",
    "chat": "openai/v1/chat/completions",
    "responses": "openai/v1/responses",
    "gemini": "gemini/v1beta/models/gemini-2.5-pro:generateContent",
}


def turn(limits: Mapping[str, Any], **more: Any) -> Json:
    return {"name": "turn", "scope": "turn", "on_exhausted": "land", "limits": dict(limits), **more}


class Loop:
    """An agent whose model calls the same tool again and again."""

    def __init__(self, house: House, *, run: str = "a", most: int = 2_000) -> None:
        self.house, self.run, self.most = house, run, most
        self.messages: list[Any] = [{"role": "user", "content": f"go {run}"}]
        self.calls = 0

    def body(self) -> Json:
        tools = [{"name": "ls", "input_schema": {"type": "object"}}]
        return {"model": CLAUDE, "max_tokens": self.most, "tools": tools, "messages": self.messages}

    async def ask(self, **more: Any) -> Opened:
        opened = await self.house.ask(ROUTES["anthropic"], {**self.body(), **more})
        assert isinstance(opened, Opened)
        return opened

    async def answer(self, opened: Opened, *content: Any, usage: Mapping[str, int] | None = None) -> None:
        calls = any(block["type"] == "tool_use" for block in content)
        reply = {
            "type": "message", "id": f"msg_{opened.exchange.id}", "role": "assistant", "model": CLAUDE,
            "content": content, "stop_reason": "tool_use" if calls else "end_turn",
            "usage": usage or {"input_tokens": 10, "output_tokens": 5},
        }  # fmt: skip
        now_ns = opened.exchange.arrived_ns
        opened.respond(ResponseHead(200, b"", ((b"content-type", b"application/json"),)), now_ns)
        opened.feed(json.dumps(reply).encode(), now_ns)
        opened.close("complete", now_ns)
        self.messages.append({"role": "assistant", "content": list(content)})
        await self.house.purse.drain()

    async def step(self, *, error: bool = False, usage: Mapping[str, int] | None = None) -> Opened:
        opened = await self.ask()
        if opened.refusal is not None:
            return opened
        self.calls += 1
        id = f"toolu_{self.run}{self.calls:020}"
        await self.answer(opened, {"type": "tool_use", "id": id, "name": "ls", "input": {}}, usage=usage)
        result = {"type": "tool_result", "tool_use_id": id, "content": f"x {self.calls}", "is_error": error}
        self.messages.append({"role": "user", "content": [result]})
        return opened

    async def ends(self, text: str = "summed up") -> Opened:
        opened = await self.ask()
        if opened.refusal is None:
            await self.answer(opened, {"type": "text", "text": text})
        return opened

    @property
    def causes(self) -> list[Any]:
        sessions = self.house.replay.tree()["sessions"]
        return [t["cause"] for s in sessions for thread in s["threads"] for t in thread["turns"]]


def said(opened: Opened) -> bool:
    """Whether it went out with the words of a last step, and without calls."""
    sent = json.loads(opened.body)
    with_words = WORDS in json.dumps(sent["messages"][-1])
    assert with_words == (sent.get("tool_choice") == {"type": "none"})
    return with_words


def words(opened: Opened) -> str:
    assert opened.refusal is not None
    told: str = json.loads(opened.refusal.body)["error"]["message"]
    return told


async def counters(house: House) -> dict[str, Balance]:
    return {one.dimension.partition(":")[0]: one for one in await house.balances()}


async def test_the_step_that_takes_the_last_unit_is_the_last_and_ends_its_turn_for_the_budget() -> None:
    house = House(turn({"steps": 3}))
    loop = Loop(house)
    assert [said(await loop.step()) for _ in range(2)] == [False, False]
    assert said(await loop.ends())
    assert loop.causes == ["steps"]
    (event,) = [one for one in house.told("intervention") if one["kind"] == "land"]
    assert (event["policy"], event["budget"], event["used"], event["limit"]) == ("budgets", "turn", 2, 3)
    assert event["quotes"]["text"] == WORDS
    found = await counters(house)
    assert (found["steps"].used, found["steps"].limit, found["steps"].hard, found["steps"].reserved) == (
        3,
        3,
        3,
        0,
    )
    assert house.lines[0].startswith("last step: budget 'turn'")


async def test_behind_it_nothing_of_the_turn_goes_out_and_the_words_say_why() -> None:
    loop = Loop(House(turn({"steps": 2})))
    await loop.step()
    await loop.step()  # a model that calls all the same
    for _ in range(8):  # the last of them at the door
        refused = await loop.house.ask(ROUTES["anthropic"], loop.body())
        reply = refused if isinstance(refused, Reply) else refused.refusal
        assert reply is not None
        assert reply.status == 402
        told = json.loads(reply.body)["error"]
        assert "2 of 2 steps; this turn was given its last step, to sum up" in told["message"]
        assert told["looptap"]["landed"] is True
    assert loop.causes == ["steps"]
    assert [one.dimension for one in await loop.house.balances()].count("steps") == 1


async def test_requests_of_one_turn_at_two_instances_get_one_last_step_together() -> None:
    budget = turn({"wall_clock": "10s"}, hard_at=9)  # of time nothing is held: only the last step is counted
    one, other = House(budget), House(budget)
    loop = Loop(one)
    first = await loop.step()
    assert first.placement is not None
    first.placement.step_state.turn.began_ns -= 11 * 10**9
    other.purse.ledger = other.ledger = one.ledger
    other.core.tracker.load(json.loads(json.dumps(one.core.tracker.heads())))
    also = Loop(other)
    also.messages = list(loop.messages)
    found = await asyncio.gather(loop.ask(), also.ask(temperature=0.5))
    assert [said(each) for each in found if each.refusal is None] == [True]
    (refused,) = [words(each) for each in found if each.refusal is not None]
    assert "given its last step" in refused


async def test_two_threads_of_one_turn_share_its_last_step() -> None:
    house = House(turn({"steps": 4}))
    main = Loop(house)
    await main.step()
    task = {
        "type": "tool_use",
        "id": "toolu_task000000000000001",
        "name": "Task",
        "input": {"prompt": "look into it all"},
    }
    await main.answer(await main.ask(), task)
    helper = Loop(house)
    helper.messages = [{"role": "user", "content": "look into it all"}]
    assert not said(await helper.step())
    assert said(await helper.ends("found it"))
    main.messages.append({"role": "user", "content": [
        {"type": "tool_result", "tool_use_id": task["id"], "content": "found it"}]})  # fmt: skip
    assert "4 of 4 steps; this turn was given its last step" in words(await main.ask())
    assert sorted(main.causes) == ["steps", "steps"]


async def test_a_restart_knows_that_it_was_given() -> None:
    before = House(turn({"steps": 2}))
    loop = Loop(before)
    await loop.step()
    last = await loop.ask()
    assert said(last)
    now_ns = last.exchange.arrived_ns
    last.respond(ResponseHead(529, b"", ((b"content-type", b"application/json"),)), now_ns)
    last.feed(b'{"type":"error","error":{"type":"overloaded_error","message":"busy"}}', now_ns)
    last.close("complete", now_ns)
    await before.purse.drain()
    after = House(turn({"steps": 2}))
    after.purse.ledger = after.ledger = before.ledger
    after.core.tracker.load(json.loads(json.dumps(before.core.tracker.heads())))
    loop.house = after
    again = await loop.ask()  # another attempt of the same step: the same bytes, and no calls again
    assert again.refusal is None
    assert again.body == last.body
    assert after.told("intervention")[-1]["again"] is True
    await loop.answer(
        again, {"type": "tool_use", "id": "toolu_late0000000000000001", "name": "ls", "input": {}}
    )
    loop.messages.append({"role": "user", "content": [
        {"type": "tool_result", "tool_use_id": "toolu_late0000000000000001", "content": "x"}]})  # fmt: skip
    assert "this turn was given its last step" in words(await loop.ask())
    assert (await counters(after))["steps"].used == 2


async def test_money_lands_where_the_worst_case_no_longer_fits_and_lowers_the_output_to_what_is_left() -> (
    None
):
    # 1,000 tokens of output cost 0.015 USD, and most of the worst case is output
    house = House(turn({"spend_usd": "0.10"}))
    loop = Loop(house, most=6_000)
    assert not said(await loop.step(usage={"input_tokens": 10, "output_tokens": 2_000}))
    last = await loop.ask()
    assert said(last)
    lowered = json.loads(last.body)["max_tokens"]
    assert 1_024 <= lowered < 6_000
    assert lowered * 15 / 1e6 <= 0.10 - 0.03
    await loop.answer(last, {"type": "text", "text": "so far"})
    assert loop.causes == ["spend"]
    assert "given its last step" in words(await loop.ask()) or loop.causes[0] == "spend"
    assert (await counters(house))["spend_usd"].used < 100_000_000


async def test_where_not_even_a_last_step_fits_it_is_refused() -> None:
    loop = Loop(House(turn({"spend_usd": "0.10"})), most=6_000)
    await loop.step(usage={"input_tokens": 10, "output_tokens": 6_000})
    refused = await loop.ask()
    assert "has no room for this request" in words(refused)
    assert "last step" not in words(refused)


async def test_a_thinking_budget_is_not_cut_into() -> None:
    loop = Loop(House(turn({"output_tokens": 6_500})), most=6_000)
    await loop.step(usage={"input_tokens": 10, "output_tokens": 1_000})
    thinking = {"type": "enabled", "budget_tokens": 5_000}
    refused = await loop.ask(thinking=thinking)
    assert "has no room" in words(refused)
    last = await loop.ask(thinking={**thinking, "budget_tokens": 1_024})
    assert said(last)
    assert 2_048 <= json.loads(last.body)["max_tokens"] <= 5_500


@pytest.mark.parametrize(
    ("limits", "cause", "before"),
    [
        ({"calls": {"ls": 2}}, "calls", 2),
        ({"tool_retries": 2}, "tool_retries", 2),
        ({"input_tokens": 3_000}, "tokens", 1),
        ({"total_tokens": 5_000}, "tokens", 1),
    ],
)
async def test_each_dimension_has_a_last_step_within_its_limit(limits: Json, cause: str, before: int) -> None:
    house = House(turn(limits))
    loop = Loop(house, most=3_000)
    usage = {"input_tokens": 900, "output_tokens": 700}
    for _ in range(before):
        assert not said(await loop.step(error=cause == "tool_retries", usage=usage))
    assert said(await loop.ends())
    assert loop.causes == [cause]
    for one in await house.balances():
        assert one.used <= one.hard


async def test_time_lands_between_the_limit_and_where_requests_stop() -> None:
    budget = turn({"wall_clock": "10s"}, hard_at=2)

    async def at(seconds: int) -> Opened:
        house = House(budget)
        loop = Loop(house)
        first = await loop.step()
        first.placement.step_state.turn.began_ns -= seconds * 10**9  # type: ignore[union-attr]
        return await loop.ask()

    assert not said(await at(9))
    assert said(await at(11))
    assert "is used up" in words(await at(21))


async def test_more_budget_goes_on_and_gives_another_last_step() -> None:
    house = House(turn({"steps": 2}))
    loop = Loop(house)
    await loop.step()
    await loop.step()
    assert (await loop.ask()).refusal is not None
    subject = (await counters(house))["steps"].subject
    settings = budgets(turn({"steps": 2}))
    operator = Operator.__new__(Operator)
    operator._ledger, operator._budgets, operator._note = house.ledger, settings.by_name, lambda text: None
    await operator.raised("turn", "2", subject=subject)
    assert not said(await loop.step())
    assert said(await loop.step())
    assert "given its last step" in words(await loop.ask())
    assert {one.dimension for one in await operator.balances()} == {"steps"}


async def test_what_can_be_no_last_step_goes_out_as_long_as_it_fits() -> None:
    loop = Loop(House(turn({"steps": 2})))
    await loop.step()
    loop.messages.append({"role": "assistant", "content": "I will"})  # a prefill: nothing may stand behind it
    opened = await loop.ask()
    assert opened.refusal is None
    assert not said(opened)


async def test_observing_tells_what_would_have_been_the_last_step() -> None:
    house = House(turn({"steps": 2}), posture=Posture(enforce=False))
    loop = Loop(house)
    for _ in range(3):
        assert not said(await loop.step())
    assert [one["kind"] for one in house.told("intervention")] == ["would_land", "would_deny"]


@pytest.mark.parametrize("name", ["chat", "responses", "gemini"])
async def test_every_dialect_forbids_calls_in_its_own_form(name: str) -> None:
    house = House(turn({"steps": 1}))
    text, schema = "go", {"type": "object", "properties": {}}
    tool: Json = {"type": "function", "name": "ls", "parameters": schema}
    body: Json = {"model": "gpt-5.1", "input": text, "tools": [tool], "tool_choice": "required"}
    if name == "chat":
        tool = {"type": "function", "function": {"name": "ls", "parameters": schema}}
        body = {"model": "gpt-5.1", "messages": [{"role": "user", "content": text}], "tools": [tool]}
    elif name == "gemini":
        calling = {"mode": "ANY", "allowedFunctionNames": ["ls"]}
        body = {
            "contents": [{"role": "user", "parts": [{"text": text}]}],
            "tools": [{"functionDeclarations": [{"name": "ls"}]}],
            "toolConfig": {"functionCallingConfig": calling},
        }
    opened = await house.ask(ROUTES[name], body)
    assert isinstance(opened, Opened)
    assert opened.refusal is None
    sent = json.loads(opened.body)
    if name == "gemini":
        assert sent["toolConfig"]["functionCallingConfig"] == {"mode": "NONE"}
        assert sent["contents"][-1]["parts"][-1] == {"text": WORDS}
    else:
        assert sent["tool_choice"] == "none"
        assert sent["messages" if name == "chat" else "input"][-1]["content"] == WORDS
    assert sent["tools"] == body["tools"]


async def test_words_take_no_more_room_than_is_held_for_them() -> None:
    house = House(turn({"steps": 1}))
    for name, body in {
        "anthropic": {"model": CLAUDE, "max_tokens": 9, "messages": [{"role": "user", "content": "go"}]},
        "chat": {"model": "gpt-5.1", "messages": [{"role": "user", "content": "go"}]},
        "responses": {"model": "gpt-5.1", "input": "go"},
        "gemini": {"contents": [{"role": "user", "parts": [{"text": "go"}]}]},
    }.items():
        opened = await house.ask(ROUTES[name], body)
        assert isinstance(opened, Opened)
        assert opened.landing is not None
        assert 0 < opened.out.added <= len(WORDS.encode()) + 300


async def test_a_client_that_leaves_while_its_last_words_are_stored_leaves_nothing_held(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Opened, "unsaved", True)
    house = House(turn({"steps": 1}))
    storing = asyncio.Event()

    async def keep(opened: Opened) -> None:
        storing.set()
        await asyncio.Event().wait()

    house.purse.keep = keep
    asking = asyncio.create_task(Loop(house).ask())
    await storing.wait()
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert [(one.used, one.reserved) for one in (await counters(house)).values()] == [(0, 0), (0, 0)]


async def test_a_last_step_that_a_budget_refuses_was_none() -> None:
    tight = {"name": "tight", "scope": "key", "window": "day", "limits": {"steps": 1}}
    house = House(tight, chain=Chain([Link(Says(1, terminal=True), "land")]))
    loop = Loop(house)
    await loop.step()
    assert (await loop.ask()).refusal is not None
    await house.topup(tight, 1)
    last = await loop.ask()
    assert last.refusal is None
    assert said(last)


# -- what policies end


def test_a_policy_gives_one_last_step_and_then_refuses() -> None:
    stage = Stage(Repeats(RepeatsOptions(stop_at=4)), action="land")
    for _ in range(4):
        stage.step()
    last = stage.open()
    assert last.refusal is None
    assert json.loads(last.body)["tool_choice"] == {"type": "none"}
    assert json.loads(last.body)["messages"][-1] == {"role": "system", "content": WORDS}
    assert stage.interventions == ["nudge", "land"]
    use = {
        "type": "tool_use",
        "id": "toolu_another0000000000001",
        "name": "bash",
        "input": {"command": "pwd"},
    }
    stage.answer(last, use)
    result = {"type": "tool_result", "tool_use_id": use["id"], "content": "/"}
    stage.messages += [{"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}]
    refused = stage.open()
    assert refused.refusal is not None
    refused.close("refused", stage.now_ns)
    assert stage.interventions == ["nudge", "land", "deny"]
    assert stage.events("turn/end")[-1]["cause"] == "policy"


def test_a_turn_that_sums_up_ends_for_the_policy_and_the_next_one_begins_as_any_other() -> None:
    stage = Stage(Repeats(RepeatsOptions(stop_at=4)), action="land")
    for _ in range(4):
        stage.step()
    last = stage.open()
    stage.answer(last, {"type": "text", "text": "stuck"})
    assert [end["cause"] for end in stage.events("turn/end")] == ["policy"]
    stage.messages += [{"role": "assistant", "content": "stuck"}, {"role": "user", "content": "try another"}]
    stage.restart()
    after = stage.open()
    assert after.refusal is None
    assert "tool_choice" not in json.loads(after.body)
    assert WORDS.encode() in after.body  # what the model read stays where it was


def test_observing_a_policy_tells_what_it_would_have_given() -> None:
    stage = Stage(Repeats(RepeatsOptions(stop_at=4)), action="land", mode="observe")
    for _ in range(5):
        stage.step()
    assert "would_land" in stage.interventions
    assert "land" not in stage.interventions


def test_a_reminder_and_the_last_words_of_one_step_stand_together() -> None:
    stage = Stage(Says(1, terminal=True), action="land")
    stage.step()
    last = stage.open()
    assert json.loads(last.body)["messages"][-1]["content"] == f"mind step 1\n\n{WORDS}"
    assert stage.interventions == ["nudge", "land"]


def test_words_that_cannot_be_stored_are_not_said_and_then_it_is_refused() -> None:
    stage = Stage(Says(1, terminal=True), action="land")
    stage.core.keeps = True
    stage.step()
    last = stage.open()
    assert last.unsaved
    last.keep(stage.now_ns, safe=False)
    assert last.refusal is not None
    assert stage.events("turn/end")[-1]["cause"] == "policy"


def test_a_replay_of_what_was_landed_ends_for_the_same_cause() -> None:
    stage = Stage(Says(1, terminal=True), action="land")
    stage.step()
    opened = stage.open()
    assert opened.placement is not None
    stage.replay._land(opened.placement, "steps")  # it knows already why
    stage.answer(opened, {"type": "text", "text": "so far"})
    assert stage.events("turn/end")[-1]["cause"] == "policy"
    other = Stage()
    told = other.open()
    assert told.placement is not None
    other.replay._land(told.placement, "steps")
    other.answer(told, {"type": "text", "text": "so far"})
    assert other.events("turn/end")[-1]["cause"] == "steps"
