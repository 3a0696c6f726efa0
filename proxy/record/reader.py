"""Reads the record, from any process: events, lists, exchanges and their exact bytes.

Opens the file read-only and never makes a writer wait. Safe to use from several threads (one
connection behind a lock; every method answers finished values). Iterators read in pages, so that
a session larger than memory can be written out.
"""

import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from proxy.complaint import Complaint
from proxy.model import Record, rfc3339
from proxy.record import heads, schema
from proxy.record.bodies import Bodies, BodyDamaged
from proxy.record.events import MAX_RUN, Told, event_json, kinds_mask
from proxy.record.events import rows as stored
from proxy.record.exchanges import StoredExchange, in_order, unpack_headers
from proxy.record.lists import Lists, labels_of
from proxy.record.names import Names
from proxy.record.waits import waiting

_PAGE = 500
_MOST_TOLD = 10_000
"""Interventions that are looked through for what waits."""
_RUN_NS = 60_000_000_000
"""More than passes between the first event of a row and its last."""
_KINDS = {"ses": "session", "thr": "thread", "trn": "turn", "stp": "step", "exc": "exchange"}


Run = tuple[str | None, str | None, str | None, Sequence[Told]]
"""Session, thread and turn, and what was told of them together."""


class NotRecorded(Complaint):
    """The record does not hold what was asked for; the message says it in words."""


class Ambiguous(Complaint):
    """The beginning of an id fits several."""


@dataclass(frozen=True, slots=True)
class Found:
    """An id, told in full and what it names."""

    kind: str
    id: str


