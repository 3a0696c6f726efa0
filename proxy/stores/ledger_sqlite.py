"""The embedded ledger: one SQLite file, one thread of its own, a transaction for all who wait.

The event loop only queues; the thread takes whatever has gathered, applies it in order in one
write transaction, and answers after the commit. So an answer means that it is in the file, and a
hundred callers cost one commit. Several processes may share the file.

A settlement that cannot be written stays in the queue and is tried again, in order; everything
else is told that the ledger is away.
"""

import asyncio
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from proxy.ports import LedgerAway
from proxy.stores.ledger import SECOND_NS, Book, actual_amounts, new_id, unheld
from proxy.stores.ledger_file import LedgerNewer, SqliteShelf, open_file, sync
from proxy.stores.windows import Windows
from proxy.verdict import Alert, Balance, Claim, Grant, Receipt, Spend, VirtualKey

FILE = "ledger.db"
AT_ONCE = 500
"""Operations in one transaction at most."""
AGAIN_S = 0.5
"""Between two tries to write settlements that could not be written."""
SYNC_S = 1.0
"""How much a crash of the machine (not of the process) may lose."""
CLOSING_S = 10.0

Work = Callable[[SqliteShelf, Book], Any]


class _Job:
    """One operation on its way through the thread."""

    __slots__ = ("answer", "error", "future", "loop", "queued", "work")

    def __init__(self, work: Work, loop: asyncio.AbstractEventLoop, queued: Receipt | None) -> None:
        self.work = work
        self.loop = loop
        self.future: asyncio.Future[Any] = loop.create_future()
        self.queued = queued
        """A settlement's answer while it cannot be written: it is never dropped, only delayed."""
        self.answer: Any = None
        self.error: Exception | None = None


class SqliteLedger:
    """A ledger for one machine."""

    def __init__(self, path: Path, zone: str = "UTC") -> None:
        """``path`` is a data directory, or the file itself when it ends in ``.db``."""
        self.path = path if path.suffix == ".db" else path / FILE
        self.trouble: str | None = None
        """What is wrong with the file, while something is."""
        self._windows = Windows(zone)
        self._zone = zone
        self._jobs: deque[_Job] = deque()
        self._wake = threading.Event()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="looptap-ledger", daemon=True)
        self._thread.start()

    # -- the port

    async def reserve(
        self, claims: Sequence[Claim], *, ttl_s: int, now_ns: int, names: Sequence[str] = ()
    ) -> Grant:
        grant_id, ttl_ns = new_id(), ttl_s * SECOND_NS
        future = self._put(lambda shelf, book: book.reserve(grant_id, claims, names, ttl_ns, now_ns))
        try:
            grant: Grant = await future
        except asyncio.CancelledError:
            # Nobody will settle what is being held: give it back as soon as it is.
            unwanted = Receipt(grant_id, applied=False, queued=True)
            self._put(lambda shelf, book: book.release(grant_id, now_ns), unwanted)
            raise
        return grant

    def unheld(self, claims: Sequence[Claim], *, now_ns: int) -> Grant:
        return unheld(claims, self._windows, now_ns)

    async def settle(self, grant: Grant, actual: Spend, *, now_ns: int) -> Receipt:
        amounts = actual_amounts(grant, actual)
        queued = Receipt(grant.id, applied=False, queued=True)
        receipt: Receipt = await self._put(lambda shelf, book: book.settle(grant, amounts, now_ns), queued)
        return receipt

    async def release(self, grant: Grant, *, now_ns: int) -> Receipt:
        queued = Receipt(grant.id, applied=False, queued=True)
        receipt: Receipt = await self._put(lambda shelf, book: book.release(grant.id, now_ns), queued)
        return receipt

    async def renew(self, grants: Sequence[Grant], *, ttl_s: int, now_ns: int) -> None:
        ids, ttl_ns = [grant.id for grant in grants], ttl_s * SECOND_NS
        await self._put(lambda shelf, book: book.renew(ids, ttl_ns, now_ns))

    async def topup(self, claim: Claim, add: int, *, now_ns: int) -> Balance:
        balance: Balance = await self._put(lambda shelf, book: book.topup(claim, add, now_ns))
        return balance

    async def stop(self, name: str, *, now_ns: int) -> None:
        await self._put(lambda shelf, book: shelf.stop(name, now_ns))

    async def resume(self, name: str, *, now_ns: int) -> bool:
        lifted: bool = await self._put(lambda shelf, book: shelf.resume(name))
        return lifted

    async def stops(self) -> Mapping[str, int]:
        stops: Mapping[str, int] = await self._put(lambda shelf, book: shelf.stops())
        return stops

    async def balances(self, *, now_ns: int, lasting: bool = False) -> Sequence[Balance]:
        balances: Sequence[Balance] = await self._put(lambda shelf, book: book.balances(now_ns, lasting))
        return balances

    async def sweep(self, *, now_ns: int) -> Sequence[Alert]:
        alerts: Sequence[Alert] = await self._put(lambda shelf, book: book.sweep(now_ns))
        return alerts

    async def create_key(self, key: VirtualKey) -> bool:
        created: bool = await self._put(lambda shelf, book: shelf.create_key(key))
        return created

    async def keys(self) -> Sequence[VirtualKey]:
        keys: Sequence[VirtualKey] = await self._put(lambda shelf, book: shelf.keys())
        return keys

    async def revoke_key(self, name: str, *, now_ns: int) -> bool:
        revoked: bool = await self._put(lambda shelf, book: shelf.revoke_key(name, now_ns))
        return revoked

    async def close(self) -> None:
        """Write what waits, as far as the file takes it, and end the thread."""
        self._closing = True
        self._wake.set()
        await asyncio.to_thread(self._thread.join, CLOSING_S)

    # -- the loop's side

    def _put(self, work: Work, queued: Receipt | None = None) -> asyncio.Future[Any]:
        job = _Job(work, asyncio.get_running_loop(), queued)
        if self._closing:
            raise LedgerAway("the ledger is closed")
        self._jobs.append(job)
        if not self._wake.is_set():
            self._wake.set()
        return job.future

    # -- the thread's side

    def _run(self) -> None:
        desk = _Desk(self.path, self._zone)
        kept: deque[_Job] = deque()
        """Settlements that could not be written yet, in order."""
        while True:
            self._wake.wait(AGAIN_S if kept else SYNC_S if desk.unsynced else None)
            self._wake.clear()
            jobs = list(kept)
            kept.clear()
            for _ in range(min(AT_ONCE, len(self._jobs))):
                jobs.append(self._jobs.popleft())
            if self._jobs:
                self._wake.set()
            if jobs:
                self.trouble = desk.serve(jobs)
                kept.extend(job for job in jobs if job.answer is job.queued and job.queued is not None)
                _answer(jobs)
            else:
                desk.sync()
            if self._closing and not self._jobs:
                desk.close()
                return


