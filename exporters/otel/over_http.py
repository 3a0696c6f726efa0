"""OTLP as protobuf over HTTP: the exporters of the OpenTelemetry SDK, with all told explicitly."""

from typing import Any

import requests
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk._logs.export import LogRecordExporter
from opentelemetry.sdk.metrics.export import MetricExporter
from opentelemetry.sdk.trace.export import SpanExporter

from exporters.otel.link import Door


def spans(door: Door) -> SpanExporter:
    """Sends spans."""
    return OTLPSpanExporter(**_told(door))


def logs(door: Door) -> LogRecordExporter:
    """Sends log records."""
    return OTLPLogExporter(**_told(door))


def metrics(door: Door) -> MetricExporter:
    """Sends metrics."""
    return OTLPMetricExporter(**_told(door))


def _told(door: Door) -> dict[str, Any]:
    session = requests.Session()
    session.hooks["response"] = [_refuse_redirect]
    return {
        "endpoint": door.endpoint,
        "headers": dict(door.headers),
        "timeout": door.timeout_s,
        "session": session,
    }


def _refuse_redirect(response: requests.Response, *_: Any, **__: Any) -> None:
    """The SDK follows no redirect, and takes one for a delivery: nothing has arrived."""
    if 300 <= response.status_code < 400:
        response.close()
        raise requests.RequestException("the collector is elsewhere")
