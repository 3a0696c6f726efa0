"""What a scrape tells of limits, refusals and the ledger, and that its series are bounded."""

from collections.abc import Sequence

from proxy.money.tally import MAX_SUBJECTS, NEAREST, Tally
from proxy.verdict import Balance, Scope, Terminal


def balance(scope: Scope, subject: str, used: int, *, dimension: str = "steps", reserved: int = 0) -> Balance:
    return Balance("cap", scope, subject, "day", dimension, 100, 100, used, reserved)


def rows(tally: Tally, name: str) -> dict[tuple[str, ...], float]:
    return {labels: value for one in tally.readings() if one.name == name for labels, value in one.rows}


def refusal(code: str) -> Terminal:
    return Terminal("deny", "budgets", code, "Looptap: no", "spend", {"budget": "cap"}, None)


def standing(balances: Sequence[Balance]) -> Tally:
    tally = Tally()
    tally.stand(balances)
    return tally


def test_a_team_has_rows_of_its_own_in_the_unit_of_its_limit() -> None:
    tally = standing(
        [Balance("cap", "team", "search", "month", "spend_usd", *[5_500_000_000] * 2, 10**9, 5 * 10**8)]
    )
    row = ("cap", "team", "search", "month", "spend_usd")
    assert rows(tally, "budget_limit") == {row: 5.5}
    assert rows(tally, "budget_used") == {row: 1.0}
    assert rows(tally, "budget_reserved") == {row: 0.5}


def test_turns_share_a_row_that_tells_of_the_one_nearest_to_its_limit() -> None:
    tally = standing([balance("turn", f"trn_{n}", n % 90, reserved=n % 7) for n in range(10_000)])
    assert list(rows(tally, "budget_used")) == [("cap", "turn", NEAREST, "day", "steps")]
    assert rows(tally, "budget_used") == {("cap", "turn", NEAREST, "day", "steps"): 89.0}


def test_subjects_beyond_the_bound_share_a_row_and_the_others_keep_theirs() -> None:
    tally = standing([balance("model", f"m{n}", n) for n in range(MAX_SUBJECTS + 50)])
    first = rows(tally, "budget_used")
    assert len(first) == MAX_SUBJECTS + 1
    tally.stand([balance("model", f"m{n}", n + 1) for n in reversed(range(MAX_SUBJECTS + 50))])
    assert set(rows(tally, "budget_used")) == set(first)


def test_what_clients_may_say_freely_has_no_row_of_its_own() -> None:
    tally = standing([
        *(balance("label:customer", f"c{n}", n % 50) for n in range(1_000)),
        *(balance("turn", "trn", 1, dimension=f"tool_retries:tool-{n}") for n in range(1_000)),
        *(balance("turn", "trn", 1, dimension=f"calls:{pattern}") for pattern in ("Bash", "mcp_*")),
    ])  # fmt: skip
    assert sorted({(row[2], row[4]) for row in rows(tally, "budget_used")}) == [
        (NEAREST, "calls:Bash"), (NEAREST, "calls:mcp_*"), (NEAREST, "steps"), (NEAREST, "tool_retries"),
    ]  # fmt: skip


def test_refusals_and_the_ledgers_troubles_are_counted() -> None:
    tally = Tally()
    tally.refused(refusal("looptap_step_limit"), acted=True)
    tally.refused(refusal("looptap_step_limit"), acted=False)
    tally.trouble("reserve")
    assert rows(tally, "budget_refusals_total") == {
        ("cap", "looptap_step_limit", "true"): 1, ("cap", "looptap_step_limit", "false"): 1,
    }  # fmt: skip
    assert rows(tally, "ledger_errors_total") == {("reserve",): 1}
    assert tally.away
    tally.answered()
    assert not tally.away
