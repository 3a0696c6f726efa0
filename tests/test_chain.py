"""The chain: order, posture, merging, and a policy that raises."""

from collections.abc import Mapping
from typing import Any

import pytest

from policies.base import Policy
from proxy.chain import POINTS, Chain, Link, Ruling
from proxy.model import Event
from proxy.ports import View
from proxy.verdict import Action, Decision, Edit, Finding, Terminal


class Says:
    """A policy that gives one answer at every point and counts how often it was asked."""

    wants_deltas = False

    def __init__(self, name: str, answer: Decision | BaseException, wants_deltas: bool = False) -> None:
        self.name = name
        self.answer = answer
        self.wants_deltas = wants_deltas
        self.memories: list[Mapping[str, Any]] = []

    def _say(self, view: View) -> Decision:
        self.memories.append(view.memory)
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer

    def turn_start(self, view: View) -> Decision:
        return self._say(view)

    def step_start(self, view: View) -> Decision:
        return self._say(view)

    def step_end(self, view: View) -> Decision:
        return self._say(view)

    def turn_end(self, view: View) -> Decision:
        return self._say(view)

    def delta(self, view: View, event: Event) -> Decision:
        return self._say(view)

    def claims(self, view: View) -> tuple[()]:
        return ()


VIEW = View(now_ns=1, mode="enforce", session="s", thread="t", turn="u", step="p", step_index=0)


def finding(policy: str) -> Finding:
    return Finding(policy, "kind", "warning")


def terminal(kind: Any, policy: str = "p") -> Terminal:
    return Terminal(kind, policy, "code", "words")


def test_a_policy_is_asked_only_where_it_has_something_to_say() -> None:
    class AtTheEnd(Policy):
        name = "end"

        def step_end(self, view: View) -> Decision:
            return Decision((finding("end"),))

    chain = Chain([Link(AtTheEnd())])
    assert [point for point in POINTS if chain.speaks(point)] == ["step_end"]
    assert chain.judge("step_start", VIEW, {}) == Ruling()
    assert [found.policy for found in chain.judge("step_end", VIEW, {}).findings] == ["end"]


def test_an_empty_chain_says_nothing() -> None:
    ruling = Chain().judge("step_start", VIEW, {})
    assert (ruling.findings, ruling.edits, ruling.terminal, ruling.memories) == ((), (), None, {})


def test_findings_come_in_the_chains_order_whatever_the_posture() -> None:
    links = [Link(Says(n, Decision(findings=(finding(n),)))) for n in ("b", "a")]
    for mode in ("enforce", "observe"):
        ruling = Chain(links, mode=mode).judge("step_end", VIEW, {})
        assert [f.policy for f in ruling.findings] == ["b", "a"]


@pytest.mark.parametrize(
    ("action", "kind", "acts"),
    [
        ("observe", "deny", False),
        ("warn", "deny", False),
        ("nudge", "deny", False),
        ("deny", "deny", True),
        ("message", "message", True),
        ("message", "deny", False),
        ("deny", "cut", False),
    ],
)
def test_a_terminal_needs_an_action_that_covers_it(action: Action, kind: str, acts: bool) -> None:
    chain = Chain([Link(Says("p", Decision(terminal=terminal(kind))), action)])
    ruling = chain.judge("step_start", VIEW, {})
    assert (ruling.terminal is not None) is acts
    assert [w.kind for w in ruling.withheld] == ([] if acts else [kind])


@pytest.mark.parametrize(
    ("action", "point", "kind"),
    [
        ("message", "step_start", "message"),
        ("deny", "step_start", "deny"),
        ("hold", "step_start", "hold"),
        ("cut", "step_start", "deny"),
        ("observe", "step_start", None),
        ("nudge", "step_start", None),
    ],
)
def test_a_policy_may_leave_the_form_of_the_end_to_its_action(
    action: Action, point: Any, kind: str | None
) -> None:
    wish = Terminal("deny", "p", "code", "words", any_form=True)
    ruling = Chain([Link(Says("p", Decision(terminal=wish)), action)]).judge(point, VIEW, {})
    assert (ruling.terminal.kind if ruling.terminal is not None else None) == kind
    assert [w.kind for w in ruling.withheld] == (["deny"] if kind is None else [])


def test_a_running_stream_is_cut_where_the_action_is_cut() -> None:
    wish = Terminal("deny", "p", "code", "words", any_form=True)
    chain = Chain([Link(Says("p", Decision(terminal=wish), wants_deltas=True), "cut")])
    ruling = chain.delta(VIEW, Event("usage"), {})
    assert ruling.terminal is not None
    assert ruling.terminal.kind == "cut"


def test_observe_mode_withholds_everything_and_says_so() -> None:
    answer = Decision(edits=(Edit("nudge", "go on"),), terminal=terminal("deny"))
    ruling = Chain([Link(Says("p", answer), "deny")], mode="observe").judge("step_start", VIEW, {})
    assert ruling.edits == ()
    assert ruling.terminal is None
    assert [(w.policy, w.kind) for w in ruling.withheld] == [("p", "nudge"), ("p", "deny")]


def test_the_strongest_terminal_wins_and_edits_compose() -> None:
    links = [
        Link(Says("a", Decision(terminal=terminal("message", "a"), edits=(Edit("nudge", "1"),))), "message"),
        Link(Says("b", Decision(terminal=terminal("deny", "b"), edits=(Edit("nudge", "2"),))), "deny"),
        Link(Says("c", Decision(terminal=terminal("message", "c"))), "message"),
    ]
    ruling = Chain(links).judge("step_start", VIEW, {})
    assert ruling.terminal is not None
    assert ruling.terminal.policy == "b"
    assert [e.text for e in ruling.edits] == ["1", "2"]


def test_each_policy_sees_its_own_memory_and_only_changed_ones_come_back() -> None:
    keeps, changes = Says("keeps", Decision()), Says("changes", Decision(memory={"n": 2}))
    ruling = Chain([Link(keeps), Link(changes)]).judge(
        "step_end", VIEW, {"keeps": {"k": 1}, "changes": {"n": 1}}
    )
    assert keeps.memories == [{"k": 1}]
    assert changes.memories == [{"n": 1}]
    assert ruling.memories == {"changes": {"n": 2}}


@pytest.mark.parametrize("raised", [ValueError("x"), SystemExit(3)])
def test_a_policy_that_raises_costs_its_own_answer_and_is_reported(raised: BaseException) -> None:
    faults: list[str] = []
    links = [Link(Says("bad", raised)), Link(Says("good", Decision(findings=(finding("good"),))))]
    ruling = Chain(links, on_fault=lambda where, error: faults.append(where)).judge("step_start", VIEW, {})
    assert [f.policy for f in ruling.findings] == ["good"]
    assert faults == ["policy bad.step_start"]


def test_only_policies_that_ask_read_along() -> None:
    deaf, keen = (
        Says("deaf", Decision()),
        Says("keen", Decision(findings=(finding("keen"),)), wants_deltas=True),
    )
    chain = Chain([Link(deaf), Link(keen)])
    assert chain.wants_deltas
    assert not Chain([Link(deaf)]).wants_deltas
    assert [f.policy for f in chain.delta(VIEW, Event("usage"), {}).findings] == ["keen"]
    assert deaf.memories == []
