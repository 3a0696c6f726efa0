"""The thread that writes the record: takes batches off what waits, offers each until it is written.

Lives here: when to write, how much at once, when to rest, what to do while nothing can be written. The
invariant: entries are written in their order, each once or counted as lost, and a ``gap`` in the log tells
of the lost ones.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Protocol

from proxy.model import CaptureEnd, CaptureStart, Record
from proxy.outbox.waiting import Limits, Mark, Waiting
from proxy.record import Entry, RecordAway

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


class BatchWriter(Protocol):
    """What the outbox needs of the record's writer; called from its thread only."""

    def write(self, batch: Sequence[Entry]) -> None:
        """All of it or nothing; raises RecordAway."""
        ...

    def tidy(self) -> bool:
        """A slice of upkeep; True where more of it waits."""
        ...

    def close(self) -> None: ...


@dataclass(slots=True)
class _Bad:
    """What the writing side dropped, and what was already told in a gap. Written by the thread alone."""

    entries: int = 0
    told_bodies: int = 0
    told_events: int = 0


class Drain:
    """The writing thread: takes batches off the queue, offers each until it is written."""

    def __init__(
        self,
        writer: BatchWriter,
        limits: Limits,
        warn: Callable[[str], None],
        clock: Callable[[], int],
        batch_s: float,
    ) -> None:
        self.wake = threading.Event()
        self.waiting = Waiting(limits, self.wake.set, many=BATCH_ENTRIES, much=BATCH_BYTES)
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
        self._writer = writer
        self._warn = warn
        self._clock = clock
        self._batch_s = batch_s
        self._thread = threading.Thread(target=self._run, name="looptap-record", daemon=True)
        self._closing = False
        self._deadline = 0.0
        self._batch: list[Entry] = []
        self._marks: list[Mark] = []
        self._weight = 0
        self._tries = 0
        self._next_try = 0.0
        self._clear_at = time.monotonic()
        """Everything that came before this moment has been written."""
        self._all_taken_at: float | None = None
        """When the batch in hand was taken, if it emptied the queue."""

    def start(self) -> None:
        """Begin to write."""
        self.running = True
        self._thread.start()

    def close(self, deadline_s: float) -> bool:
        """Write what waits and stop; False where the deadline passed first. Blocks."""
        if not self.running:
            return True
        self._deadline = time.monotonic() + deadline_s
        self._closing = True
        self.hurry.set()
        self.wake.set()
        self._thread.join(deadline_s + 1.0)
        return not self._thread.is_alive() and not self.waiting.queue and not self._batch

    def rest(self) -> None:
        """Let the traffic go on for a moment, unless much waits; called between two entries."""
        if not self.waiting.presses and time.thread_time() - self._rested >= WORK_S:
            self.hurry.wait(REST_S)
            self._rested = time.thread_time()

    def barrier(self) -> "Future[None]":
        """Done when everything taken so far is on disk; fails where the end comes before that."""
        done: Future[None] = Future()
        if not self.running:
            done.set_result(None)
        else:
            self.hurry.set()
            self.waiting.queue.append(Mark(done))
            self.wake.set()
        return done

    def lag_s(self) -> float:
        """Age of what waits longest; 0 where nothing waits."""
        if not len(self.waiting):
            return 0.0
        return max(0.0, time.monotonic() - self._clear_at)

    def _run(self) -> None:
        pause = self._batch_s
        self._try()
        self.tried.set_result(None)
        while True:
            self.wake.wait(pause)
            self.wake.clear()
            closing = self._closing
            more = self._pass()
            idle = not self.waiting.queue and not self._batch
            if closing and (idle or time.monotonic() >= self._deadline):
                break
            pause = 0.001 if more else 0.05 if closing else self._batch_s
        self.running = False
        for entry in (*self._marks, *self.waiting.queue):
            if isinstance(entry, Mark):
                entry.reached(RecordAway("closed", self.away or "the outbox was closed"))
        self._writer.close()

    def _pass(self) -> bool:
        """Write what is there; True where upkeep wants to go on at once.

        What comes meanwhile waits for the next pass, unless it is a batch already: under load many
        small transactions would cost several times what few large ones do.
        """
        queue = self.waiting.queue
        enough = 1
        while self._batch or self._marks or len(queue) >= enough:
            if not self._batch and not self._marks:
                self._take()
            if not self._write():
                return False
            if not self._closing:
                enough = BATCH_ENTRIES
        if not queue:
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
        queue, batch = self.waiting.queue, self._batch
        weight = 0
        while queue and len(batch) < BATCH_ENTRIES and weight < BATCH_BYTES:
            entry = queue.popleft()
            if isinstance(entry, Mark):
                self._marks.append(entry)
                continue
            batch.append(entry)
            if isinstance(entry, CaptureStart | CaptureEnd) and entry.body is not None:
                weight += len(entry.body)
        self._weight = weight
        self.waiting.held = len(batch)
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
        self.waiting.gone_bytes += self._weight
        self._batch, self._weight, self.waiting.held = [], 0, 0
        marks, self._marks = self._marks, []
        if marks and not self._closing and not any(isinstance(e, Mark) for e in self.waiting.queue.copy()):
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
            self._warn("the record can be written again")

    def _put_off(self, error: RecordAway) -> None:
        self.errors[error.kind] += 1
        wait = RETRY_S[min(self._tries, len(RETRY_S) - 1)]
        self._tries += 1
        self._next_try = time.monotonic() + wait
        if self.away is None:
            self._warn(f"the record cannot be written: {error}; traffic goes on, trying again")
        self.away = str(error)

    def _drop(self, error: Exception) -> None:
        kind = type(error).__name__
        self.errors[kind] += 1
        self.bad.entries += len(self._batch)
        if self.errors[kind] == 1:
            self._warn(f"a batch of the record was dropped: {kind}")

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
        lost, bad = self.waiting, self.bad
        bodies, events = lost.lost_bodies - bad.told_bodies, lost.lost_entries + bad.entries - bad.told_events
        if not bodies and not events:
            return None
        why = "record away" if self.away is not None else "queue full"
        data = {"lost_bodies": bodies, "lost_events": events, "why": why}
        return Record(self._clock(), "gap", data=data)
