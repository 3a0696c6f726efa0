"""Byte surgery: the right place is changed, and nothing else."""

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.dialects.splice import (
    append_to_list,
    insert_field,
    replace_number,
    replace_value,
    set_field,
    span_of,
)

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=20,
)
FORMS = st.sampled_from([0, orjson.OPT_INDENT_2, orjson.OPT_APPEND_NEWLINE])


def at(body: bytes, *path: str | int) -> bytes | None:
    span = span_of(body, *path)
    return None if span is None else body[span[0] : span[1]]


def test_the_same_key_deeper_down_is_not_meant() -> None:
    body = b'{"a":{"max_tokens":1},"s":"\\"max_tokens\\":2","max_tokens" : 3 , "z":[{"max_tokens":4}]}'
    assert at(body, "max_tokens") == b"3"
    expected = b'{"a":{"max_tokens":1},"s":"\\"max_tokens\\":2","max_tokens" : 99 , "z":[{"max_tokens":4}]}'
    assert replace_number(body, ("max_tokens",), 99) == expected
    assert at(body, "a", "max_tokens") == b"1"
    assert at(body, "z", 0, "max_tokens") == b"4"


def test_of_a_double_key_the_last_counts() -> None:
    body = b'{"n":1,"m":{"n":5},"n":12,"k":[]}'
    assert at(body, "n") == b"12"
    assert replace_number(body, ("n",), 7) == b'{"n":1,"m":{"n":5},"n":7,"k":[]}'
    assert at(b'{"n":12,"n":1}', "n") == b"1"
    assert at(b'{"n":"x","n":"x","m":3}', "m") == b"3"


def test_escaped_keys_and_strings_full_of_brackets() -> None:
    body = rb'{"\u006dax":1,"text":"]}\\\"[{","list":["]",{"a":"}"} ]}'
    assert at(body, "max") == b"1"
    assert (
        append_to_list(body, ("list",), b"2")
        == rb'{"\u006dax":1,"text":"]}\\\"[{","list":["]",{"a":"}"},2 ]}'
    )


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"{}", b'{"k":1}'),
        (b" { } \n", b' {"k":1 } \n'),
        (b'{"a":1}', b'{"a":1,"k":1}'),
        (b'{\n  "a": 1\n}\n', b'{\n  "a": 1,"k":1\n}\n'),
    ],
)
def test_a_new_field_stands_behind_the_last(body: bytes, expected: bytes) -> None:
    assert insert_field(body, (), "k", b"1") == expected
    assert set_field(body, (), "k", b"1") == expected


@pytest.mark.parametrize(
    "body", [b'{"l":[]}', b'{"l":[ ]}', b'{"l":[1]}', b'{"l": [\n{"a":[]}\n]\n}', b'{"l":[1, "]"]}']
)
def test_append(body: bytes) -> None:
    longer = append_to_list(body, ("l",), b'{"x":2}')
    assert longer is not None
    assert orjson.loads(longer)["l"] == [*orjson.loads(body)["l"], {"x": 2}]


def test_nested_objects_take_fields() -> None:
    body = b'{"c":{"maxOutputTokens":5},"d":{}}'
    assert set_field(body, ("c",), "maxOutputTokens", b"3") == b'{"c":{"maxOutputTokens":3},"d":{}}'
    assert (
        set_field(body, ("d",), "maxOutputTokens", b"3")
        == b'{"c":{"maxOutputTokens":5},"d":{"maxOutputTokens":3}}'
    )


@pytest.mark.parametrize(
    "body", [b"", b"  ", b"{", b"nonsense", b'{"a":', b"[1,", b'{"a":1', b'{"l":5}', b'"x"', b"\xff"]
)
def test_what_is_not_there_is_none(body: bytes) -> None:
    assert span_of(body, "l", 0) is None
    assert append_to_list(body, ("l",), b"1") is None
    assert replace_value(body, ("x",), b"1") is None
    assert replace_number(body, ("l", -1, "x"), 1) is None


@given(st.dictionaries(st.text(max_size=5), JSON, min_size=1, max_size=6), FORMS, st.data())
def test_every_place_is_found_and_only_it_changes(
    value: dict[str, Any], form: int, data: st.DataObject
) -> None:
    body = orjson.dumps(value, option=form)
    path: list[str | int] = [data.draw(st.sampled_from(sorted(value)))]
    here = value[str(path[0])]
    while isinstance(here, (list, dict)) and here and data.draw(st.booleans()):
        path.append(data.draw(st.sampled_from(sorted(here) if isinstance(here, dict) else range(len(here)))))
        here = here[path[-1]]
    found = at(body, *path)
    assert found is not None
    assert orjson.loads(found) == here
    changed = replace_value(body, tuple(path), b'"new"')
    assert changed is not None
    span = span_of(body, *path)
    assert span is not None
    assert changed[: span[0]] == body[: span[0]]
    assert changed.endswith(body[span[1] :])
    assert orjson.loads(at(changed, *path) or b"") == "new"


@given(st.binary(max_size=60))
def test_garbage_never_raises(body: bytes) -> None:
    span_of(body, "a", 0)
    append_to_list(body, ("a",), b"1")
    insert_field(body, (), "a", b"1")
