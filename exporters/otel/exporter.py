"""The exporter itself: records in, spans and log records out to the collector.

Reading records is done in a worker thread, sending in threads of the ``Outlet``s; the event loop does
neither. When the process ends, what is still open is told as it stands, and which turns were told so
is kept in a file: the next process then adds to their traces instead of telling them again.
"""

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from opentelemetry.sdk._logs import ReadableLogRecord
from opentelemetry.sdk._logs.export import LogRecordExporter, LogRecordExportResult
from opentelemetry.sdk.metrics.export import MetricExporter, MetricsData
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from exporters.otel.collector import Collector
from exporters.otel.draft import Draft
from exporters.otel.events import Happening, decision, log
from exporters.otel.link import Door, scope
from exporters.otel.metrics import Metrics
from exporters.otel.sending import Bounds, Outlet
from exporters.otel.steps import Style
from exporters.otel.turns import Turns
from proxy.model import Record
from proxy.ports import Reading

CLOSE_S = 4.0
"""For what is left at the end; the app waits a little longer."""
LOG_WEIGHT = 1_500
_MOST_TOLD = 4_096
_BOUNDS = Bounds()


class Driver(Protocol):
    """``over_http`` or ``over_grpc``."""

    def spans(self, door: Door, collector: Collector) -> SpanExporter: ...
    def logs(self, door: Door, collector: Collector) -> LogRecordExporter: ...
    def metrics(self, door: Door, collector: Collector) -> MetricExporter: ...


@dataclass(frozen=True, slots=True)
class Way:
    """Where each signal leaves, as far as it is on."""

    spans: tuple[SpanExporter, Collector] | None = None
    logs: tuple[LogRecordExporter, Collector] | None = None


class OtelExporter:
    """Traces, logs and metrics. One per process."""

    name = "otlp"

    def __init__(
        self,
        way: Way,
        style: Style,
        who: Resource,
        *,
        metrics: Metrics | None = None,
        told_in: Path | None = None,
        warn: Callable[[str], None] = lambda text: None,
        bounds: Bounds = _BOUNDS,
        linger_s: float = 1.0,
        close_s: float = CLOSE_S,
    ) -> None:
        self._who, self._scope = who, scope()
        self._metrics = metrics
        self._told_in = told_in
        self._close_s = close_s
        self._lock = threading.Lock()
        self._turns = Turns(style, self._tell, _take_told(told_in), linger_s)
        self._traces: Outlet[ReadableSpan] | None = None
        self._logs: Outlet[ReadableLogRecord] | None = None
        if way.spans is not None:
            spans, far = way.spans
            self._traces = Outlet(
                "traces",
                lambda batch: spans.export(batch) is SpanExportResult.SUCCESS,
                spans.shutdown,
                warn,
                far,
                fill=self._fill,
                bounds=bounds,
            )
        if way.logs is not None:
            logs, far = way.logs
            self._logs = Outlet(
                "logs",
                lambda batch: logs.export(batch) is LogRecordExportResult.SUCCESS,
                logs.shutdown,
                warn,
                far,
                bounds=bounds,
            )
        for outlet in self._outlets():
            outlet.start()

    async def export(self, records: Sequence[Record]) -> None:
        """Read a batch."""
        if self._metrics is not None:
            self._metrics.count(records)
        if self._traces is None and self._logs is None:
            return
        await asyncio.to_thread(self._take, records)

    async def close(self) -> None:
        """Tell what is open, send what is left, and let go, all within the deadline."""
        if self._metrics is not None:
            self._metrics.take()
        await asyncio.to_thread(self._finish)
        waits = [asyncio.wrap_future(outlet.close(self._close_s)) for outlet in self._outlets()]
        if not waits:
            return
        _, late = await asyncio.wait(waits, timeout=self._close_s)
        for wait in late:
            wait.cancel()
        for outlet in self._outlets() if late else ():
            outlet.abandon()

    def tick(self, now_s: float) -> None:
        """Let time pass: metrics leave once an interval."""
        if self._metrics is not None:
            self._metrics.tick(now_s)

    def readings(self) -> Iterable[Reading]:
        """What became of what was sent, for metrics."""
        tallies = [(outlet.signal, outlet.tally()) for outlet in self._outlets()]
        yield Reading(
            "otlp_sent_total", "What the collector took.", [((n,), t.sent) for n, t in tallies], ("signal",)
        )
        yield Reading(
            "otlp_queued",
            "What waits for the collector.",
            [((n,), t.queued) for n, t in tallies],
            ("signal",),
        )
        rows = [((n, "queue_full"), t.dropped_full) for n, t in tallies]
        rows += [((n, "refused"), t.dropped_failed) for n, t in tallies]
        rows += [((n, "rejected"), t.rejected) for n, t in tallies]
        text = "What was lost because the collector is away, slow or refuses."
        yield Reading("otlp_dropped_total", text, rows, ("signal", "reason"))

    def _outlets(
        self,
    ) -> "Iterator[Outlet[ReadableSpan] | Outlet[ReadableLogRecord] | Outlet[MetricsData]]":
        if self._traces is not None:
            yield self._traces
        if self._logs is not None:
            yield self._logs
        if self._metrics is not None:
            yield self._metrics.outlet

    # -- in worker threads

    def _take(self, records: Sequence[Record]) -> None:
        with self._lock:
            now_s = time.monotonic()
            for record in records:
                if record.turn is not None:
                    self._turns.take(record, now_s)
                elif record.type in ("finding", "intervention", "budget/alert"):
                    self._tell(decision(record), 0, 0)
                elif record.type in _PLAIN:
                    self._tell_plain(record)
        self._fill()

    def _fill(self) -> None:
        with self._lock:
            self._send(self._turns.ripe(time.monotonic()))

    def _finish(self) -> None:
        with self._lock:
            self._send(self._turns.close())
            if self._told_in is not None:
                _keep_told(self._told_in, list(self._turns.told)[-_MOST_TOLD:])

    def _send(self, drafts: Iterator[Draft]) -> None:
        for draft in drafts:
            if self._traces is not None:
                self._traces.put(draft.span(self._who, self._scope), draft.weight)
            draft.release()

    def _tell(self, happening: Happening, trace: int, span: int) -> None:
        if self._logs is not None:
            self._logs.put(log(happening, trace, span, self._who, self._scope), LOG_WEIGHT)

    def _tell_plain(self, record: Record) -> None:
        """Something about the process itself."""
        attributes = {
            f"looptap.{name}": value for name, value in record.data.items() if not isinstance(value, dict)
        }
        self._tell(Happening(_PLAIN[record.type], record.time_ns, attributes, "error"), 0, 0)


_PLAIN = {
    "gap": "looptap.gap",
    "internal/error": "looptap.internal_error",
}
"""Events of no turn that go into the log, by type."""


def _take_told(path: Path | None) -> Sequence[str]:
    """The turns that the process before this one told as they stood when it ended. Read once."""
    if path is None:
        return ()
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        path.unlink()
    except (OSError, ValueError):
        return ()
    return [id for id in found if isinstance(id, str)] if isinstance(found, list) else ()


def _keep_told(path: Path, told: Sequence[str]) -> None:
    with suppress(OSError):  # then the next process may tell a turn twice, which only looks odd
        path.write_text(json.dumps(told), encoding="utf-8")
