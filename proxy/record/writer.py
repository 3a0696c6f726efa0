"""The record's one writer: batches of records, captures and heads, a transaction each.

Runs in one thread of its own (the outbox's); knows no queue and no clock but the one it is given.
What cannot be written raises ``RecordAway`` and leaves nothing half done: a batch is on disk
whole or not at all, and may be offered again. The log is append-only; an exchange's row is
completed once, when its answer is over.
"""

import sqlite3
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import orjson

from proxy.model import CaptureEnd, CaptureStart, Record
from proxy.record import bodies, retention, schema
from proxy.record.bodies import Bases
from proxy.record.events import MAX_RUN, encode
from proxy.record.exchanges import pack_headers
from proxy.record.heads import HeadsPut, upsert
from proxy.record.retention import FOREVER, Keep
from proxy.record.rows import insert
from proxy.record.summaries import Summaries, rebuild

Entry = Record | CaptureStart | CaptureEnd | HeadsPut
"""What a batch is made of."""

TIDY_NS = 30_000_000_000
"""Between two looks at what may leave, when the last one found nothing."""
_REST_AFTER = 8
"""Entries between two looks at the clock, which cost a tenth of an entry."""
_NAMES_KEPT = 20_000
_OPEN_KEPT = 100_000
_KNOWN = "SELECT id, no FROM names WHERE id IN (SELECT value FROM json_each(?))"
_ANSWER = """
    UPDATE exchanges SET end_ns = ?, ending = ?, status = ?, streaming = ?, request_bytes = ?,
        response_bytes = ?, response_body = ?, response_headers = ? WHERE no = ?
"""
_NUMBERS = "UPDATE counters SET seq = ?, name = ?, exchange = ?, body = ?"


