"""One signal's collector as we know it: where it is, and what it did not take of what it took.

OTLP lets a collector accept a request and reject some of its spans, points or log records: the answer
counts them and may say why (``partial_success``). The SDK's exporters do not look; the drivers hand the
answers in here, and the ``Outlet`` asks after each request. Both in the thread that sends.
"""

from typing import Any

from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceResponse
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceResponse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from exporters.otel.link import Signal

MOST_WORDS = 200
"""Characters of what a collector says that are shown."""
_ANSWERS: dict[Signal, Any] = {
    "traces": ExportTraceServiceResponse,
    "logs": ExportLogsServiceResponse,
    "metrics": ExportMetricsServiceResponse,
}


class Collector:
    """Where one signal goes."""

    def __init__(self, signal: Signal, address: str) -> None:
        self.address = address
        """For people: no path, no credentials."""
        self._answer = _ANSWERS[signal]
        self._rejected = 0
        self._words = ""

    def hear(self, body: bytes) -> None:
        """The body of an answer over HTTP; what is no OTLP says nothing."""
        try:
            answer = self._answer.FromString(body)
        except DecodeError:
            return
        self.hear_answer(answer)

    def hear_answer(self, answer: Any) -> None:
        """An answer, read."""
        partial = answer.partial_success
        self._rejected = max(0, getattr(partial, partial.DESCRIPTOR.fields_by_number[1].name))
        self._words = " ".join(partial.error_message.split())[:MOST_WORDS]

    def said(self) -> tuple[int, str]:
        """How many it rejected of the last request, and what it said, in one line. Asked once."""
        told = self._rejected, self._words
        self._rejected, self._words = 0, ""
        return told
