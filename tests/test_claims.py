"""What policies claim: which claims are sound, what they are called, and who is asked."""

from collections.abc import Sequence
from itertools import repeat
from typing import Any

import pytest

from policies import TABLE
from policies.base import Policy
from proxy.chain import Chain, Link
from proxy.claims import MOST, MOST_TAKEN, MOST_UNITS, SCOPES, WINDOWS, BadClaim, owned
from proxy.config import tree
from proxy.ports import View
from proxy.structs import replace
from proxy.verdict import Action, Claim

VIEW = View(now_ns=1, mode="enforce", session="s", thread="t", turn="u", step="p", step_index=0)
ONE = Claim("hourly", "key", "ci", "pushes", "hour", 1, 10)


class Claims(Policy):
    """Claims what it is told to."""

    def __init__(self, name: str, *claims: Any) -> None:
        super().__init__()
        self.name = name
        self.told = claims

    def claims(self, view: View) -> Sequence[Claim]:
        if isinstance(self.told[0], Exception):
            raise self.told[0]
        return [replace(one, amount=view.memory["n"]) if view.memory else one for one in self.told]


def test_scopes_and_windows_are_those_of_budgets() -> None:
    assert frozenset(tree.SCOPES) == SCOPES
    assert {*tree.WINDOWS, "life"} == WINDOWS


@pytest.mark.parametrize("claim", [
    ONE,
    replace(ONE, scope="label:customer", subject=""),
    replace(ONE, dimension="calls:git push", window="life"),
    replace(ONE, dimension="tool_retries:bash", amount=0, level=3),
    replace(ONE, dimension="requests_per_minute", window="minute"),
    replace(ONE, dimension="spend_usd", amount=MOST_TAKEN, limit=MOST_UNITS, hard=0),
    replace(ONE, alert_at=[5_000, 10_000]),
])  # fmt: skip
def test_a_sound_claim_is_named_after_its_policy(claim: Claim) -> None:
    (found,) = owned([claim], "pushes", "deny")
    expected = replace(claim, budget="pushes/hourly", policy="pushes", on_exhausted="deny")
    assert found == replace(expected, alert_at=tuple(claim.alert_at))


@pytest.mark.parametrize(("wrong", "said"), [
    ({"budget": "a/b"}, "is no name"),
    ({"budget": 7}, "is no name"),
    ({"subject": None}, "subject None is no text"),
    ({"scope": "project"}, "no scope is called 'project'"),
    ({"scope": "label:"}, "no scope is called 'label:'"),
    ({"window": "fortnight"}, "no window is called 'fortnight'"),
    ({"dimension": "Pushes"}, "dimension 'Pushes' is none"),
    ({"dimension": "calls"}, "calls are of a tool"),
    ({"dimension": "spend_usd:x"}, "spend_usd has no parts"),
    ({"dimension": "wall_clock"}, "say its level"),
    ({"dimension": "requests_per_minute"}, "window='minute'"),
    ({"minimum": 1}, "a minimum is for budgets"),
    ({"amount": MOST_TAKEN + 1}, "is no whole number from 0"),
    ({"level": -1}, "level -1 is no whole number"),
    ({"amount": -1}, "amount -1 is no whole number"),
    ({"amount": 0.5}, "amount 0.5 is no whole number"),
    ({"amount": True}, "amount True is no whole number"),
    ({"limit": MOST_UNITS + 1}, "is no whole number from 0"),
    ({"hard": "1"}, "hard '1' is no whole number"),
    ({"alert_at": (0.8,)}, r"alert_at\[0\] 0.8 is no whole number"),
])  # fmt: skip
def test_a_claim_that_nobody_could_keep_is_told_by_its_fault(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(BadClaim, match=said):
        owned([replace(ONE, **wrong)], "p", "deny")


def test_neither_too_many_nor_other_things() -> None:
    with pytest.raises(BadClaim, match="more than 16 claims"):
        owned(repeat(ONE), "p", "deny")
    with pytest.raises(BadClaim, match="str is no Claim"):
        owned("x", "p", "deny")  # type: ignore[arg-type]
    assert len(owned([ONE] * MOST, "p", "deny")) == MOST


def test_whatever_a_client_chose_is_a_name_that_a_ledger_keeps() -> None:
    said = ["a" * 500, "a" * 499 + "b", "\ud800", "a" * 200]
    found = [owned([replace(ONE, subject=one)], "p", "deny")[0].subject for one in said]
    assert len(set(found)) == 4
    assert all(len(one) <= 200 and one.encode() for one in found)
    assert found[3] == said[3]


def test_nobody_is_asked_where_no_policy_claims() -> None:
    assert not Chain([Link(cls()) for cls in TABLE.values()]).has_claims
    assert Chain([Link(Claims("a", ONE))]).has_claims


@pytest.mark.parametrize(("action", "reached"), [
    ("observe", "observe"), ("warn", "observe"), ("nudge", "observe"), ("deny", "deny"),
    ("message", "message"), ("cut", "deny"),
])  # fmt: skip
def test_what_a_claim_may_do_is_its_policys_action(action: Action, reached: str) -> None:
    (found,) = Chain([Link(Claims("a", replace(ONE, on_exhausted="message")), action)]).claims(VIEW, {})
    assert found.on_exhausted == reached


def test_a_policy_that_fails_costs_its_own_claims() -> None:
    faults: list[tuple[str, str]] = []
    links = [
        Link(Claims("raises", ValueError("oh"))),
        Link(Claims("nonsense", ONE, replace(ONE, amount=-1))),
        Link(Claims("sound", ONE)),
    ]
    chain = Chain(links, on_fault=lambda where, error: faults.append((where, str(error))))
    assert [one.budget for one in chain.claims(VIEW, {"sound": {"n": 3}})] == ["sound/hourly"]
    assert [one.amount for one in chain.claims(VIEW, {"sound": {"n": 3}})] == [3]
    assert [where for where, _ in faults[:2]] == ["policy raises.claims", "policy nonsense.claims"]
    assert "amount -1" in faults[1][1]
