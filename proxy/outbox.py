"""Where observations leave the traffic: a bounded queue to the record, and one to each exporter.

``put`` and ``capture`` are called on the event loop for every exchange. They append and return:
no lock, no wait, no I/O. One thread drains the queue into the record, a transaction per batch; one
task per exporter feeds it from a queue of its own, so that a dead collector delays nobody.

The invariant: traffic never pays. When the queue is full, bodies go first; events only when
nothing else is left to drop. Whatever was lost is counted, and a ``gap`` in the log says so.
"""

import asyncio
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from proxy.model import CaptureEnd, CaptureStart, Record
from proxy.ports import Exporter
from proxy.record import Entry, HeadsPut, RecordAway

BATCH_S = 0.15
"""Between two batches, when little is queued."""
BATCH_ENTRIES = 4_000
"""Entries after which the writer is woken early, and the most that one transaction takes."""
BATCH_BYTES = 32 << 20
WORK_S = 0.0005
REST_S = 0.001
"""How long the record's thread works, and then rests, while little is queued. Streams wait until it lets go
of the interpreter, and on a single core of that core, which a scheduler leaves it for milliseconds."""
RETRY_S = (0.5, 1.0, 2.0, 5.0, 10.0)
"""Waits while the record cannot be written; the last one repeats."""
EXPORT_S = 0.2
EXPORT_RECORDS = 512
EXPORT_TIMEOUT_S = 30.0


class BatchWriter(Protocol):
    """What the outbox needs of the record's writer; called from its thread only."""

    def write(self, batch: Sequence[Entry]) -> None:
        """All of it or nothing; raises RecordAway."""
        ...

    def tidy(self) -> bool:
        """A slice of upkeep; True where more of it waits."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Limits:
    """How much may wait."""

    body_bytes: int = 256 << 20
    """Bodies on their way to the record, together."""
    entries: int = 100_000
    """Events, heads and captures on their way to the record."""
    export_records: int = 20_000
    """Records on their way to one exporter."""


@dataclass(frozen=True, slots=True)
class Lane:
    """Readings of one exporter."""

    name: str
    queued: int
    exported: int
    dropped: int
    failures: int


@dataclass(frozen=True, slots=True)
class Readings:
    """What the outbox looks like right now."""

    queued: int
    queued_bytes: int
    written: int
    dropped_bodies: int
    dropped_events: int
    lag_s: float
    """Age of what waits longest; 0 where nothing waits."""
    write_errors: Mapping[str, int]
    away: str | None
    """Why nothing is recorded at the moment; None: it is."""
    exporters: tuple[Lane, ...]


@dataclass(slots=True)
class _Mark:
    """A place in the queue that someone waits for."""

    done: "Future[None]"

    def reached(self, error: Exception | None = None) -> None:
        """Tell who waits, unless they have given up meanwhile."""
        if not self.done.set_running_or_notify_cancel():
            return
        if error is None:
            self.done.set_result(None)
        else:
            self.done.set_exception(error)


@dataclass(slots=True)
class _Lost:
    """What could not be kept. Written by the loop's thread alone."""

    bodies: int = 0
    events: int = 0


@dataclass(slots=True)
class _Bad:
    """What the writing side dropped, and what was already told in a gap. Written by the thread alone."""

    entries: int = 0
    told_bodies: int = 0
    told_events: int = 0


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
        self._writer = writer
        self._limits = limits if limits is not None else Limits()
        self._warn = warn
        self._clock = clock
        self._batch_s = batch_s
        self._queue: deque[Entry | _Mark] = deque()
        self._bytes_in = 0
        self._bytes_out = 0
        self._lost = _Lost()
        self._drain = _Drain(self, writer) if writer is not None else None
        self._lanes = [_Lane(exporter, self._limits.export_records, warn) for exporter in exporters]
        self._wake_at = BATCH_ENTRIES

    # -- the traffic's side

    def put(self, record: Record) -> None:
        """Take an event."""
        for lane in self._lanes:
            lane.put(record)
        if self._drain is not None:
            self._admit(record)

    def capture(self, capture: CaptureStart | CaptureEnd) -> None:
        """Take an exchange's request or answer; its body only where there is room."""
        if self._drain is None:
            return
        body = capture.body
        if body is not None:
            size = len(body)
            if self._bytes_in - self._bytes_out + size > self._limits.body_bytes:
                self._lost.bodies += 1
                capture = replace(capture, body=None)
            elif self._admit(capture):
                self._bytes_in += size
                if self._bytes_in - self._bytes_out > BATCH_BYTES:
                    self._drain.wake.set()
                return
            else:
                return
        self._admit(capture)

    def heads(self, heads: Sequence[Mapping[str, Any]]) -> None:
        """Take thread heads for the record's file."""
        if self._drain is not None and heads:
            self._admit(HeadsPut(heads))

    def _admit(self, entry: Entry) -> bool:
        queued = len(self._queue)
        drain = self._drain
        assert drain is not None
        if queued + drain.held >= self._limits.entries:
            self._lost.events += 1
            return False
        self._queue.append(entry)
        if queued == self._wake_at:
            drain.wake.set()
        return True

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
        done: Future[None] = Future()
        if self._drain is None or not self._drain.running:
            done.set_result(None)
        else:
            self._drain.hurry.set()
            self._queue.append(_Mark(done))
            self._drain.wake.set()
        return done

    def rest(self) -> None:
        """Let the traffic go on for a moment; called between two entries, by the thread that writes them."""
        drain = self._drain
        pressed = len(self._queue) >= BATCH_ENTRIES or self._bytes_in - self._bytes_out > BATCH_BYTES
        if drain is not None and not pressed:
            drain.rest()

    def close(self, deadline_s: float = 5.0) -> bool:
        """Write what waits and stop; False where the deadline passed first. Blocks: not for the loop."""
        return self._drain.close(deadline_s) if self._drain is not None else True

    def readings(self) -> Readings:
        """Counters for metrics and readiness."""
        drain = self._drain
        queued = len(self._queue) + (drain.held if drain is not None else 0)
        return Readings(
            queued=queued,
            queued_bytes=self._bytes_in - self._bytes_out,
            written=drain.written if drain is not None else 0,
            dropped_bodies=self._lost.bodies,
            dropped_events=self._lost.events + (drain.bad.entries if drain is not None else 0),
            lag_s=drain.lag_s() if drain is not None and queued else 0.0,
            write_errors=dict(drain.errors) if drain is not None else {},
            away=drain.away if drain is not None else None,
            exporters=tuple(lane.readings() for lane in self._lanes),
        )


