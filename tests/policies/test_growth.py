"""The line that a turn's requests follow, and where it leads."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.growth import Growth, GrowthOptions, Line, steps_left
from proxy.model import Attempt, Cost, ModelRequest, Outcome, Usage
from proxy.ports import View
from proxy.testing import Play
from proxy.verdict import Balance, Finding, to_usd


def balance(dimension: str, limit: int, used: int = 0, scope: str = "turn") -> Balance:
    return Balance("b", scope, "x", "life", dimension, limit, limit, used, 0)


def walk(
    tokens: list[int], balances: Any = None, *, nano: int = 0, model: str = "m", **options: Any
) -> list[tuple[int, Finding]]:
    """Findings of a turn whose steps read so many tokens, each with its step."""
    policy, memory, found = Growth(GrowthOptions(**options)), {}, []
    for step, read in enumerate(tokens):
        usage = Usage(input_tokens=read, output_tokens=100)
        attempt = Attempt(
            "complete", "complete", Outcome(), usage, Cost(to_usd(nano), "measured"), 200, step, step + 1
        )
        view = View(
            now_ns=step, mode="enforce", session="s", thread="h", turn="t", step=f"p{step}", step_index=step,
            request=ModelRequest("anthropic", "chat", model, True, ()),
            outcome=attempt.reply, attempt=attempt,
            balances={b.name: b for b in (balances(step + 1) if balances else ())}, memory=memory,
        )  # fmt: skip
        decision = policy.step_end(view)
        memory = dict(decision.memory or memory)
        found += [(step, finding) for finding in decision.findings]
    return found


@given(start=st.integers(0, 10**6), growth=st.integers(0, 10**5), steps=st.integers(2, 80))
def test_an_exact_line_is_fitted_exactly(start: int, growth: int, steps: int) -> None:
    line = Line()
    for x in range(steps):
        line.add(start + growth * x)
    assert line.growth == pytest.approx(growth, abs=1e-3)
    assert line.start == pytest.approx(start, abs=1.0)


@given(start=st.integers(1, 10**5), growth=st.integers(0, 10**4), tokens=st.integers(0, 10**7))
@settings(max_examples=200)
def test_a_forecast_is_the_last_step_that_still_fits(start: int, growth: int, tokens: int) -> None:
    line = Line()
    for x in range(6):
        line.add(start + growth * x)
    steps = line.until(tokens)
    if steps < 100_000:
        assert line.ahead(steps) <= tokens * (1 + 1e-6) + 1
        assert line.ahead(steps + 1) >= tokens * (1 - 1e-6) - 1


def test_a_compaction_begins_a_new_line() -> None:
    line = Line()
    for tokens in (10_000, 12_000, 14_000, 3_000, 4_000, 5_000):
        line.add(tokens)
    assert (line.n, round(line.start), round(line.growth)) == (3, 3_000, 1_000)


def test_a_steps_budget_is_forecast_as_info_and_near_its_end_as_warning() -> None:
    found = walk([1000 + 100 * n for n in range(20)], lambda used: [balance("steps", 20, used)])
    told = [(step, f.kind, f.severity, f.evidence["steps_left"]) for step, f in found]
    assert told == [(9, "budget", "info", 10), (16, "budget", "warning", 3)]
    assert found[0][1].evidence["last_step"] == 20
    assert found[0][1].evidence["quality"] == "estimated"


def test_the_step_at_which_tokens_run_out_is_forecast_right() -> None:
    tokens = [1000 + 100 * n for n in range(40)]
    limit = sum(tokens[:30])

    def balances(steps: int) -> list[Balance]:
        return [balance("input_tokens", limit, sum(tokens[:steps]))]

    found = walk(tokens[:30], balances)
    assert [f.evidence["last_step"] for _, f in found] == [30, 30]
    assert {f.evidence["read_by_then"] for _, f in found} == {limit}


def test_spend_is_forecast_by_what_the_turns_tokens_cost() -> None:
    found = walk([1000] * 20, lambda used: [balance("spend_usd", 20 * 10**9, used * 10**9)], nano=10**9)
    assert [f.evidence["last_step"] for _, f in found] == [20, 20]
    assert found[0][1].evidence["limit"] == "20"


@pytest.mark.parametrize(
    "other",
    [balance("wall_clock", 10), balance("steps", 5, scope="org"), balance("calls:bash", 3)],
)
def test_what_does_not_depend_on_this_turns_steps_is_not_forecast(other: Balance) -> None:
    assert steps_left(Line(n=9, last=10, steps=9), other) is None


def test_the_window_is_told_at_its_marks_once_and_as_a_warning_only_where_it_is_known() -> None:
    tokens = [100_000 + 10_000 * n for n in range(10)]
    table = walk(tokens, model="claude-sonnet-4-5")
    assert [(f.kind, f.severity, f.evidence["window_from"]) for _, f in table] == [
        ("window", "info", "table"), ("window", "info", "table"),
    ]  # fmt: skip
    own = walk(tokens, model="acme-1", windows={"acme-*": 200_000})
    assert [f.severity for _, f in own] == ["info", "warning"]
    assert own[0][1].evidence["share"] == pytest.approx(0.8, abs=0.01)
    assert own[0][1].evidence["steps_until_full"] == 3


def test_a_request_longer_than_the_tables_window_shows_that_the_table_is_wrong() -> None:
    assert walk([250_000 + n for n in range(10)], model="claude-sonnet-4-5") == []


def test_a_model_without_a_known_window_and_a_turn_without_budgets_stay_silent() -> None:
    assert walk([1000 * n + 1 for n in range(39)], model="nobody-knows") == []


def test_a_long_turn_gets_its_fit_at_forty_and_eighty_steps() -> None:
    found = walk([1000 + 10 * n for n in range(100)])
    assert [(step + 1, f.kind, f.severity) for step, f in found] == [(40, "fit", "info"), (80, "fit", "info")]
    assert found[0][1].evidence["growth_per_step"] == 10
    assert found[0][1].evidence["read_by_step_80"] == sum(1000 + 10 * n for n in range(80))


def test_it_is_silent_on_a_healthy_turn_through_the_core() -> None:
    play = Play(Growth())
    agent = play.agent()
    agent.asks("do it")
    for n in range(12):
        agent.does("bash", {"command": f"ls {n}"}, "x" * 400)
    agent.ends()
    assert play.findings == []
    agent.asks("and again")
    agent.input_tokens = 170_000
    agent.does("bash", {"command": "ls"}, "x")
    assert play.kinds() == ["window"]
