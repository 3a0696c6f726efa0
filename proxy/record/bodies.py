"""Bodies at the price of what is new in them: deltas to the thread's previous body, and whole frames.

An agent sends its whole history at every step. A request body is therefore stored as
``base[:prefix] + middle + base[len(base) - suffix:]``, and only the middle is kept, compressed
where that helps with the stretch of the base that it replaces as dictionary (a moved cache mark
sends two messages again). Whole frames stand where no base is at hand and where the way back
through the deltas would get long.

The invariant: a delta is written only after it was compared with the very bytes of its base, and
read back only if every digest on the way agrees. ``digest`` names a body's content through its
base's digest, so that nothing has to hash the whole history at every step; a body that retention
turned from a delta into a whole frame keeps its digest and gets a ``seal`` over its content.
"""

import sqlite3
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256
from struct import Struct
from typing import NamedTuple

import zstandard

from proxy.complaint import Complaint
from proxy.model import Splice
from proxy.reading.layout import common_prefix, common_suffix

RAW, ZSTD, ZSTD_DICT = 0, 1, 2
MAX_CHAIN = 200
"""Deltas on the way back to a whole frame: reading stays in milliseconds."""
SMALL = 1_000
"""Bytes below which compression costs more than it saves."""
MAX_DICT = 1 << 20
BASES_BYTES = 48 << 20
"""What bases may hold: two dozen loops with 2 MB of history each."""
_MIN_DICT = 256
"""A dictionary costs three times a plain compression; below this it finds nothing worth it."""
_LARGE = 64 << 10
_SHAPE = Struct("<QQQ")
_HOT = zstandard.ZstdCompressor(level=1, write_checksum=False)
_WHOLE = zstandard.ZstdCompressor(level=3, write_checksum=False)
_COLUMNS = "no, base, prefix, suffix, size, codec, digest, seal, data"
INSERT = f"INSERT INTO bodies ({_COLUMNS})"
_SELECT = f"SELECT {_COLUMNS} FROM bodies WHERE no = ?"


class BodyDamaged(Complaint):
    """A stored body, or one that it builds on, is not what was written."""


class Row(NamedTuple):
    """A line of the table ``bodies``."""

    no: int
    base: int | None
    prefix: int
    suffix: int
    size: int
    codec: int
    digest: bytes
    seal: bytes | None
    data: bytes


@dataclass(slots=True)
class Base:
    """A body at hand, to compare the next one with."""

    no: int
    body: bytes
    digest: bytes
    depth: int = 0
    """Deltas between it and its whole frame."""
    spent: int = 0
    """Bytes that those deltas take."""
    epoch: int = 0
    """When its row was last known to exist."""


def whole(no: int, body: bytes) -> Row:
    """A body stored by itself."""
    codec, data = _packed(body, _WHOLE if len(body) >= _LARGE else _HOT)
    return Row(no, None, 0, 0, len(body), codec, _digest(body), None, data)


def delta(no: int, body: bytes, base: Base, splice: Splice | None) -> Row | None:
    """A body stored by what is new against a base; None where that is most of it."""
    prefix, suffix = _overlap(base.body, body, splice)
    if (prefix + suffix) * 8 < len(body):
        return None
    middle = body[prefix : len(body) - suffix]
    codec, data = _packed_against(middle, base.body, prefix, suffix)
    return Row(
        no, base.no, prefix, suffix, len(body), codec,
        _chained(base.digest, prefix, suffix, middle), None, data,
    )  # fmt: skip


def _overlap(base: bytes, body: bytes, splice: Splice | None) -> tuple[int, int]:
    """How far two bodies agree from both ends. The splice is a claim: it is compared before use."""
    if splice is not None and splice.prefix + splice.suffix <= min(len(base), len(body)):
        prefix, suffix = splice.prefix, splice.suffix
        known = memoryview(base)  # compared in place: a copy of a long history costs more than comparing
        if body.startswith(known[:prefix]) and body.endswith(known[len(base) - suffix :]):
            return prefix, suffix
    prefix = common_prefix(base, body)
    return prefix, common_suffix(base, body, prefix)


def _packed(data: bytes, compressor: zstandard.ZstdCompressor) -> tuple[int, bytes]:
    if len(data) >= SMALL:
        packed = compressor.compress(data)
        if len(packed) * 10 < len(data) * 9:
            return ZSTD, packed
    return RAW, data


def _packed_against(middle: bytes, base: bytes, prefix: int, suffix: int) -> tuple[int, bytes]:
    """A middle, with the stretch that it replaces as dictionary where both are of some size."""
    replaced = _replaced(base, prefix, suffix)
    if len(middle) < 2 * SMALL or len(replaced) < _MIN_DICT:
        return _packed(middle, _HOT)
    packed = zstandard.ZstdCompressor(level=1, dict_data=_dictionary(replaced)).compress(middle)
    return (ZSTD_DICT, packed) if len(packed) * 10 < len(middle) * 9 else (RAW, middle)


def _replaced(base: bytes, prefix: int, suffix: int) -> bytes:
    stop = len(base) - suffix
    return base[max(prefix, stop - MAX_DICT) : stop]


def _dictionary(data: bytes) -> zstandard.ZstdCompressionDict:
    return zstandard.ZstdCompressionDict(data, dict_type=zstandard.DICT_TYPE_RAWCONTENT)


def _digest(content: bytes) -> bytes:
    return sha256(content).digest()[:16]


def _chained(base: bytes, prefix: int, suffix: int, middle: bytes) -> bytes:
    return sha256(base + _SHAPE.pack(prefix, suffix, len(middle)) + middle).digest()[:16]


