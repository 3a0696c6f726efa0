"""The bounded way out: a queue and a thread that sends it in batches, one of each per signal.

Whoever puts in never waits. When the queue is full the oldest go, and are counted. A batch that the
collector does not take is lost and counted, too; then there is a pause, so that a dead collector costs
one try now and then. What it rejects of a batch that it takes is counted and told once. ``close`` sends
what is left within its deadline.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

T = TypeVar("T")

PAUSES_S = (1.0, 2.0, 5.0, 10.0, 30.0)
"""After batches that were not taken; the last one repeats."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """How much may wait, and how it is sent."""

    most: int = 8_192
    weight: int = 32_000_000
    """Rough bytes of all that waits."""
    batch: int = 128
    tick_s: float = 0.25


@dataclass(frozen=True, slots=True)
class Tally:
    """What became of what was put in."""

    sent: int
    dropped_full: int
    dropped_failed: int
    queued: int
    rejected: int
    """Of what was taken: spans, log records, data points."""


class Receiver(Protocol):
    """Who takes what is sent."""

    @property
    def address(self) -> str:
        """Where it is, for people."""
        ...

    def said(self) -> tuple[int, str]:
        """How much it rejected of the batch that it just took, and what it says of that."""
        ...


_PARTS = {"traces": "spans", "logs": "log records", "metrics": "data points"}


class Outlet(Generic[T]):
    """One signal's queue and thread."""

    def __init__(
        self,
        signal: str,
        send: Callable[[Sequence[T]], bool],
        stop: Callable[[], None],
        warn: Callable[[str], None],
        receiver: Receiver,
        *,
        fill: Callable[[], None] = lambda: None,
        bounds: Bounds,
        pauses_s: Sequence[float] = PAUSES_S,
    ) -> None:
        self.signal = signal
        self._send = send
        self._stop = stop
        self._warn = warn
        self._receiver = receiver
        self._fill = fill
        self._bounds = bounds
        self._pauses_s = tuple(pauses_s)
        self._queue: deque[tuple[T, int]] = deque()
        self._weight = 0
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._closing = False
        self._deadline = 0.0
        self._failures = 0
        self._next_try = 0.0
        self._away = self._told_rejected = False
        self._sent = self._full = self._failed = self._rejected = 0
        self._done: Future[None] = Future()
        self._done.set_running_or_notify_cancel()  # who stops waiting for it must not cancel it
        self._thread = threading.Thread(target=self._run, name=f"looptap-otlp-{signal}", daemon=True)

    def start(self) -> None:
        """Begin to send."""
        self._thread.start()

    def put(self, item: T, weight: int) -> None:
        """Take one; where there is no room the oldest goes."""
        with self._lock:
            self._queue.append((item, weight))
            self._weight += weight
            while len(self._queue) > self._bounds.most or self._weight > self._bounds.weight:
                self._weight -= self._queue.popleft()[1]
                self._full += 1
                if not self._queue:
                    break
            enough = len(self._queue) == self._bounds.batch
        if enough:
            self._wake.set()

    def close(self, deadline_s: float) -> "Future[None]":
        """Send what is left; done when that is over, or when the deadline has passed."""
        self._deadline = time.monotonic() + deadline_s
        self._closing = True
        self._wake.set()
        return self._done

    def abandon(self) -> None:
        """The deadline has passed: end a try that is under way, count what is left as lost."""
        self._stop()
        self._lose_all()

    def tally(self) -> Tally:
        """Counters."""
        with self._lock:
            return Tally(self._sent, self._full, self._failed, len(self._queue), self._rejected)

    # -- the thread

    def _run(self) -> None:
        while True:
            self._wake.wait(self._bounds.tick_s)
            self._wake.clear()
            closing = self._closing
            self._fill()
            if closing or time.monotonic() >= self._next_try:
                self._send_all()
            if closing:
                break
        self._lose_all()
        self._stop()
        self._done.set_result(None)

    def _send_all(self) -> None:
        while batch := self._take():
            if self._closing and time.monotonic() >= self._deadline:
                self._lost(len(batch))
                return
            if not self._offer(batch):
                return

    def _take(self) -> list[T]:
        with self._lock:
            batch = [self._queue.popleft() for _ in range(min(len(self._queue), self._bounds.batch))]
            self._weight -= sum(weight for _, weight in batch)
        return [item for item, _ in batch]

    def _offer(self, batch: list[T]) -> bool:
        try:
            taken = self._send(batch)
        except Exception:  # noqa: BLE001 - a library's bug costs this batch, not the thread
            taken = False
        if taken:
            self._book(len(batch))
            self._failures = 0
            if self._away:
                self._away = False
                self._say(f"the collector takes {self.signal} again")
            return True
        self._lost(len(batch))
        pause = self._pauses_s[min(self._failures, len(self._pauses_s) - 1)]
        self._failures += 1
        self._next_try = time.monotonic() + pause
        if not self._away:
            self._away = True
            self._say(
                f"the collector does not take {self.signal}: what it refuses, and what does not fit into "
                "memory meanwhile, is lost and counted; trying again now and then"
            )
        return False

    def _book(self, count: int) -> None:
        """A batch was taken, if not all of it."""
        rejected, words = self._receiver.said()
        with self._lock:
            self._sent += max(0, count - rejected)
            self._rejected += rejected
        if (rejected or words) and not self._told_rejected:
            self._told_rejected = True
            what = f"rejected {rejected} {_PARTS[self.signal]}" if rejected else f"took {self.signal}"
            self._say(
                f"the collector {what} and says: {words or 'nothing'}; what it rejects is lost and counted"
            )

    def _say(self, text: str) -> None:
        self._warn(f"{text} (at {self._receiver.address})")

    def _lost(self, count: int) -> None:
        with self._lock:
            self._failed += count

    def _lose_all(self) -> None:
        with self._lock:
            self._failed += len(self._queue)
            self._queue.clear()
            self._weight = 0