class Reader:
    """A view of one record. Close it, or use it as a context manager."""

    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir
        self._connection = schema.open_reader(data_dir)
        self._lock = threading.RLock()
        self._names = Names(self._connection)
        self._lists = Lists(self._connection, self._names)
        self._bodies = Bodies(self._connection)
        columns = self._connection.execute("PRAGMA table_info(exchanges)").fetchall()
        self._tells_waits = any(name == "verdict_ns" for _, name, *_ in columns)
        """A record of before has no such column."""

    def close(self) -> None:
        """Let go of the file."""
        with self._lock:
            self._connection.close()

    def __enter__(self) -> "Reader":
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.close()
        if (damaged := schema.damaged(self.data_dir, error)) is not None:
            raise damaged from None

    # -- ids

    def resolve(self, text: str) -> Found:
        """What an id, or the beginning of one, names. Raises NotRecorded or Ambiguous."""
        top = text + "\U0010ffff"
        with self._lock:
            rows = [
                row[0]
                for table in ("names", "exchanges")
                for row in self._connection.execute(
                    f"SELECT id FROM {table} WHERE id >= ? AND id < ? ORDER BY id LIMIT 4", (text, top)
                )
            ]
        if text in rows:
            rows = [text]
        if not rows or not text:
            raise NotRecorded(f"nothing in the record is called {text!r}")
        if len(rows) > 1:
            raise Ambiguous(f"{text!r} fits several: {', '.join(rows[:3])}{' …' if len(rows) > 3 else ''}")
        return Found(_KINDS.get(rows[0][:3], "unknown"), rows[0])

    def parents(self, name: str) -> list[str]:
        """The ids above an id, nearest first: of a step its turn, thread and session."""
        above: list[str] = []
        with self._lock:
            no = self._names.parent(self._names.no(name))
            while no is not None and (parent := self._names.id(no)) is not None:
                above.append(parent)
                no = self._names.parent(no)
        return above

    # -- events

    def events(
        self,
        after_seq: int = 0,
        *,
        types: Iterable[str] = (),
        session: str | None = None,
        thread: str | None = None,
        turn: str | None = None,
        step: str | None = None,
        limit: int | None = None,
    ) -> Iterator[tuple[int, Record]]:
        """Events after a ``seq``, in order. Filters narrow; an unknown id gives nothing."""
        wanted = frozenset(types)
        where, values = self._where(session, thread, turn, step)
        if where is None:
            return
        if wanted:
            where.append("kinds & ?")
            values.append(kinds_mask(wanted))
        at, left = after_seq, limit
        while left is None or left > 0:
            last, page = self._page(where, values, at, wanted)
            if last <= at:
                return
            for seq, record in page:
                if seq <= at or (step is not None and record.step != step):
                    continue
                yield seq, record
                if left is not None:
                    left -= 1
                    if left == 0:
                        return
            at = last

    def runs(self, types: Iterable[str]) -> Iterator[Run]:
        """All events as they lie in the file, where a run holds any of these types: for who adds up many,
        since a ``Record`` costs several times its JSON."""
        at, mask = 0, kinds_mask(types)
        while True:
            with self._lock:
                rows = self._connection.execute(
                    "SELECT seq, session, thread, turn, data FROM events WHERE seq > ? AND kinds & ?"
                    " ORDER BY seq LIMIT ?",
                    (at, mask, _PAGE),
                ).fetchall()
                found = [(*map(self._names.id, row[1:4]), row[4]) for row in rows]
            for session, thread, turn, data in found:
                yield session, thread, turn, stored(data)
            if not rows:
                return
            at = rows[-1][0]

    def last_seq(self) -> int:
        """The ``seq`` of the newest event; 0 before the first."""
        with self._lock:
            return int(self._connection.execute("SELECT seq FROM counters").fetchone()[0]) - 1

    def waiting(self, patience_ns: int, now_ns: int) -> list[dict[str, Any]]:
        """What waits for an operator, longest first. ``patience_ns``: nothing waits longer."""
        told = self.newest(("intervention",), _MOST_TOLD, now_ns - patience_ns)
        return waiting(told, rfc3339(now_ns))

    def newest(self, types: Iterable[str], limit: int, since_ns: int = 0) -> list[dict[str, Any]]:
        """The newest events of some types, newest first; none that was told before ``since_ns``."""
        found: list[dict[str, Any]] = []
        wanted = frozenset(types)
        with self._lock:
            rows = self._connection.execute(
                "SELECT seq, session, thread, turn, data, time_ns FROM events WHERE kinds & ?"
                " ORDER BY seq DESC",
                (kinds_mask(wanted),),
            )
            for row in rows:
                if row[5] < since_ns - _RUN_NS:
                    rows.close()
                    break
                found += [event_json(seq, record) for seq, record in reversed(self._decoded(row, wanted))]
                if len(found) >= limit:
                    rows.close()
                    break
        return found[:limit]

    def _page(
        self, where: list[str], values: list[Any], after: int, wanted: frozenset[str]
    ) -> tuple[int, list[tuple[int, Record]]]:
        """What the next rows hold that have events after a ``seq``, and up to which they go (0: there are
        none). A row may begin before it."""
        conditions = " AND ".join(["seq > ?", "seq + count - 1 > ?", *where])
        with self._lock:
            rows = self._connection.execute(
                f"SELECT seq, session, thread, turn, data, count FROM events WHERE {conditions}"
                " ORDER BY seq LIMIT ?",
                (after - MAX_RUN, after, *values, _PAGE),
            ).fetchall()
            last = rows[-1][0] + rows[-1][5] - 1 if rows else 0
            return last, [pair for row in rows for pair in self._decoded(row, wanted)]

    def _decoded(self, row: tuple[Any, ...], wanted: frozenset[str]) -> list[tuple[int, Record]]:
        """The events of a row by their ``seq``: those of the wanted types, or all where none is named."""
        name = self._names.id
        session, thread, turn = name(row[1]), name(row[2]), name(row[3])
        return [
            (seq, Record(time_ns, kind, session, thread, turn, step, data))
            for seq, (time_ns, kind, step, data) in enumerate(stored(row[4]), start=row[0])
            if not wanted or kind in wanted
        ]

    def _where(
        self, session: str | None, thread: str | None, turn: str | None, step: str | None
    ) -> tuple[list[str] | None, list[Any]]:
        """Conditions for what the ids narrow to; None where one is not known.

        Every id is narrowed by its session too, since that is what the log is indexed by.
        """
        where: list[str] = []
        values: list[Any] = []
        with self._lock:
            numbers = [
                ("session", self._names.no(session), session),
                ("thread", self._names.no(thread), thread),
            ]
            numbers += [
                ("turn", self._names.no(turn), turn),
                ("turn", self._names.parent(self._names.no(step)), step),
            ]
            for column, no, name in numbers:
                if name is None:
                    continue
                if no is None:
                    return None, []
                where.append(f"{column} = ?")
                values.append(no)
                for _ in range(("session", "thread", "turn").index(column)):
                    no = self._names.parent(no)
                if column != "session" and no is not None:
                    where.append("session = ?")
                    values.append(no)
        return where, values

    # -- lists

    def sessions(self, limit: int = 50, **filters: str | None) -> list[dict[str, Any]]:
        """Sessions, newest first, with the sums of their turns (``Lists.sessions`` names the filters)."""
        with self._lock:
            return self._lists.sessions(limit, **filters)

    def turns(self, limit: int = 50, **filters: str | None) -> list[dict[str, Any]]:
        """Turns, newest first (``Lists.turns`` names the filters)."""
        with self._lock:
            return self._lists.turns(limit, **filters)

    def spenders(self, by: str, since_ns: int = 0, limit: int = 20) -> list[dict[str, Any]]:
        """What turns cost by key, team, org, agent, model, session or ``label:NAME``, most first."""
        with self._lock:
            return self._lists.spenders(by, since_ns, limit)

    # -- exchanges and bodies

    def exchange(self, exchange_id: str) -> StoredExchange:
        """One exchange by its id. Raises NotRecorded."""
        with self._lock:
            row = self._connection.execute("SELECT * FROM exchanges WHERE id = ?", (exchange_id,)).fetchone()
            if row is None:
                raise NotRecorded(f"no exchange {exchange_id} in the record")
            return self._stored(row)

    def exchanges(
        self,
        *,
        session: str | None = None,
        thread: str | None = None,
        turn: str | None = None,
        step: str | None = None,
    ) -> Iterator[StoredExchange]:
        """Exchanges as they were opened; without a filter all, those that are no model calls too."""
        with self._lock:
            query, values = self._exchange_query(session, thread, turn, step)
            numbers = in_order(self._connection.execute(query, values))
        for no in numbers:
            with self._lock:
                row = self._connection.execute("SELECT * FROM exchanges WHERE no = ?", (no,)).fetchone()
                stored = self._stored(row) if row is not None else None
            if stored is not None:
                yield stored

    def attempts(self, step: str) -> list[StoredExchange]:
        """The exchanges of a step, first attempt first."""
        return list(self.exchanges(step=step))

    def request_body(self, exchange_id: str) -> bytes:
        """The request's exact bytes. Raises NotRecorded (digest mode, streamed past) or BodyDamaged."""
        return self._body(self.exchange(exchange_id).request_body, "request", exchange_id)

    def response_body(self, exchange_id: str) -> bytes:
        """The answer's exact bytes as they came over the wire."""
        return self._body(self.exchange(exchange_id).response_body, "response", exchange_id)

    def body(self, no: int | None) -> bytes | None:
        """A body by the number that a ``StoredExchange`` names."""
        if no is None:
            return None
        with self._lock:
            return self._bodies.read(no)

    def heads(self, keys: Iterable[bytes] = ()) -> list[dict[str, Any]]:
        """Thread heads that any of the keys name; the newest without keys."""
        with self._lock:
            return heads.find(self._connection, list(keys))

    def check(self) -> Iterator[str]:
        """What is wrong with the file: SQLite's own check, then every body. Nothing: all is well."""
        with self._lock:
            for (line,) in self._connection.execute("PRAGMA integrity_check").fetchall():
                if line != "ok":
                    yield str(line)
            numbers = [no for (no,) in self._connection.execute("SELECT no FROM bodies ORDER BY no")]
        for no in numbers:
            try:
                self.body(no)
            except BodyDamaged as problem:
                yield str(problem)

    def _body(self, no: int | None, which: str, exchange_id: str) -> bytes:
        content = self.body(no)
        if content is None:
            raise NotRecorded(f"the {which} body of {exchange_id} was not recorded")
        return content

    def _exchange_query(
        self, session: str | None, thread: str | None, turn: str | None, step: str | None
    ) -> tuple[str, tuple[Any, ...]]:
        where: list[str] = ["1"]
        values: list[Any] = []
        for column, name in (("thread", thread), ("turn", turn), ("step", step)):
            if name is not None:
                where.append(f"{column} = ?")
                values.append(self._names.no(name))
        if turn is None and step is not None:
            where.append("turn = ?")
            values.append(self._names.parent(self._names.no(step)))
        owner = session
        if session is None and thread is not None and turn is None and step is None:
            no = self._names.parent(self._names.no(thread))
            owner = self._names.id(no)
        if owner is not None:
            where.append("turn IN (SELECT no FROM turns WHERE session = ?)")
            values.append(self._names.no(owner))
        columns = f"no, number, time_ns, {'verdict_ns IS NOT NULL' if self._tells_waits else '0'}"
        return f"SELECT {columns} FROM exchanges WHERE {' AND '.join(where)} ORDER BY no", tuple(values)

    def _stored(self, row: tuple[Any, ...]) -> StoredExchange:
        values = list(row[1:])
        values[2:6] = [self._names.id(no) for no in row[3:7]]
        values[12], values[13], values[17] = unpack_headers(row[13]), labels_of(row[14]), bool(row[18])
        values[22] = unpack_headers(row[23])
        if len(values) > 23:  # a record of before has no such column
            values[23] = tuple(tuple(one) for one in orjson.loads(row[24] or b"[]"))
        return StoredExchange(*values)
