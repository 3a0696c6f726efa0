"""Counters of what passed, for Prometheus to scrape from the admin port.

Fed with records like every exporter; ``render`` gives the text of ``/metrics``. Label sets are
bounded: models beyond the first ``MAX_MODELS`` count as ``other``, and no id of a session, thread,
turn, step or key ever becomes a label, so ten thousand sessions add no series.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from proxy.model import Record

MAX_MODELS = 200
_SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2, 4, 8, 15, 30, 60, 120, 300)

Gauges = Callable[[], Mapping[str, float]]
"""Live readings of the process by metric name (without prefix); ``*_total`` are counters."""


class PrometheusExporter:
    """An exporter that adds up. One per process."""

    name = "prometheus"

    def __init__(self, readings: Gauges = dict) -> None:
        self._registry = CollectorRegistry(auto_describe=True)
        self._models: dict[str, str] = {}
        self._children: dict[tuple[str, ...], Any] = {}
        self._attempts = self._counter(
            "attempts", "Model calls by how they ended.", ("upstream", "model", "outcome")
        )
        self._tokens = self._counter("tokens", "Tokens as booked, by kind.", ("model", "kind"))
        self._cost = self._counter("cost_usd", "Money as booked, in USD.", ("model", "quality"))
        self._unpriced = self._counter("unpriced_attempts", "Billed calls without a known price.", ("model",))
        self._steps = self._counter("steps", "Steps begun.", ("model",))
        self._turns = self._counter("turns", "Turns ended, by cause.", ("cause",))
        self._threads = self._counter("threads", "Threads begun, by kind.", ("kind",))
        self._findings = self._counter("findings", "What the policies saw.", ("policy", "kind", "severity"))
        self._faults = self._counter(
            "internal_errors", "Faults of our own that cost observations.", ("where",)
        )
        self._first_output = Histogram(
            "looptap_time_to_first_output_seconds",
            "From a request's arrival to the first output of its reply.",
            ("model",),
            buckets=_SECONDS,
            registry=self._registry,
        )
        self._duration = Histogram(
            "looptap_attempt_duration_seconds",
            "From a request's arrival to the end of its reply.",
            ("model",),
            buckets=_SECONDS,
            registry=self._registry,
        )
        self._registry.register(_Live(readings))
        self._thread_upstream: dict[str, str] = {}

    async def export(self, records: Sequence[Record]) -> None:
        """Count a batch."""
        for record in records:
            self.count(record)

    async def close(self) -> None:
        """Nothing to flush: counters are scraped."""

    def render(self) -> str:
        """The exposition text."""
        return generate_latest(self._registry).decode()

    def count(self, record: Record) -> None:
        """Count one record."""
        data = record.data
        match record.type:
            case "step/attempt":
                self._attempt(data)
            case "step/start":
                self._child(self._steps, self._model(data)).inc()
            case "turn/end":
                self._child(self._turns, str(data.get("cause"))).inc()
            case "thread/start":
                self._child(self._threads, str(data.get("kind"))).inc()
            case "finding":
                self._child(self._findings, data["policy"], data["kind"], data["severity"]).inc()
            case "internal/error":
                self._child(self._faults, str(data.get("where"))).inc(float(data.get("count", 1)))

    def _attempt(self, data: Mapping[str, Any]) -> None:
        model = self._model(data)
        upstream = str(data.get("upstream") or "")
        self._child(self._attempts, upstream, model, str(data.get("outcome"))).inc()
        for kind, count in (data.get("usage") or {}).items():
            self._child(self._tokens, model, kind.removesuffix("_tokens")).inc(count)
        cost = data.get("cost_usd")
        if cost is not None:
            self._child(self._cost, model, str(data.get("cost_quality"))).inc(float(cost))
        elif data.get("cost_quality") == "unpriced":
            self._child(self._unpriced, model).inc()
        arrived, ended, first = (data.get(k) for k in ("arrived_ns", "ended_ns", "first_output_ns"))
        if arrived is not None and first is not None:
            self._child(self._first_output, model).observe((first - arrived) / 1e9)
        if arrived is not None and ended is not None:
            self._child(self._duration, model).observe((ended - arrived) / 1e9)

    def _counter(self, name: str, text: str, labels: tuple[str, ...]) -> Counter:
        return Counter(f"looptap_{name}", text, labels, registry=self._registry)

    def _child(self, metric: Counter | Histogram, *labels: str) -> Any:
        key = (metric._name, *labels)
        child = self._children.get(key)
        if child is None:
            child = self._children[key] = metric.labels(*labels)
        return child

    def _model(self, data: Mapping[str, Any]) -> str:
        name = str(data.get("model") or "")
        known = self._models.get(name)
        if known is None:
            known = name[:120] if len(self._models) < MAX_MODELS else "other"
            if len(self._models) < MAX_MODELS:
                self._models[name] = known
        return known


class _Live(Collector):
    """Readings taken at scrape time: open streams, queue lengths, drops."""

    def __init__(self, readings: Gauges) -> None:
        self._readings = readings

    def describe(self) -> Iterable[Metric]:
        """Nothing: the readings exist only once everything runs, and their names are our own."""
        return ()

    def collect(self) -> Iterable[Metric]:
        for name, value in self._readings().items():
            text = name.replace("_", " ").capitalize() + "."
            if name.endswith("_total"):
                yield CounterMetricFamily(f"looptap_{name.removesuffix('_total')}", text, value=value)
            else:
                yield GaugeMetricFamily(f"looptap_{name}", text, value=value)
