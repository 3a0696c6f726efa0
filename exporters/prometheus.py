"""Counters of what passed, for Prometheus to scrape from the admin port.

Fed with records like every exporter; ``render`` gives the text of ``/metrics``, together with live
readings of the process taken at that moment. Label sets are bounded: models beyond the first
``MAX_MODELS`` count as ``other``, and no id of a session, thread, turn, step or key ever becomes a
label, so ten thousand sessions add no series.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from exporters.series import Buckets, Names, Sums
from proxy.model import Record
from proxy.ports import Reading, Spread
from proxy.verdict import Agreement

MAX_MODELS = 200
SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2, 4, 8, 15, 30, 60, 120, 300)
STEPS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
PREFIX = "looptap_"

Live = Callable[[], Iterable[Reading | Spread]]


class PrometheusExporter(Collector):
    """An exporter that adds up. One per process."""

    name = "prometheus"

    def __init__(self, live: Live = tuple) -> None:
        self._live = live
        self._models = Names(MAX_MODELS)
        self._attempts = Sums(
            "attempts_total", "Model calls by how they ended.", "upstream", "model", "outcome"
        )
        self._answers = Sums(
            "answers_total", "Model calls by the status that the upstream answered.", "upstream", "status"
        )
        self._tokens = Sums("tokens_total", "Tokens as booked, by kind.", "model", "kind")
        self._cost = Sums("cost_usd_total", "Money as booked, in USD.", "model", "quality")
        self._unpriced = Sums("unpriced_attempts_total", "Billed calls without a known price.", "model")
        self._steps = Sums("steps_total", "Steps begun.", "model")
        self._turns = Sums("turns_total", "Turns ended, by cause.", "cause")
        self._threads = Sums("threads_total", "Threads begun, by kind.", "kind")
        self._findings = Sums("findings_total", "What the policies saw.", "policy", "kind", "severity")
        self._agreement = Agreement()
        self._predictions = Sums(
            "predictions_total", "How often a provider did what a policy foresaw.", "policy", "verdict"
        )
        self._interventions = Sums(
            "interventions_total", "What was done about it, or would have been.", "policy", "kind"
        )
        self._alerts = Sums("budget_alerts_total", "Shares of limits that were used up.", "budget")
        self._first_output = Buckets(
            "time_to_first_output_seconds",
            "From a request's arrival to the first output of its reply, less its wait for an operator.",
            SECONDS,
            "model",
        )
        self._duration = Buckets(
            "attempt_duration_seconds",
            "From a request's arrival to the end of its reply, less its wait for an operator.",
            SECONDS,
            "model",
        )
        self._turn_steps = Buckets("turn_steps", "Steps of a turn when it ended.", STEPS, "cause")
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
        """Everything as it stands, in the form of the client library."""
        return map(_family, self.figures())

    def figures(self) -> Iterator[Reading | Spread]:
        """What was counted, and readings taken at this moment."""
        for sums in (
            self._attempts, self._answers, self._tokens, self._cost, self._unpriced, self._steps, self._turns,
            self._threads, self._findings, self._predictions, self._interventions, self._alerts,
        ):  # fmt: skip
            yield sums.reading()
        for buckets in (self._first_output, self._duration, self._turn_steps):
            yield buckets.spread()
        yield from self._live()

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
        waited = data.get("waited_ns") or 0
        if arrived is not None and first is not None:
            self._first_output.add((first - arrived - waited) / 1e9, model)
        if arrived is not None and ended is not None:
            self._duration.add((ended - arrived - waited) / 1e9, model)

    def _model(self, data: Mapping[str, Any]) -> str:
        return self._models.of(str(data.get("model") or ""))


def _family(figure: Reading | Spread) -> Metric:
    """A figure as the client library has it: histograms are summed up, the rest is told by its name."""
    name = PREFIX + figure.name
    if isinstance(figure, Spread):
        spread = HistogramMetricFamily(name, figure.text, labels=figure.labels)
        bounds = [*(str(float(bound)) for bound in figure.bounds), "+Inf"]
        for labels, counts, total in figure.rows:
            running = map(float, accumulate(counts))
            spread.add_metric(labels, list(zip(bounds, running, strict=True)), total)
        return spread
    family: CounterMetricFamily | GaugeMetricFamily
    if name.endswith("_total"):
        family = CounterMetricFamily(name.removesuffix("_total"), figure.text, labels=figure.labels)
    else:
        family = GaugeMetricFamily(name, figure.text, labels=figure.labels)
    for labels, value in figure.rows:
        family.add_metric(labels, value)
    return family


def _status(status: int | None) -> str:
    """Statuses by their class; too many requests apart, since it asks for something else."""
    if status is None:
        return "none"
    return "429" if status == 429 else f"{status // 100}xx"
