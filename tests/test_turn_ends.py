"""What policies are told of turns and budgets: each end once, and where the budgets stand."""

from typing import Any

import pytest

from policies.base import Policy
from policies.budgets import Budget
from policies.growth import Growth, GrowthOptions
from proxy.ports import View
from proxy.testing import Failed, Play
from proxy.verdict import Decision, Finding, Terminal


class Counts(Policy):
    """Tells each end with its cause, and how many it has seen in the thread."""

    name = "counts"

    def turn_end(self, view: View) -> Decision:
        ends = view.memory.get("ends", 0) + 1
        evidence = {"cause": view.cause, "ends": ends, "steps": view.step_index + 1, "kind": view.kind}
        return Decision((Finding(self.name, "ended", "info", evidence),), memory={"ends": ends})


class Orders(Policy):
    """Writes down in which order it is asked."""

    name = "orders"

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []

    def turn_start(self, view: View) -> Decision:
        return self._note("turn_start", view)

    def step_start(self, view: View) -> Decision:
        return self._note("step_start", view)

    def step_end(self, view: View) -> Decision:
        return self._note("step_end", view)

    def turn_end(self, view: View) -> Decision:
        return self._note("turn_end", view)

    def _note(self, point: str, view: View) -> Decision:
        self.asked.append(point)
        return Decision()


def ends(play: Play) -> list[tuple[Any, ...]]:
    return [(f["evidence"]["cause"], f["evidence"]["ends"], f["evidence"]["steps"]) for f in play.findings]


def test_each_end_of_a_turn_is_told_once_after_its_last_step() -> None:
    counts, orders = Counts(), Orders()
    play = Play(counts, orders)
    agent = play.agent()
    agent.asks("do it")
    agent.does("bash", {"command": "ls"}, "a")
    agent.ends()
    agent.asks("and again")
    agent.ends()
    assert ends(play) == [("completed", 1, 2), ("completed", 2, 1)]
    assert orders.asked == [
        "turn_start", "step_start", "step_end", "step_start", "step_end", "turn_end",
        "turn_start", "step_start", "step_end", "turn_end",
    ]  # fmt: skip
    (session,) = play.tree()["sessions"]
    steps = [step for thread in session["threads"] for turn in thread["turns"] for step in turn["steps"]]
    assert [len(step["findings"]) for step in steps] == [0, 1, 1]  # on the step that ended it


def test_a_turn_cut_short_by_the_user_ends_before_the_next_begins() -> None:
    counts, orders = Counts(), Orders()
    play = Play(counts, orders)
    agent = play.agent()
    agent.asks("do it")
    agent.does("bash", {"command": "ls"}, "a")
    agent.messages[-1]["content"] = [{"type": "text", "text": "stop, something else"}]
    agent.ends()
    assert [cause for cause, *_ in ends(play)] == ["superseded", "completed"]
    assert orders.asked[3:6] == ["turn_end", "turn_start", "step_start"]


def test_an_abandoned_turn_is_told_when_time_has_passed() -> None:
    play = Play(Counts())
    agent = play.agent()
    agent.asks("do it")
    agent.does("bash", {"command": "ls"}, "a")
    play.now_ns += 3_600_000_000_000
    play.agent("You are another.").asks("hello")
    other = play.agent("You are a third.")
    other.asks("hi")
    other.ends()
    assert [cause for cause, *_ in ends(play)] == ["abandoned", "completed"]


class Refuses(Policy):
    """Refuses the second step, until it is told otherwise."""

    name = "refuses"

    def __init__(self) -> None:
        super().__init__()
        self.refuses = True

    def step_start(self, view: View) -> Decision:
        if view.step_index < 1 or not self.refuses:
            return Decision()
        return Decision(terminal=Terminal("deny", self.name, "no", "no", any_form=True))


def test_a_refused_turn_ends_and_ends_again_when_its_retry_went_through() -> None:
    refuses = Refuses()
    play = Play(refuses, Counts(), action="deny")
    agent = play.agent()
    agent.asks("do it")
    agent.does("bash", {"command": "ls"}, "a")
    assert agent.ends().refusal is not None
    assert [cause for cause, *_ in ends(play)] == ["policy"]
    refuses.refuses = False
    assert agent.ends().refusal is None
    assert [cause for cause, *_ in ends(play)] == ["policy", "completed"]


# -- where the budgets stand


class Stands(Policy):
    name = "stands"

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[dict[str, tuple[int, int]]] = []

    def step_end(self, view: View) -> Decision:
        self.seen.append({name: (b.used, b.left) for name, b in view.balances.items()})
        return Decision()


def test_balances_add_up_what_the_steps_of_a_turn_took() -> None:
    policy = Stands()
    budgets = [
        Budget("turn", "turn", "life", {"steps": 10, "input_tokens": 5_000, "wall_clock": 9}),
        Budget("other", "turn", "life", {"steps": 3}, models=("gpt-*",)),
        Budget("thread", "thread", "day", {"output_tokens": 100_000}),
    ]
    agent = Play(policy, budgets=budgets).agent()
    agent.input_tokens = 1_000
    agent.asks("do it")
    agent.does("bash", {"command": "ls"}, "a")
    agent.does("bash", {"command": "cat a"}, Failed("no"))
    assert policy.seen[0]["turn/steps"] == (1, 9)
    assert policy.seen[1]["turn/steps"] == (2, 8)
    assert policy.seen[1]["turn/input_tokens"] == (2_000, 3_000)
    assert policy.seen[1].keys() == {"turn/steps", "turn/input_tokens", "thread/output_tokens"}
    written = policy.seen[1]["thread/output_tokens"][0]
    agent.ends()
    agent.asks("next turn")
    agent.ends()
    assert policy.seen[-1]["turn/steps"] == (1, 9)
    assert policy.seen[-1]["thread/output_tokens"][0] > written


@pytest.mark.parametrize("dimension", ["steps", "input_tokens"])
def test_growth_tells_the_step_at_which_a_budget_ends_the_turn(dimension: str) -> None:
    limit = 20 if dimension == "steps" else 20_000
    play = Play(
        Growth(GrowthOptions(within=6, close=2)), budgets=[Budget("b", "turn", "life", {dimension: limit})]
    )
    agent = play.agent()
    agent.input_tokens = 1_000
    agent.asks("do it")
    for step in range(20):
        agent.does("bash", {"command": f"ls {step}"}, "x" * step)
    told = [(f["severity"], f["evidence"]["steps_left"], f["evidence"]["last_step"]) for f in play.findings]
    assert told == [("info", 6, 20), ("warning", 2, 20)]


def test_a_subagents_tokens_count_for_the_turn_that_it_works_for() -> None:
    policy = Stands()
    play = Play(policy, budgets=[Budget("b", "turn", "life", {"input_tokens": 10_000})])
    main, sub = play.agent(), play.agent("You are a helper.")
    main.input_tokens, sub.input_tokens = 1_000, 500
    main.asks("do it")
    main.does("task", {"prompt": "look through all the files of the project"}, "found")
    sub.asks("look through all the files of the project")
    sub.ends()
    main.ends()
    assert [seen["b/input_tokens"][0] for seen in policy.seen] == [1_000, 1_500, 2_500]