class _Desk:
    """The thread's connection to the file, and the book over it."""

    def __init__(self, path: Path, zone: str) -> None:
        self._path = path
        self._windows = Windows(zone)
        self._db: sqlite3.Connection | None = None
        self._shelf: SqliteShelf | None = None
        self._book: Book | None = None
        self._carried: list[Alert] = []
        """Alerts not told yet when the file was closed because it failed."""
        self._synced_s = 0.0
        self.unsynced = False

    def serve(self, jobs: Sequence[_Job]) -> str | None:
        """Do the jobs in one transaction. Returns what was wrong with the file."""
        untold = list(self._book.untold) if self._book is not None else []
        try:
            shelf, book = self._open()
            shelf.begin()
            for job in jobs:
                job.answer = job.work(shelf, book)
            shelf.commit()
        except (OSError, sqlite3.Error, LedgerNewer) as error:
            self._drop(error, untold)
            why = self._why(error)
            for job in jobs:
                job.answer = job.queued
                job.error = None if job.queued else LedgerAway(f"the ledger's file fails: {why}")
            return why
        except Exception as error:  # noqa: BLE001 - it must not end the thread that everybody waits for
            self._undo(untold)
            if len(jobs) == 1:  # a bug of ours, or a claim that makes no sense: its caller shall hear of it
                jobs[0].answer, jobs[0].error = None, error
                return None
            troubles = [self.serve([job]) for job in jobs]
            return next((trouble for trouble in troubles if trouble), None)
        self.unsynced = True
        if time.monotonic() - self._synced_s > SYNC_S:
            self.sync()
        return None

    def sync(self) -> None:
        """Bring onto the disk what has been written."""
        self._synced_s = time.monotonic()
        if self.unsynced and self._db is not None:
            self.unsynced = False
            with suppress(sqlite3.Error):  # what fails here fails again at the next commit, and is told there
                sync(self._db)

    def close(self) -> None:
        """Let go of the file."""
        self.sync()
        if self._db is not None:
            self._db.close()
        self._db = self._shelf = self._book = None

    def _open(self) -> tuple[SqliteShelf, Book]:
        if self._shelf is None or self._book is None:
            self._db = open_file(self._path)
            self._shelf = SqliteShelf(self._db)
            self._book = Book(self._shelf, self._windows)
            self._book.untold = self._carried
        return self._shelf, self._book

    def _why(self, error: Exception) -> str:
        if not isinstance(error, OSError):
            return str(error) if isinstance(error, LedgerNewer) else f"{self._path}: {error}"
        reason = f"{error.filename or self._path}: {error.strerror or error}"
        return f"{reason}; name another directory by --data-dir or store.path"

    def _undo(self, untold: list[Alert]) -> None:
        if self._book is not None:
            self._book.untold = untold
        if self._shelf is not None:
            with suppress(sqlite3.Error):
                self._shelf.rollback()

    def _drop(self, error: Exception, untold: list[Alert]) -> None:
        self._undo(untold)
        if getattr(error, "sqlite_errorname", "") not in ("SQLITE_BUSY", "SQLITE_FULL"):
            self._carried = untold
            self.close()


def _answer(jobs: Sequence[_Job]) -> None:
    """Tell the callers, each loop once."""
    by_loop: dict[asyncio.AbstractEventLoop, list[_Job]] = {}
    for job in jobs:
        by_loop.setdefault(job.loop, []).append(job)
    for loop, mine in by_loop.items():
        with suppress(RuntimeError):  # the loop has ended, and with it whoever waited
            loop.call_soon_threadsafe(_resolve, mine)


def _resolve(jobs: Sequence[_Job]) -> None:
    for job in jobs:
        if job.future.done():
            continue  # its caller has gone
        if job.error is not None:
            job.future.set_exception(job.error)
        else:
            job.future.set_result(job.answer)
