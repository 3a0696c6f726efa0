"""Claims of policies with the real purse and ledger: held with the budgets, settled, refused, told."""

import json
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from policies.base import Policy
from proxy.chain import Chain, Link
from proxy.core import Opened
from proxy.model import Identity, ResponseHead
from proxy.money.purse import UNBOUNDED, Posture
from proxy.ports import View
from proxy.structs import replace
from proxy.verdict import Action, Claim, Reply
from tests.purse import House

MESSAGES = "/anthropic/v1/messages"
JSON = ResponseHead(200, b"OK", ((b"content-type", b"application/json"),))
TEN = {"name": "key", "scope": "key", "window": "total", "limits": {"steps": 10}}
ONE = {"name": "key", "scope": "key", "window": "total", "limits": {"steps": 1}}
REPLY = {
    "type": "message", "id": "msg_1", "role": "assistant", "model": "claude-sonnet-4-5",
    "content": [{"type": "text", "text": "done"}], "stop_reason": "end_turn",
    "usage": {"input_tokens": 100, "output_tokens": 10},
}  # fmt: skip


class Wants(Policy):
    """Wants so much of something held, for each key."""

    def __init__(self, want: Callable[[View], Claim | None], name: str = "wants") -> None:
        super().__init__()
        self.name = name
        self.want = want
        self.seen: list[View] = []

    def claims(self, view: View) -> Sequence[Claim]:
        self.seen.append(view)
        wanted = self.want(view)
        return [wanted] if wanted is not None else ()


def pushes(amount: int, limit: int, dimension: str = "pushes") -> Callable[[View], Claim]:
    return lambda view: Claim("total", "key", "unnamed", dimension, "total", amount, limit)


def house(*budgets: Any, policies: Sequence[Policy], action: Action = "deny", **more: Any) -> House:
    return House(*budgets, chain=Chain([Link(one, action) for one in policies]), **more)


def asks(text: str, model: str = "claude-sonnet-4-5") -> bytes:
    messages = [{"role": "user", "content": text}]
    return json.dumps({"model": model, "max_tokens": 1_000, "messages": messages}).encode()


def answered(opened: "Opened | Reply") -> None:
    assert isinstance(opened, Opened)
    assert opened.refusal is None
    opened.respond(JSON, opened.exchange.arrived_ns)
    opened.feed(json.dumps(REPLY).encode(), opened.exchange.arrived_ns)
    opened.close("complete", opened.exchange.arrived_ns)


async def stands(house: House) -> dict[str, tuple[int, int]]:
    """What is used and what is held, by counter."""
    return {f"{one.name} {one.dimension}": (one.used, one.reserved) for one in await house.balances()}


async def test_it_is_held_with_the_budgets_and_settled_with_them() -> None:
    def tokens(view: View) -> Claim:
        assert view.demand is not None
        return Claim("day", "key", "unnamed", "total_tokens", "day", view.demand.input_tokens + 1_000, 10**6)

    policies = [Wants(pushes(2, 5)), Wants(tokens, "tokens")]
    one = house(TEN, policies=policies)
    opened = await one.ask(MESSAGES, asks("one"))
    held = await stands(one)
    assert (held["key steps"], held["wants/total pushes"]) == ((0, 1), (0, 2))
    assert held["tokens/day total_tokens"][1] > 1_000
    answered(opened)
    assert await stands(one) == {
        "key steps": (1, 0), "wants/total pushes": (2, 0), "tokens/day total_tokens": (110, 0),
    }  # fmt: skip
    (told,) = one.told("budget/settle")
    assert [hold["budget"] for hold in told["holds"]] == ["key", "wants/total", "tokens/day"]


async def test_where_it_does_not_fit_nothing_is_held_and_the_client_is_told() -> None:
    one = house(TEN, policies=[Wants(pushes(3, 5))])
    answered(await one.ask(MESSAGES, asks("one")))
    await one.balances()
    opened = await one.ask(MESSAGES, asks("two"))
    assert isinstance(opened, Opened)
    assert opened.refusal is not None
    assert opened.refusal.status == 402
    error = json.loads(opened.refusal.body)["error"]
    assert "budget 'wants/total' of key unnamed has no room for this request" in error["message"]
    assert "it may take 3 pushes, and 2 is left of 5" in error["message"]
    assert "raise the limit of policy 'wants' in the configuration" in error["message"]
    assert "topup" not in error["message"]
    facts = {name: error["looptap"][name] for name in ("policy", "budget", "dimension", "limit", "used")}
    expected = {"policy": "wants", "budget": "wants/total", "dimension": "pushes", "limit": 5, "used": 3}
    assert facts == expected
    assert await stands(one) == {"key steps": (1, 0), "wants/total pushes": (3, 0)}
    (told,) = one.told("intervention")
    assert (told["policy"], told["kind"], told["budget"]) == ("wants", "deny", "wants/total")


async def test_where_a_budget_does_not_fit_nothing_of_a_policy_is_held() -> None:
    one = house(ONE, policies=[Wants(pushes(1, 5))])
    answered(await one.ask(MESSAGES, asks("one")))
    opened = await one.ask(MESSAGES, asks("two"))
    assert isinstance(opened, Opened)
    assert opened.refusal is not None
    assert json.loads(opened.refusal.body)["error"]["looptap"]["budget"] == "key"
    assert (await stands(one))["wants/total pushes"] == (1, 0)


