"""Thread heads in the record's file.

Writing goes through the outbox, in the same transactions as the events (a head is put after every
exchange: a transaction of its own would cost more than the exchange). Reading opens the file
read-only in a worker thread. Where nothing can be read there are no heads, which is told once: a
tracker without a past is a tracker with ``partial`` threads, not an error.
"""

import asyncio
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from proxy.outbox import Outbox
from proxy.record import Reader, RecordDamaged, RecordMissing
from proxy.record.schema import FILE


class SqliteThreads:
    """A thread store beside the record, for one machine."""

    def __init__(
        self, data_dir: Path, outbox: Outbox, warn: Callable[[str], None] = lambda text: None
    ) -> None:
        self._warn = warn
        self._told = False
        self._data_dir = data_dir
        self._outbox = outbox

    async def pull(
        self, keys: Sequence[bytes], known: Mapping[str, int] | None = None
    ) -> Sequence[Mapping[str, Any]]:
        """Heads that any key names, newest first; the newest ones without keys."""
        found = await asyncio.to_thread(self._find, list(keys))
        had = known or {}
        return [head for head in found if head.get("rev", 0) > had.get(str(head["id"]), -1)]

    async def push(self, heads: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
        """Hand heads to the next batch; ``settled`` waits for it. A file has one writer: all are stored."""
        self._outbox.heads(list(heads))
        return ()

    async def settled(self) -> None:
        """Return when everything pushed so far is on disk. Raises RecordAway where it cannot be."""
        await asyncio.wrap_future(self._outbox.barrier())

    def _find(self, keys: list[bytes]) -> list[dict[str, Any]]:
        try:
            with Reader(self._data_dir) as reader:
                return reader.heads(keys)
        except (RecordDamaged, sqlite3.Error) as error:
            if not self._told:
                self._told = True
                why = type(error).__name__ if isinstance(error, sqlite3.Error) else "it is damaged"
                self._warn(
                    f"what was known of threads cannot be read ({self._data_dir / FILE}: {why}); "
                    "those that go on begin in their middle"
                )
            return []
        except RecordMissing:
            return []
