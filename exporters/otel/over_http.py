"""OTLP as protobuf over HTTP: the exporters of the OpenTelemetry SDK, with all told explicitly."""

from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk._logs.export import LogRecordExporter
from opentelemetry.sdk.metrics.export import MetricExporter
from opentelemetry.sdk.trace.export import SpanExporter

from exporters.otel.link import Door


def spans(door: Door) -> SpanExporter:
    """Sends spans."""
    return OTLPSpanExporter(endpoint=door.endpoint, headers=dict(door.headers), timeout=door.timeout_s)


def logs(door: Door) -> LogRecordExporter:
    """Sends log records."""
    return OTLPLogExporter(endpoint=door.endpoint, headers=dict(door.headers), timeout=door.timeout_s)


def metrics(door: Door) -> MetricExporter:
    """Sends metrics."""
    return OTLPMetricExporter(endpoint=door.endpoint, headers=dict(door.headers), timeout=door.timeout_s)
