"""One exporter's queue and its task, on the event loop: a dead collector delays nobody and is counted."""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from proxy.model import Record
from proxy.ports import Exporter

EXPORT_S = 0.2
EXPORT_RECORDS = 512
EXPORT_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class LaneReadings:
    """Readings of one exporter."""

    name: str
    queued: int
    exported: int
    dropped: int
    failures: int


@dataclass(slots=True)
class Lane:
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
        """Take a record, where there is room."""
        if len(self.queue) >= self.most:
            self.dropped += 1
            return
        self.queue.append(record)
        if len(self.queue) == 1:
            self.ready.set()

    def stop(self) -> None:
        """Let it send what it has, and close; ``run`` returns then."""
        self.stopping = True
        self.ready.set()

    async def run(self) -> None:
        """Feed the exporter until ``stop``."""
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

    def readings(self) -> LaneReadings:
        """Counters."""
        return LaneReadings(self.exporter.name, len(self.queue), self.exported, self.dropped, self.failures)
