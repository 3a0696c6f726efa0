"""The record's database file: where it lies, who may read it, its tables, and how it is opened.

One SQLite file in WAL mode in the data directory, readable by its owner only. Writers (one
connection per process) and readers (any process) never wait for each other; two writers wait for
a moment. A file that is no database any more is moved aside, never deleted, and a new one begun.

Migrations are named, ordered and never edited once released: a new shape is a new entry.
"""

import os
import random
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from proxy.complaint import Complaint

FILE = "record.db"
BUSY_MS = 5_000
PAGE_BYTES = 4_096

Warn = Callable[[str], None]

MIGRATIONS: tuple[tuple[str, str], ...] = (
    (
        "0001-begin",
        """
        -- Next free numbers, one row: numbers are handed out under the write lock and never again.
        CREATE TABLE counters (
            one INTEGER PRIMARY KEY CHECK (one = 1),
            seq INTEGER NOT NULL, name INTEGER NOT NULL, exchange INTEGER NOT NULL, body INTEGER NOT NULL
        );
        INSERT INTO counters VALUES (1, 1, 1, 1, 1);

        -- Ids of sessions, threads, turns and steps; every other table speaks of them by number.
        CREATE TABLE names (no INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, parent INTEGER);

        -- The log: a row is a run of consecutive events of one turn, `seq` that of its first.
        CREATE TABLE events (
            seq INTEGER PRIMARY KEY, count INTEGER NOT NULL, time_ns INTEGER NOT NULL,
            session INTEGER, thread INTEGER, turn INTEGER, kinds INTEGER NOT NULL, data BLOB NOT NULL
        );
        CREATE INDEX events_by_session ON events (session);

        CREATE TABLE exchanges (
            no INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, number INTEGER NOT NULL,
            session INTEGER, thread INTEGER, turn INTEGER, step INTEGER,
            time_ns INTEGER NOT NULL, provider TEXT NOT NULL, upstream TEXT NOT NULL, host TEXT NOT NULL,
            method TEXT NOT NULL, target TEXT NOT NULL, headers BLOB NOT NULL, labels TEXT,
            end_ns INTEGER, ending TEXT, status INTEGER, streaming INTEGER NOT NULL DEFAULT 0,
            request_bytes INTEGER, response_bytes INTEGER,
            request_body INTEGER, response_body INTEGER, response_headers BLOB
        );
        CREATE INDEX exchanges_by_turn ON exchanges (turn);

        -- A body is whole (base NULL) or `base[:prefix] + data + base[len - suffix:]`.
        CREATE TABLE bodies (
            no INTEGER PRIMARY KEY, base INTEGER, prefix INTEGER NOT NULL, suffix INTEGER NOT NULL,
            size INTEGER NOT NULL, codec INTEGER NOT NULL, digest BLOB NOT NULL, seal BLOB, data BLOB NOT NULL
        );
        CREATE INDEX bodies_by_base ON bodies (base) WHERE base IS NOT NULL;

        -- Derived from the log for fast lists; `rebuild` makes them anew.
        CREATE TABLE sessions (
            no INTEGER PRIMARY KEY, started_ns INTEGER NOT NULL, client TEXT, by TEXT,
            key TEXT, team TEXT, org TEXT, labels TEXT
        );
        CREATE TABLE threads (
            no INTEGER PRIMARY KEY, session INTEGER NOT NULL, started_ns INTEGER NOT NULL, kind TEXT,
            agent TEXT, parent TEXT, parent_turn TEXT, partial INTEGER, dialect TEXT,
            upstream TEXT, provider TEXT
        );
        CREATE TABLE turns (
            no INTEGER PRIMARY KEY, session INTEGER, thread INTEGER, place INTEGER,
            started_ns INTEGER NOT NULL, last_ns INTEGER NOT NULL, ended_ns INTEGER, cause TEXT, by TEXT,
            steps INTEGER NOT NULL DEFAULT 0, findings INTEGER NOT NULL DEFAULT 0,
            models TEXT NOT NULL DEFAULT '', input_tokens INTEGER, cache_read_tokens INTEGER,
            cache_write_tokens INTEGER, output_tokens INTEGER, reasoning_tokens INTEGER,
            cost_pico INTEGER, quality INTEGER NOT NULL DEFAULT 0
        );
        CREATE INDEX turns_by_session ON turns (session);

        -- The tracker's thread heads, found by any of their keys.
        CREATE TABLE heads (
            thread TEXT PRIMARY KEY, time_ns INTEGER NOT NULL, data BLOB NOT NULL
        ) WITHOUT ROWID;
        CREATE INDEX heads_by_time ON heads (time_ns);
        CREATE TABLE head_keys (key BLOB, thread TEXT, PRIMARY KEY (key, thread)) WITHOUT ROWID;
        CREATE INDEX head_keys_by_thread ON head_keys (thread);
        """,
    ),
    (
        "0002-inserted",
        """
        -- What of a (decoded) request body is ours, as JSON: [[offset, length], ...].
        ALTER TABLE exchanges ADD COLUMN inserted TEXT
        """,
    ),
    (
        "0003-verdict",
        """
        -- Until when a request waited for an operator; 0: its client left before anybody answered.
        ALTER TABLE exchanges ADD COLUMN verdict_ns INTEGER
        """,
    ),
)


