"""Metrics as they leave over OTLP: the conventions' names, cumulative sums, bounded series."""

from collections.abc import Mapping
from typing import Any

import pytest
from opentelemetry.sdk.metrics.export import (
    Gauge,
    Histogram,
    MetricExporter,
    MetricExportResult,
    MetricsData,
    Sum,
)
from opentelemetry.sdk.resources import Resource

from exporters.otel.calls import MAX_ERRORS, MAX_MODELS
from exporters.otel.collector import Collector
from exporters.otel.metrics import Metrics, interval_s
from exporters.otel.wanted import Unusable
from proxy.model import Record
from proxy.ports import Reading, Spread

SECOND = 10**9
LIVE: tuple[Reading | Spread, ...] = (
    Reading("open_streams", "Open.", [((), 3.0)]),
    Reading("record_lag_seconds", "Lag.", [((), 0.5)]),
    Reading("internal_errors_total", "Ours.", [(("feed", "KeyError"), 2.0)], ("where", "kind")),
    Spread("added_seconds", "Added.", (0.1, 1.0), [(("chunk",), (2, 1, 1), 3.5)], ("phase",)),
)


class Sender(MetricExporter):
    """Keeps what would be sent."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[MetricsData] = []

    def export(self, data: MetricsData, timeout_millis: float = 0, **more: Any) -> MetricExportResult:
        self.sent.append(data)
        return MetricExportResult.SUCCESS

    def force_flush(self, timeout_millis: float = 0) -> bool:
        return True

    def shutdown(self, timeout_millis: float = 0, **more: Any) -> None: ...


def made(*, compat: bool = True) -> Metrics:
    return Metrics(
        Sender(),
        Collector("metrics", "http://c.example"),
        Resource({}),
        lambda: LIVE,
        compat=compat,
        every_s=60,
        clock=lambda: 7,
        warn=lambda text: None,
    )


def attempt(**data: Any) -> Record:
    base = {
        "upstream": "anthropic", "provider": "anthropic", "host": "api.example.com", "port": 443,
        "model": "claude-x-1", "requested_model": "claude-x", "outcome": "complete", "status": 200,
        "streaming": True, "arrived_ns": 0, "sent_ns": 1 * SECOND, "first_output_ns": 3 * SECOND,
        "ended_ns": 11 * SECOND, "usage": {"input_tokens": 100, "cache_read_tokens": 40, "output_tokens": 5},
    }  # fmt: skip
    return Record(1, "step/attempt", "ses_1", "thr_1", "trn_1", "stp_1", {**base, **data})


def state(metrics: Metrics) -> dict[str, Any]:
    (resource,) = metrics.state().resource_metrics
    (told,) = resource.scope_metrics
    return {metric.name: metric for metric in told.metrics}


def points(metric: Any) -> list[tuple[Mapping[str, Any], Any]]:
    return [
        (one.attributes, (one.count, one.sum) if isinstance(metric.data, Histogram) else one.value)
        for one in metric.data.data_points
    ]


CALL = {
    "gen_ai.operation.name": "chat", "gen_ai.provider.name": "anthropic", "gen_ai.request.model": "claude-x",
    "gen_ai.response.model": "claude-x-1", "server.address": "api.example.com", "server.port": 443,
}  # fmt: skip


def test_a_model_call_is_told_under_the_newest_names() -> None:
    metrics = made(compat=False)
    metrics.count([attempt()])
    told = state(metrics)
    assert points(told["gen_ai.client.inference.duration"]) == [(CALL, (1, 10.0))]
    assert points(told["gen_ai.client.inference.time_to_first_chunk"]) == [(CALL, (1, 2.0))]
    used = {**CALL, "gen_ai.token.modality": "unknown"}
    assert points(told["gen_ai.client.inference.usage.input_tokens"]) == [(used, 100)]
    assert points(told["gen_ai.client.inference.usage.cache_read.input_tokens"]) == [(used, 40)]
    assert points(told["gen_ai.client.inference.operation.output_tokens"]) == [(CALL, (1, 5))]
    assert "gen_ai.client.inference.usage.reasoning.output_tokens" not in told  # nobody reported any
    assert not {name for name in told if name.startswith(("gen_ai.server", "gen_ai.client.token"))}
    assert told["gen_ai.client.inference.duration"].unit == "s"
    assert told["gen_ai.client.inference.usage.input_tokens"].unit == "{token}"


def test_and_under_the_older_ones_that_dashboards_read() -> None:
    metrics = made()
    metrics.count([attempt()])
    told = state(metrics)
    assert points(told["gen_ai.client.operation.duration"]) == [(CALL, (1, 10.0))]
    assert points(told["gen_ai.client.token.usage"]) == [
        ({**CALL, "gen_ai.token.type": "input"}, (1, 100)), ({**CALL, "gen_ai.token.type": "output"}, (1, 5)),
    ]  # fmt: skip
    assert points(told["gen_ai.server.time_to_first_token"]) == [(CALL, (1, 2.0))]
    assert points(told["gen_ai.server.time_per_output_token"]) == [(CALL, (1, 2.0))]


def test_what_failed_has_its_error_and_what_was_refused_here_is_no_call() -> None:
    metrics = made()
    metrics.count([
        attempt(outcome="failed", usage={}, first_output_ns=None, error={"type": "overloaded_error"}),
        attempt(outcome="refused", status=None, usage={}),
    ])  # fmt: skip
    told = state(metrics)
    wrong = {**CALL, "error.type": "overloaded_error"}
    assert points(told["gen_ai.client.inference.duration"]) == [(wrong, (1, 10.0))]
    assert points(told["gen_ai.client.inference.operation.input_tokens"]) == [(wrong, (1, 0))]
    assert points(told["gen_ai.client.inference.usage.input_tokens"])[0][1] == 0


def test_a_turn_is_an_agents_run() -> None:
    metrics = made()
    ids = ("ses_1", "thr_1", "trn_1")
    metrics.count([
        Record(2, "step/end", *ids, "stp_1", {"tool_calls": [{"id": "a"}, {"id": "b"}]}),
        Record(3, "step/end", *ids, "stp_2", {"tool_calls": []}),
        Record(9 * SECOND, "turn/end", *ids, data={
            "cause": "completed", "steps": 2, "client": "claude-code", "began_ns": 1 * SECOND,
        }),
    ])  # fmt: skip
    told = state(metrics)
    agent = {"gen_ai.agent.name": "claude-code"}
    assert points(told["gen_ai.invoke_agent.duration"]) == [(agent, (1, 8.0))]
    assert points(told["gen_ai.invoke_agent.inference_calls"]) == [(agent, (1, 2))]
    assert points(told["gen_ai.invoke_agent.tool_calls"]) == [(agent, (1, 2))]


def test_every_figure_of_the_process_goes_along() -> None:
    told = state(made())
    assert isinstance(told["looptap.open_streams"].data, Gauge)
    assert (told["looptap.record_lag"].unit, points(told["looptap.record_lag"])) == ("s", [({}, 0.5)])
    faults = told["looptap.internal_errors"].data
    assert isinstance(faults, Sum)
    assert faults.is_monotonic
    assert points(told["looptap.internal_errors"]) == [({"where": "feed", "kind": "KeyError"}, 2.0)]
    assert points(told["looptap.added"]) == [({"phase": "chunk"}, (4, 3.5))]


def test_OBS_07_names_from_outside_are_bounded() -> None:
    metrics = made()
    metrics.count([
        attempt(model=f"m-{n}", requested_model=f"r-{n % 7}", response_id=f"msg_{n}", outcome="failed",
                error={"type": f"error-{n}"})
        for n in range(MAX_MODELS + MAX_ERRORS + 500)
    ])  # fmt: skip
    rows = points(state(metrics)["gen_ai.client.inference.duration"])
    assert len({row["gen_ai.response.model"] for row, _ in rows}) == MAX_MODELS + 1
    assert len({row["error.type"] for row, _ in rows}) == MAX_ERRORS + 1
    before = len(rows)
    metrics.count(
        [Record(n, "turn/end", f"s{n}", f"t{n}", f"u{n}", data={"cause": "completed"}) for n in range(10_000)]
    )
    assert len(points(state(metrics)["gen_ai.client.inference.duration"])) == before
    assert len(points(state(metrics)["gen_ai.invoke_agent.inference_calls"])) == 1


def test_they_leave_once_an_interval() -> None:
    metrics = made()
    for now_s in (0.0, 59.0, 60.5, 61.0, 119.0, 121.0):
        metrics.tick(now_s)
    assert metrics.outlet.tally().queued == 2


@pytest.mark.parametrize("text", ["soon", "0", "-5", "99999999"])
def test_an_interval_that_is_none_is_told(text: str) -> None:
    assert interval_s({"OTEL_METRIC_EXPORT_INTERVAL": "5000"}) == 5
    with pytest.raises(Unusable, match="OTEL_METRIC_EXPORT_INTERVAL"):
        interval_s({"OTEL_METRIC_EXPORT_INTERVAL": text})
