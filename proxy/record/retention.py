"""What leaves the record: whole turns, oldest first, when they are too old or too much.

Works in slices of a few milliseconds between two batches of the writer, each a transaction of its
own that may be the last one before a crash. Open turns stay; bodies that stay but build on leaving
ones are made whole first. A turn that nobody closed (its process died) counts as over after a day
of silence.
"""

import sqlite3
import time
from dataclasses import dataclass, field

from proxy.record.bodies import rekey
from proxy.record.heads import expire

EXCHANGES_AT_ONCE = 16
SLICE_S = 0.02
"""Time after which a slice stops; the writer's next batch waits for no more than this and one step."""
STALE_NS = 86_400 * 1_000_000_000
VACUUM_PAGES = 256
_ROOM = 0.95
"""Fill level that eviction by size aims at, so that it does not run after every batch."""
_OVER = "(ended_ns IS NOT NULL OR last_ns < :stale)"


@dataclass(frozen=True, slots=True)
class Keep:
    """How much of the past stays: by age, by bytes on disk; None means without end."""

    age_ns: int | None = None
    max_bytes: int | None = None


FOREVER = Keep()


@dataclass(slots=True)
class Slice:
    """What one slice did."""

    turns: int = 0
    exchanges: list[int] = field(default_factory=list)
    bodies: list[int] = field(default_factory=list)
    more: bool = False
    """There is more to do at once."""


def evict(connection: sqlite3.Connection, keep: Keep, now_ns: int, budget_s: float = SLICE_S) -> Slice:
    """One slice of retention."""
    done = Slice()
    until = time.perf_counter() + budget_s
    while True:
        connection.execute("BEGIN IMMEDIATE")
        try:
            worked = _step(connection, keep, now_ns, done)
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
        if not worked:
            break
        if time.perf_counter() > until:
            done.more = True
            return done
    if _one(connection, "PRAGMA freelist_count") > VACUUM_PAGES:
        connection.execute(f"PRAGMA incremental_vacuum({VACUUM_PAGES})").fetchall()
        done.more = _one(connection, "PRAGMA freelist_count") > VACUUM_PAGES
    return done


def used_bytes(connection: sqlite3.Connection) -> int:
    """Bytes of the file that hold something."""
    pages = _one(connection, "PRAGMA page_count") - _one(connection, "PRAGMA freelist_count")
    return pages * _one(connection, "PRAGMA page_size")


def _step(connection: sqlite3.Connection, keep: Keep, now_ns: int, done: Slice) -> bool:
    """One small piece of work; False where nothing is left to do."""
    cutoff = now_ns - keep.age_ns if keep.age_ns is not None else None
    if cutoff is not None:
        turn = _oldest_turn(connection, now_ns, cutoff)
        if turn is not None:
            _evict_turn(connection, turn, done)
            return True
        if _evict_loose(connection, cutoff, done) or expire(connection, cutoff):
            return True
    elif expire(connection, None):
        return True
    if keep.max_bytes is not None and used_bytes(connection) > _aim(keep.max_bytes, done):
        turn = _oldest_turn(connection, now_ns, None)
        if turn is not None:
            _evict_turn(connection, turn, done)
            return True
        return _evict_loose(connection, now_ns, done)
    return False


def _aim(max_bytes: int, done: Slice) -> int:
    return int(max_bytes * _ROOM) if done.exchanges or done.turns else max_bytes


def _oldest_turn(
    connection: sqlite3.Connection, now_ns: int, cutoff: int | None
) -> tuple[int, int | None] | None:
    """The turn that began first among those that may leave."""
    row = connection.execute(
        f"SELECT no, session FROM turns WHERE {_OVER} AND last_ns < :cutoff ORDER BY no LIMIT 1",
        {"stale": now_ns - STALE_NS, "cutoff": now_ns if cutoff is None else cutoff},
    ).fetchone()
    return (row[0], row[1]) if row is not None else None


def _evict_turn(connection: sqlite3.Connection, turn: tuple[int, int | None], done: Slice) -> None:
    """Some exchanges of a turn, or what is left of it when they are gone."""
    no, session = turn
    if _evict_exchanges(connection, "turn = ?", (no,), done):
        return
    connection.execute("DELETE FROM events WHERE session = ? AND turn = ?", (session, no))
    connection.execute("DELETE FROM turns WHERE no = ?", (no,))
    connection.execute("DELETE FROM names WHERE no = ?", (no,))
    done.turns += 1
    if session is not None and not _one(connection, "SELECT count(*) FROM turns WHERE session = ?", session):
        _evict_session(connection, session)


def _evict_session(connection: sqlite3.Connection, no: int) -> None:
    """What stands around the turns of a session whose last one has left."""
    threads = "SELECT no FROM threads WHERE session = ?"
    connection.execute("DELETE FROM events WHERE session = ?", (no,))
    connection.execute(f"DELETE FROM names WHERE no = ? OR no IN ({threads})", (no, no))
    connection.execute("DELETE FROM threads WHERE session = ?", (no,))
    connection.execute("DELETE FROM sessions WHERE no = ?", (no,))


def _evict_loose(connection: sqlite3.Connection, cutoff: int, done: Slice) -> bool:
    """Exchanges and events that belong to no turn."""
    if _evict_exchanges(connection, "turn IS NULL AND time_ns < ?", (cutoff,), done):
        return True
    rows = connection.execute(
        "SELECT seq FROM events WHERE session IS NULL AND time_ns < ? ORDER BY seq LIMIT 200", (cutoff,)
    ).fetchall()
    connection.executemany("DELETE FROM events WHERE seq = ?", rows)
    return bool(rows)


def _evict_exchanges(
    connection: sqlite3.Connection, which: str, values: tuple[int, ...], done: Slice
) -> bool:
    rows = connection.execute(
        f"SELECT no, request_body, response_body, step FROM exchanges WHERE {which} ORDER BY no LIMIT ?",
        (*values, EXCHANGES_AT_ONCE),
    ).fetchall()
    if not rows:
        return False
    bodies = [no for row in rows for no in row[1:3] if no is not None]
    rekey(connection, bodies)
    connection.executemany("DELETE FROM bodies WHERE no = ?", [(no,) for no in bodies])
    connection.executemany("DELETE FROM exchanges WHERE no = ?", [row[:1] for row in rows])
    steps = [(row[3],) for row in rows if row[3] is not None]
    connection.executemany("DELETE FROM names WHERE no = ?", steps)
    done.exchanges += [row[0] for row in rows]
    done.bodies += bodies
    return True


def _one(connection: sqlite3.Connection, sql: str, *values: int) -> int:
    return int(connection.execute(sql, values).fetchone()[0])
