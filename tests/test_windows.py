"""Windows: half open, gapless, and right where a clock changes."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.stores.windows import FOREVER, Windows, WindowUnknown

SECOND = 1_000_000_000
HOUR = 3600 * SECOND
KINDS = ["minute", "hour", "day", "week", "month"]
ZONES = [
    "UTC", "Europe/Berlin", "America/New_York", "America/Sao_Paulo", "America/St_Johns", "Asia/Kolkata",
    "Asia/Kathmandu", "Australia/Lord_Howe", "Pacific/Apia", "Africa/Cairo", "America/Havana",
]  # fmt: skip


def at(zone: str, *when: int, fold: int = 0) -> int:
    local = datetime(*when, tzinfo=ZoneInfo(zone), fold=fold)  # type: ignore[arg-type, misc]
    return int((local.astimezone(UTC) - datetime(1970, 1, 1, tzinfo=UTC)) / timedelta(seconds=1)) * SECOND


@given(
    zone=st.sampled_from(ZONES),
    kind=st.sampled_from(KINDS),
    now_ns=st.integers(at("UTC", 1980, 1, 1), at("UTC", 2040, 1, 1)),
)
def test_a_window_holds_the_moment_it_was_asked_for_and_the_next_one_begins_at_its_end(
    zone: str, kind: str, now_ns: int
) -> None:
    window = Windows(zone).at(kind, now_ns)
    assert window.holds(now_ns)
    assert window.ends_ns is not None
    after = Windows(zone).at(kind, window.ends_ns)
    assert after.holds(window.ends_ns)
    assert not after.holds(window.ends_ns - 1) or kind == "hour"  # half-hour shifts cut an hour short
    if kind != "hour":
        assert after.starts_ns == window.ends_ns
        assert Windows(zone).at(kind, window.starts_ns) == window


@pytest.mark.parametrize(
    ("zone", "kind", "now", "starts", "ends"),
    [
        ("UTC", "minute", (2026, 3, 11, 12, 5), (2026, 3, 11, 12, 5), (2026, 3, 11, 12, 6)),
        ("Asia/Kolkata", "hour", (2026, 3, 11, 12, 5), (2026, 3, 11, 12), (2026, 3, 11, 13)),
        ("Asia/Kolkata", "day", (2026, 3, 11, 0, 5), (2026, 3, 11), (2026, 3, 12)),
        ("Europe/Berlin", "week", (2026, 3, 15, 23, 59), (2026, 3, 9), (2026, 3, 16)),
        ("Europe/Berlin", "week", (2026, 3, 16), (2026, 3, 16), (2026, 3, 23)),
        ("America/New_York", "month", (2026, 12, 31, 23, 59), (2026, 12, 1), (2027, 1, 1)),
        ("America/Sao_Paulo", "day", (2018, 11, 4, 5), (2018, 11, 4, 1), (2018, 11, 5)),  # no midnight
    ],
)
def test_windows_begin_where_people_expect(
    zone: str, kind: str, now: tuple[int, ...], starts: tuple[int, ...], ends: tuple[int, ...]
) -> None:
    window = Windows(zone).at(kind, at(zone, *now))
    assert (window.starts_ns, window.ends_ns) == (at(zone, *starts), at(zone, *ends))


@pytest.mark.parametrize(("day", "hours"), [((2026, 3, 29), 23), ((2026, 10, 25), 25), ((2026, 7, 1), 24)])
def test_days_have_the_length_they_have(day: tuple[int, int, int], hours: int) -> None:
    window = Windows("Europe/Berlin").at("day", at("Europe/Berlin", *day, 12))
    assert window.ends_ns is not None
    assert window.ends_ns - window.starts_ns == hours * HOUR


def test_an_hour_before_a_midnight_that_comes_twice_belongs_to_the_day_that_has_begun() -> None:
    zone = "America/Havana"  # clocks go back from one to midnight
    first, second = at(zone, 2026, 11, 1, 0, 30), at(zone, 2026, 11, 1, 0, 30, fold=1)
    assert second - first == HOUR
    assert Windows(zone).at("day", first) == Windows(zone).at("day", second)


def test_life_and_total_never_end() -> None:
    assert Windows().at("life", 5) == Windows().at("total", 10**20) == FOREVER


def test_an_unknown_window_is_named() -> None:
    with pytest.raises(WindowUnknown, match="fortnight"):
        Windows().at("fortnight", 0)