class Bases:
    """The newest request body of each thread, by exchange: the bases that the next ones are compared with.

    Bounded by bytes; a body pushed out only means that the next one is stored whole. Bodies are
    the same objects that the reading side holds, so they weigh little of its own.
    """

    def __init__(self, max_bytes: int = BASES_BYTES) -> None:
        self.max_bytes = max_bytes
        self._kept: OrderedDict[str, Base] = OrderedDict()
        self._newest: dict[str, str] = {}
        self._bytes = 0

    def place(self, no: int, exchange: str, thread: str | None, body: bytes, base: Base | None,
              splice: Splice | None, epoch: int) -> Row:  # fmt: skip
        """Encode a body and keep it at hand."""
        row = None
        if base is not None and base.depth < MAX_CHAIN:
            row = delta(no, body, base, splice)
            if row is not None and base.spent + len(row.data) > max(len(body), SMALL):
                row = None
        if row is None or base is None:
            row = whole(no, body)
            kept = Base(no, body, row.digest, epoch=epoch)
        else:
            if row.prefix + row.suffix == len(body) == len(base.body):
                body = base.body  # what is sent again by retries or parallel runs is held once
            kept = Base(no, body, row.digest, base.depth + 1, base.spent + len(row.data), epoch)
        self._keep(exchange, thread, kept)
        return row

    def base(self, splice: Splice | None, thread: str | None) -> Base | None:
        """The body to compare with: the one that the splice names, else the thread's newest."""
        if splice is not None and (kept := self._kept.get(splice.base)) is not None:
            self._kept.move_to_end(splice.base)
            return kept
        newest = self._newest.get(thread) if thread is not None else None
        return self._kept.get(newest) if newest is not None else None

    def clear(self) -> None:
        """Forget everything: what was kept may not have reached the disk."""
        self._kept.clear()
        self._newest.clear()
        self._bytes = 0

    def forget(self, numbers: Iterable[int]) -> None:
        """Rows that are gone are no bases any more."""
        gone = set(numbers)
        for exchange in [e for e, kept in self._kept.items() if kept.no in gone]:
            self._bytes -= len(self._kept.pop(exchange).body)

    def _keep(self, exchange: str, thread: str | None, kept: Base) -> None:
        if len(kept.body) > self.max_bytes // 4:
            return
        old = self._kept.pop(exchange, None)
        self._bytes += len(kept.body) - (len(old.body) if old is not None else 0)
        self._kept[exchange] = kept
        if thread is not None:
            before = self._kept.pop(self._newest.get(thread, ""), None)
            self._bytes -= len(before.body) if before is not None else 0
            self._newest[thread] = exchange
        while self._bytes > self.max_bytes:
            self._bytes -= len(self._kept.popitem(last=False)[1].body)
        if len(self._newest) > 2 * len(self._kept) + 1_000:
            self._newest = {t: e for t, e in self._newest.items() if e in self._kept}


class Bodies:
    """Reads bodies back, byte for byte. Keeps the last one: threads are read in their order."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._last: tuple[int, bytes, bytes] | None = None

    def read(self, no: int) -> bytes:
        """The content of a body. Raises BodyDamaged where it is not what was written."""
        way: list[Row] = []
        at: int | None = no
        content, digest = b"", b""
        while at is not None:
            if self._last is not None and self._last[0] == at:
                _, content, digest = self._last
                break
            row = self._row(at, no)
            way.append(row)
            at = row.base
            if at is not None and at >= row.no:
                raise BodyDamaged(f"body {no} builds on a later one")
        for row in reversed(way):
            content, digest = _apply(row, content, digest), row.digest
        self._last = (no, content, digest)
        return content

    def _row(self, at: int, wanted: int) -> Row:
        found = self._connection.execute(_SELECT, (at,)).fetchone()
        if found is None:
            raise BodyDamaged(f"body {wanted} builds on body {at}, which is not there")
        return Row(*found)


def _apply(row: Row, base: bytes, base_digest: bytes) -> bytes:
    try:
        middle = _unpacked(row, base)
    except zstandard.ZstdError as error:
        raise BodyDamaged(f"body {row.no} cannot be decompressed: {error}") from None
    if row.base is None:
        content, named = middle, _digest(middle)
    else:
        content = base[: row.prefix] + middle + base[len(base) - row.suffix :]
        named = _chained(base_digest, row.prefix, row.suffix, middle)
    if len(content) != row.size or named != (row.seal or row.digest):
        raise BodyDamaged(f"body {row.no} is not what was written: its digest differs")
    return content


def _unpacked(row: Row, base: bytes) -> bytes:
    if row.codec == RAW:
        return row.data
    size = row.size - row.prefix - row.suffix
    if row.codec == ZSTD:
        return zstandard.ZstdDecompressor().decompress(row.data, max_output_size=size)
    words = _dictionary(_replaced(base, row.prefix, row.suffix))
    return zstandard.ZstdDecompressor(dict_data=words).decompress(row.data, max_output_size=size)


def rekey(connection: sqlite3.Connection, leaving: Iterable[int]) -> None:
    """Make whole those bodies that stay but build on ones that leave. Inside the caller's transaction."""
    gone = set(leaving)
    bodies = Bodies(connection)
    for no in sorted(gone):
        for (child,) in connection.execute("SELECT no FROM bodies WHERE base = ?", (no,)).fetchall():
            if child in gone:
                continue
            try:
                content = bodies.read(child)
            except BodyDamaged:
                continue  # it stays unreadable, and says so when it is asked for
            codec, data = _packed(content, _WHOLE)
            connection.execute(
                "UPDATE bodies SET base = NULL, prefix = 0, suffix = 0, codec = ?, seal = ?, data = ?"
                " WHERE no = ?",
                (codec, _digest(content), data, child),
            )
