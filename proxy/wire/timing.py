"""What the wire measures of itself: first chunks, gaps between chunks, and the time that we add.

Plain sums in buckets, fed with nanoseconds that the caller has at hand anyway. Nothing here reads a
clock. The invariant: series are as many as configured upstreams, whatever passes.
"""

from bisect import bisect_left
from collections.abc import Sequence

from proxy.ports import Spread

_NS = 1_000_000_000
WAITS_S = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
"""Buckets for what the provider takes; models think for minutes."""
ADDED_S = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 10.0)
"""Buckets for what we take: up to the longest wait for the next minute of a pace."""


class Buckets:
    """One series of a spread."""

    __slots__ = ("_bounds_ns", "counts", "sum_ns")

    def __init__(self, bounds_s: Sequence[float]) -> None:
        self._bounds_ns = [round(bound * _NS) for bound in bounds_s]
        self.counts = [0] * (len(bounds_s) + 1)
        self.sum_ns = 0

    def add(self, ns: int) -> None:
        """Take one time; a clock that was set back counts as none."""
        self.counts[bisect_left(self._bounds_ns, ns)] += 1
        if ns > 0:
            self.sum_ns += ns


class Timings:
    """All that is measured on the wire. One per server."""

    def __init__(self) -> None:
        self._first: dict[str, Buckets] = {}
        self._gaps: dict[str, Buckets] = {}
        self.request = Buckets(ADDED_S)
        """From a whole request to the moment when it may go out: reading, judging, the ledger."""
        self.chunk = Buckets(ADDED_S)
        """What reading along takes after a chunk has left, which the next one may have to wait for."""

    def first(self, upstream: str) -> Buckets:
        """From a request's arrival to the first bytes of its answer."""
        return _of(self._first, upstream)

    def gaps(self, upstream: str) -> Buckets:
        """Between two chunks of one stream."""
        return _of(self._gaps, upstream)

    def spreads(self) -> Sequence[Spread]:
        """As they stand."""
        added = {"request": self.request, "chunk": self.chunk}
        return (
            _spread(
                "time_to_first_chunk_seconds", "From a request's arrival to the first bytes of its answer.",
                WAITS_S, "upstream", self._first,
            ),
            _spread(
                "time_between_chunks_seconds", "Between two chunks of a streamed answer.",
                WAITS_S, "upstream", self._gaps,
            ),
            _spread(
                "added_seconds", "What Looptap adds: before a request goes out, and after each chunk.",
                ADDED_S, "phase", added,
            ),
        )  # fmt: skip


def _of(series: dict[str, Buckets], label: str) -> Buckets:
    found = series.get(label)
    if found is None:
        found = series[label] = Buckets(WAITS_S)
    return found


def _spread(name: str, text: str, bounds_s: Sequence[float], label: str, of: dict[str, Buckets]) -> Spread:
    rows = [((value,), tuple(one.counts), one.sum_ns / _NS) for value, one in of.items()]
    return Spread(name, text, bounds_s, rows, (label,))
