"""Series of plain sums, which exporters put into their own form when somebody wants to see them.

Every exchange is counted, few are looked at: adding costs a look-up in a dictionary. No locks; one
thread adds and reads. Series are as many as different labels come in: whoever adds bounds them.
"""

from bisect import bisect_left
from collections.abc import Sequence

from proxy.ports import Reading, Spread

OTHER = "other"


class Sums:
    """One counter."""

    def __init__(self, name: str, text: str, *labels: str) -> None:
        self._name, self._text, self._labels = name, text, labels
        self._series: dict[tuple[str, ...], float] = {}

    def add(self, amount: float, *labels: str) -> None:
        """Add to one series."""
        self._series[labels] = self._series.get(labels, 0.0) + amount

    def reading(self) -> Reading:
        """The series as they stand."""
        return Reading(self._name, self._text, list(self._series.items()), self._labels)


class Buckets:
    """One histogram."""

    def __init__(self, name: str, text: str, bounds: Sequence[float], *labels: str) -> None:
        self._name, self._text, self._bounds, self._labels = name, text, bounds, labels
        self._series: dict[tuple[str, ...], tuple[list[int], list[float]]] = {}
        """Counts per bucket, and the sum of all values."""

    def add(self, value: float, *labels: str) -> None:
        """Take one value."""
        known = self._series.get(labels)
        if known is None:
            known = self._series[labels] = [0] * (len(self._bounds) + 1), [0.0]
        known[0][bisect_left(self._bounds, value)] += 1
        known[1][0] += value

    def spread(self) -> Spread:
        """The buckets as they stand."""
        rows = [(labels, tuple(counts), total) for labels, (counts, (total,)) in self._series.items()]
        return Spread(self._name, self._text, self._bounds, rows, self._labels)


class Names:
    """Names that come from outside, as label values: a bounded number of them, ``other`` for the rest."""

    def __init__(self, most: int, other: str = OTHER) -> None:
        self._most, self._other = most, other
        self._known: dict[str, str] = {}

    def of(self, name: str) -> str:
        """What stands for a name."""
        known = self._known.get(name)
        if known is not None:
            return known
        if len(self._known) >= self._most:
            return self._other
        self._known[name] = name[:120]
        return name[:120]
