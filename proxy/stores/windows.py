"""When a budget's counter begins anew: minutes, hours, days, weeks and months of one time zone.

A window is half open and contains the moment it was asked for, also where a day has 23 or 25
hours or no midnight. Weeks begin on Monday. ``life`` and ``total`` never end by themselves.
"""

from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

ENDLESS = frozenset({"life", "total"})
_SECOND = 1_000_000_000
_FIXED = {"minute": 60 * _SECOND, "hour": 3600 * _SECOND}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class WindowUnknown(ValueError):
    """No window is called so."""


@dataclass(frozen=True, slots=True)
class Window:
    """A stretch of time; without an end it holds for ever."""

    starts_ns: int
    ends_ns: int | None

    def holds(self, now_ns: int) -> bool:
        """Whether a moment lies in it."""
        return self.starts_ns <= now_ns and (self.ends_ns is None or now_ns < self.ends_ns)


FOREVER = Window(0, None)


class Windows:
    """The windows of one time zone. Remembers the last one of each kind."""

    def __init__(self, zone: str = "UTC") -> None:
        self._zone = ZoneInfo(zone)
        self._last: dict[str, Window] = {}

    def at(self, kind: str, now_ns: int) -> Window:
        """The window of a kind that contains a moment."""
        if kind in ENDLESS:
            return FOREVER
        window = self._last.get(kind)
        if window is None or not window.holds(now_ns):
            window = self._last[kind] = self._find(kind, now_ns)
        return window

    def _find(self, kind: str, now_ns: int) -> Window:
        local = (_EPOCH + timedelta(seconds=now_ns // _SECOND)).astimezone(self._zone)
        length = _FIXED.get(kind)
        if length is not None:
            offset = local.utcoffset() or timedelta()
            starts = now_ns - (now_ns + int(offset.total_seconds()) * _SECOND) % length
            return Window(starts, starts + length)
        first = _first_day(kind, local.date())
        after = _next_first_day(kind, first)
        if now_ns >= self._midnight(after):  # clocks went back over this midnight: it came already
            first, after = after, _next_first_day(kind, after)
        return Window(self._midnight(first), self._midnight(after))

    def _midnight(self, day: date) -> int:
        """When a day begins, first of two times where it begins twice."""
        begins = datetime(day.year, day.month, day.day, tzinfo=self._zone)
        return int((begins.astimezone(UTC) - _EPOCH).total_seconds()) * _SECOND


def _first_day(kind: str, day: date) -> date:
    if kind == "day":
        return day
    if kind == "week":
        return day - timedelta(days=day.weekday())
    if kind == "month":
        return day.replace(day=1)
    raise WindowUnknown(f"window {kind!r}: use life, minute, hour, day, week, month or total")


def _next_first_day(kind: str, first: date) -> date:
    if kind == "month":
        return (first + timedelta(days=32)).replace(day=1)
    return first + timedelta(days=7 if kind == "week" else 1)
