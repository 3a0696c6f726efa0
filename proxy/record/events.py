"""Events as they lie in the log: runs of consecutive records of one turn of one thread, a row each.

An exchange leaves its events in two bursts, so a row per run instead of one per event costs a
fifth of the processor time. A run is a JSON list ``[[time_ns, type, step, data], …]`` in which
step 0 stands for "as in the event before"; but for the smallest, runs are compressed.
"""

import threading
from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any

import orjson
import zstandard

from proxy.model import Record, rfc3339
from proxy.record.words import EVENTS_1

TYPES = (
    "session/start", "thread/start", "turn/start", "turn/resume", "step/start", "step/attempt", "item",
    "step/end", "turn/end", "finding", "intervention", "budget/reserve", "budget/settle", "budget/alert",
    "budget/exhausted", "gap", "internal/error",
)  # fmt: skip
"""The order is part of the file format: new types are added at the end."""
_BITS = {name: 1 << place for place, name in enumerate(TYPES)}
_OTHER = 1 << 62
MAX_RUN = 512
"""Events in one row; readers that follow the log look this far back for the row they are in."""
_PACK_FROM = 300
_DICT_1 = zstandard.ZstdCompressionDict(EVENTS_1, dict_type=zstandard.DICT_TYPE_RAWCONTENT)
_DICT_1.precompute_compress(level=1)
_PACK = zstandard.ZstdCompressor(level=1, write_checksum=False, dict_data=_DICT_1)
_PACKED_1 = b"\x01"
"""First byte of a run packed with the first dictionary; plain JSON begins with a bracket."""
_LARGEST_RUN = 64 << 20
Told = tuple[int, str, str | None, Mapping[str, Any]]
"""Time, type, step and data of one event of a run."""
_INT64 = 1 << 63


class _Unpacker(threading.local):
    """One for each thread: the library's spoil each other's output when two threads use one."""

    def __init__(self) -> None:
        self.zstd = zstandard.ZstdDecompressor(dict_data=_DICT_1)


_UNPACKER = _Unpacker()


def kinds_mask(types: Iterable[str]) -> int:
    """The bits by which runs that hold any of these types are found."""
    mask = 0
    for name in types:
        mask |= _BITS.get(name, _OTHER)
    return mask


def encode(run: list[Record]) -> tuple[int, bytes]:
    """The mask and the stored form of a run. Values that are no JSON are put down as text, not lost."""
    rows: list[tuple[int, str, str | int | None, Mapping[str, Any]]] = []
    step: str | None = None
    mask = 0
    for record in run:
        kind, own = record.type, record.step
        mask |= _BITS.get(kind, _OTHER)
        if own == step:
            rows.append((record.time_ns, kind, 0, record.data))
        else:
            rows.append((record.time_ns, kind, own, record.data))
            step = own
    try:
        text = orjson.dumps(rows, default=_default)
    except TypeError:
        text = orjson.dumps(_plain(rows))
    return mask, _PACKED_1 + _PACK.compress(text) if len(text) >= _PACK_FROM else text


def decode(data: bytes, session: str | None, thread: str | None, turn: str | None) -> list[Record]:
    """The records of a stored run."""
    return [
        Record(time_ns, kind, session, thread, turn, step, facts) for time_ns, kind, step, facts in rows(data)
    ]


def rows(data: bytes) -> list[Told]:
    """A stored run as it is; each entry a list."""
    text = data if data[:1] == b"[" else _UNPACKER.zstd.decompress(data[1:], max_output_size=_LARGEST_RUN)
    found: list[Any] = orjson.loads(text)
    step: str | None = None
    for row in found:
        if row[2] == 0:
            row[2] = step
        else:
            step = row[2]
    return found


def event_json(seq: int, record: Record) -> dict[str, Any]:
    """An event in the form of the contract: what does not apply is absent."""
    event: dict[str, Any] = {"seq": seq, "time": rfc3339(record.time_ns), "type": record.type}
    for name in ("session", "thread", "turn", "step"):
        value = getattr(record, name)
        if value is not None:
            event[name] = value
    event["data"] = dict(record.data)
    return event


def _default(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, tuple | set | frozenset):
        return list(value)
    if isinstance(value, Decimal):
        return format(value, "f")
    return repr(value)


def _plain(value: Any) -> Any:
    """Any value as JSON that every reader takes: lone surrogates and huge numbers become text."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode("utf-8")
    if isinstance(value, Mapping):
        return {_plain(str(k)): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(v) for v in value]
    if isinstance(value, bool) or value is None or isinstance(value, float):
        return value
    if isinstance(value, int):
        return value if -_INT64 <= value < _INT64 else str(value)
    return _plain(_default(value))
