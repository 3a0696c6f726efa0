"""The elements of one big JSON list, as they arrive (Gemini streams so when not asked for events).

The one invariant: any split of the bytes gives the same elements; one that outgrows the bound is
skipped whole. What is no list of objects gives nothing.
"""

import re

MAX_ELEMENT = 16 * 1024 * 1024

_OUTSIDE = re.compile(rb'["{}\[\]]')
_INSIDE = re.compile(rb'["\\]')


class Elements:
    """Splits a list of objects. ``feed`` it bytes from the opening bracket on."""

    __slots__ = ("_at", "_buffer", "_depth", "_limit", "_quoted", "_start", "skipped")

    def __init__(self, limit: int = MAX_ELEMENT) -> None:
        self._limit = limit
        self._buffer = bytearray()
        self._at = 0
        """Up to where the buffer has been looked at."""
        self._start = -1
        """Where the element at hand begins; -1 between elements, -2 in one that is being skipped."""
        self._depth = 0
        self._quoted = False
        self.skipped = 0

    def feed(self, data: bytes) -> list[bytes]:
        """The elements that these bytes complete."""
        self._buffer += data
        found: list[bytes] = []
        while self._next(found):
            pass
        keep = self._at if self._start < 0 else self._start
        if self._start >= 0 and len(self._buffer) - self._start > self._limit:
            self._start, keep = -2, self._at
        del self._buffer[:keep]
        self._at -= keep
        if self._start >= 0:
            self._start = 0
        return found

    def _next(self, found: list[bytes]) -> bool:
        """Go on to the next byte that matters; False where the buffer ends first."""
        match = (_INSIDE if self._quoted else _OUTSIDE).search(self._buffer, self._at)
        if match is None:
            self._at = len(self._buffer)
            return False
        at = match.start()
        byte = self._buffer[at]
        if byte == 0x5C:  # a backslash: what follows it says nothing
            if at + 1 == len(self._buffer):
                self._at = at
                return False
            self._at = at + 2
            return True
        self._at = at + 1
        if byte == 0x22:
            self._quoted = not self._quoted
        elif byte in b"{[":
            self._depth += 1
            if self._depth == 2 and byte == 0x7B:
                self._start = at
        else:
            self._depth -= 1
            if self._depth == 1 and self._start != -1:
                self._end(found)
        return True

    def _end(self, found: list[bytes]) -> None:
        if self._start >= 0 and self._at - self._start <= self._limit:
            found.append(bytes(self._buffer[self._start : self._at]))
        else:
            self.skipped += 1
        self._start = -1
