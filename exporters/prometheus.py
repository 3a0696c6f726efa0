"""Counters of what passed, for Prometheus to scrape from the admin port.

Fed with records like every exporter; ``render`` gives the text of ``/metrics``, together with live
readings of the process taken at that moment. Label sets are bounded: models beyond the first
``MAX_MODELS`` count as ``other``, and no id of a session, thread, turn, step or key ever becomes a
label, so ten thousand sessions add no series.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from exporters.series import Buckets, Sums, counter_or_gauge, histogram
from proxy.model import Record
from proxy.ports import Reading, Spread
from proxy.verdict import Agreement

MAX_MODELS = 200
SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2, 4, 8, 15, 30, 60, 120, 300)
STEPS = (1, 2, 4, 8, 16, 32, 64, 128, 256)

Live = Callable[[], Iterable[Reading | Spread]]


class PrometheusExporter(Collector):
    """An exporter that adds up. One per process."""

    name = "prometheus"

    def __init__(self, live: Live = tuple) -> None:
        self._live = live
        self._models: dict[str, str] = {}
        self._attempts = Sums("attempts", "Model calls by how they ended.", "upstream", "model", "outcome")
        self._tokens = Sums("tokens", "Tokens as booked, by kind.", "model", "kind")
        self._cost = Sums("cost_usd", "Money as booked, in USD.", "model", "quality")
        self._unpriced = Sums("unpriced_attempts", "Billed calls without a known price.", "model")
        self._steps = Sums("steps", "Steps begun.", "model")
        self._turns = Sums("turns", "Turns ended, by cause.", "cause")
        self._threads = Sums("threads", "Threads begun, by kind.", "kind")
        self._findings = Sums("findings", "What the policies saw.", "policy", "kind", "severity")
        self._agreement = Agreement()
        self._predictions = Sums(
            "predictions", "How often a provider did what a policy foresaw.", "policy", "verdict"
        )
        self._interventions = Sums(
            "interventions", "What was done about it, or would have been.", "policy", "kind"
        )
        self._alerts = Sums("budget_alerts", "Shares of limits that were used up.", "budget")
        self._answers = Sums(
            "answers", "Model calls by the status that the upstream answered.", "upstream", "status"
        )
        self._first_output = Buckets(
            "time_to_first_output_seconds",
            "From a request's arrival to the first output of its reply.",
            "model",
            SECONDS,
        )
        self._duration = Buckets(
            "attempt_duration_seconds", "From a request's arrival to the end of its reply.", "model", SECONDS
        )
        self._turn_steps = Buckets("turn_steps", "Steps of a turn when it ended.", "cause", STEPS)
        self._registry = CollectorRegistry()
        self._registry.register(self)
        ProcessCollector(registry=self._registry)

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
        yield from (series.family() for series in (
            self._attempts, self._answers, self._tokens, self._cost, self._unpriced, self._steps, self._turns,
            self._threads, self._findings, self._predictions, self._interventions, self._alerts,
            self._first_output, self._duration, self._turn_steps,
        ))  # fmt: skip
        for one in self._live():
            yield histogram(one) if isinstance(one, Spread) else counter_or_gauge(one)

    def count(self, record: Record) -> None:
        """Count one record."""
        kind, data = record.type, record.data
        if kind == "item":
            return
        for policy, verdict in self._agreement.take(kind, data):
            self._predictions.add(1, policy, verdict)
        match kind:
            case "step/attempt":
                self._attempt(data)
            case "step/start":
                self._steps.add(1, self._model(data))
            case "turn/end":
                self._turns.add(1, str(data.get("cause")))
                self._turn_steps.add(data.get("steps", 0), str(data.get("cause")))
            case "thread/start":
                self._threads.add(1, str(data.get("kind")))
            case "finding":
                self._findings.add(1, data["policy"], data["kind"], data["severity"])
            case "intervention":
                self._interventions.add(1, str(data.get("policy")), str(data.get("kind")))
            case "budget/alert":
                self._alerts.add(1, str(data.get("budget")))

    def _attempt(self, data: Mapping[str, Any]) -> None:
        model = self._model(data)
        upstream = str(data.get("upstream") or "")
        self._attempts.add(1, upstream, model, str(data.get("outcome")))
        self._answers.add(1, upstream, _status(data.get("status")))
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


def _status(status: int | None) -> str:
    """Statuses by their class; too many requests apart, since it asks for something else."""
    if status is None:
        return "none"
    return "429" if status == 429 else f"{status // 100}xx"
