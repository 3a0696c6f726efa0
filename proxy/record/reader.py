"""Reads the record, from any process: events, lists, exchanges and their exact bytes.

Opens the file read-only and never makes a writer wait. Safe to use from several threads (one
connection behind a lock; every method answers finished values). Iterators read in pages, so that
a session larger than memory can be written out.
"""

import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from proxy.model import Record, rfc3339
from proxy.record import heads, schema
from proxy.record.bodies import Bodies, BodyDamaged
from proxy.record.events import MAX_RUN, decode, event_json, kinds_mask
from proxy.record.exchanges import StoredExchange, unpack_headers
from proxy.record.summaries import QUALITIES, TOKENS, money

_PAGE = 500
_INT64 = (1 << 63) - 1
_KINDS = {"ses": "session", "thr": "thread", "trn": "turn", "stp": "step", "exc": "exchange"}


class NotRecorded(Exception):
    """The record does not hold what was asked for; the message says it in words."""


class Ambiguous(Exception):
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
        self._ids: dict[int, str] = {}
        self._bodies = Bodies(self._connection)
        self._connection.create_function("has_label", 2, _has_label, deterministic=True)
        self._connection.create_function("label_of", 2, _label_of, deterministic=True)

    def close(self) -> None:
        """Let go of the file."""
        with self._lock:
            self._connection.close()

    def __enter__(self) -> "Reader":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

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
            no = self._parent(self._no(name))
            while no is not None and (parent := self._id(no)) is not None:
                above.append(parent)
                no = self._parent(no)
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
            page = self._page(where, values, at)
            if not page:
                return
            for seq, record in page:
                if seq <= at or (step is not None and record.step != step):
                    continue
                if wanted and record.type not in wanted:
                    continue
                yield seq, record
                if left is not None:
                    left -= 1
                    if left == 0:
                        return
            at = max(at, page[-1][0])

    def last_seq(self) -> int:
        """The ``seq`` of the newest event; 0 before the first."""
        with self._lock:
            return int(self._connection.execute("SELECT seq FROM counters").fetchone()[0]) - 1

    def findings(self, limit: int = 200) -> list[dict[str, Any]]:
        """The newest findings, newest first, as events."""
        return self.newest(("finding",), limit)

    def newest(self, types: Iterable[str], limit: int) -> list[dict[str, Any]]:
        """The newest events of some types, newest first."""
        found: list[dict[str, Any]] = []
        wanted = frozenset(types)
        with self._lock:
            rows = self._connection.execute(
                "SELECT seq, session, thread, turn, data FROM events WHERE kinds & ? ORDER BY seq DESC",
                (kinds_mask(wanted),),
            )
            for row in rows:
                run = [(seq, r) for seq, r in self._decoded(row) if r.type in wanted]
                found += [event_json(seq, record) for seq, record in reversed(run)]
                if len(found) >= limit:
                    rows.close()
                    break
        return found[:limit]

    def _page(self, where: list[str], values: list[Any], after: int) -> list[tuple[int, Record]]:
        """The next rows that hold events after a ``seq``; a row may begin before it."""
        conditions = " AND ".join(["seq > ?", "seq + count - 1 > ?", *where])
        with self._lock:
            rows = self._connection.execute(
                f"SELECT seq, session, thread, turn, data FROM events WHERE {conditions}"
                " ORDER BY seq LIMIT ?",
                (after - MAX_RUN, after, *values, _PAGE),
            ).fetchall()
            return [pair for row in rows for pair in self._decoded(row)]

    def _decoded(self, row: tuple[Any, ...]) -> Iterator[tuple[int, Record]]:
        seq, session, thread, turn, data = row
        return enumerate(decode(data, self._id(session), self._id(thread), self._id(turn)), start=seq)

    def _where(
        self, session: str | None, thread: str | None, turn: str | None, step: str | None
    ) -> tuple[list[str] | None, list[Any]]:
        """Conditions for what the ids narrow to; None where one is not known.

        Every id is narrowed by its session too, since that is what the log is indexed by.
        """
        where: list[str] = []
        values: list[Any] = []
        with self._lock:
            numbers = [("session", self._no(session), session), ("thread", self._no(thread), thread)]
            numbers += [("turn", self._no(turn), turn), ("turn", self._parent(self._no(step)), step)]
            for column, no, name in numbers:
                if name is None:
                    continue
                if no is None:
                    return None, []
                where.append(f"{column} = ?")
                values.append(no)
                for _ in range(("session", "thread", "turn").index(column)):
                    no = self._parent(no)
                if column != "session" and no is not None:
                    where.append("session = ?")
                    values.append(no)
        return where, values

    # -- lists

    def sessions(
        self,
        limit: int = 50,
        *,
        before: str | None = None,
        agent: str | None = None,
        key: str | None = None,
        label: str | None = None,
    ) -> list[dict[str, Any]]:
        """Sessions, newest first, with the sums of their turns; ``before`` one for the next page."""
        sums = ", ".join(f"sum(t.{name})" for name in (*TOKENS, "cost_pico"))
        where, values = ["1"], list[Any]()
        for condition, value in (("client = ?", agent), ("key = ?", key), ("has_label(labels, ?)", label)):
            if value is not None:
                where.append(condition)
                values.append(value)
        with self._lock:
            if before is not None:
                where.append("no < ?")
                values.append(self._no(before) or 0)
            rows = self._connection.execute(
                f"""SELECT s.no, s.started_ns, s.client, s.key, s.team, s.org, s.labels, max(t.last_ns),
                    count(t.no), sum(t.steps), sum(t.findings), max(t.quality),
                    count(DISTINCT t.thread), {sums}
                    FROM (SELECT * FROM sessions WHERE {" AND ".join(where)} ORDER BY no DESC LIMIT ?) s
                    LEFT JOIN turns t ON t.session = s.no
                    GROUP BY s.no ORDER BY s.no DESC""",
                (*values, limit),
            ).fetchall()
            return [self._session_json(row) for row in rows]

    def _session_json(self, row: tuple[Any, ...]) -> dict[str, Any]:
        no, started, client, key, team, org, labels, last = row[:8]
        turns, steps, findings, quality, threads = row[8:13]
        return {
            "id": self._id(no), "client": client or None, "key": key, "team": team, "org": org,
            "labels": _labels(labels), "started_at": rfc3339(started), "ended_at": rfc3339(last or started),
            "threads": threads, "turns": turns, "steps": steps or 0, "findings": findings or 0,
            "usage": _usage(row[13:18]), "cost_usd": money(row[18], quality or 0),
            "cost_quality": QUALITIES[quality or 0],
        }  # fmt: skip

    def turns(
        self,
        limit: int = 50,
        *,
        session: str | None = None,
        agent: str | None = None,
        model: str | None = None,
        cause: str | None = None,
        label: str | None = None,
        key: str | None = None,
        finding: str | None = None,
        before: str | None = None,
    ) -> list[dict[str, Any]]:
        """Turns, newest first; ``before`` one for the next page.

        ``cause`` may be ``open``; ``label`` is ``name`` or ``name=value``; ``finding`` is a policy,
        ``policy/kind``, a severity, or ``any``.
        """
        where: list[str] = ["1"]
        values: list[Any] = []
        if agent is not None:
            where.append("(h.agent = ? OR s.client = ?)")
            values += [agent, agent]
        if model is not None:
            where.append("instr(t.models, ?)")
            values.append(f"{model}\n")
        if cause is not None:
            where.append("t.ended_ns IS NULL" if cause == "open" else "t.cause = ?")
            values += [] if cause == "open" else [cause]
        if label is not None:
            where.append("has_label(s.labels, ?)")
            values.append(label)
        if key is not None:
            where.append("s.key = ?")
            values.append(key)
        with self._lock:
            if finding is not None:
                where.append("t.findings > 0")
            if finding not in (None, "any"):
                where.append("t.no IN (SELECT value FROM json_each(?))")
                values.append(orjson.dumps(self._turns_with(str(finding))).decode())
            if before is not None:
                where.append("t.no < ?")
                values.append(self._no(before) or 0)
            if session is not None:
                where.append("t.session = ?")
                values.append(self._no(session))
            rows = self._connection.execute(
                f"""SELECT t.no, t.session, t.thread, t.place, t.started_ns, t.last_ns, t.ended_ns,
                    t.cause, t.by, t.steps, t.findings, t.models, t.cost_pico, t.quality,
                    h.kind, h.agent, s.client, s.labels, s.key, {", ".join(f"t.{name}" for name in TOKENS)}
                    FROM turns t LEFT JOIN threads h ON h.no = t.thread
                    LEFT JOIN sessions s ON s.no = t.session
                    WHERE {" AND ".join(where)} ORDER BY t.no DESC LIMIT ?""",
                (*values, limit),
            ).fetchall()
            return [self._turn_json(row) for row in rows]

    def _turns_with(self, finding: str) -> list[int]:
        """The turns, by number, that hold a finding of this policy, kind or severity."""
        found: set[int] = set()
        rows = self._connection.execute(
            "SELECT turn, data FROM events WHERE kinds & ? AND turn IS NOT NULL", (kinds_mask(("finding",)),)
        )
        for no, data in rows:
            if no not in found and any(
                finding in (r.data.get("policy"), f"{r.data.get('policy')}/{r.data.get('kind')}",
                            r.data.get("severity"))
                for r in decode(data, None, None, None)
                if r.type == "finding"
            ):  # fmt: skip
                found.add(no)
        return sorted(found)

    def spenders(self, by: str, since_ns: int = 0, limit: int = 20) -> list[dict[str, Any]]:
        """What turns cost by key, team, org, agent, model, session or ``label:NAME``, most first."""
        column = {
            "key": "s.key", "team": "s.team", "org": "s.org", "agent": "coalesce(h.agent, s.client)",
            "model": "t.models", "session": "t.session",
        }.get(by, "label_of(s.labels, ?)")  # fmt: skip
        values = [by.removeprefix("label:")] if column.startswith("label_of") else []
        with self._lock:
            rows = self._connection.execute(
                f"""SELECT {column} AS name, count(*), sum(t.steps), sum(t.cost_pico), max(t.quality)
                    FROM turns t LEFT JOIN threads h ON h.no = t.thread
                    LEFT JOIN sessions s ON s.no = t.session WHERE t.started_ns >= ?
                    GROUP BY name ORDER BY sum(t.cost_pico) DESC LIMIT ?""",
                (*values, min(since_ns, _INT64), limit),
            ).fetchall()
            return [self._spender_json(by, row) for row in rows]

    def _spender_json(self, by: str, row: tuple[Any, ...]) -> dict[str, Any]:
        name, turns, steps, cost, quality = row
        if by == "session":
            name = self._id(name)
        elif by == "model" and name:
            name = ", ".join(name.split())
        quality = quality or 0
        return {
            "name": name or None, "turns": turns, "steps": steps or 0,
            "cost_usd": money(cost, min(quality, len(QUALITIES) - 2)), "cost_quality": QUALITIES[quality],
        }  # fmt: skip

    def _turn_json(self, row: tuple[Any, ...]) -> dict[str, Any]:
        no, session, thread, place, started, last, ended = row[:7]
        cause, by, steps, findings, models, cost, quality = row[7:14]
        kind, agent, client, labels, key = row[14:19]
        turn: dict[str, Any] = {
            "id": self._id(no), "session": self._id(session), "thread": self._id(thread), "index": place,
            "kind": kind, "agent": agent or client or None, "cause": cause, "open": ended is None,
            "started_at": rfc3339(started), "ended_at": rfc3339(ended if ended is not None else last),
            "models": [name for name in models.split("\n") if name], "steps": steps, "findings": findings,
            "usage": _usage(row[19:]), "cost_usd": money(cost, quality), "cost_quality": QUALITIES[quality],
            "key": key, "labels": _labels(labels),
        }  # fmt: skip
        if by is not None:
            turn["by"] = by
        return turn

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
        """Exchanges in order of arrival; without a filter all, those that are no model calls too."""
        with self._lock:
            query, values = self._exchange_query(session, thread, turn, step)
            numbers = [no for (no,) in self._connection.execute(query, values)]
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
                values.append(self._no(name))
        if turn is None and step is not None:
            where.append("turn = ?")
            values.append(self._parent(self._no(step)))
        owner = session
        if session is None and thread is not None and turn is None and step is None:
            no = self._parent(self._no(thread))
            owner = self._id(no)
        if owner is not None:
            where.append("turn IN (SELECT no FROM turns WHERE session = ?)")
            values.append(self._no(owner))
        return f"SELECT no FROM exchanges WHERE {' AND '.join(where)} ORDER BY time_ns, no", tuple(values)

    def _stored(self, row: tuple[Any, ...]) -> StoredExchange:
        values = list(row[1:])
        values[2:6] = [self._id(no) for no in row[3:7]]
        values[12], values[13], values[17] = unpack_headers(row[13]), _labels(row[14]), bool(row[18])
        values[22] = unpack_headers(row[23])
        if len(values) > 23:  # a record of before has no such column
            values[23] = tuple((at, length) for at, length in orjson.loads(row[24] or b"[]"))
        return StoredExchange(*values)

    # -- names

    def _id(self, no: int | None) -> str | None:
        if no is None:
            return None
        name = self._ids.get(no)
        if name is None:
            row = self._connection.execute("SELECT id FROM names WHERE no = ?", (no,)).fetchone()
            if row is None:
                return None
            name = self._ids[no] = row[0]
        return name

    def _no(self, name: str | None) -> int | None:
        if name is None:
            return None
        row = self._connection.execute("SELECT no FROM names WHERE id = ?", (name,)).fetchone()
        return row[0] if row is not None else None

    def _parent(self, no: int | None) -> int | None:
        row = self._connection.execute("SELECT parent FROM names WHERE no = ?", (no,)).fetchone()
        return row[0] if row is not None else None


def _labels(text: str | None) -> dict[str, str]:
    return orjson.loads(text) if text else {}


def _has_label(text: str | None, wanted: str) -> bool:
    name, equals, value = wanted.partition("=")
    labels = _labels(text)
    return name in labels and (not equals or labels[name] == value)


def _label_of(text: str | None, name: str) -> str | None:
    return _labels(text).get(name)


def _usage(values: Iterable[int | None]) -> dict[str, int]:
    return {name: value for name, value in zip(TOKENS, values, strict=True) if value is not None}
