"""Metrics over OTLP: the conventions' own (``calls``) and every figure that Prometheus can scrape.

Taken as they stand once an interval, cumulative since the start, and handed to an ``Outlet``; a newer
state replaces one that still waits. All on the event loop's thread, but for the sending.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import cast

from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricExporter,
    MetricExportResult,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.resources import Resource

from exporters.otel.calls import Calls, unit_of
from exporters.otel.collector import Collector
from exporters.otel.link import scope
from exporters.otel.sending import Bounds, Outlet
from exporters.otel.wanted import Unusable
from proxy.model import Record
from proxy.ports import Reading, Spread

INTERVAL_S = 60.0
_BOUNDS = Bounds(most=2, batch=1)
"""Each state holds all that went before: one more than the one being sent is enough."""
_CUMULATIVE = AggregationTemporality.CUMULATIVE
_UNITS = {"_seconds": "s", "_bytes": "By"}
_UNKNOWN = cast(float, None)
"""Smallest and largest value are not kept; the encoder leaves out what is None."""

Figures = Callable[[], Iterable[Reading | Spread]]


def interval_s(environ: Mapping[str, str]) -> float:
    """How often they leave (``OTEL_METRIC_EXPORT_INTERVAL``, in milliseconds). Raises Unusable."""
    name = "OTEL_METRIC_EXPORT_INTERVAL"
    text = environ.get(name, "").strip()
    if not text:
        return INTERVAL_S
    if not text.isdecimal() or not 100 <= int(text) <= 3_600_000:
        raise Unusable(name, "must be milliseconds from 100 to 3600000")
    return int(text) / 1000


class Metrics:
    """One per process."""

    def __init__(
        self,
        sender: MetricExporter,
        collector: Collector,
        who: Resource,
        live: Figures,
        *,
        compat: bool,
        every_s: float,
        clock: Callable[[], int],
        warn: Callable[[str], None],
    ) -> None:
        self._calls = Calls(compat)
        self._live = live
        self._who, self._scope = who, scope()
        self._every_s = every_s
        self._next_s: float | None = None
        self._clock = clock
        self._started_ns = clock()
        self.outlet: Outlet[MetricsData] = Outlet(
            "metrics",
            lambda batch: all(sender.export(one) is MetricExportResult.SUCCESS for one in batch),
            sender.shutdown,
            warn,
            collector,
            bounds=_BOUNDS,
        )

    def count(self, records: Sequence[Record]) -> None:
        """Add up a batch."""
        for record in records:
            self._calls.count(record)

    def tick(self, now_s: float) -> None:
        """Send what stands, when it is time."""
        if self._next_s is None:
            self._next_s = now_s + self._every_s
        elif now_s >= self._next_s:
            self._next_s = now_s + self._every_s
            self.take()

    def take(self) -> None:
        """Send what stands."""
        self.outlet.put(self.state(), 1)

    def state(self) -> MetricsData:
        """Everything as it stands."""
        now_ns = self._clock()
        metrics = [*self._metrics(now_ns)]
        told = ScopeMetrics(self._scope, metrics, schema_url="")
        return MetricsData([ResourceMetrics(self._who, [told], schema_url="")])

    def _metrics(self, now_ns: int) -> Iterator[Metric]:
        for figure in self._calls.figures():
            if figure.rows:
                yield self._metric(figure, figure.name, unit_of(figure.name), now_ns)
        for figure in self._live():
            if figure.rows:
                name, unit = _ours(figure.name)
                yield self._metric(figure, name, unit, now_ns)

    def _metric(self, figure: Reading | Spread, name: str, unit: str, now_ns: int) -> Metric:
        if isinstance(figure, Spread):
            spread = [
                HistogramDataPoint(
                    _attributes(figure.labels, labels), self._started_ns, now_ns, sum(counts), total, counts,
                    figure.bounds, _UNKNOWN, _UNKNOWN,
                )
                for labels, counts, total in figure.rows
            ]  # fmt: skip
            return Metric(name, figure.text, unit, Histogram(spread, _CUMULATIVE))
        adds_up = figure.name.endswith("_total") or name.startswith("gen_ai.")
        points = [
            NumberDataPoint(
                _attributes(figure.labels, labels), self._started_ns if adds_up else 0, now_ns, float(value)
            )
            for labels, value in figure.rows
        ]
        if adds_up:
            return Metric(name, figure.text, unit, Sum(points, _CUMULATIVE, is_monotonic=True))
        return Metric(name, figure.text, unit, Gauge(points))


def _attributes(names: Sequence[str], values: Sequence[str]) -> dict[str, str | int]:
    """Labels as attributes; what is empty is left out."""
    return {
        name: int(value) if name == "server.port" else value
        for name, value in zip(names, values, strict=True)
        if value
    }


def _ours(name: str) -> tuple[str, str]:
    """A figure's name and unit here, so that Prometheus makes the name of it that ``/metrics`` has."""
    name = name.removesuffix("_total")
    for end, unit in _UNITS.items():
        if name.endswith(end):
            return f"looptap.{name.removesuffix(end)}", unit
    return f"looptap.{name}", "1"
