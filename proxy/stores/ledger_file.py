"""The embedded ledger's file: its tables, how it is opened, and the shelf that a book reads it by.

Everything here happens in the ledger's own thread, inside one write transaction. Between
transactions lines are remembered only as long as no other process has written to the file.
"""

import os
import sqlite3
from collections.abc import Mapping, Sequence
from pathlib import Path

import orjson

from proxy.record.schema import write_ahead
from proxy.stores.ledger import (
    KEEP_COUNTER_NS,
    KEEP_MINUTES_NS,
    KEEP_SETTLED_NS,
    PASSING,
    Counter,
    Reservation,
)
from proxy.verdict import VirtualKey

BUSY_S = 5.0
REMEMBERED = 50_000
NEVER = 2**63 - 1

MIGRATIONS: tuple[tuple[str, str], ...] = (
    (
        "0001-begin",
        """
        CREATE TABLE counters (
            key TEXT PRIMARY KEY, budget TEXT NOT NULL, scope TEXT NOT NULL, subject TEXT NOT NULL,
            dimension TEXT NOT NULL, window TEXT NOT NULL, starts_ns INTEGER NOT NULL, ends_ns INTEGER,
            "limit" INTEGER NOT NULL, hard INTEGER NOT NULL, alert_at TEXT NOT NULL,
            topup INTEGER NOT NULL, used INTEGER NOT NULL, held INTEGER NOT NULL, assumed INTEGER NOT NULL,
            alerted INTEGER NOT NULL, touched_ns INTEGER NOT NULL
        ) WITHOUT ROWID;

        -- `holds`: JSON list of [counter key, amount]. Closed ones stay a while: settling is idempotent.
        CREATE TABLE reservations (
            id TEXT PRIMARY KEY, state TEXT NOT NULL, expires_ns INTEGER NOT NULL,
            holds TEXT NOT NULL, closed_ns INTEGER NOT NULL
        ) WITHOUT ROWID;
        CREATE INDEX reservations_open ON reservations (expires_ns, id) WHERE state = 'open';
        CREATE INDEX reservations_closed ON reservations (state, max(closed_ns, expires_ns))
            WHERE state <> 'open';

        CREATE TABLE stops (name TEXT PRIMARY KEY, since_ns INTEGER NOT NULL) WITHOUT ROWID;
        CREATE TABLE keys (
            name TEXT PRIMARY KEY, sha256 TEXT NOT NULL UNIQUE, team TEXT NOT NULL, labels TEXT NOT NULL,
            created_ns INTEGER NOT NULL, revoked_ns INTEGER
        ) WITHOUT ROWID;
        """,
    ),
)

_COUNTER = f"INSERT OR REPLACE INTO counters VALUES ({', '.join('?' * 17)})"
_RESERVATION = "INSERT OR REPLACE INTO reservations VALUES (?, ?, ?, ?, ?)"
_DUE = """
    SELECT id, state, expires_ns, holds, closed_ns FROM reservations
    WHERE state = 'open' AND expires_ns <= ? ORDER BY expires_ns, id LIMIT ?
"""
_NEXT_DUE = "SELECT min(expires_ns) FROM reservations WHERE state = 'open'"
_FORGET_COUNTERS = """
    DELETE FROM counters WHERE held = 0 AND (
        (window = 'life' AND touched_ns + ? <= ?)
        OR (window = 'minute' AND ends_ns + ? <= ?)
        OR (window NOT IN ('life', 'total', 'minute') AND ends_ns + ? <= ?)
    )
"""
_FORGET_RESERVATIONS = """
    DELETE FROM reservations WHERE (state = 'settled' AND max(closed_ns, expires_ns) <= ?)
        OR (state = 'expired' AND max(closed_ns, expires_ns) <= ?)
"""


class LedgerNewer(Exception):
    """The file was written by a newer Looptap; it is left alone."""


