"""Item identity: what clients change by the way does not count, everything else does."""

import json

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.reading.identity import (
    KEPT,
    RunningText,
    call_digest,
    canonical,
    canonical_arguments,
    item_digest,
    result_digest,
    text_digest,
    without_marks,
)

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**60), 2**60)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=20,
)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ('{"a": 1, "b": 2}', '{"b":2,"a":1}'),
        ('{"n": 1.0}', '{"n":1}'),
        ('{"n": 1e2}', '{"n":100}'),
        ('["\\u2603"]', '["☃"]'),
        ("  {} ", "{}"),
    ],
)
def test_LOOP_02_spelling_does_not_count(one: str, other: str) -> None:
    assert canonical_arguments(one) == canonical_arguments(other)
    assert call_digest("t", canonical_arguments(one)) == call_digest("t", canonical_arguments(other))


@pytest.mark.parametrize(
    ("one", "other"), [("[1,2]", "[2,1]"), ('{"a":1}', '{"a":"1"}'), ("[true]", "[1]"), ("[1.5]", "[1]")]
)
def test_values_count(one: str, other: str) -> None:
    assert canonical_arguments(one) != canonical_arguments(other)


@given(JSON)
def test_canonical_text_is_json_of_the_same_value_and_its_own_canonical_form(value: object) -> None:
    text = canonical(value)
    assert canonical(orjson.loads(text)) == text
    assert json.loads(text) == json.loads(json.dumps(value))


def test_arguments_that_are_no_json_stay_as_they_are() -> None:
    assert canonical_arguments('{"cut": "of') == '{"cut": "of'
    assert canonical_arguments("") == ""


def test_depth_huge_numbers_and_half_emojis_raise_nothing() -> None:
    deep: list[object] = []
    for _ in range(5_000):
        deep = [deep]
    assert canonical(deep) == "[" * 5_001 + "]" * 5_001
    assert canonical({"n": 2**90}) == f'{{"n":{2**90}}}'
    assert canonical("\ud83d") == '"?"'
    assert canonical({"\ud83d": [1.0]}) == '{"?":[1]}'


def test_outer_white_space_and_empty_text_have_no_identity() -> None:
    assert text_digest("text", "assistant", " hi \n") == text_digest("text", "assistant", "hi")
    assert text_digest("text", "assistant", "h i") != text_digest("text", "assistant", "hi")
    assert text_digest("text", "assistant", " \n") == b""
    assert text_digest("user", "user", "hi") != text_digest("text", "assistant", "hi")


def test_the_error_flag_and_media_belong_to_a_result() -> None:
    plain = result_digest("out")
    assert len({plain, result_digest("out", is_error=True), result_digest("out", [b"image"])}) == 3


@given(st.lists(st.binary(max_size=6), max_size=4), st.lists(st.binary(max_size=6), max_size=4))
def test_no_two_lists_of_parts_share_a_digest(one: list[bytes], other: list[bytes]) -> None:
    assert (item_digest("other", "user", *one) == item_digest("other", "user", *other)) == (one == other)


def test_marks_and_nulls_are_dropped_at_any_depth() -> None:
    value = {"a": None, "id": 1, "list": [{"id": 2, "b": 3}], "c": {"d": None}}
    assert without_marks(value, frozenset({"id"})) == {"list": [{"b": 3}], "c": {}}


@given(st.lists(st.text(" ab\n\u2003\u2603", max_size=5), max_size=30))
def test_a_running_text_has_the_identity_of_the_whole(pieces: list[str]) -> None:
    running = RunningText("text", "assistant")
    for piece in pieces:
        running.add(piece)
    assert running.digest() == text_digest("text", "assistant", "".join(pieces))
    assert running.text() == "".join(pieces)


@pytest.mark.parametrize("outer", ["", " \n", " " * 900_000])
def test_a_text_too_long_to_keep_still_has_the_identity_of_the_whole(outer: str) -> None:
    text = outer + "word \u2603 " * 400_000 + outer
    running = RunningText("text", "assistant")
    for at in range(0, len(text), 70_001):
        running.add(text[at : at + 70_001])
    assert running.digest() == text_digest("text", "assistant", text)
    assert running.text() == text[:KEPT]
    assert running.chars == len(text)
