"""What waits for the record: entries in order, how much their bodies take, and what there was no room for.

Filled on the event loop, emptied by the thread that writes; neither waits for the other. Each number here
has one thread that writes it. The invariant: at most ``Limits`` of anything; bodies go first, events only
when nothing else is left to drop.
"""

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, replace

from proxy.model import CaptureEnd, CaptureStart
from proxy.record import Entry


@dataclass(frozen=True, slots=True)
class Limits:
    """How much may wait."""

    body_bytes: int = 256 << 20
    """Bodies on their way to the record, together."""
    entries: int = 100_000
    """Events, heads and captures on their way to the record."""
    export_records: int = 20_000
    """Records on their way to one exporter."""


@dataclass(slots=True)
class Mark:
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


class Waiting:
    """The queue to the record."""

    def __init__(self, limits: Limits, wake: Callable[[], None], *, many: int, much: int) -> None:
        self.queue: deque[Entry | Mark] = deque()
        self.lost_bodies = 0
        self.lost_entries = 0
        self.held = 0
        """Entries taken off the queue and not yet written. Written by the thread alone."""
        self.gone_bytes = 0
        """Bytes of bodies that were written or given up. Written by the thread alone."""
        self._came_bytes = 0
        self._limits = limits
        self._wake = wake
        self._many = many
        self._much = much

    def __len__(self) -> int:
        return len(self.queue) + self.held

    @property
    def bytes(self) -> int:
        """What the bodies that wait take."""
        return self._came_bytes - self.gone_bytes

    @property
    def presses(self) -> bool:
        """Whether so much waits that writing it may not wait."""
        return len(self.queue) >= self._many or self.bytes > self._much

    def put(self, entry: Entry) -> bool:
        """Take an entry, where there is room."""
        queued = len(self.queue)
        if queued + self.held >= self._limits.entries:
            self.lost_entries += 1
            return False
        self.queue.append(entry)
        if queued == self._many:
            self._wake()
        return True

    def capture(self, capture: CaptureStart | CaptureEnd) -> None:
        """Take an exchange's request or answer; its body only where there is room."""
        body = capture.body
        if body is None:
            self.put(capture)
            return
        size = len(body)
        if self.bytes + size > self._limits.body_bytes:
            self.lost_bodies += 1
            self.put(replace(capture, body=None))
        elif self.put(capture):
            self._came_bytes += size
            if self.bytes > self._much:
                self._wake()
