"""Values in words: unknown stays unknown, cheap is not free, strangers' text is inert."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.terminal.wording import UNKNOWN, age, count, duration, encodable, inert, moment, money, share


@pytest.mark.parametrize(
    ("value", "quality", "shown"),
    [
        ("0.0123", "measured", "$0.0123"),
        ("0.0123", "estimated", "~$0.0123"),
        ("0.0123", "assumed", "~$0.0123"),
        (None, "unpriced", UNKNOWN),
        (None, "measured", UNKNOWN),
        ("0.5", "unpriced", UNKNOWN),
        ("0", "measured", "$0.0000"),
        ("0.0000123", "measured", "$0.000012"),
        ("0.00000000049", "measured", "$0.00000000049"),
        ("1234.567", "measured", "$1,234.57"),
        ("-0.25", "measured", "-$0.2500"),
        ("rubbish", "measured", UNKNOWN),
        ("NaN", "measured", UNKNOWN),
        (0.1, "measured", UNKNOWN),
    ],
)
def test_money(value: object, quality: str, shown: str) -> None:
    assert money(value, quality) == shown


@pytest.mark.parametrize(
    ("micros", "shown"),
    [
        (None, UNKNOWN),
        (0, "0ms"),
        (35_400, "35ms"),
        (999_600, "1.0s"),
        (2_149_000, "2.1s"),
        (59_960_000, "1m00s"),
        (247_000_000, "4m07s"),
        (11_100_000_000, "3h05m"),
        (187_200_000_000, "2d04h"),
        (-35_000, "-35ms"),
    ],
)
def test_duration(micros: int | None, shown: str) -> None:
    assert duration(micros) == shown


@pytest.mark.parametrize(
    ("number", "shown"),
    [
        (None, UNKNOWN),
        (True, UNKNOWN),
        (0, "0"),
        (999, "999"),
        (41_240, "41.2k"),
        (99_960, "100k"),
        (1_300_000, "1.3M"),
    ],
)
def test_count(number: object, shown: str) -> None:
    assert count(number) == shown


def test_share_is_unknown_without_both_numbers_and_never_rounds_up_to_all() -> None:
    assert share(999, 1000) == "99%"
    assert share(1000, 1000) == "100%"
    assert share(None, 1000) is None
    assert share(5, None) is None
    assert share(5, 0) is None


def test_age_and_moment() -> None:
    then = moment("2026-11-30T06:00:00.000000Z")
    assert then is not None
    assert then % 1_000_000 == 0
    assert moment("2026-11-30T07:00:00.000000+01:00") == then
    assert moment("yesterday") is None
    assert moment(12) is None
    assert [age(then, then + s * 1_000_000) for s in (0, 12, 240, 10_800, 777_600)] == [
        "now",
        "12s",
        "4m",
        "3h",
        "9d",
    ]


def test_inert_shows_what_was_there_without_letting_it_act() -> None:
    assert inert("a\x1b[31mred") == r"a\x1b[31mred"
    assert inert("abc\u202edef") == r"abc\u202edef"
    assert inert("one\r\ntwo\tthree\u2028four") == "one two three four"
    assert inert("\x9b2J\x07") == r"\x9b2J\x07"
    assert inert("\ud800") == r"\ud800"
    assert inert("e\u0301" + "\u0301" * 50) == "e\u0301\u0301"


def test_inert_says_that_it_cut_also_between_two_words() -> None:
    assert inert("one two three", 7) == "one tw…"
    assert inert(" one two \n", 7) == "one two"


def test_inert_reads_no_more_of_a_megabyte_than_it_shows() -> None:
    assert inert("x" * 1_000_000, 10) == "xxxxxxxxx…"
    assert inert("x" + " " * 1_000_000 + "y", 10) == "x…"
    assert inert("日本語" * 10, 8, ellipsis="...") == "日本語日本..."


@given(st.text(), st.integers(min_value=4, max_value=80))
def test_inert_is_one_harmless_line_of_bounded_length(text: str, limit: int) -> None:
    line = inert(text, limit)
    assert len(line) <= limit
    assert all(unicodedata.category(c) not in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp") for c in line)
    assert line.splitlines() in ([], [line])


@given(st.text(), st.sampled_from(["ascii", "latin-1", "utf-8", "cp1252"]))
def test_inert_text_can_be_written_in_any_encoding(text: str, encoding: str) -> None:
    assert encodable(inert(text), encoding).encode(encoding) or not inert(text)
