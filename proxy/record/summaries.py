"""Sessions, threads and turns as short rows, kept up beside the log so that lists are fast.

Derived data: everything here follows from the events and can be made anew (``rebuild``). Sums are
added per batch, one statement a turn, and never read back while writing, so that two processes
may write to one record.
"""

import sqlite3
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from decimal import ROUND_HALF_EVEN, Decimal, InvalidOperation
from typing import Any

import orjson

from proxy.model import QUALITIES, TOKENS, Record
from proxy.record.events import decode
from proxy.record.rows import insert

_PICO = Decimal(10) ** 12
_TOP = 1 << 62


@dataclass(slots=True)
class _Turn:
    """What one batch adds to a turn."""

    session: int | None
    thread: int | None
    started_ns: int
    last_ns: int
    place: int | None = None
    touched: bool = False
    """The turn began, went on or ended in this batch, so ``ended_ns`` is to be set."""
    ended_ns: int | None = None
    cause: str | None = None
    by: str | None = None
    steps: int = 0
    findings: int = 0
    models: str = ""
    tokens: list[int | None] = field(default_factory=lambda: [None] * len(TOKENS))
    cost_pico: int | None = None
    quality: int = 0


_SUM = ", ".join(
    f"{name} = CASE WHEN excluded.{name} IS NULL THEN {name} ELSE coalesce({name}, 0) + excluded.{name} END"
    for name in (*TOKENS, "cost_pico")
)
_TURNS = f"""INSERT INTO turns (no, session, thread, place, started_ns, last_ns, ended_ns, cause, by, steps,
    findings, models, {", ".join(TOKENS)}, cost_pico, quality)"""
_ADD = f"""
    ON CONFLICT (no) DO UPDATE SET
        last_ns = max(last_ns, excluded.last_ns), place = coalesce(excluded.place, place),
        steps = steps + excluded.steps, findings = findings + excluded.findings,
        models = CASE WHEN excluded.models = '' OR instr(models, excluded.models) THEN models
            ELSE substr(models || excluded.models, 1, 800) END,
        quality = max(quality, excluded.quality), {_SUM}
"""
_END = "UPDATE turns SET ended_ns = ?, cause = ?, by = ? WHERE no = ?"


class Summaries:
    """Collects what a batch says, then writes it in one go."""

    def __init__(self) -> None:
        self._sessions: list[tuple[Any, ...]] = []
        self._threads: list[tuple[Any, ...]] = []
        self._turns: dict[int, _Turn] = {}

    def add(self, run: list[Record], session: int | None, thread: int | None, turn: int | None) -> None:
        """Take a run of events of one turn of one thread."""
        entry: _Turn | None = None
        if turn is not None:
            entry = self._turns.get(turn)
            if entry is None:
                began = run[0].time_ns
                entry = self._turns[turn] = _Turn(session, thread, began, began)
        for record in run:
            kind = record.type
            if entry is not None and record.time_ns > entry.last_ns:
                entry.last_ns = record.time_ns
            if kind == "item":
                continue
            if entry is not None:
                handler = _HANDLERS.get(kind)
                if handler is not None:
                    handler(entry, record, record.data)
            if kind == "session/start" and session is not None:
                self._sessions.append(_session_row(session, record))
            elif kind == "thread/start" and session is not None and thread is not None:
                self._threads.append(_thread_row(thread, session, record))

    def flush(self, connection: sqlite3.Connection) -> None:
        """Write what was collected, inside the caller's transaction."""
        insert(connection, "INSERT OR REPLACE INTO sessions", self._sessions)
        insert(connection, "INSERT OR REPLACE INTO threads", self._threads)
        insert(connection, _TURNS, [_turn_row(no, turn) for no, turn in self._turns.items()], _ADD)
        ends = [
            (t.ended_ns, t.cause, t.by, no)
            for no, t in self._turns.items()
            if t.touched and t.place is None  # one that began in this batch was inserted with its end
        ]
        if ends:
            connection.executemany(_END, ends)
        self._sessions, self._threads, self._turns = [], [], {}