def open_file(path: Path) -> sqlite3.Connection:
    """The ledger's file, made or migrated where needed, readable by its owner only.

    Raises OSError, sqlite3.Error or LedgerNewer.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    connection = sqlite3.connect(path, timeout=BUSY_S, isolation_level=None)
    try:
        # A crash of the process loses nothing; of the machine, what the last second brought (see `sync`).
        write_ahead(connection, BUSY_S)
        for pragma in ("synchronous = NORMAL", "temp_store = MEMORY"):
            connection.execute(f"PRAGMA {pragma}").fetchone()
        _migrate(connection, path)
    except BaseException:
        connection.close()
        raise
    return connection


def sync(connection: sqlite3.Connection) -> None:
    """Bring what has been committed onto the disk itself."""
    connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()


def _migrate(connection: sqlite3.Connection, path: Path) -> None:
    connection.execute("BEGIN IMMEDIATE")
    version = int(connection.execute("PRAGMA user_version").fetchone()[0])
    if version > len(MIGRATIONS):
        connection.execute("ROLLBACK")
        raise LedgerNewer(f"{path} was written by a newer Looptap: update this one")
    for _, script in MIGRATIONS[version:]:
        for statement in script.split(";\n"):
            if statement.strip():
                connection.execute(statement)
    connection.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")
    connection.execute("COMMIT")


class SqliteShelf:
    """A book's lines in the file, within one transaction at a time."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._db = connection
        self._version = -1
        self._counters: dict[str, Counter | None] = {}
        self._open: dict[str, Reservation] = {}
        self._stops: set[str] | None = None
        self._next_due: int | None = None
        """No open reservation ends before; None: not known."""
        self._dirty: dict[str, Counter] = {}
        self._changed: dict[str, Reservation] = {}

    # -- the transaction

    def begin(self) -> None:
        """Open a write transaction, and forget what another process may have changed."""
        self._db.execute("BEGIN IMMEDIATE")
        version = int(self._db.execute("PRAGMA data_version").fetchone()[0])
        if version != self._version or len(self._counters) + len(self._open) > REMEMBERED:
            self._forget_all()
            self._version = version

    def commit(self) -> None:
        """Write what has changed, all of it."""
        self.flush()
        self._db.execute("COMMIT")

    def rollback(self) -> None:
        """Drop what has changed."""
        self._forget_all()
        if self._db.in_transaction:
            self._db.execute("ROLLBACK")

    def flush(self) -> None:
        """Write what has changed, so that questions to the file see it."""
        if self._dirty:
            self._db.executemany(_COUNTER, [_counter_row(one) for one in self._dirty.values()])
            self._dirty.clear()
        if self._changed:
            self._db.executemany(_RESERVATION, [_reservation_row(one) for one in self._changed.values()])
            self._changed.clear()

    def _forget_all(self) -> None:
        self._counters.clear()
        self._open.clear()
        self._dirty.clear()
        self._changed.clear()
        self._stops = None
        self._next_due = None

    # -- the book's lines

    def counter(self, key: str) -> Counter | None:
        try:
            return self._counters[key]
        except KeyError:
            row = self._db.execute("SELECT * FROM counters WHERE key = ?", (key,)).fetchone()
            found = self._counters[key] = None if row is None else _counter(row)
            return found

    def put_counter(self, counter: Counter) -> None:
        self._counters[counter.key] = self._dirty[counter.key] = counter

    def reservation(self, grant_id: str) -> Reservation | None:
        known = self._changed.get(grant_id) or self._open.get(grant_id)
        if known is not None:
            return known
        row = self._db.execute("SELECT * FROM reservations WHERE id = ?", (grant_id,)).fetchone()
        return None if row is None else _reservation(row)

    def put_reservation(self, reservation: Reservation) -> None:
        self._changed[reservation.id] = reservation
        if reservation.state == "open":
            self._open[reservation.id] = reservation
            if self._next_due is not None:
                self._next_due = min(self._next_due, reservation.expires_ns)
        else:
            self._open.pop(reservation.id, None)

    def due(self, now_ns: int, most: int) -> Sequence[Reservation]:
        if self._next_due is None:
            self.flush()
            first = self._db.execute(_NEXT_DUE).fetchone()[0]
            self._next_due = NEVER if first is None else int(first)
        if now_ns < self._next_due:
            return ()
        self.flush()
        self._next_due = None
        return [_reservation(row) for row in self._db.execute(_DUE, (now_ns, most))]

    def stopped(self, names: Sequence[str]) -> str | None:
        if self._stops is None:
            self._stops = {str(name) for (name,) in self._db.execute("SELECT name FROM stops")}
        stops = self._stops
        return next((name for name in names if name in stops), None)

    def counters(self, lasting: bool = False) -> Sequence[Counter]:
        self.flush()
        passing = PASSING if lasting else ()
        marks = ", ".join("?" * len(passing))
        found = self._db.execute(f"SELECT * FROM counters WHERE scope NOT IN ({marks})", passing)
        return [_counter(row) for row in found]

    def forget(self, now_ns: int) -> None:
        self.flush()
        keep = (KEEP_COUNTER_NS, now_ns, KEEP_MINUTES_NS, now_ns, KEEP_COUNTER_NS, now_ns)
        if self._db.execute(_FORGET_COUNTERS, keep).rowcount:
            self._counters.clear()
        self._db.execute(_FORGET_RESERVATIONS, (now_ns - KEEP_SETTLED_NS, now_ns - KEEP_COUNTER_NS))

    # -- stops and keys

    def stop(self, name: str, now_ns: int) -> None:
        self._db.execute("INSERT INTO stops VALUES (?, ?) ON CONFLICT DO NOTHING", (name, now_ns))
        self._stops = None

    def resume(self, name: str) -> bool:
        self._stops = None
        return self._db.execute("DELETE FROM stops WHERE name = ?", (name,)).rowcount > 0

    def stops(self) -> Mapping[str, int]:
        return dict(self._db.execute("SELECT name, since_ns FROM stops ORDER BY name"))

    def create_key(self, key: VirtualKey) -> bool:
        labels = orjson.dumps(dict(key.labels)).decode()
        row = (key.name, key.sha256, key.team, labels, key.created_ns, key.revoked_ns)
        done = self._db.execute("INSERT INTO keys VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING", row)
        return done.rowcount > 0

    def keys(self) -> Sequence[VirtualKey]:
        rows = self._db.execute(
            "SELECT name, sha256, team, created_ns, labels, revoked_ns FROM keys ORDER BY name"
        )
        return [
            VirtualKey(name, sha256, team, created, orjson.loads(labels), revoked)
            for name, sha256, team, created, labels, revoked in rows
        ]

    def revoke_key(self, name: str, now_ns: int) -> bool:
        change = "UPDATE keys SET revoked_ns = ? WHERE name = ? AND revoked_ns IS NULL"
        return self._db.execute(change, (now_ns, name)).rowcount > 0


def _counter(row: Sequence[object]) -> Counter:
    values = list(row)
    values[10] = tuple(orjson.loads(str(row[10])))
    return Counter(*values)  # type: ignore[arg-type]  # the columns are the fields, in order


def _counter_row(one: Counter) -> tuple[str | int | None, ...]:
    return (
        one.key, one.budget, one.scope, one.subject, one.dimension, one.window, one.starts_ns, one.ends_ns,
        one.limit, one.hard, str(list(one.alert_at)), one.topup, one.used, one.held, one.assumed,
        one.alerted, one.touched_ns,
    )  # fmt: skip


def _reservation(row: Sequence[object]) -> Reservation:
    grant_id, state, expires_ns, holds, closed_ns = row
    pairs = tuple((key, amount) for key, amount in orjson.loads(str(holds)))
    return Reservation(grant_id, state, expires_ns, pairs, closed_ns)  # type: ignore[arg-type]


def _reservation_row(one: Reservation) -> tuple[str | int, ...]:
    return one.id, one.state, one.expires_ns, orjson.dumps(one.holds).decode(), one.closed_ns