class RecordMissing(Complaint):
    """There is no record to read here; the message says what to do."""


class RecordDamaged(RecordMissing):
    """There is a file, and it can be read no more."""


class RecordNewer(Complaint):
    """The file was written by a newer Looptap; it is left alone."""


def open_writer(data_dir: Path, warn: Warn) -> sqlite3.Connection:
    """The record for writing: made, migrated, or begun anew where the old file is damaged.

    Raises OSError or sqlite3.Error where the place cannot be written, RecordNewer where we must not.
    """
    path = data_dir / FILE
    _prepare(data_dir, path)
    try:
        return _connect_writer(path)
    except sqlite3.DatabaseError as error:
        if not is_damage(error):
            raise
        move_aside(path, warn, str(error))
    _prepare(data_dir, path)
    return _connect_writer(path)


def open_reader(data_dir: Path) -> sqlite3.Connection:
    """The record for reading, beside a running writer or without one. Never creates anything of its own."""
    path = data_dir / FILE
    if not path.is_file():
        raise RecordMissing(_why_missing(data_dir))
    try:
        connection = _open_to_read(path)
    except sqlite3.DatabaseError as error:
        raise damaged(data_dir, error) or error from None
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if version == 0 or version > len(MIGRATIONS):
        connection.close()
        why = "has not been begun yet" if version == 0 else "was written by a newer Looptap: update this one"
        raise RecordMissing(f"the record in {data_dir} {why}")
    return connection


def _open_to_read(path: Path) -> sqlite3.Connection:
    try:
        return _connect_reader(path, "mode=ro")
    except sqlite3.OperationalError:
        if path.with_name(FILE + "-wal").exists():
            raise
        return _connect_reader(path, "immutable=1")  # a directory where no lock file can be made


_PROXY_WAS_HERE = ("admin-token", "ledger.db")
"""What a proxy leaves in its directory before the first exchange."""


def _why_missing(data_dir: Path) -> str:
    if any((data_dir / name).exists() for name in _PROXY_WAS_HERE):
        return (
            f"nothing is recorded in {data_dir} yet: point an agent at the proxy "
            "(ANTHROPIC_BASE_URL, OPENAI_BASE_URL and others, as `looptap serve` printed them)"
        )
    return (
        f"no record in {data_dir}: start `looptap serve`, which says whether it can record there, "
        "or name its --data-dir (`looptap demo` leaves one only with --keep)"
    )


def is_damage(error: sqlite3.Error) -> bool:
    """Whether the file itself is broken (full disks, locks and rights are not damage)."""
    name = getattr(error, "sqlite_errorname", "") or ""
    return name.startswith("SQLITE_CORRUPT") or name == "SQLITE_NOTADB"