def rebuild(connection: sqlite3.Connection) -> int:
    """Make the derived tables anew from the log; answers how many events were read."""
    names = dict(connection.execute("SELECT no, id FROM names"))
    summaries = Summaries()
    seen = 0
    connection.execute("BEGIN IMMEDIATE")
    try:
        for table in ("sessions", "threads", "turns"):
            connection.execute(f"DELETE FROM {table}")
        rows = connection.execute("SELECT session, thread, turn, data FROM events ORDER BY seq")
        for session, thread, turn, data in rows:
            run = list(decode(data, names.get(session), names.get(thread), names.get(turn)))
            summaries.add(run, session, thread, turn)
            seen += len(run)
        summaries.flush(connection)
        connection.execute("COMMIT")
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    return seen


# -- what each event says


def _turn_start(turn: _Turn, record: Record, data: Mapping[str, Any]) -> None:
    turn.place = data.get("index")


def _turn_resume(turn: _Turn, record: Record, data: Mapping[str, Any]) -> None:
    turn.touched, turn.ended_ns, turn.cause, turn.by = True, None, None, None


def _turn_end(turn: _Turn, record: Record, data: Mapping[str, Any]) -> None:
    turn.touched, turn.ended_ns = True, record.time_ns
    turn.cause, turn.by = data.get("cause"), data.get("by")


def _step_start(turn: _Turn, record: Record, data: Mapping[str, Any]) -> None:
    turn.steps += 1
    model = data.get("model")
    if model:
        mark = f"{model}\n"
        if mark not in turn.models:
            turn.models += mark


def _attempt(turn: _Turn, record: Record, data: Mapping[str, Any]) -> None:
    usage = data.get("usage")
    if usage:
        for place, name in enumerate(TOKENS):
            value = usage.get(name)
            if value is not None:
                turn.tokens[place] = (turn.tokens[place] or 0) + value
    cost = data.get("cost_usd")
    if cost is not None:
        turn.cost_pico = (turn.cost_pico or 0) + pico(cost)
    quality = data.get("cost_quality")
    if quality in QUALITIES:
        turn.quality = max(turn.quality, QUALITIES.index(quality))


def _finding(turn: _Turn, record: Record, data: Mapping[str, Any]) -> None:
    turn.findings += 1


_HANDLERS: dict[str, Callable[[_Turn, Record, Mapping[str, Any]], None]] = {
    "turn/start": _turn_start,
    "turn/resume": _turn_resume,
    "turn/end": _turn_end,
    "step/start": _step_start,
    "step/attempt": _attempt,
    "finding": _finding,
}


# -- rows and money


def pico(cost: str) -> int:
    """Money text as whole trillionths of a dollar, which SQLite adds without loss."""
    try:
        return int((Decimal(cost) * _PICO).to_integral_value(ROUND_HALF_EVEN))
    except (InvalidOperation, ValueError):
        return 0


def money(cost_pico: int | None, quality: int) -> str | None:
    """The public form of a sum; None where a part of it is not known."""
    if cost_pico is None or QUALITIES[quality] == "unpriced":
        return None
    text = format(Decimal(cost_pico).scaleb(-12), "f")
    return text.rstrip("0").rstrip(".") if "." in text else text


def _turn_row(no: int, turn: _Turn) -> tuple[Any, ...]:
    tokens = (None if v is None else min(v, _TOP) for v in turn.tokens)
    return (
        no, turn.session, turn.thread, turn.place, turn.started_ns, turn.last_ns, turn.ended_ns, turn.cause,
        turn.by, turn.steps, turn.findings, turn.models, *tokens, turn.cost_pico, turn.quality,
    )  # fmt: skip


def _session_row(no: int, record: Record) -> tuple[Any, ...]:
    data = record.data
    labels = data.get("labels")
    return (
        no, record.time_ns, data.get("client"), data.get("by"), data.get("key"), data.get("team"),
        data.get("org"), orjson.dumps(dict(labels)).decode() if labels else None,
    )  # fmt: skip


def _thread_row(no: int, session: int, record: Record) -> tuple[Any, ...]:
    data = record.data
    return (
        no, session, record.time_ns, data.get("kind"), data.get("agent"), data.get("parent"),
        data.get("parent_turn"), bool(data.get("partial")), data.get("dialect"), data.get("upstream"),
        data.get("provider"),
    )  # fmt: skip
