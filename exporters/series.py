"""Series of plain sums, made into Prometheus families only when somebody scrapes.

Every exchange is counted, few are scraped: adding costs a look-up in a dictionary. No locks; one
thread adds and reads.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from proxy.ports import Reading, Spread

PREFIX = "looptap_"


class Sums:
    """One counter."""

    def __init__(self, name: str, text: str, *labels: str) -> None:
        self._name, self._text, self._labels = name, text, labels
        self._series: dict[tuple[str, ...], float] = {}

    def add(self, amount: float, *labels: str) -> None:
        """Add to one series."""
        self._series[labels] = self._series.get(labels, 0.0) + amount

    def family(self) -> Metric:
        """The series as they stand."""
        return counter_or_gauge(
            Reading(f"{self._name}_total", self._text, list(self._series.items()), self._labels)
        )


class Buckets:
    """One histogram, by one label."""

    def __init__(self, name: str, text: str, label: str, bounds: Sequence[float]) -> None:
        self._name, self._text, self._label, self._bounds = name, text, label, bounds
        self._series: dict[str, tuple[list[int], list[float]]] = {}
        """By label: counts per bucket, and the sum of all values."""

    def add(self, value: float, label: str) -> None:
        """Take one value."""
        known = self._series.get(label)
        if known is None:
            known = self._series[label] = [0] * (len(self._bounds) + 1), [0.0]
        known[0][bisect_left(self._bounds, value)] += 1
        known[1][0] += value

    def family(self) -> Metric:
        """The buckets as they stand."""
        rows = [((label,), counts, total) for label, (counts, (total,)) in self._series.items()]
        return histogram(Spread(self._name, self._text, self._bounds, rows, (self._label,)))


def counter_or_gauge(reading: Reading) -> Metric:
    """A reading as a family, by its name."""
    name = PREFIX + reading.name
    family: CounterMetricFamily | GaugeMetricFamily
    if name.endswith("_total"):
        family = CounterMetricFamily(name.removesuffix("_total"), reading.text, labels=reading.labels)
    else:
        family = GaugeMetricFamily(name, reading.text, labels=reading.labels)
    for labels, value in reading.rows:
        family.add_metric(labels, value)
    return family


def histogram(spread: Spread) -> Metric:
    """A spread as a family: counts summed up, as Prometheus wants them."""
    family = HistogramMetricFamily(PREFIX + spread.name, spread.text, labels=spread.labels)
    bounds = [*(str(float(bound)) for bound in spread.bounds), "+Inf"]
    for labels, counts, total in spread.rows:
        family.add_metric(labels, list(zip(bounds, _running(counts), strict=True)), total)
    return family


def _running(counts: Iterable[int]) -> Iterable[float]:
    below = 0
    for count in counts:
        below += count
        yield float(below)