def damaged(data_dir: Path, error: BaseException | None) -> RecordDamaged | None:
    """What a reader is told where the file itself is broken; None where it is not."""
    if not isinstance(error, sqlite3.DatabaseError) or not is_damage(error):
        return None
    return RecordDamaged(
        f"the record {data_dir / FILE} is damaged ({error}); "
        "`looptap serve` moves it aside and begins a new one"
    )


def move_aside(path: Path, warn: Warn, why: str) -> None:
    """Keep a damaged file under another name, so that a new one can begin in its place."""
    number = 1
    while (aside := path.with_name(f"{path.name}.damaged-{number}")).exists():
        number += 1
    path.rename(aside)
    for suffix in ("-wal", "-shm"):
        with suppress(FileNotFoundError):
            path.with_name(path.name + suffix).rename(aside.with_name(aside.name + suffix))
    warn(f"the record {path} is damaged ({why}); it was moved to {aside.name} and a new one begun")


def _prepare(data_dir: Path, path: Path) -> None:
    """Directory and file exist with the owner's rights only, whatever the umask. SQLite copies them."""
    if not data_dir.is_dir():
        data_dir.mkdir(parents=True, mode=0o700, exist_ok=True)
        data_dir.chmod(0o700)
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    except FileExistsError:
        if path.stat().st_mode & 0o077:
            path.chmod(0o600)


def write_ahead(connection: sqlite3.Connection, patience_s: float) -> None:
    """Have a file keep its log beside it, waiting for others who are making the same file just now.

    SQLite itself does not wait there, whatever its time-out: two who both look would wait for each other.
    """
    until = time.monotonic() + patience_s
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL").fetchone()
            return
        except sqlite3.OperationalError as error:
            busy = getattr(error, "sqlite_errorname", "").startswith("SQLITE_BUSY")
            if not busy or time.monotonic() >= until:
                raise
        threading.Event().wait(random.uniform(0.001, 0.01))


def _connect_writer(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(
        path, isolation_level=None, timeout=BUSY_MS / 1000, check_same_thread=False, cached_statements=64
    )
    try:
        connection.execute(f"PRAGMA page_size={PAGE_BYTES}")
        connection.execute("PRAGMA auto_vacuum=INCREMENTAL")
        write_ahead(connection, BUSY_MS / 1000)
        connection.execute("PRAGMA synchronous=NORMAL")
        connection.execute("PRAGMA wal_autocheckpoint=4000")
        connection.execute("PRAGMA journal_size_limit=67108864")
        connection.execute("PRAGMA cache_size=-4096")  # kB; of 4 or 16 MB neither costs more processor time
        connection.execute("PRAGMA temp_store=MEMORY")
        _migrate(connection)
        connection.execute("SELECT seq FROM counters").fetchone()
    except BaseException:
        connection.close()
        raise
    return connection


def _migrate(connection: sqlite3.Connection) -> None:
    if _version(connection) == len(MIGRATIONS):
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        version = _version(connection)
        if version > len(MIGRATIONS):
            raise RecordNewer("it was written by a newer Looptap: update this one, or name another path")
        connection.execute("CREATE TABLE IF NOT EXISTS migrations (name TEXT PRIMARY KEY)")
        for name, script in MIGRATIONS[version:]:
            for statement in script.split(";\n"):
                connection.execute(statement)
            connection.execute("INSERT INTO migrations VALUES (?)", (name,))
        connection.execute(f"PRAGMA user_version={len(MIGRATIONS)}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def _connect_reader(path: Path, how: str) -> sqlite3.Connection:
    uri = f"{path.resolve().as_uri()}?{how}"
    connection = sqlite3.connect(
        uri, uri=True, isolation_level=None, timeout=BUSY_MS / 1000, check_same_thread=False
    )
    try:
        connection.execute("PRAGMA query_only=1")
        connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except BaseException:
        connection.close()
        raise
    return connection
