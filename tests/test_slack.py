"""Memory is given back in pauses, once for each stretch of traffic, and the traffic goes on."""

import ctypes

import pytest

from proxy.slack import Slack


def beats(*moments: tuple[float, int, bool]) -> list[float]:
    """When memory was given back, of moments with the exchanges so far and whether none is under way."""
    given: list[float] = []
    at = [0.0]
    slack = Slack(lambda: given.append(at[0]))
    for now, carried, quiet in moments:
        at[0] = now
        slack.beat(now, carried=carried, quiet=quiet)
    return given


def test_a_pause_gives_back_once() -> None:
    assert beats((0, 5, True), (1, 5, True), (2, 5, True), (3, 5, True), (60, 5, True)) == [2]


def test_while_something_is_under_way_nothing_is_given_back() -> None:
    assert (
        beats((0, 5, True), (1, 5, False), (2, 5, False), (9, 5, False), (10, 6, True), (11, 6, True)) == []
    )


def test_traffic_after_a_pause_makes_the_next_one() -> None:
    assert beats((0, 1, True), (2, 1, True), (3, 2, True), (4, 2, True), (5, 2, True)) == [2, 5]


def test_what_carried_nothing_has_nothing_to_give_back() -> None:
    assert beats((0, 0, True), (5, 0, True), (9, 0, True)) == []


def test_the_allocator_at_hand_takes_the_call() -> None:
    slack = Slack()
    slack.beat(0, carried=1, quiet=True)
    slack.beat(9, carried=1, quiet=True)


def test_an_allocator_without_such_a_call_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: object())
    slack = Slack()
    slack.beat(0, carried=1, quiet=True)
    slack.beat(9, carried=1, quiet=True)
