"""A small OTLP collector on loopback: takes what comes over HTTP and keeps it, read from protobuf."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from aiohttp.test_utils import TestServer
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

PATIENCE_S = 60.0


@dataclass(frozen=True)
class Span:
    """One span, as a collector sees it."""

    name: str
    trace: str
    id: str
    parent: str
    kind: int
    start_ns: int
    end_ns: int
    attributes: dict[str, Any]
    events: list[tuple[str, dict[str, Any]]]
    links: list[tuple[str, str, dict[str, Any]]]
    failed: bool
    resource: dict[str, Any] = field(repr=False, default_factory=dict)

    def covers(self, other: "Span") -> bool:
        return self.start_ns <= other.start_ns and other.end_ns <= self.end_ns

    def overlaps(self, other: "Span") -> bool:
        return self.start_ns < other.end_ns and other.start_ns < self.end_ns


@dataclass
class Collector:
    """What came. ``answer`` may be changed while it runs."""

    spans: list[Span] = field(default_factory=list)
    logs: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    metrics: dict[str, Any] = field(default_factory=dict)
    """The newest state of each, as sent."""
    headers: list[dict[str, str]] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    status: int = 200
    gate: asyncio.Event | None = None
    """Where there is one, answers wait for it."""
    came: asyncio.Event = field(default_factory=asyncio.Event)
    requests: int = 0
    url: str = ""

    async def take(self, request: web.Request) -> web.Response:
        body = await request.read()
        self.requests += 1
        self.headers.append(dict(request.headers))
        self.bodies.append(body)
        self.came.set()
        if self.gate is not None:
            await self.gate.wait()
        if self.status == 200:
            signal = request.path.rpartition("/")[2]
            {"traces": self._traces, "logs": self._logs, "metrics": self._metrics}[signal](body)
        self.came.set()
        return web.Response(status=self.status)

    def _traces(self, body: bytes) -> None:
        told = ExportTraceServiceRequest.FromString(body)
        for resource in told.resource_spans:
            who = values(resource.resource.attributes)
            self.spans += [span_of(one, who) for scope in resource.scope_spans for one in scope.spans]

    def _logs(self, body: bytes) -> None:
        told = ExportLogsServiceRequest.FromString(body)
        for resource in told.resource_logs:
            for scope in resource.scope_logs:
                self.logs += [(one.event_name, values(one.attributes)) for one in scope.log_records]

    def _metrics(self, body: bytes) -> None:
        told = ExportMetricsServiceRequest.FromString(body)
        for resource in told.resource_metrics:
            for scope in resource.scope_metrics:
                self.metrics.update({one.name: one for one in scope.metrics})

    def points(self, name: str) -> list[tuple[dict[str, Any], Any]]:
        """The attributes and values of one metric: a number, or count and sum of a histogram."""
        metric = self.metrics[name]
        kind = metric.WhichOneof("data")
        rows = getattr(metric, kind).data_points
        return [
            (values(row.attributes), (row.count, row.sum) if kind == "histogram" else row.as_double)
            for row in rows
        ]

    async def until(self, what: Callable[["Collector"], Any]) -> None:
        """Wait for something to have come; bounded."""
        async with asyncio.timeout(PATIENCE_S):
            while not what(self):
                self.came.clear()
                await self.came.wait()

    def named(self, name: str) -> list[Span]:
        return sorted((span for span in self.spans if span.name.startswith(name)), key=lambda s: s.start_ns)


def span_of(one: Any, who: dict[str, Any] | None = None) -> Span:
    return Span(
        one.name, one.trace_id.hex(), one.span_id.hex(), one.parent_span_id.hex(), one.kind,
        one.start_time_unix_nano, one.end_time_unix_nano, values(one.attributes),
        [(event.name, values(event.attributes)) for event in one.events],
        [(link.trace_id.hex(), link.span_id.hex(), values(link.attributes)) for link in one.links],
        one.status.code == 2, who or {},
    )  # fmt: skip


def values(attributes: Any) -> dict[str, Any]:
    return {one.key: value_of(one.value) for one in attributes}


def value_of(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [value_of(one) for one in value.array_value.values]
    return getattr(value, kind) if kind is not None else None


@asynccontextmanager
async def collecting() -> AsyncIterator[Collector]:
    collector = Collector()
    application = web.Application(client_max_size=1 << 26)
    application.router.add_post("/{path:.*}", collector.take)
    server = TestServer(application)
    await server.start_server()
    collector.url = str(server.make_url("")).rstrip("/")
    try:
        yield collector
    finally:
        if collector.gate is not None:
            collector.gate.set()
        await server.close()


def forest(spans: list[Span], *, reaching: bool = True) -> dict[str, list[Span]]:
    """Spans by trace; each trace must be one whole tree in which parents reach around their children
    (``reaching``: not so where a turn goes on after its end)."""
    traces: dict[str, list[Span]] = {}
    for span in spans:
        traces.setdefault(span.trace, []).append(span)
    for trace in traces.values():
        by_id = {span.id: span for span in trace}
        assert len(by_id) == len(trace), "a span came twice"
        assert len([span for span in trace if not span.parent]) == 1, [(s.name, s.parent) for s in trace]
        for span in trace:
            assert not span.parent or span.parent in by_id, f"{span.name} is an orphan"
            if span.parent and reaching:
                assert by_id[span.parent].covers(span), f"{span.name} sticks out"
    return traces
