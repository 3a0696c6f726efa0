"""The bound of a prompt: never below what a provider counts, and no further above than need be."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.model import Item, Message, ModelRequest, Splice, Tool, Usage
from proxy.money.bounds import LARGEST_WINDOW, PICTURE, PREAMBLE, Bounds
from proxy.pricing import Writes
from proxy.pricing.cards import RateCard, build

CARD: RateCard = build({}, source="config", context_window=200_000)
PNG = b"iVBORw0KGgo" + b"A" * 400_000


def request(*items: Item, shared: int = 0, held: str | None = None, tools: bool = False) -> ModelRequest:
    messages = tuple(Message("user", (item,)) for item in items)
    offered = (Tool("Bash", b"d"),) if tools else ()
    return ModelRequest("anthropic", "chat", "m", False, messages, shared=shared, held=held, tools=offered)


def bound(bounds: Bounds, name: str, body: bytes, asked: ModelRequest, splice: Splice | None = None) -> int:
    return bounds.prompt(name, asked, body, len(body), splice, CARD)


def test_a_first_body_is_bounded_by_its_length_and_what_tools_bring() -> None:
    assert bound(Bounds(), "a", b"x" * 500, request()) == 500
    assert bound(Bounds(), "a", b"x" * 500, request(tools=True)) == 500 + PREAMBLE


def test_a_later_one_by_what_was_counted_and_the_new_bytes() -> None:
    bounds = Bounds()
    assert bound(bounds, "a", b"x" * 5000, request()) == 5000
    bounds.learn("a", None, Usage(input_tokens=900, output_tokens=50))
    assert bound(bounds, "b", b"x" * 5200, request(), Splice("a", 4990, 10)) == 900 + 200


def test_while_nothing_was_counted_the_bound_goes_on_from_the_bound() -> None:
    bounds = Bounds()
    bound(bounds, "a", b"x" * 5000, request())
    assert bound(bounds, "b", b"x" * 5200, request(), Splice("a", 4990, 10)) == 5200


def test_a_base_that_is_not_known_bounds_nothing() -> None:
    assert bound(Bounds(), "b", b"x" * 5200, request(), Splice("gone", 4990, 10)) == 5200


def test_an_encoded_body_is_bounded_by_its_plain_length() -> None:
    assert Bounds().prompt("a", request(), None, 7000, None, CARD) == 7000


def test_no_prompt_is_longer_than_the_models_window() -> None:
    assert bound(Bounds(), "a", b"x" * 1_000_000, request()) == 200_000
    assert Bounds().prompt("a", request(), None, 9_000_000, None, None) == LARGEST_WINDOW


def test_a_picture_counts_as_one_and_not_as_its_base64() -> None:
    picture = Item("media", "user", form="image")
    body = b'{"messages": [' + PNG + b"]}"
    assert bound(Bounds(), "a", body, request(picture)) < len(b'{"messages": []}') + 2 * PICTURE + 1


def test_what_is_too_short_for_a_picture_counts_as_it_is_however_often_it_looks_like_one() -> None:
    body = (b'"' + b"/9j/" * (PICTURE // 2 - 1) + b'",') * 30
    assert Bounds().prompt("a", request(), body, len(body), None, None) == len(body)
    assert len(body) < LARGEST_WINDOW


def test_a_document_that_lies_elsewhere_may_fill_the_window() -> None:
    assert bound(Bounds(), "a", b"short", request(Item("media", "user", form="document"))) == 200_000


@pytest.mark.parametrize(("known", "expected"), [(True, 1000 + 60 + 40), (False, 200_000)])
def test_a_history_held_by_the_provider_counts_as_it_did(known: bool, expected: int) -> None:
    bounds = Bounds()
    if known:
        bounds.learn("a", "resp_1", Usage(input_tokens=1000, output_tokens=60))
    assert bound(bounds, "b", b"x" * 40, request(held="resp_1")) == expected


MARK = b'"cache_control": {"type": "ephemeral"%b}'
NONE, SHORT, LONG = Writes


@pytest.mark.parametrize(
    ("body", "writes"),
    [
        (b'{"messages": []}', NONE),
        (MARK % b"", SHORT),
        (MARK % b', "ttl": "5m"', SHORT),
        (MARK % b', "ttl":"1h"', LONG),
        (MARK % (b', "ttl": "5m"}, {' + MARK % b', "ttl" : "1h"'), LONG),
        (MARK % (b', "ttl":' + b" " * 100 + b'"1h"'), LONG),
        (b'"cache\\u005fcontrol": {}', LONG),
        (MARK % b', "t\\u0074l": "1h"', LONG),
        (b'"text": "a \\u003c b \\u00e9"', NONE),
    ],
)
def test_a_prompt_is_written_to_the_cache_as_far_as_it_is_marked(body: bytes, writes: Writes) -> None:
    assert Bounds().writes("a", request(), body, None) is writes
    assert Bounds().writes("a", request(held="resp_1"), body, None) is LONG
    assert Bounds().writes("a", request(), None, None) is LONG


@given(
    st.lists(
        st.sampled_from([b"x" * 50, MARK % b"", MARK % b', "ttl": "5m"', MARK % b', "ttl": "1h"']), min_size=1
    ),
    st.data(),
)
def test_marks_are_seen_wherever_a_body_has_changed(pieces: list[bytes], data: st.DataObject) -> None:
    body, bounds = b", ".join(pieces), Bounds()
    base = bytearray(body)
    at, end = sorted((data.draw(st.integers(0, len(body))), data.draw(st.integers(0, len(body)))))
    base[at:end] = data.draw(st.sampled_from([b"", b"y", b"5m", body[at:end]]))
    prefix = next((n for n, pair in enumerate(zip(base, body, strict=False)) if pair[0] != pair[1]), 0)
    bounds.writes("base", request(), bytes(base), None)
    found = bounds.writes("b", request(), body, Splice("base", prefix, 0))
    assert found >= Bounds().writes("c", request(), body, None)
