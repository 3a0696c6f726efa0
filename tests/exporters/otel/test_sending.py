"""The bounded way out: collectors that are dead, slow or refusing cost counters, never the caller."""

import threading
from collections.abc import Callable, Sequence

from exporters.otel.sending import Bounds, Outlet

PATIENCE_S = 60.0


class Gate:
    """A collector under the test's hand."""

    def __init__(self, *, takes: bool = True, opened: bool = True) -> None:
        self.takes = takes
        self.open = threading.Event()
        if opened:
            self.open.set()
        self.entered = threading.Semaphore(0)
        self.batches: list[list[int]] = []
        self.stopped = 0
        self.told: list[str] = []
        self.address = "http://c.example"
        self.rejects: tuple[int, str] = (0, "")

    def said(self) -> tuple[int, str]:
        return self.rejects

    def send(self, batch: Sequence[int]) -> bool:
        self.batches.append(list(batch))
        self.entered.release()
        assert self.open.wait(PATIENCE_S)
        return self.takes

    def stop(self) -> None:
        self.stopped += 1
        self.open.set()

    def outlet(self, bounds: Bounds, pauses_s: Sequence[float] = (0.0,)) -> Outlet[int]:
        made = Outlet(
            "traces", self.send, self.stop, self.told.append, self, bounds=bounds, pauses_s=pauses_s
        )
        made.start()
        return made


def until(what: Callable[[], bool]) -> None:
    """Bounded, and without a clock: another thread brings it about."""
    done = threading.Event()
    for _ in range(int(PATIENCE_S / 0.005)):
        if what():
            return
        done.wait(0.005)
    raise AssertionError("it never came")


def test_all_of_it_is_sent_in_batches_and_in_order() -> None:
    gate = Gate()
    outlet = gate.outlet(Bounds(batch=10))
    for number in range(95):
        outlet.put(number, 1)
    outlet.close(PATIENCE_S).result(PATIENCE_S)
    assert [number for batch in gate.batches for number in batch] == list(range(95))
    assert max(map(len, gate.batches)) == 10
    assert (outlet.tally().sent, outlet.tally().queued, gate.stopped, gate.told) == (95, 0, 1, [])


def test_a_slow_collector_costs_the_oldest_and_no_more_memory_than_allowed() -> None:
    gate = Gate(opened=False)
    outlet = gate.outlet(Bounds(most=50, batch=10))
    for number in range(10):
        outlet.put(number, 1)
    assert gate.entered.acquire(timeout=PATIENCE_S)  # the first batch hangs in the collector
    for number in range(10, 1_000):
        outlet.put(number, 1)
    assert outlet.tally().queued == 50
    assert outlet.tally().dropped_full == 940
    gate.open.set()
    outlet.close(PATIENCE_S).result(PATIENCE_S)
    assert [n for batch in gate.batches for n in batch] == [*range(10), *range(950, 1_000)]


def test_large_items_are_bounded_by_their_weight() -> None:
    gate = Gate(opened=False)
    outlet = gate.outlet(Bounds(most=50, weight=1_000, batch=1))
    outlet.put(0, 1)
    assert gate.entered.acquire(timeout=PATIENCE_S)
    for number in range(1, 20):
        outlet.put(number, 300)
    assert outlet.tally().queued == 3
    outlet.put(99, 5_000)  # larger than everything allowed: it goes, too
    assert outlet.tally().queued == 0
    gate.open.set()
    outlet.close(PATIENCE_S).result(PATIENCE_S)


def test_a_refusing_collector_is_said_once_counted_and_tried_again() -> None:
    gate = Gate(takes=False)
    outlet = gate.outlet(Bounds(batch=1, tick_s=0.001))
    outlet.put(1, 1)
    until(lambda: outlet.tally().dropped_failed == 1)
    outlet.put(2, 1)
    until(lambda: outlet.tally().dropped_failed == 2)
    gate.takes = True
    outlet.put(3, 1)
    until(lambda: outlet.tally().sent == 1)
    outlet.close(PATIENCE_S).result(PATIENCE_S)
    assert [line.partition(" (")[0].partition(":")[0] for line in gate.told] == [
        "the collector does not take traces",
        "the collector takes traces again",
    ]


def test_what_is_rejected_of_a_batch_that_is_taken_is_counted_and_told_once() -> None:
    gate = Gate()
    gate.rejects = (3, "span too old")
    outlet = gate.outlet(Bounds(batch=10))
    for number in range(20):
        outlet.put(number, 1)
    outlet.close(PATIENCE_S).result(PATIENCE_S)
    tally = outlet.tally()
    assert (tally.sent, tally.rejected, tally.dropped_failed) == (14, 6, 0)
    assert gate.told == [
        "the collector rejected 3 spans and says: span too old; what it rejects is lost and counted "
        "(at http://c.example)"
    ]


def test_after_a_failure_there_is_a_pause_which_the_end_cuts_short() -> None:
    gate = Gate(takes=False)
    outlet = gate.outlet(Bounds(batch=1, tick_s=0.001), pauses_s=(3_600.0,))
    outlet.put(1, 1)
    until(lambda: outlet.tally().dropped_failed == 1)
    for number in range(2, 30):
        outlet.put(number, 1)
    gate.takes = True
    outlet.close(PATIENCE_S).result(PATIENCE_S)  # with no more than one try, were it still refusing
    assert (outlet.tally().sent, outlet.tally().queued) == (28, 0)


def test_a_collector_that_hangs_at_the_end_is_left_behind() -> None:
    gate = Gate(opened=False)
    outlet = gate.outlet(Bounds(batch=1))
    for number in range(10):
        outlet.put(number, 1)
    assert gate.entered.acquire(timeout=PATIENCE_S)
    done = outlet.close(0.0)
    assert not done.done()
    outlet.abandon()
    done.result(PATIENCE_S)
    tally = outlet.tally()
    assert tally.sent + tally.dropped_failed == 10
    assert len(gate.batches) == 1


def test_an_exporter_that_raises_costs_its_batch_and_not_the_thread() -> None:
    gate = Gate()
    calls: list[int] = []

    def send(batch: Sequence[int]) -> bool:
        calls.append(len(batch))
        if len(calls) == 1:
            raise RuntimeError("a bug")
        return True

    outlet = Outlet(
        "logs", send, gate.stop, gate.told.append, gate, bounds=Bounds(batch=1, tick_s=0.001), pauses_s=(0.0,)
    )
    outlet.start()
    outlet.put(1, 1)
    until(lambda: outlet.tally().dropped_failed == 1)
    outlet.put(2, 1)
    until(lambda: outlet.tally().sent == 1)
    outlet.close(PATIENCE_S).result(PATIENCE_S)


def test_who_stops_waiting_for_the_end_does_no_harm() -> None:
    gate = Gate(opened=False)
    outlet = gate.outlet(Bounds(batch=1))
    outlet.put(1, 1)
    assert gate.entered.acquire(timeout=PATIENCE_S)
    done = outlet.close(PATIENCE_S)
    assert not done.cancel()
    gate.open.set()
    done.result(PATIENCE_S)
