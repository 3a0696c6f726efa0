"""What waits for an operator, as far as the record tells: each wait that began and is not over.

What went down with its process is told for as long as it might have waited.
"""

from collections.abc import Iterable, Mapping
from typing import Any

Json = dict[str, Any]

_NAMED = ("policy", "code", "model", "agent", "until", "adds")
_UNTOLD = frozenset({*_NAMED, "kind", "exchange", "number"})
_PLACES = ("session", "thread", "turn", "step")


def waiting(newest: Iterable[Mapping[str, Any]], now: str) -> list[Json]:
    """Waits out of interventions, newest first; the longest first. ``now`` is RFC 3339."""
    over: set[str] = set()
    found: list[Json] = []
    for event in newest:
        data = event["data"]
        exchange = str(data.get("exchange"))
        if data.get("kind") == "hold_over":
            over.add(exchange)
        elif data.get("kind") == "hold" and exchange not in over:
            over.add(exchange)  # one that waits for its second reason is listed with that
            if str(data.get("until") or "") > now:
                found.append(_wait(event, data, exchange))
    return found[::-1]


def _wait(event: Mapping[str, Any], data: Mapping[str, Any], exchange: str) -> Json:
    return {
        "id": exchange,
        "since": event["time"],
        **{name: data[name] for name in _NAMED if data.get(name) is not None},
        **{name: event[name] for name in _PLACES if name in event},
        "facts": {name: value for name, value in data.items() if name not in _UNTOLD},
    }