class _Drain:
    """The writing thread: takes batches off the queue, offers each until it is written."""

    def __init__(self, outbox: Outbox, writer: BatchWriter) -> None:
        self.wake = threading.Event()
        self.held = 0
        """Entries taken off the queue and not yet written."""
        self.written = 0
        self.errors: Counter[str] = Counter()
        self.away: str | None = None
        self.bad = _Bad()
        self.running = False
        self.tried: Future[None] = Future()
        self.tried.set_running_or_notify_cancel()  # who stops waiting for it must not cancel it
        self.hurry = threading.Event()
        """Somebody waits until what is queued is on disk."""
        self._rested = 0.0
        """What the thread had worked at its last rest, in seconds of the processor."""
        self._outbox = outbox
        self._writer = writer
        self._thread = threading.Thread(target=self._run, name="looptap-record", daemon=True)
        self._closing = False
        self._deadline = 0.0
        self._batch: list[Entry] = []
        self._marks: list[_Mark] = []
        self._weight = 0
        self._tries = 0
        self._next_try = 0.0
        self._clear_at = time.monotonic()
        """Everything that came before this moment has been written."""
        self._all_taken_at: float | None = None
        """When the batch in hand was taken, if it emptied the queue."""

    def start(self) -> None:
        self.running = True
        self._thread.start()

    def close(self, deadline_s: float) -> bool:
        if not self.running:
            return True
        self._deadline = time.monotonic() + deadline_s
        self._closing = True
        self.hurry.set()
        self.wake.set()
        self._thread.join(deadline_s + 1.0)
        return not self._thread.is_alive() and not self._outbox._queue and not self._batch

    def rest(self) -> None:
        if time.thread_time() - self._rested >= WORK_S:
            self.hurry.wait(REST_S)
            self._rested = time.thread_time()

    def lag_s(self) -> float:
        return max(0.0, time.monotonic() - self._clear_at)

    def _run(self) -> None:
        pause = self._outbox._batch_s
        self._try()
        self.tried.set_result(None)
        while True:
            self.wake.wait(pause)
            self.wake.clear()
            closing = self._closing
            more = self._pass()
            idle = not self._outbox._queue and not self._batch
            if closing and (idle or time.monotonic() >= self._deadline):
                break
            pause = 0.001 if more else 0.05 if closing else self._outbox._batch_s
        self.running = False
        for entry in (*self._marks, *self._outbox._queue):
            if isinstance(entry, _Mark):
                entry.reached(RecordAway("closed", self.away or "the outbox was closed"))
        self._writer.close()

    def _pass(self) -> bool:
        """Write what is there; True where upkeep wants to go on at once.

        What comes meanwhile waits for the next pass, unless it is a batch already: under load many
        small transactions would cost several times what few large ones do.
        """
        outbox = self._outbox
        enough = 1
        while self._batch or self._marks or len(outbox._queue) >= enough:
            if not self._batch and not self._marks:
                self._take()
            if not self._write():
                return False
            if not self._closing:
                enough = BATCH_ENTRIES
        if not outbox._queue:
            self._clear_at = time.monotonic()
        if self.away is not None and time.monotonic() >= self._next_try:
            self._try()
        return self._tidy()

    def _try(self) -> None:
        """Write nothing, to know whether something could be written."""
        try:
            self._writer.write(())
        except RecordAway as error:
            self._put_off(error)
        except Exception as error:  # noqa: BLE001 - what is wrong with it, the first batch will tell
            self.errors[type(error).__name__] += 1
        else:
            self._back()

    def _take(self) -> None:
        queue, batch = self._outbox._queue, self._batch
        weight = 0
        while queue and len(batch) < BATCH_ENTRIES and weight < BATCH_BYTES:
            entry = queue.popleft()
            if isinstance(entry, _Mark):
                self._marks.append(entry)
                continue
            batch.append(entry)
            if isinstance(entry, CaptureStart | CaptureEnd) and entry.body is not None:
                weight += len(entry.body)
        self._weight = weight
        self.held = len(batch)
        self._all_taken_at = time.monotonic() if not queue else None

    def _write(self) -> bool:
        """Offer the batch; False where it has to wait."""
        if time.monotonic() < self._next_try and not self._closing:
            return False
        gap = self._gap()
        try:
            if self._batch:
                self._writer.write([*self._batch, gap] if gap is not None else self._batch)
        except RecordAway as error:
            self._put_off(error)
            return False
        except Exception as error:  # noqa: BLE001 - one batch that cannot be encoded must not stop all that follow
            self._drop(error)
        else:
            self._done(gap)
        if self._all_taken_at is not None:
            self._clear_at = self._all_taken_at
        self._outbox._bytes_out += self._weight
        self._batch, self._weight, self.held = [], 0, 0
        marks, self._marks = self._marks, []
        if marks and not self._closing and not any(isinstance(e, _Mark) for e in self._outbox._queue.copy()):
            self.hurry.clear()
        for mark in marks:
            mark.reached()
        return True

    def _done(self, gap: Record | None) -> None:
        self.written += len(self._batch)
        if gap is not None:
            self.bad.told_bodies += gap.data["lost_bodies"]
            self.bad.told_events += gap.data["lost_events"]
        self._back()

    def _back(self) -> None:
        if self.away is not None:
            self.away, self._tries, self._next_try = None, 0, 0.0
            self._outbox._warn("the record can be written again")

    def _put_off(self, error: RecordAway) -> None:
        self.errors[error.kind] += 1
        wait = RETRY_S[min(self._tries, len(RETRY_S) - 1)]
        self._tries += 1
        self._next_try = time.monotonic() + wait
        if self.away is None:
            self._outbox._warn(f"the record cannot be written: {error}; traffic goes on, trying again")
        self.away = str(error)

    def _drop(self, error: Exception) -> None:
        kind = type(error).__name__
        self.errors[kind] += 1
        self.bad.entries += len(self._batch)
        if self.errors[kind] == 1:
            self._outbox._warn(f"a batch of the record was dropped: {kind}")

    def _tidy(self) -> bool:
        try:
            return self._writer.tidy()
        except RecordAway as error:
            self.errors[error.kind] += 1
        except Exception as error:  # noqa: BLE001 - upkeep may fail, recording goes on
            self.errors[type(error).__name__] += 1
        return False

    def _gap(self) -> Record | None:
        """What was lost since the last gap, as an event."""
        lost, bad = self._outbox._lost, self.bad
        bodies, events = lost.bodies - bad.told_bodies, lost.events + bad.entries - bad.told_events
        if not bodies and not events:
            return None
        why = "record away" if self.away is not None else "queue full"
        data = {"lost_bodies": bodies, "lost_events": events, "why": why}
        return Record(self._outbox._clock(), "gap", data=data)


