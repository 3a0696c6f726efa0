"""Where observations leave the traffic: a bounded queue to the record, and one to each exporter.

``put`` and ``capture`` are called on the event loop for every exchange. They append and return:
no lock, no wait, no I/O. ``waiting`` is the queue to the record, ``drain`` the one thread that writes it
from there, a transaction per batch; ``lanes`` feed the exporters, each by a task and from a queue of its own.

The invariant: traffic never pays. When the queue is full, bodies go first; events only when
nothing else is left to drop. Whatever was lost is counted, and a ``gap`` in the log says so.
"""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from proxy.model import CaptureEnd, CaptureStart, Record
from proxy.outbox.drain import BATCH_S, BatchWriter, Drain
from proxy.outbox.lanes import Lane, LaneReadings
from proxy.outbox.waiting import Limits
from proxy.ports import Exporter
from proxy.record import HeadsPut

__all__ = ["Limits", "Outbox", "Readings"]


@dataclass(frozen=True, slots=True)
class Readings:
    """What the outbox looks like right now."""

    queued: int = 0
    queued_bytes: int = 0
    written: int = 0
    dropped_bodies: int = 0
    dropped_events: int = 0
    lag_s: float = 0.0
    """Age of what waits longest; 0 where nothing waits."""
    write_errors: Mapping[str, int] = field(default_factory=dict)
    away: str | None = None
    """Why nothing is recorded at the moment; None: it is."""
    exporters: tuple[LaneReadings, ...] = ()


class Outbox:
    """The sink of everything observed. Made once; ``start`` it, at the end ``close`` it."""

    def __init__(
        self,
        writer: BatchWriter | None,
        exporters: Sequence[Exporter] = (),
        *,
        limits: Limits | None = None,
        warn: Callable[[str], None] = lambda text: None,
        clock: Callable[[], int] = time.time_ns,
        batch_s: float = BATCH_S,
    ) -> None:
        limits = limits if limits is not None else Limits()
        self._drain = Drain(writer, limits, warn, clock, batch_s) if writer is not None else None
        self._lanes = [Lane(exporter, limits.export_records, warn) for exporter in exporters]

    # -- the traffic's side

    def put(self, record: Record) -> None:
        """Take an event."""
        for lane in self._lanes:
            lane.put(record)
        if self._drain is not None:
            self._drain.waiting.put(record)

    def capture(self, capture: CaptureStart | CaptureEnd) -> None:
        """Take an exchange's request or answer; its body only where there is room."""
        if self._drain is not None:
            self._drain.waiting.capture(capture)

    def heads(self, heads: Sequence[Mapping[str, Any]]) -> None:
        """Take thread heads for the record's file."""
        if self._drain is not None and heads:
            self._drain.waiting.put(HeadsPut(heads))

    # -- life

    def start(self) -> "Future[None]":
        """Begin to write; done when ``readings`` know whether anything can be written. Exporters begin with
        ``export``."""
        if self._drain is not None:
            self._drain.start()
            return self._drain.tried
        tried: Future[None] = Future()
        tried.set_result(None)
        return tried

    async def export(self) -> None:
        """Feed the exporters until ``stop_exporting``; run by a task that the app owns."""
        async with asyncio.TaskGroup() as group:
            for lane in self._lanes:
                group.create_task(lane.run())

    def stop_exporting(self) -> None:
        """Let each exporter send what it has and close; ``export`` returns then."""
        for lane in self._lanes:
            lane.stop()

    def barrier(self) -> "Future[None]":
        """Done when everything taken so far is on disk; fails where the outbox closes before that."""
        if self._drain is not None:
            return self._drain.barrier()
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def rest(self) -> None:
        """Let the traffic go on for a moment; called between two entries, by the thread that writes them."""
        if self._drain is not None:
            self._drain.rest()

    def close(self, deadline_s: float = 5.0) -> bool:
        """Write what waits and stop; False where the deadline passed first. Blocks: not for the loop."""
        return self._drain.close(deadline_s) if self._drain is not None else True

    def readings(self) -> Readings:
        """Counters for metrics and readiness."""
        lanes = tuple(lane.readings() for lane in self._lanes)
        drain = self._drain
        if drain is None:
            return Readings(exporters=lanes)
        waiting = drain.waiting
        return Readings(
            queued=len(waiting),
            queued_bytes=waiting.bytes,
            written=drain.written,
            dropped_bodies=waiting.lost_bodies,
            dropped_events=waiting.lost_entries + drain.bad.entries,
            lag_s=drain.lag_s(),
            write_errors=dict(drain.errors),
            away=drain.away,
            exporters=lanes,
        )
