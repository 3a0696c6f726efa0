"""The record as the admin port serves it: the public JSON of sessions, turns, steps and events, by id.

Opens the record afresh where it was missing before, so that a proxy that could not record at first
is readable once it can. Every method may run in any thread; what does not exist is None or empty.
"""

import sqlite3
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from proxy.record import Ambiguous, BodyDamaged, NotRecorded, Reader, RecordMissing, event_json
from proxy.terminal.showing import Album


class RecordCatalog:
    """One data directory, read for the admin port."""

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir

    def sessions(self, limit: int) -> list[dict[str, Any]]:
        """Newest first."""
        with suppress(RecordMissing, sqlite3.Error), Reader(self._data_dir) as reader:
            return reader.sessions(limit)
        return []

    def turns(self, limit: int, filters: Mapping[str, str]) -> list[dict[str, Any]]:
        """Newest first."""
        with suppress(RecordMissing, NotRecorded, sqlite3.Error), Reader(self._data_dir) as reader:
            return reader.turns(limit, **filters)
        return []

    def turn(self, turn_id: str) -> dict[str, Any] | None:
        """A turn with its steps, and the findings that they point into."""
        return self._node(turn_id, "turn")

    def step(self, step_id: str) -> dict[str, Any] | None:
        """A step likewise."""
        return self._node(step_id, "step")

    def body(self, step_id: str, which: str, attempt: int | None) -> bytes | None:
        """Exact bytes of an attempt's request or response; the last attempt unless told (from 1)."""
        absent = (RecordMissing, NotRecorded, Ambiguous, BodyDamaged, sqlite3.Error)
        with suppress(*absent), Reader(self._data_dir) as reader:
            found = reader.resolve(step_id)
            attempts = reader.attempts(found.id) if found.kind == "step" else []
            place = len(attempts) if attempt is None else attempt
            if not 1 <= place <= len(attempts):
                return None
            read = reader.request_body if which == "request" else reader.response_body
            return read(attempts[place - 1].id)
        return None

    def findings(self, limit: int) -> list[dict[str, Any]]:
        """The newest ones."""
        with suppress(RecordMissing, sqlite3.Error), Reader(self._data_dir) as reader:
            return reader.findings(limit)
        return []

    def events(self, after_seq: int, limit: int) -> list[dict[str, Any]]:
        """Events after a ``seq``, in order."""
        with suppress(RecordMissing, sqlite3.Error), Reader(self._data_dir) as reader:
            return [event_json(seq, record) for seq, record in reader.events(after_seq, limit=limit)]
        return []

    def last_seq(self) -> int:
        """The newest event's ``seq``; 0 where there is none."""
        with suppress(RecordMissing, sqlite3.Error), Reader(self._data_dir) as reader:
            return reader.last_seq()
        return 0

    def _node(self, name: str, kind: str) -> dict[str, Any] | None:
        absent = (RecordMissing, NotRecorded, Ambiguous, sqlite3.Error)
        with suppress(*absent), Reader(self._data_dir) as reader:
            found = reader.resolve(name)
            if found.kind != kind:
                return None
            session = reader.parents(found.id)[-1]
            album = Album(record for _, record in reader.events(session=session))
            node = album.find(found.id)
            return album.answer(node) if node is not None else None
        return None
