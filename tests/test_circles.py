"""Circles of forgotten objects are found: young ones a few at a time, old ones while there is no traffic."""

import gc
import weakref
from collections.abc import Iterator

import pytest

from proxy.circles import Circles


class Node:
    """Holds itself."""

    def __init__(self) -> None:
        self.other = self


@pytest.fixture
def circles() -> Iterator[Circles]:
    running = Circles()
    running.start()
    yield running
    running.stop()


def slices(count: int) -> list[list[int]]:
    """Enough new objects for so many looks."""
    return [[n] for n in range(count * 2_000)]


def test_a_young_circle_goes_with_the_next_look(circles: Circles) -> None:
    gone = weakref.ref(Node())
    kept = slices(2)
    assert gone() is None
    assert len(gc.get_objects()) < len(kept)  # they are not looked at again


def test_an_old_circle_goes_when_there_is_no_traffic(circles: Circles) -> None:
    old = Node()
    gone = weakref.ref(old)
    kept = [slices(2)]
    del old
    kept.append(slices(250))
    circles.beat(quiet=False)
    assert gone() is not None
    circles.beat(quiet=True)
    assert gone() is None


def test_python_goes_on_as_before() -> None:
    before = gc.get_threshold()
    running = Circles()
    running.start()
    running.stop()
    assert (gc.get_threshold(), gc.get_freeze_count()) == (before, 0)