class RecordAway(Exception):
    """Nothing can be recorded at the moment. ``kind`` is short and stable, for counters."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind


class RecordWriter:
    """Writes one record. Every method is called from the same thread."""

    def __init__(
        self,
        data_dir: Path,
        *,
        keep: Keep = FOREVER,
        warn: schema.Warn = lambda text: None,
        clock: Callable[[], int] = time.time_ns,
        bases_bytes: int = bodies.BASES_BYTES,
    ) -> None:
        self.data_dir = data_dir
        self.lost_answers = 0
        """Answers whose request is not in the record: it never reached it, or has left it."""
        self.rest: Callable[[], None] = lambda: None
        """Called every now and then in the middle of a batch: others may want the processor."""
        self._keep = keep
        self._warn = warn
        self._clock = clock
        self._connection: sqlite3.Connection | None = None
        self._inode = 0
        self._bases = Bases(bases_bytes)
        self._names: dict[str, int] = {}
        self._open: dict[str, int] = {}
        """Exchanges whose answer is still to come, by id."""
        self._version = 0
        self._epoch = 0
        """Counts how often another process wrote: what we know of rows is checked again then."""
        self._tidy_ns = 0

    def write(self, batch: Sequence[Entry]) -> None:
        """Put a batch on disk. Raises RecordAway; then nothing of it is there."""
        try:
            connection = self._connect()
            connection.execute("BEGIN IMMEDIATE")
            self._notice_others(connection)
            work = _Batch(self, connection)
            work.recall(batch)
            for count, entry in enumerate(batch):
                work.take(entry)
                if count % _REST_AFTER == 0:
                    self.rest()
            work.finish()
            connection.execute("COMMIT")
        except (OSError, sqlite3.Error, schema.RecordNewer) as error:
            self._fail(error)
            raise _away(error, self.data_dir) from None
        except BaseException:
            self._undo()
            raise
        self._open.update(work.opened)
        for exchange in work.answered:
            self._open.pop(exchange, None)
        if work.lost:
            self._lose(work.lost)
        while len(self._open) > _OPEN_KEPT:
            del self._open[next(iter(self._open))]
        if len(self._names) > _NAMES_KEPT:
            self._names.clear()

    def _lose(self, answers: int) -> None:
        if not self.lost_answers:
            self._warn(
                "an answer was not recorded, since its request is not in the record any more or never was; "
                "how many more is counted (looptap_record_lost_answers_total)"
            )
        self.lost_answers += answers

    def tidy(self) -> bool:
        """One slice of retention, if it is time; True where the next may follow at once."""
        now_ns = self._clock()
        if now_ns < self._tidy_ns or self._connection is None:
            return False
        try:
            done = retention.evict(self._connection, self._keep, now_ns)
        except (OSError, sqlite3.Error) as error:
            self._tidy_ns = now_ns + TIDY_NS
            self._fail(error)
            raise _away(error, self.data_dir) from None
        if done.bodies:
            self._bases.forget(done.bodies)
        if done.exchanges or done.turns:
            self._names.clear()
            gone = set(done.exchanges)
            self._open = {name: no for name, no in self._open.items() if no not in gone}
        if not done.more:
            self._tidy_ns = now_ns + TIDY_NS
        return done.more

    def rebuild(self) -> int:
        """Make the lists anew from the log, should they ever disagree; answers the events read."""
        try:
            return rebuild(self._connect())
        except (OSError, sqlite3.Error, schema.RecordNewer) as error:
            self._fail(error)
            raise _away(error, self.data_dir) from None

    def close(self) -> None:
        """Let go of the file; the log is folded into it."""
        if self._connection is not None:
            with suppress(sqlite3.Error):
                self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            with suppress(sqlite3.Error):
                self._connection.close()
            self._connection = None

    # -- the connection

    def _connect(self) -> sqlite3.Connection:
        """The open file; opened anew where it is not the one at its path any more (moved, deleted)."""
        if self._connection is not None and not self._is_current():
            self.close()
        if self._connection is None:
            self._connection = schema.open_writer(self.data_dir, self._warn)
            self._inode = (self.data_dir / schema.FILE).stat().st_ino
            self._forget()
        return self._connection

    def _is_current(self) -> bool:
        try:
            return (self.data_dir / schema.FILE).stat().st_ino == self._inode
        except FileNotFoundError:
            return False

    def _notice_others(self, connection: sqlite3.Connection) -> None:
        """Another process that wrote may have evicted what we remember."""
        version = int(connection.execute("PRAGMA data_version").fetchone()[0])
        if version != self._version:
            self._version = version
            self._epoch += 1
            self._names.clear()

    def _fail(self, error: Exception) -> None:
        self._undo()
        if isinstance(error, sqlite3.Error) and schema.is_damage(error):
            self._replace(error)
        elif not (isinstance(error, sqlite3.OperationalError) and _kind(error) in ("busy", "full")):
            self.close()

    def _undo(self) -> None:
        """Roll back, and forget what may not have reached the disk."""
        if self._connection is not None and self._connection.in_transaction:
            with suppress(sqlite3.Error):
                self._connection.execute("ROLLBACK")
        self._names.clear()
        self._bases.clear()

    def _forget(self) -> None:
        self._names.clear()
        self._bases.clear()
        self._open.clear()

    def _replace(self, error: sqlite3.Error) -> None:
        """Move the damaged file aside, unless another process has already done so."""
        if self._connection is not None:
            with suppress(sqlite3.Error):
                self._connection.close()
            self._connection = None
        path = self.data_dir / schema.FILE
        with suppress(OSError):
            if path.stat().st_ino == self._inode:
                schema.move_aside(path, self._warn, str(error))


class _Batch:
    """One transaction in the making. Rows are collected and written table by table."""

    def __init__(self, writer: RecordWriter, connection: sqlite3.Connection) -> None:
        self._writer = writer
        self._connection = connection
        numbers: tuple[int, int, int, int] = connection.execute(
            "SELECT seq, name, exchange, body FROM counters"
        ).fetchone()
        self._seq, self._name, self._exchange, self._body = numbers
        self._summaries = Summaries()
        self._run: list[Record] = []
        self._key: tuple[str | None, str | None, str | None] = (None, None, None)
        self._new_names: list[tuple[int, str, int | None]] = []
        self._events: list[tuple[Any, ...]] = []
        self._bodies: list[bodies.Row] = []
        self._starts: dict[str, list[Any]] = {}
        self._ends: list[tuple[Any, ...]] = []
        self.opened: dict[str, int] = {}
        self.answered: list[str] = []
        self.lost = 0
        """Answers without a request."""

    def recall(self, batch: Sequence[Entry]) -> None:
        """Look up, all at once, the ids of a batch that are not at hand; what is not found is new."""
        names = self._writer._names
        named: set[str | None] = set()
        turn = ""
        for entry in batch:
            if isinstance(entry, Record):
                if entry.turn is not None and entry.turn == turn:
                    continue  # a turn stands in one thread of one session
                turn = entry.turn or ""
            elif not isinstance(entry, CaptureStart):
                continue
            else:
                named.add(entry.step)
            named.update((entry.session, entry.thread, entry.turn))
        # (subtracting ``names.keys()`` would walk through all that is at hand)
        unknown = [name for name in named if name is not None and name not in names]
        if unknown:
            names.update(self._connection.execute(_KNOWN, (orjson.dumps(unknown).decode(),)))

    def take(self, entry: Entry) -> None:
        """Take the next thing in order."""
        if isinstance(entry, Record):
            key = (entry.session, entry.thread, entry.turn)
            if key != self._key or len(self._run) >= MAX_RUN:
                self._close_run()
                self._key = key
            self._run.append(entry)
        elif isinstance(entry, CaptureStart):
            self._start(entry)
        elif isinstance(entry, CaptureEnd):
            self._end(entry)
        else:
            upsert(self._connection, entry.heads, self._writer._clock())

    def finish(self) -> None:
        """Write everything."""
        self._close_run()
        connection = self._connection
        rest = self._writer.rest
        for verb, rows in (
            ("INSERT INTO names", self._new_names),
            ("INSERT INTO events", self._events),
            (bodies.INSERT, self._bodies),
            ("INSERT OR IGNORE INTO exchanges", list(self._starts.values())),
        ):
            insert(connection, verb, rows, rest=rest)
        if self._ends:
            connection.executemany(_ANSWER, self._ends)
        self._summaries.flush(connection)
        connection.execute(_NUMBERS, (self._seq, self._name, self._exchange, self._body))

    # -- events

    def _close_run(self) -> None:
        run = self._run
        if not run:
            return
        self._run = []
        session, thread, turn = self._numbers(*self._key)
        mask, data = encode(run)
        row = (self._seq, len(run), run[0].time_ns, session, thread, turn, mask, data)
        self._events.append(row)
        self._seq += len(run)
        self._summaries.add(run, session, thread, turn)

    def _numbers(
        self, session: str | None, thread: str | None, turn: str | None
    ) -> tuple[int | None, int | None, int | None]:
        session_no = self._number(session, None) if session is not None else None
        thread_no = self._number(thread, session_no) if thread is not None else None
        turn_no = self._number(turn, thread_no) if turn is not None else None
        return session_no, thread_no, turn_no

    def _number(self, name: str, parent: int | None) -> int:
        """The number of an id; ``recall`` has looked for it, so an unknown one is new."""
        names = self._writer._names
        known = names.get(name)
        if known is not None:
            return known
        no, self._name = self._name, self._name + 1
        self._new_names.append((no, name, parent))
        names[name] = no
        return no

    # -- exchanges

    def _start(self, start: CaptureStart) -> None:
        session, thread, turn = self._numbers(start.session, start.thread, start.turn)
        step = self._number(start.step, turn) if start.step is not None else None
        body = self._request_body(start) if start.body is not None else None
        no, self._exchange = self._exchange, self._exchange + 1
        self.opened[start.exchange] = no
        self._starts[start.exchange] = [
            no, start.exchange, start.number, session, thread, turn, step, start.time_ns, start.provider,
            start.upstream, start.host, start.method, start.target, pack_headers(start.headers),
            orjson.dumps(dict(start.labels)).decode() if start.labels else None,
            None, None, None, 0, len(start.body) if start.body is not None else None, None, body, None, None,
            orjson.dumps(start.inserted).decode() if start.inserted else None, start.verdict_ns,
        ]  # fmt: skip

    def _request_body(self, start: CaptureStart) -> int:
        assert start.body is not None
        no, self._body = self._body, self._body + 1
        bases, epoch = self._writer._bases, self._writer._epoch
        base = bases.base(start.splice, start.thread)
        if base is not None and base.epoch != epoch:
            known = self._connection.execute("SELECT 1 FROM bodies WHERE no = ?", (base.no,)).fetchone()
            if known is None:
                base = None
            else:
                base.epoch = epoch
        row = bases.place(no, start.exchange, start.thread, start.body, base, start.splice, epoch)
        self._bodies.append(row)
        return no

    def _end(self, end: CaptureEnd) -> None:
        row = self._starts.get(end.exchange)
        no = row[0] if row is not None else self._writer._open.get(end.exchange)
        if no is None:
            self.lost += 1
            return
        body: int | None = None
        if end.body is not None:
            body, self._body = self._body, self._body + 1
            self._bodies.append(bodies.whole(body, bytes(end.body)))
        headers = pack_headers(end.headers)
        self.opened.pop(end.exchange, None)
        self.answered.append(end.exchange)
        if row is None:
            self._ends.append((
                end.time_ns, end.end, end.status, int(end.streaming), end.request_bytes, end.response_bytes,
                body, headers, no,
            ))  # fmt: skip
            return
        row[15:21] = (
            end.time_ns, end.end, end.status, int(end.streaming), end.request_bytes, end.response_bytes,
        )  # fmt: skip
        row[22], row[23] = body, headers


# -- what went wrong, in words


_KINDS = (
    ("SQLITE_FULL", "full"), ("SQLITE_BUSY", "busy"), ("SQLITE_LOCKED", "busy"),
    ("SQLITE_READONLY", "readonly"), ("SQLITE_PERM", "readonly"), ("SQLITE_CANTOPEN", "cannot_open"),
    ("SQLITE_CORRUPT", "damaged"), ("SQLITE_NOTADB", "damaged"), ("SQLITE_IOERR", "io"),
)  # fmt: skip
_WORDS = {
    "full": "the disk is full",
    "busy": "another process holds the record's lock",
    "readonly": "the place is not writable",
    "cannot_open": "the place cannot be opened",
    "damaged": "the file is damaged",
    "io": "reading or writing fails",
    "newer": "it was written by a newer Looptap",
}


def _kind(error: Exception) -> str:
    if isinstance(error, schema.RecordNewer):
        return "newer"
    if isinstance(error, OSError):
        return "cannot_open"
    name = getattr(error, "sqlite_errorname", None) or ""
    for prefix, kind in _KINDS:
        if name.startswith(prefix):
            return kind
    return "other"


def _away(error: Exception, data_dir: Path) -> RecordAway:
    kind = _kind(error)
    why = error.strerror if isinstance(error, OSError) and error.strerror else error
    hint = "; name another directory by --data-dir or store.path" if kind in _ELSEWHERE else ""
    return RecordAway(kind, f"{_WORDS.get(kind, 'it failed')} ({data_dir}: {why}{hint})")


_ELSEWHERE = ("cannot_open", "readonly")
"""What no waiting mends."""
