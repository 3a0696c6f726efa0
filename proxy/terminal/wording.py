"""Values in words for people: durations, money, tokens, ages, and strangers' text made inert.

Everything that a terminal shows passes through here. Two invariants: what is not known is shown
as ``?``, never as 0; and text that came over the wire (tool names, arguments, errors, labels)
cannot act: it reaches the terminal without control characters, escapes or direction overrides,
on one line, cut to size.
"""

import unicodedata
from datetime import UTC, datetime
from decimal import ROUND_HALF_UP, Decimal, InvalidOperation
from typing import Any

UNKNOWN = "?"

_ACTIVE = frozenset({"Cc", "Cf", "Cs", "Co", "Cn"})
"""Unicode categories that may move a cursor, turn the direction or hide: printed as their escape."""
_BREAKS = frozenset({"Zl", "Zp"})
_MAX_MARKS = 2
"""Combining marks in a row that real scripts need; more is a tower meant to cover other lines."""


def inert(text: str, limit: int = 200, *, ellipsis: str = "…") -> str:
    """One line of harmless text, at most ``limit`` characters."""
    text = text.strip()
    out: list[str] = []
    length = marks = 0
    for char in text[: 4 * limit + 64]:  # a megabyte is not worth reading for one line
        category = unicodedata.category(char)
        piece = char
        if char in "\n\r\t" or category in _BREAKS:
            piece = " "
        elif category in _ACTIVE:
            piece = char.encode("unicode_escape").decode("ascii")
        marks = marks + 1 if category in ("Mn", "Me") else 0
        if marks > _MAX_MARKS or (piece == " " and out and out[-1] == " "):
            continue
        out.append(piece)
        length += len(piece)
        if length > limit:
            break
    line = "".join(out).strip()
    if length <= limit and len(text) <= 4 * limit + 64:
        return line
    return line[: max(0, limit - len(ellipsis))].rstrip() + ellipsis


def plain(value: Any) -> str:
    """A JSON value in words: lists and objects without quotation marks."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {plain(one)}" for key, one in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(plain(one) for one in value) + "]"
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)


def encodable(text: str, encoding: str) -> str:
    """The text with what ``encoding`` cannot say written as escapes."""
    return text.encode(encoding, "backslashreplace").decode(encoding)


def moment(value: Any) -> int | None:
    """Microseconds since the epoch of an RFC 3339 time; None for anything else."""
    if not isinstance(value, str):
        return None
    try:
        parsed = datetime.fromisoformat(value)
    except ValueError:
        return None
    if parsed.tzinfo is None:
        parsed = parsed.replace(tzinfo=UTC)
    delta = parsed - datetime(1970, 1, 1, tzinfo=UTC)
    return (delta.days * 86_400 + delta.seconds) * 1_000_000 + delta.microseconds


def duration(micros: int | None) -> str:
    """``35ms``, ``2.1s``, ``4m07s``, ``3h05m``, ``2d04h``."""
    if micros is None:
        return UNKNOWN
    if micros < 0:
        return "-" + duration(-micros)
    if micros < 999_500:
        return f"{(micros + 500) // 1000}ms"
    if micros < 59_950_000:
        return f"{micros / 1_000_000:.1f}s"
    seconds = (micros + 500_000) // 1_000_000
    if seconds < 3600:
        return f"{seconds // 60}m{seconds % 60:02d}s"
    minutes = seconds // 60
    if minutes < 24 * 60:
        return f"{minutes // 60}h{minutes % 60:02d}m"
    hours = minutes // 60
    return f"{hours // 24}d{hours % 24:02d}h"


def age(micros: int | None, now: int) -> str:
    """How long ago, in one unit: ``12s``, ``4m``, ``3h``, ``9d``; ``now`` within a second."""
    if micros is None:
        return UNKNOWN
    seconds = (now - micros) // 1_000_000
    if seconds < 1:
        return "now"
    for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds >= size:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"


def count(number: Any) -> str:
    """Tokens in three figures: ``950``, ``41.2k``, ``1.3M``."""
    if not isinstance(number, int) or isinstance(number, bool):
        return UNKNOWN
    if abs(number) < 1000:
        return str(number)
    for unit, size in (("k", 1_000), ("M", 1_000_000), ("G", 1_000_000_000)):
        scaled = number / size
        if abs(scaled) < 99.95:
            return f"{scaled:.1f}{unit}"
        if abs(scaled) < 999.5:
            return f"{scaled:.0f}{unit}"
    return f"{number:.1e}"


def share(part: Any, whole: Any) -> str | None:
    """``87%``, rounded down so that only all is 100%; None where either is not known."""
    if not isinstance(part, int) or not isinstance(whole, int) or whole <= 0:
        return None
    return f"{min(100, part * 100 // whole)}%"


def decimal(value: Any) -> Decimal | None:
    """Money as it stands in JSON (a decimal string); None when absent or not money."""
    if value is None or isinstance(value, (bool, float)):
        return None
    try:
        amount = Decimal(str(value))
    except InvalidOperation:
        return None
    return amount if amount.is_finite() else None


def money(value: Any, quality: Any = "measured") -> str:
    """``$0.0123``; ``~$0.0123`` when estimated or assumed; ``?`` when unpriced or not known.

    Small sums keep two figures that count, so that a cheap step is not shown as free.
    """
    amount = decimal(value)
    if amount is None or quality == "unpriced":
        return UNKNOWN
    mark = "~" if quality in ("estimated", "assumed") else ""
    if amount.adjusted() > 12:
        return f"{mark}${amount:.2e}"
    places = 2 if abs(amount) >= 10 else 4
    if amount and abs(amount) < Decimal("0.001"):
        places = min(12, 1 - amount.adjusted())
    rounded = amount.quantize(Decimal(1).scaleb(-places), ROUND_HALF_UP)
    sign = "-" if rounded < 0 else ""
    return f"{mark}{sign}${abs(rounded):,f}"
