"""Event-stream framing: bytes in, (event name, data) pairs out.

Lives here: lines, fields, comments, the byte order mark, all three line ends, events of several
data lines, and a bound on what one event may hold. Lives elsewhere: what the data means.

The one invariant: however the bytes are split, the same pairs come out in the same order. An event
that outgrows the bound is skipped whole (``skipped`` counts it), never cut.
"""

MAX_EVENT = 16 * 1024 * 1024
"""Bytes of one event. Whole images and encrypted reasoning come in single events of some megabytes."""

_NAMES = 64
"""Event names remembered, so that not every event decodes its own."""

_BOM = b"\xef\xbb\xbf"


class SSE:
    """A splitter for one stream. ``feed`` it bytes; ``flush`` it once when the stream has ended."""

    __slots__ = (
        "_begun",
        "_cr",
        "_data",
        "_event",
        "_limit",
        "_names",
        "_parts",
        "_parts_size",
        "_size",
        "skipped",
    )

    def __init__(self, limit: int = MAX_EVENT) -> None:
        self._limit = limit
        self._parts: list[bytes] = []
        """The unfinished line, as it came."""
        self._parts_size = 0
        self._names: dict[bytes, str] = {}
        self._event = ""
        self._data: list[bytes] = []
        self._size = 0
        """Bytes of the finished lines of the event at hand; above the limit it is being skipped."""
        self._cr = False
        self._begun = False
        self.skipped = 0

    def feed(self, data: bytes) -> list[tuple[str, bytes]]:
        """The events that these bytes complete. The name is empty where none was given."""
        if self._cr or b"\r" in data:
            data = self._plain_ends(data)
        if b"\n" not in data:
            self._hold(data)
            return []
        if self._parts:
            data = b"".join((*self._parts, data))
            self._parts = []
            self._parts_size = 0
        lines = data.split(b"\n")
        rest = lines.pop()
        if rest:
            self._hold(rest)
        return self._take(lines)

    @property
    def at_rest(self) -> bool:
        """Between two events: nothing of the next one has come."""
        return not self._size and not self._parts and not self._cr

    def flush(self) -> list[tuple[str, bytes]]:
        """The event that the end of the stream left without its blank line, if there is one."""
        lines = [b"".join(self._parts), b""]
        self._parts = []
        self._parts_size = 0
        return self._take(lines)

    def _take(self, lines: list[bytes]) -> list[tuple[str, bytes]]:
        events: list[tuple[str, bytes]] = []
        if not self._begun and lines:
            self._begun = True
            lines[0] = lines[0].removeprefix(_BOM)
        limit, size, name, data = self._limit, self._size, self._event, self._data
        for line in lines:
            if line:
                size += len(line)
                if size > limit:
                    data = []
                elif line[:5] == b"data:":
                    data.append(line[6:] if line[5:6] == b" " else line[5:])
                elif line[:6] == b"event:":
                    name = self._names.get(line) or self._name(line)
                elif line == b"data":
                    data.append(b"")
            elif size:
                if size > limit:
                    self.skipped += 1
                elif data:
                    events.append((name, data[0] if len(data) == 1 else b"\n".join(data)))
                size, name, data = 0, "", []
        self._size, self._event, self._data = size, name, data
        return events

    def _name(self, line: bytes) -> str:
        name = (line[7:] if line[6:7] == b" " else line[6:]).decode("utf-8", "replace")
        if len(self._names) < _NAMES and len(line) < 100:
            self._names[line] = name
        return name

    def _hold(self, data: bytes) -> None:
        """Keep an unfinished line; of one that is too long only its length."""
        self._parts_size += len(data)
        if self._size + self._parts_size > self._limit:
            self._size += self._parts_size
            self._parts_size = 0
            self._parts = [b":"]
            self._data = []
        else:
            self._parts.append(data)

    def _plain_ends(self, data: bytes) -> bytes:
        """CRLF and CR as LF; a CR that ends a chunk ends its line at once."""
        if self._cr and data[:1] == b"\n":
            data = data[1:]
            self._cr = False
        if data:
            self._cr = data.endswith(b"\r")
        return data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
