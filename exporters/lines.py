"""A record as one line of JSON, as files and webhooks carry it."""

from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import orjson

from proxy.model import Record, rfc3339


def line(record: Record) -> bytes:
    """One record as a line; what does not apply is absent."""
    event: dict[str, Any] = {"time": rfc3339(record.time_ns), "type": record.type}
    for name in ("session", "thread", "turn", "step"):
        value = getattr(record, name)
        if value is not None:
            event[name] = value
    event["data"] = record.data
    return orjson.dumps(event, default=_plain, option=orjson.OPT_APPEND_NEWLINE)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, tuple | set | frozenset):
        return list(value)
    return format(value, "f") if isinstance(value, Decimal) else repr(value)
