"""OTLP over gRPC: the exporters of the OpenTelemetry SDK. An extra of its own, since gRPC is large."""

from typing import Any, TypeVar

from opentelemetry.exporter.otlp.proto.grpc._log_exporter import OTLPLogExporter
from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk._logs.export import LogRecordExporter
from opentelemetry.sdk.metrics.export import MetricExporter
from opentelemetry.sdk.trace.export import SpanExporter

from exporters.otel.collector import Collector
from exporters.otel.link import Door

T = TypeVar("T")


def spans(door: Door, collector: Collector) -> SpanExporter:
    """Sends spans."""
    return _listening(OTLPSpanExporter(**_told(door)), collector)


def logs(door: Door, collector: Collector) -> LogRecordExporter:
    """Sends log records."""
    return _listening(OTLPLogExporter(**_told(door)), collector)


def metrics(door: Door, collector: Collector) -> MetricExporter:
    """Sends metrics."""
    return _listening(OTLPMetricExporter(**_told(door)), collector)


def _told(door: Door) -> dict[str, Any]:
    return {"endpoint": door.endpoint, "headers": dict(door.headers), "timeout": door.timeout_s}


def _listening(exporter: T, collector: Collector) -> T:
    """The SDK lets go of the answers, so its stub is put into another that hears them."""
    inside: Any = exporter
    if not (hasattr(inside, "_stub") and hasattr(inside, "_channel")):
        return exporter  # an SDK that is made otherwise: it sends all the same
    made = inside._stub

    def stub(channel: Any) -> _Heard:
        return _Heard(made(channel), collector)

    inside._stub = stub  # a channel that broke is made anew with it
    inside._client = stub(inside._channel)
    return exporter


class _Heard:
    """A stub whose answers the collector is told of."""

    def __init__(self, stub: Any, collector: Collector) -> None:
        self._stub = stub
        self._collector = collector

    def Export(self, request: Any, **more: Any) -> Any:
        answer = self._stub.Export(request, **more)
        self._collector.hear_answer(answer)
        return answer
