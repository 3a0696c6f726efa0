"""OTLP as protobuf over HTTP: the exporters of the OpenTelemetry SDK, with all told explicitly."""

from collections.abc import Callable
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
from exporters.otel.collector import Collector
from exporters.otel.link import Door


def spans(door: Door, collector: Collector) -> SpanExporter:
    """Sends spans."""
    return OTLPSpanExporter(**_told(door, collector))


def logs(door: Door, collector: Collector) -> LogRecordExporter:
    """Sends log records."""
    return OTLPLogExporter(**_told(door, collector))


def metrics(door: Door, collector: Collector) -> MetricExporter:
    """Sends metrics."""
    return OTLPMetricExporter(**_told(door, collector))


def _told(door: Door, collector: Collector) -> dict[str, Any]:
    session = requests.Session()
    for scheme in ("http://", "https://"):
        session.mount(scheme, ShortAnswers())
    session.stream = True  # read by us, as it came: to undo an encoding could make much of a little
    session.headers["Accept-Encoding"] = "identity"
    session.hooks["response"] = [_reads(collector)]
    session.cookies.set_policy(DefaultCookiePolicy(allowed_domains=()))
    return {
        "endpoint": door.endpoint,
        "headers": dict(door.headers),
        "timeout": door.timeout_s,
        "session": session,
    }


def _reads(collector: Collector) -> Callable[..., None]:
    def read(response: requests.Response, *_: Any, **__: Any) -> None:
        """Read it to its end, so that the connection serves again, and hear what it says of a delivery.

        The SDK follows no redirect, and takes one for a delivery: nothing has arrived.
        """
        if 300 <= response.status_code < 400:
            response.close()
            raise requests.RequestException("the collector is elsewhere")
        body = response.raw.read(decode_content=False)
        if response.status_code < 300 and "content-encoding" not in response.headers:
            collector.hear(body)

    return read
