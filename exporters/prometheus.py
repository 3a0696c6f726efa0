"""Counters of what passed, for Prometheus to scrape from the admin port.

Fed with records like every exporter; ``render`` gives the text of ``/metrics``. Label sets are
bounded: models beyond the first ``MAX_MODELS`` count as ``other``, and no id of a session, thread,
turn, step or key ever becomes a label, so ten thousand sessions add no series.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from proxy.model import Record

MAX_MODELS = 200
_SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2, 4, 8, 15, 30, 60, 120, 300)

Gauges = Callable[[], Mapping[str, float]]
"""Live readings of the process by metric name (without prefix); ``*_total`` are counters."""


class _Sums:
    """One counter with its series. Plain sums, made into a family only when somebody scrapes."""

    def __init__(self, name: str, text: str, *labels: str) -> None:
        self._name, self._text, self._labels = name, text, labels
        self._series: dict[tuple[str, ...], float] = {}

    def add(self, amount: float, *labels: str) -> None:
        """Add to one series."""
        self._series[labels] = self._series.get(labels, 0.0) + amount

    def family(self) -> Metric:
        """The series as they stand."""
        family = CounterMetricFamily(self._name, self._text, labels=self._labels)
        for labels, value in self._series.items():
            family.add_metric(labels, value)
        return family


class _Times:
    """One histogram of seconds, by model."""

    def __init__(self, name: str, text: str) -> None:
        self._name, self._text = name, text
        self._series: dict[str, tuple[list[int], list[float]]] = {}
        """By model: counts per bucket, and the sum of all values."""

    def add(self, seconds: float, model: str) -> None:
        """Take one value."""
        known = self._series.get(model)
        if known is None:
            known = self._series[model] = [0] * (len(_SECONDS) + 1), [0.0]
        known[0][bisect_left(_SECONDS, seconds)] += 1
        known[1][0] += seconds

    def family(self) -> Metric:
        """The buckets as they stand, summed up as Prometheus wants them."""
        family = HistogramMetricFamily(self._name, self._text, labels=["model"])
        for model, (counts, (total,)) in self._series.items():
            buckets, below = [], 0
            for bound, count in zip((*map(float, _SECONDS), float("inf")), counts, strict=True):
                below += count
                buckets.append((_bound(bound), float(below)))
            family.add_metric([model], buckets, total)
        return family


class PrometheusExporter(Collector):
    """An exporter that adds up. One per process."""

    name = "prometheus"

    def __init__(self, readings: Gauges = dict) -> None:
        self._readings = readings
        self._models: dict[str, str] = {}
        self._attempts = _Sums(
            "looptap_attempts", "Model calls by how they ended.", "upstream", "model", "outcome"
        )
        self._tokens = _Sums("looptap_tokens", "Tokens as booked, by kind.", "model", "kind")
        self._cost = _Sums("looptap_cost_usd", "Money as booked, in USD.", "model", "quality")
        self._unpriced = _Sums("looptap_unpriced_attempts", "Billed calls without a known price.", "model")
        self._steps = _Sums("looptap_steps", "Steps begun.", "model")
        self._turns = _Sums("looptap_turns", "Turns ended, by cause.", "cause")
        self._threads = _Sums("looptap_threads", "Threads begun, by kind.", "kind")
        self._findings = _Sums("looptap_findings", "What the policies saw.", "policy", "kind", "severity")
        self._interventions = _Sums(
            "looptap_interventions", "What was done about it, or would have been.", "policy", "kind"
        )
        self._alerts = _Sums("looptap_budget_alerts", "Shares of limits that were used up.", "budget")
        self._faults = _Sums("looptap_internal_errors", "Faults of our own that cost observations.", "where")
        self._first_output = _Times(
            "looptap_time_to_first_output_seconds",
            "From a request's arrival to the first output of its reply.",
        )
        self._duration = _Times(
            "looptap_attempt_duration_seconds", "From a request's arrival to the end of its reply."
        )
        self._registry = CollectorRegistry()
        self._registry.register(self)

    async def export(self, records: Sequence[Record]) -> None:
        """Count a batch."""
        for record in records:
            self.count(record)

    async def close(self) -> None:
        """Nothing to flush: counters are scraped."""

    def render(self) -> str:
        """The exposition text."""
        return generate_latest(self._registry).decode()

    def describe(self) -> Iterable[Metric]:
        """Nothing: live readings exist only once everything runs, and all names are our own."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """Everything as it stands: what was counted, and readings taken at this moment."""
        yield from (sums.family() for sums in (
            self._attempts, self._tokens, self._cost, self._unpriced, self._steps, self._turns, self._threads,
            self._findings, self._interventions, self._alerts, self._faults, self._first_output,
            self._duration,
        ))  # fmt: skip
        for name, value in self._readings().items():
            text = name.replace("_", " ").capitalize() + "."
            if name.endswith("_total"):
                yield CounterMetricFamily(f"looptap_{name.removesuffix('_total')}", text, value=value)
            else:
                yield GaugeMetricFamily(f"looptap_{name}", text, value=value)

    def count(self, record: Record) -> None:
        """Count one record."""
        kind, data = record.type, record.data
        if kind == "item":
            return
        match kind:
            case "step/attempt":
                self._attempt(data)
            case "step/start":
                self._steps.add(1, self._model(data))
            case "turn/end":
                self._turns.add(1, str(data.get("cause")))
            case "thread/start":
                self._threads.add(1, str(data.get("kind")))
            case "finding":
                self._findings.add(1, data["policy"], data["kind"], data["severity"])
            case "intervention":
                self._interventions.add(1, str(data.get("policy")), str(data.get("kind")))
            case "budget/alert":
                self._alerts.add(1, str(data.get("budget")))
            case "internal/error":
                self._faults.add(float(data.get("count", 1)), str(data.get("where")))

    def _attempt(self, data: Mapping[str, Any]) -> None:
        model = self._model(data)
        self._attempts.add(1, str(data.get("upstream") or ""), model, str(data.get("outcome")))
        for kind, count in (data.get("usage") or {}).items():
            self._tokens.add(count, model, kind.removesuffix("_tokens"))
        cost = data.get("cost_usd")
        if cost is not None:
            self._cost.add(float(cost), model, str(data.get("cost_quality")))
        elif data.get("cost_quality") == "unpriced":
            self._unpriced.add(1, model)
        arrived, ended, first = data.get("arrived_ns"), data.get("ended_ns"), data.get("first_output_ns")
        if arrived is not None and first is not None:
            self._first_output.add((first - arrived) / 1e9, model)
        if arrived is not None and ended is not None:
            self._duration.add((ended - arrived) / 1e9, model)

    def _model(self, data: Mapping[str, Any]) -> str:
        name = str(data.get("model") or "")
        known = self._models.get(name)
        if known is None:
            known = name[:120] if len(self._models) < MAX_MODELS else "other"
            if len(self._models) < MAX_MODELS:
                self._models[name] = known
        return known


def _bound(seconds: float) -> str:
    return "+Inf" if seconds == float("inf") else str(seconds)
