"""The table of counters: which stand in it, in which order, and how amounts are written."""

from proxy.terminal.counters import counters_table, ended, under_way
from proxy.verdict import Balance

TURN = "trn_" + "1" * 20


def counter(
    scope: str, subject: str, dimension: str, limit: int, used: int, held: int = 0, hard: int | None = None
) -> Balance:
    stops = limit if hard is None else hard
    return Balance("b", scope, subject, "life", dimension, limit, stops, used, held)


def test_where_it_stops_is_told_by_its_figures_only_where_that_is_not_the_limit() -> None:
    soft = counter("key", "ci", "spend_usd", 20_000_000_000, 37_000_000_000, hard=40_000_000_000).public()
    assert (soft["limit"], soft["stops_at"], soft["used"]) == ("20", "40", "37")
    assert "stops_at" not in counter("key", "ci", "steps", 20, 3).public()


def lines(*balances: Balance, stops: tuple[str, ...] = (), width: int | None = None) -> list[str]:
    return [line.plain for line in counters_table(balances, stops, width)]


def test_the_fullest_comes_first_and_amounts_are_written_as_people_do() -> None:
    assert [" ".join(line.split()) for line in lines(
        counter("turn", TURN, "wall_clock", 1_800_000, 90_000),
        counter("key", "ci", "spend_usd", 5_000_000_000, 4_000_000_000, 500_000_000),
        counter("turn", TURN, "wall_clock", 5_400_000, 0),
    )] == [
        "BUDGET SCOPE SUBJECT LIMIT OF USED HELD LIMIT SHARE WINDOW RESETS AT",
        "b key ci spend_usd 4 0.5 5 90% life -",
        f"b turn {TURN} wall_clock 1m30s - 30m 5% life -",
        f"b turn {TURN} wall_clock 0 - 1h30m 0% life -",
    ]  # fmt: skip


def test_where_it_stops_and_what_is_stopped_are_told_where_they_differ() -> None:
    titles, row = lines(counter("key", "ci", "steps", 10, 15, hard=20), stops=("ci",))
    assert "STOPS AT  SHARE  STOPPED" in titles
    assert row.split() == ["b", "key", "ci", "steps", "15", "-", "10", "20", "75%", "stopped", "life", "-"]
    assert "stopped" not in lines(counter("team", "ci", "steps", 10, 1), stops=("ci",))[1]


def test_the_table_fits_the_terminal() -> None:
    found = lines(counter("turn", TURN, "spend_usd", 5_000_000_000, 123_456_789), width=70)
    assert max(map(len, found)) <= 70
    assert "trn_1" in found[1]


def test_turns_that_came_to_their_own_end_are_left_out() -> None:
    turns = [
        {"id": "trn_1", "open": True, "cause": None}, {"id": "trn_2", "open": False, "cause": "completed"},
        {"id": "trn_3", "open": False, "cause": "spend"},
    ]  # fmt: skip
    over = ended(turns)
    assert over == {"trn_2"}
    kept = [counter("turn", f"trn_{n}", "steps", 9, 1) for n in (1, 3, 4)]
    kept += [counter("turn", "trn_2", "steps", 9, 1, held=1), counter("step", "stp_1", "steps", 9, 1, held=1)]
    left = [counter("turn", "trn_2", "steps", 9, 1), counter("step", "stp_2", "steps", 9, 1)]
    assert under_way([*kept, *left], over) == kept
