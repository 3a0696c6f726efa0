"""What stands at the endpoint may answer without an end: each request costs little memory and its time."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from socket import create_server, socket
from typing import Any

import grpc
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTracePartialSuccess,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import (
    TraceServiceServicer,
    add_TraceServiceServicer_to_server,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace.export import SpanExportResult

from exporters.otel import over_grpc
from exporters.otel.collector import MOST_WORDS, Collector
from exporters.otel.draft import Draft
from exporters.otel.link import SIGNALS, Door, scope
from exporters.otel.over_http import spans

SPAN = Draft("turn", 1, 2, None, 3, 4).span(Resource({}), scope())
OK = b"HTTP/1.1 200 OK\r\n"
MUCH = 1 << 26
"""What would be sent, were it read."""


class Answering:
    """Answers each request in the same way: ``head`` and then ``again`` without an end."""

    def __init__(self, head: bytes, again: bytes = b"", pause_s: float = 0.0) -> None:
        self.head, self.again, self.pause_s = head, again, pause_s
        self.url = ""
        self.connections = self.requests = self.sent = 0
        self.over = threading.Event()

    def serve(self, listener: socket) -> None:
        with suppress(OSError):  # the end of the test
            while True:
                connection, _ = listener.accept()
                self.connections += 1
                with connection, suppress(OSError):
                    self.answer(connection)

    def answer(self, connection: socket) -> None:
        while got := connection.recv(65_536):
            while b"turn" not in got:
                got += connection.recv(65_536)
            self.requests += 1
            self.sent = 0
            connection.sendall(self.head)
            while self.again and self.sent < MUCH and not self.over.wait(self.pause_s):
                connection.sendall(self.again)
                self.sent += len(self.again)


@contextmanager
def answering(head: bytes, again: bytes = b"", pause_s: float = 0.0) -> Iterator[Answering]:
    server = Answering(head, again, pause_s)
    with create_server(("127.0.0.1", 0)) as listener:
        server.url = f"http://127.0.0.1:{listener.getsockname()[1]}/v1/traces"
        thread = threading.Thread(target=server.serve, args=(listener,), daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.over.set()
            listener.shutdown(2)
    thread.join(20)
    assert not thread.is_alive()


@pytest.mark.parametrize(
    ("head", "again"),
    [
        (OK + b"\r\n", b"x" * 4096),
        (OK + b"Content-Length: 9999999999\r\n\r\n", b"x" * 4096),
        (OK + b"Transfer-Encoding: chunked\r\n\r\n", b"1000\r\n" + b"x" * 4096 + b"\r\n"),
        (OK + b"Transfer-Encoding: chunked\r\n\r\n", b"0" * 4096),
        (OK, b"X-More: " + b"x" * 4096 + b"\r\n"),
        (OK + b"X-Long: ", b"x" * 4096),
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 200),
        (b"HTTP/1.1 500 Not Well\r\n\r\n", b"x" * 4096),
    ],
    ids=["body", "length", "chunks", "chunk", "fields", "field", "interim", "error"],
)
def test_an_answer_without_end_is_read_no_further_than_its_bound(head: bytes, again: bytes) -> None:
    with answering(head, again) as server:
        sender = spans(Door(server.url, "http/protobuf", timeout_s=20.0), Collector("traces", server.url))
        assert sender.export([SPAN]) is SpanExportResult.FAILURE
        sender.shutdown()
    assert server.sent < MUCH  # only what lies between the two sockets
    assert server.requests <= 3


@pytest.mark.parametrize("head", [OK + b"\r\n", OK + b"X-Slow: ", b""], ids=["body", "head", "nothing"])
def test_an_answer_that_never_ends_has_its_time(head: bytes) -> None:
    with answering(head, b"H", pause_s=0.005) as server:
        sender = spans(Door(server.url, "http/protobuf", timeout_s=0.1), Collector("traces", server.url))
        assert sender.export([SPAN]) is SpanExportResult.FAILURE
        sender.shutdown()


def test_a_short_answer_is_taken_as_it_is_and_the_connection_serves_again() -> None:
    head = OK + b"Content-Encoding: gzip\r\nContent-Length: 4\r\nSet-Cookie: a=b\r\n\r\nwhat"
    with answering(head) as server:
        sender = spans(Door(server.url, "http/protobuf", timeout_s=20.0), Collector("traces", server.url))
        for _ in range(5):
            assert sender.export([SPAN]) is SpanExportResult.SUCCESS
        sender.shutdown()
    assert (server.connections, server.requests) == (1, 5)


def test_what_is_rejected_of_a_delivery_is_heard_over_http() -> None:
    words = ExportTracePartialSuccess(rejected_spans=3, error_message="too\nold " + "x" * 500)
    body = ExportTraceServiceResponse(partial_success=words).SerializeToString()
    with answering(OK + b"Content-Length: %d\r\n\r\n" % len(body) + body) as server:
        collector = Collector("traces", server.url)
        sender = spans(Door(server.url, "http/protobuf", timeout_s=20.0), collector)
        assert sender.export([SPAN]) is SpanExportResult.SUCCESS
        sender.shutdown()
    rejected, said = collector.said()
    assert (rejected, said[:9], len(said)) == (3, "too old x", MOST_WORDS)
    assert collector.said() == (0, "")  # that was of this delivery


def test_what_is_no_otlp_answer_says_nothing() -> None:
    for signal in SIGNALS:
        collector = Collector(signal, "http://c.example")
        for body in (b"", b"OK", b"<html>", bytes(range(256))):
            collector.hear(body)
            assert collector.said() == (0, "")


def test_what_is_rejected_of_a_delivery_is_heard_over_grpc() -> None:
    class Rejecting(TraceServiceServicer):
        def Export(self, request: Any, context: Any) -> ExportTraceServiceResponse:
            words = ExportTracePartialSuccess(rejected_spans=1, error_message="too old")
            return ExportTraceServiceResponse(partial_success=words)

    server = grpc.server(ThreadPoolExecutor(1))
    add_TraceServiceServicer_to_server(Rejecting(), server)
    url = f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    collector = Collector("traces", url)
    sender = over_grpc.spans(Door(url, "grpc", timeout_s=20.0), collector)
    try:
        assert sender.export([SPAN]) is SpanExportResult.SUCCESS
        assert collector.said() == (1, "too old")
    finally:
        sender.shutdown()
        server.stop(None)
