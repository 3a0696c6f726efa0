"""The record as the admin port serves it: the public JSON of sessions, turns, steps and events, by id.

Every method may run in any thread; what does not exist is None or empty. ``readers`` keeps the
record open between questions, ``steps`` tells what the model saw and what came back changed.
"""

import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from proxy.catalog import steps
from proxy.catalog.readers import Readers
from proxy.model import Record
from proxy.money.forecast import growth_of
from proxy.record import Ambiguous, BodyDamaged, NotRecorded, Reader, RecordMissing, event_json
from proxy.terminal.report import TYPES, Report
from proxy.terminal.showing import Album

Json = dict[str, Any]

_ABSENT = (RecordMissing, NotRecorded, Ambiguous, BodyDamaged, sqlite3.Error)
_STARTS = ("session/start", "thread/start")


class RecordCatalog:
    """One data directory, read for the admin port."""

    def __init__(self, data_dir: Path) -> None:
        self._readers = Readers(data_dir)
        self._told: tuple[int, Json] = (-1, {})
        """The report of everything, and the ``seq`` up to which it goes."""

    def close(self) -> None:
        """Let go of the record."""
        self._readers.close()

    # -- lists

    def sessions(self, limit: int, before: str | None, filters: Mapping[str, str]) -> list[Json]:
        """Newest first."""
        with suppress(*_ABSENT), self._readers.one() as reader:
            return reader.sessions(limit, before=before, **filters)
        return []

    def turns(self, limit: int, before: str | None, filters: Mapping[str, str]) -> list[Json]:
        """Newest first."""
        with suppress(*_ABSENT), self._readers.one() as reader:
            return reader.turns(limit, before=before, **filters)
        return []

    def newest(self, types: Sequence[str], limit: int) -> list[Json]:
        """The newest events of some types."""
        with suppress(*_ABSENT), self._readers.one() as reader:
            return reader.newest(types, limit)
        return []

    def spenders(self, by: str, since_ns: int, limit: int) -> list[Json]:
        """Who spent most, with the sums of their turns."""
        with suppress(*_ABSENT), self._readers.one() as reader:
            return reader.spenders(by, since_ns, limit)
        return []

    def events(self, after_seq: int, limit: int) -> list[Json]:
        """Events after a ``seq``, in order."""
        with suppress(*_ABSENT), self._readers.one() as reader:
            return [event_json(seq, record) for seq, record in reader.events(after_seq, limit=limit)]
        return []

    def last_seq(self) -> int:
        """The newest event's ``seq``; 0 where there is none."""
        with suppress(*_ABSENT), self._readers.one() as reader:
            return reader.last_seq()
        return 0

    def report(self, since_ns: int) -> Json:
        """The object of ``looptap report --json``. Reads the whole record; made anew only if that grew."""
        report = Report(since_ns)
        last = self.last_seq()
        if not since_ns and last == self._told[0]:
            return self._told[1]
        with suppress(*_ABSENT), self._readers.one() as reader:
            for run in reader.runs(TYPES):
                report.take(*run)
        tables = report.tables()
        if not since_ns:
            self._told = (last, tables)
        return tables

    # -- by id

    def turn(self, turn_id: str) -> Json | None:
        """A turn with its steps, the threads it started, and the findings that its steps point into."""
        with suppress(*_ABSENT), self._readers.one() as reader:
            turn = _node(reader, turn_id, "turn")
            if turn is not None:
                growth = growth_of(turn)
                return turn if growth is None else {**turn, "growth": growth}
        return None

    def turn_events(self, turn_id: str, after_seq: int, limit: int) -> list[Json] | None:
        """A turn's own events, in order."""
        with suppress(*_ABSENT), self._readers.one() as reader:
            found = reader.resolve(turn_id)
            if found.kind == "turn":
                events = reader.events(after_seq, turn=found.id, limit=limit)
                return [event_json(seq, record) for seq, record in events]
        return None

    def step(self, step_id: str) -> Json | None:
        """A step, with its own findings."""
        with suppress(*_ABSENT), self._readers.one() as reader:
            return _node(reader, step_id, "step")
        return None

    def seen(self, step_id: str) -> Json | None:
        """What the model saw at a step; None too where its body is not recorded or cannot be read."""
        with suppress(*_ABSENT), self._readers.one() as reader:
            return steps.seen(reader, step_id)
        return None

    def changes(self, step_id: str) -> Json | None:
        """What of the history before a step came back dropped or changed."""
        with suppress(*_ABSENT), self._readers.one() as reader:
            return steps.changes(reader, step_id)
        return None

    def body(self, step_id: str, which: str, attempt: int | None) -> bytes | None:
        """Exact bytes of an attempt's request or response; the last attempt unless told (from 1)."""
        with suppress(*_ABSENT), self._readers.one() as reader:
            found = reader.resolve(step_id)
            attempts = reader.attempts(found.id) if found.kind == "step" else []
            place = len(attempts) if attempt is None else attempt
            if not 1 <= place <= len(attempts):
                return None
            read = reader.request_body if which == "request" else reader.response_body
            return read(attempts[place - 1].id)
        return None


def _node(reader: Reader, name: str, kind: str) -> Json | None:
    """A turn or step as a tree, from the events of its turn and of the threads below it."""
    found = reader.resolve(name)
    if found.kind != kind:
        return None
    above = reader.parents(found.id)
    turn, session = found.id if kind == "turn" else above[0], above[-1]
    album = Album(_records(reader, session, turn))
    node = album.find(found.id)
    return album.answer(node) if node is not None else None


def _records(reader: Reader, session: str, turn: str) -> list[Record]:
    """What a turn's tree is made of; a session may hold thousands of others."""
    starts = [record for _, record in reader.events(session=session, types=_STARTS)]
    turns, threads = {turn}, set[str]()
    own = [record for _, record in reader.events(turn=turn)]
    below: list[Record] = []
    for start in starts:  # a thread starts after the one that it hangs below
        if start.thread is not None and start.data.get("parent_turn") in turns:
            threads.add(start.thread)
            records = [record for _, record in reader.events(thread=start.thread)]
            turns |= {record.turn for record in records if record.turn is not None}
            below += [record for record in records if record.type not in _STARTS]
    return [*starts, *(r for r in own if r.type not in _STARTS), *below]
