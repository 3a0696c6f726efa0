"""Results find the calls that they answer: by id, by the id behind a prefix, by tool, by place."""

import pytest

from proxy.model import Item
from proxy.tracking.threads import Call
from proxy.tracking.turns import pair


def asked(*calls: Call) -> list[tuple[object, Call]]:
    return [(None, call) for call in calls]


def result(call_id: str | None = None, tool: str | None = None) -> Item:
    return Item("tool_result", "tool", tool=tool, call_id=call_id)


def answered(
    calls: list[Call], results: list[Item], aliases: dict[str, Call] | None = None, *, guess: bool = True
) -> list[tuple[int, int]]:
    """Which results answer which calls, by their numbers."""
    delta = pair(results, asked(*calls), aliases or {}, guess=guess)  # type: ignore[arg-type]
    numbers = {id(call): at for at, call in enumerate(calls)}
    places = {id(item): at for at, item in enumerate(results)}
    return [(places[id(item)], numbers[id(call)]) for item, _, call in delta.answers]


A, B = Call("look", "call_a", "fc_a"), Call("find", "call_b", "fc_b")
NAMELESS = Call("look", None, None)


@pytest.mark.parametrize(
    ("calls", "results", "pairs"),
    [
        ([A, B], [result("call_b"), result("call_a")], [(0, 1), (1, 0)]),
        ([A, B], [result("fc_b"), result("call_a")], [(0, 1), (1, 0)]),
        ([A, B], [result("functions:call_b"), result("x:y:call_a")], [(0, 1), (1, 0)]),
        ([A, B], [result("call_a"), result("call_a")], [(0, 0)]),
        ([A, B], [result("other"), result("call_b")], [(1, 1), (0, 0)]),
        ([A, B], [result(None, "find"), result(None, "look")], [(0, 1), (1, 0)]),
        ([A, B], [result("other", "grep")], []),
        ([A, NAMELESS], [result("call_b"), result("call_a")], [(1, 0), (0, 1)]),
        (
            [Call("look", "a", None), Call("look", "x:a", None)],
            [result("x:a"), result("a")],
            [(0, 1), (1, 0)],
        ),
    ],
)
def test_a_result_answers_a_call(
    calls: list[Call], results: list[Item], pairs: list[tuple[int, int]]
) -> None:
    assert answered(calls, results) == pairs


def test_an_id_that_the_client_gave_is_as_good_and_without_one_nothing_is_guessed_where_it_must_not() -> None:
    assert answered([A, NAMELESS], [result("mine")], {"mine": NAMELESS}, guess=False) == [(0, 1)]
    assert answered([A, NAMELESS], [result("mine")], guess=False) == []


def test_thousands_are_paired_in_any_order() -> None:
    calls = [Call("look", f"call_{n}", None) for n in range(3_000)]
    results = [result(call.call_id) for call in reversed(calls)]
    strange = [result(f"other_{n}") for n in range(3_000)]
    assert answered(calls, [*strange, *results]) == [(3_000 + n, 2_999 - n) for n in range(3_000)]
    assert answered(calls, strange) == [(n, n) for n in range(3_000)]
