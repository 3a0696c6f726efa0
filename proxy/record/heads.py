"""Thread heads in the record's file: the tracker's snapshots, found by any of their keys.

A head is a mapping with ``id`` (its thread's), ``keys`` (look-up keys as hex text or bytes),
``last_ns`` and whatever else the tracker wants back; each replaces the older one of its thread.
Heads are bounded by age and number.
"""

import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import zstandard

MAX_HEADS = 20_000
NEWEST = 2_000
"""Heads handed out for a start."""
_PACK_FROM = 2_000
_PACK = zstandard.ZstdCompressor(level=1, write_checksum=False)
_LARGEST = 256 << 20
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_KEYS_AT_ONCE = 500


@dataclass(frozen=True, slots=True)
class HeadsPut:
    """Heads on their way to the record's writer."""

    heads: Sequence[Mapping[str, Any]]


def key_bytes(key: bytes | str) -> bytes:
    """A look-up key as bytes; snapshots may carry it as hex text."""
    return bytes.fromhex(key) if isinstance(key, str) else bytes(key)


def upsert(connection: sqlite3.Connection, heads: Sequence[Mapping[str, Any]], now_ns: int) -> None:
    """Store heads inside the caller's transaction; of several of one thread the last counts."""
    newest = {str(head["id"]): head for head in heads}
    rows = [(thread, int(head.get("last_ns") or now_ns), _encoded(head)) for thread, head in newest.items()]
    keys = [(key_bytes(key), thread) for thread, head in newest.items() for key in head.get("keys", ())]
    connection.executemany("DELETE FROM head_keys WHERE thread = ?", [(thread,) for thread in newest])
    connection.executemany("INSERT OR REPLACE INTO heads VALUES (?, ?, ?)", rows)
    connection.executemany("INSERT OR IGNORE INTO head_keys VALUES (?, ?)", keys)


def find(connection: sqlite3.Connection, keys: Sequence[bytes], limit: int = NEWEST) -> list[dict[str, Any]]:
    """Heads that any key names, newest first; without keys the newest ones."""
    if not keys:
        newest = connection.execute("SELECT data FROM heads ORDER BY time_ns DESC LIMIT ?", (limit,))
        return [_decoded(data) for (data,) in newest.fetchall()]
    found: dict[str, tuple[int, bytes]] = {}
    for start in range(0, len(keys), _KEYS_AT_ONCE):
        some = [key_bytes(key) for key in keys[start : start + _KEYS_AT_ONCE]]
        marks = ",".join("?" * len(some))
        rows = connection.execute(
            "SELECT thread, time_ns, data FROM heads WHERE thread IN "
            f"(SELECT thread FROM head_keys WHERE key IN ({marks}))",
            some,
        )
        found.update({thread: (time_ns, data) for thread, time_ns, data in rows})
    ordered = sorted(found.values(), key=lambda row: row[0], reverse=True)
    return [_decoded(data) for _, data in ordered[:limit]]


def expire(connection: sqlite3.Connection, cutoff_ns: int | None, most: int = MAX_HEADS) -> int:
    """Drop heads that rested too long or are too many; a few hundred at a time."""
    extra = int(connection.execute("SELECT count(*) FROM heads").fetchone()[0]) - most
    leaving = connection.execute(
        "SELECT thread FROM heads WHERE time_ns < ? ORDER BY time_ns LIMIT 500", (cutoff_ns or 0,)
    ).fetchall()
    if extra > len(leaving):
        leaving = connection.execute(
            "SELECT thread FROM heads ORDER BY time_ns LIMIT ?", (min(extra, 500),)
        ).fetchall()
    connection.executemany("DELETE FROM head_keys WHERE thread = ?", leaving)
    connection.executemany("DELETE FROM heads WHERE thread = ?", leaving)
    return len(leaving)


def _encoded(head: Mapping[str, Any]) -> bytes:
    text = msgspec.msgpack.encode(dict(head))
    return _PACK.compress(text) if len(text) >= _PACK_FROM else text


def _decoded(data: bytes) -> dict[str, Any]:
    text = data
    if data[:4] == _ZSTD_MAGIC:  # a decompressor of its own: two threads must not share one
        text = zstandard.ZstdDecompressor().decompress(data, max_output_size=_LARGEST)
    head: dict[str, Any] = msgspec.msgpack.decode(text)
    return head
