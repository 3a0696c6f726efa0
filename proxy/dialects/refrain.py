"""The event that a stream repeats: the same text each time around one string.

Nearly every chunk of a streamed reply is such an event, and to split, name and parse it costs three
times what its few new words do. So the decoder shows a ``Refrain`` an event that it has just read;
later chunks which begin and end like that one are read as the strings between, and as nothing else.

Lives here: where the string stands, and whether a chunk fits. Lives elsewhere: what the string is.

The one invariant: a chunk that fits would have been read as that same event with another string. The
place is proved at the start, by reading the event again with a string of our own in it; afterwards only
whole JSON strings fit between the two texts of which each event is made.
"""

import orjson

from proxy.reading.sse import SSE

_TRIES = 16
"""Events of one stream that are looked at: where more than a string changes, none will fit."""
_LONGEST = 65_536
"""Bytes of a chunk that may fit; the framing's own bound is far above."""
_PROBE = "looptap: \u2026 another string"
_PROBE_JSON = orjson.dumps(_PROBE)


class Refrain:
    """What one stream repeats, once that is known. Made with the decoder."""

    __slots__ = ("_after", "_before", "_joint", "_left", "_ready")

    def __init__(self) -> None:
        self._before = b""
        """Up to the string's first quote, with it; empty: not known."""
        self._after = b""
        """From the string's last quote on, with it."""
        self._joint = b""
        """Between two such strings."""
        self._left = _TRIES
        self._ready = False

    def again(self, data: bytes) -> list[str] | None:
        """The strings, where these bytes are the event once or more; None: read them with care."""
        if not self._ready or not data.startswith(self._before) or not data.endswith(self._after):
            return None
        end = len(data) - len(self._after)
        if not len(self._before) < end <= _LONGEST:
            return None
        pieces: list[str] = []
        try:
            for raw in data[len(self._before) : end].split(self._joint):
                piece: str = orjson.loads(b'"%b"' % raw)
                if not piece:
                    return None
                pieces.append(piece)
        except ValueError:
            return None
        return pieces

    def between(self, at_rest: bool) -> None:
        """A chunk was read with care; whether its end is the end of an event."""
        self._ready = at_rest and self._before != b""

    def learn(self, data: bytes, frame: tuple[str, bytes], piece: str) -> bool:
        """This chunk was read as that one event, others differing in ``piece``; whether they can."""
        if not self._left or len(data) > _LONGEST:
            return False
        self._left -= 1
        literal = orjson.dumps(piece)
        at = data.find(literal)
        if at < 0 or data.find(literal, at + 1) >= 0:
            return False
        before, after = data[:at], data[at + len(literal) :]
        if _events(data) != [frame] or not _differs_in(before + _PROBE_JSON + after, frame, literal):
            return False
        self._before, self._after = before + b'"', b'"' + after
        self._joint = self._after + self._before
        self._ready = True
        return True


def _events(data: bytes) -> list[tuple[str, bytes]]:
    """The events of these bytes, if they end with one."""
    splitter = SSE()
    events = splitter.feed(data)
    return events if splitter.at_rest else []


def _differs_in(probed: bytes, frame: tuple[str, bytes], literal: bytes) -> bool:
    """Whether the event with the probe in it is the one before it but for this string."""
    events = _events(probed)
    if len(events) != 1 or events[0][0] != frame[0]:
        return False
    try:
        known, other = (orjson.dumps(orjson.loads(raw)) for raw in (frame[1], events[0][1]))
    except (ValueError, TypeError):  # it is written less deep than it is read
        return False
    # equal: the place is a comment's, or a member's whose name comes again behind it
    return known != other and known.count(literal) == 1 and other.replace(_PROBE_JSON, literal) == known
