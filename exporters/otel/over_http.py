"""OTLP as protobuf over HTTP: the exporters of the OpenTelemetry SDK, with all told explicitly."""

from http.cookiejar import DefaultCookiePolicy
from typing import Any

import requests
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk._logs.export import LogRecordExporter
from opentelemetry.sdk.metrics.export import MetricExporter
from opentelemetry.sdk.trace.export import SpanExporter

from exporters.otel.answers import ShortAnswers
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
    for scheme in ("http://", "https://"):
        session.mount(scheme, ShortAnswers())
    session.stream = True  # read by us, as it came: to undo an encoding could make much of a little
    session.hooks["response"] = [_read]
    session.cookies.set_policy(DefaultCookiePolicy(allowed_domains=()))
    return {
        "endpoint": door.endpoint,
        "headers": dict(door.headers),
        "timeout": door.timeout_s,
        "session": session,
    }


def _read(response: requests.Response, *_: Any, **__: Any) -> None:
    """Read it to its end, so that the connection serves again; what it says is not asked for.

    The SDK follows no redirect, and takes one for a delivery: nothing has arrived.
    """
    if 300 <= response.status_code < 400:
        response.close()
        raise requests.RequestException("the collector is elsewhere")
    response.raw.read(decode_content=False)
