"""The bound of a prompt: never below what a provider counts, and no further above than need be."""

import pytest

from proxy.model import Item, Message, ModelRequest, Splice, Tool, Usage
from proxy.money.bounds import LARGEST_WINDOW, PICTURE, PREAMBLE, Bounds
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


def test_a_document_that_lies_elsewhere_may_fill_the_window() -> None:
    assert bound(Bounds(), "a", b"short", request(Item("media", "user", form="document"))) == 200_000


@pytest.mark.parametrize(("known", "expected"), [(True, 1000 + 60 + 40), (False, 200_000)])
def test_a_history_held_by_the_provider_counts_as_it_did(known: bool, expected: int) -> None:
    bounds = Bounds()
    if known:
        bounds.learn("a", "resp_1", Usage(input_tokens=1000, output_tokens=60))
    assert bound(bounds, "b", b"x" * 40, request(held="resp_1")) == expected