@pytest.mark.parametrize(("action", "enforce"), [("deny", False), ("observe", True), ("warn", True)])
async def test_what_may_not_act_is_told_and_counted_beyond_its_limit(action: Action, enforce: bool) -> None:
    one = house(TEN, policies=[Wants(pushes(3, 5))], action=action, posture=Posture(enforce=enforce))
    for text in ("one", "two"):
        answered(await one.ask(MESSAGES, asks(text)))
    assert (await stands(one))["wants/total pushes"] == (6, 0)
    (told,) = one.told("intervention")
    assert (told["policy"], told["kind"]) == ("wants", "would_deny")


async def test_a_counter_that_can_hold_no_more_lets_pass_what_may_not_be_refused() -> None:
    one = house(policies=[Wants(pushes(3, 5))], action="observe")
    full = Claim("wants/total", "key", "unnamed", "pushes", "total", UNBOUNDED, UNBOUNDED)
    await one.ledger.reserve([full], ttl_s=900, now_ns=time.time_ns())
    answered(await one.ask(MESSAGES, asks("one")))
    assert [told["kind"] for told in one.told("intervention")] == ["would_deny"]


async def test_a_last_message_where_its_action_is_one() -> None:
    one = house(policies=[Wants(pushes(1, 0))], action="message")
    opened = await one.ask(MESSAGES, asks("one"))
    assert isinstance(opened, Opened)
    assert opened.refusal is not None
    assert opened.refusal.status == 200
    assert "wants/total" in json.loads(opened.refusal.body)["content"][0]["text"]


async def test_policies_do_not_meet_in_one_counter() -> None:
    policies = [Wants(pushes(3, 5), "a"), Wants(pushes(3, 5), "b")]
    one = house({**TEN, "name": "total"}, policies=policies)
    answered(await one.ask(MESSAGES, asks("one")))
    held = await stands(one)
    assert held == {"total steps": (1, 0), "a/total pushes": (3, 0), "b/total pushes": (3, 0)}


async def test_the_door_refuses_nothing_that_a_policy_no_longer_claims() -> None:
    amount = [9]
    policy = Wants(lambda view: pushes(amount[0], 5)(view))
    one = house(TEN, policies=[policy])
    for _ in range(30):
        opened = await one.ask(MESSAGES, asks("again"))
        assert isinstance(opened, Opened)  # the whole way, each time
        assert opened.refusal is not None
    amount[0] = 1
    answered(await one.ask(MESSAGES, asks("again")))
    assert len(policy.seen) == 31


async def test_the_door_refuses_for_budgets_and_lets_nothing_past_a_policy() -> None:
    amount = [1]
    policy = Wants(lambda view: pushes(amount[0], 5)(view))
    one = house(ONE, policies=[policy])
    answered(await one.ask(MESSAGES, asks("one")))
    said = [await one.ask(MESSAGES, asks("again")) for _ in range(8)]
    assert isinstance(said[-1], Reply)
    assert json.loads(said[-1].body)["error"]["looptap"]["budget"] == "key"
    amount[0] = 9
    await one.topup(ONE, 5)
    opened = await one.ask(MESSAGES, asks("again"))
    assert isinstance(opened, Opened)
    assert opened.refusal is not None
    assert json.loads(opened.refusal.body)["error"]["looptap"]["budget"] == "wants/total"
    amount[0] = 4
    answered(await one.ask(MESSAGES, asks("again")))
    assert await stands(one) == {"key steps": (2, 0), "wants/total pushes": (5, 0)}


async def test_it_is_told_whose_the_request_is_and_what_it_may_take() -> None:
    policy = Wants(lambda view: None)
    one = house(policies=[policy], posture=Posture(unmodelled="pass"))
    answered(await one.ask(MESSAGES, asks("one"), identity=Identity("ci", "search", labels={"env": "x"})))
    answered(await one.ask(MESSAGES, asks("two", "acme-unheard-of")))
    known, unknown = [view.demand for view in policy.seen]
    assert known is not None
    assert unknown is not None
    assert (known.subjects["key"], known.subjects["team"], known.labels) == ("ci", "search", {"env": "x"})
    assert (known.steps, known.output_tokens, unknown.spend_nano) == (1, 1_000, None)
    assert known.spend_nano is not None
    assert known.spend_nano > 0
    assert await stands(one) == {}


@pytest.mark.parametrize("read", [True, False])
async def test_any_word_is_summed_up_and_whatever_has_a_level_is_not(read: bool) -> None:
    policies = [
        Wants(pushes(2, 9, "tool_retries_a_day")),
        Wants(pushes(2, 9, "tool_retries:b"), "b"),
        Wants(pushes(2, 9, "queued"), "c"),
    ]
    levels = [None, 3, 4]
    for policy, level in zip(policies, levels, strict=True):
        policy.want = lambda view, want=policy.want, level=level: replace(want(view), level=level)
    one = house(policies=policies)
    for text in ("one", "two"):
        opened = await one.ask(MESSAGES, asks(text))
        if read:
            answered(opened)
        else:
            assert isinstance(opened, Opened)
            assert opened.tab is not None
            opened.tab.end("complete", 200, opened.exchange.arrived_ns)
    assert await stands(one) == {
        "wants/total tool_retries_a_day": (4, 0), "b/total tool_retries:b": (3, 0), "c/total queued": (4, 0),
    }  # fmt: skip


async def test_what_an_operator_holds_flat_for_an_unknown_price_is_told() -> None:
    policy = Wants(lambda view: None)
    one = house(policies=[policy], posture=Posture(unmodelled=7))
    answered(await one.ask(MESSAGES, asks("two", "acme-unheard-of")))
    assert policy.seen[0].demand is not None
    assert policy.seen[0].demand.spend_nano == 7