@dataclass(slots=True)
class _Lane:
    """One exporter's queue and its task, all on the loop."""

    exporter: Exporter
    most: int
    warn: Callable[[str], None]
    queue: deque[Record] = field(default_factory=deque)
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    stopping: bool = False
    exported: int = 0
    dropped: int = 0
    failures: int = 0

    def put(self, record: Record) -> None:
        if len(self.queue) >= self.most:
            self.dropped += 1
            return
        self.queue.append(record)
        if len(self.queue) == 1:
            self.ready.set()

    def stop(self) -> None:
        self.stopping = True
        self.ready.set()

    async def run(self) -> None:
        while not (self.stopping and not self.queue):
            await self.ready.wait()
            self.ready.clear()
            if not self.stopping and len(self.queue) < EXPORT_RECORDS:
                await self._gather()
            while self.queue:
                await self._send([self.queue.popleft() for _ in range(min(len(self.queue), EXPORT_RECORDS))])
        await self._guarded(self.exporter.close())

    async def _gather(self) -> None:
        """Wait a moment, so that an exporter gets many records at once; a stop ends the wait."""
        try:
            async with asyncio.timeout(EXPORT_S):
                await self.ready.wait()
        except TimeoutError:
            pass

    async def _send(self, records: list[Record]) -> None:
        if await self._guarded(self.exporter.export(records)):
            self.exported += len(records)
        else:
            self.dropped += len(records)

    async def _guarded(self, work: Any) -> bool:
        """Await an exporter's work; what it raises, or never ends, is counted and told once."""
        try:
            async with asyncio.timeout(EXPORT_TIMEOUT_S):
                await work
        except Exception as error:  # noqa: BLE001 - third parties: the rest goes on
            self.failures += 1
            if self.failures == 1:
                self.warn(
                    f"exporter {self.exporter.name} failed ({type(error).__name__}); records for it are lost"
                )
            return False
        return True

    def readings(self) -> Lane:
        return Lane(self.exporter.name, len(self.queue), self.exported, self.dropped, self.failures)
