"""Is a reply one JSON document or an event stream? Told by its first byte, not by its head.

Providers answer a stream request with plain JSON errors (some still labelled as event streams),
send white space for minutes before a JSON document, and comments before events. Lives here: that
choice and the splitting. Lives elsewhere: what the documents mean.

The one invariant: any split of the bytes gives the same frames and the same document.
"""

import json
import re
from typing import Any

import orjson

from proxy.ports import Unreadable
from proxy.reading.library import parse
from proxy.reading.sse import SSE

MAX_DOCUMENT = 64 * 1024 * 1024
"""Bytes of a plain reply that are read; of a longer one only a member near its end is looked for."""
_TAIL = 64 * 1024

_SPACE = b" \t\r\n\xef\xbb\xbf"

Frame = tuple[str, bytes]


class Framing:
    """Splits one reply. ``feed`` gives events of a stream; ``finish`` its last one, or the document."""

    __slots__ = ("_parts", "_size", "_sse", "_tail", "document")

    def __init__(self) -> None:
        self._sse: SSE | None = None
        self._parts: list[bytes] = []
        self._size = 0
        self._tail = b""
        """The end of a document that is too long to be read."""
        self.document: Any = None
        """The parsed plain reply, after ``finish``."""

    @property
    def streamed(self) -> bool:
        """Whether the reply has turned out to be an event stream."""
        return self._sse is not None

    @property
    def at_rest(self) -> bool:
        """Whether the reply is an event stream, and between two of its events."""
        return self._sse is not None and self._sse.at_rest

    def feed(self, data: bytes) -> list[Frame]:
        """Take body bytes; the events that they complete."""
        if self._sse is not None:
            return self._sse.feed(data)
        if not self._size:
            data = data.lstrip(_SPACE)
            if not data:
                return []
            if data[0] not in b'{["':
                self._sse = SSE()
                return self._sse.feed(data)
        self._size += len(data)
        if self._size <= MAX_DOCUMENT:
            self._parts.append(data)
        else:
            self._tail = b"".join((self._tail, *self._parts, data))[-_TAIL:]
            self._parts = []
        return []

    def finish(self) -> list[Frame]:
        """The end of the body: the stream's unfinished last event; the document is parsed."""
        if self._sse is not None:
            return self._sse.flush()
        if self._tail:
            return []
        self.document = load(b"".join(self._parts))
        self._parts = []
        return []

    def last_object(self, name: str) -> dict[str, Any]:
        """Of a document too long to be read: the last object of that name, empty where there is none."""
        return _last_object(self._tail, name) if self._tail else {}


def load(data: bytes) -> Any:
    """Parsed JSON; None for what is none. Half an emoji is mended, as in requests."""
    try:
        return orjson.loads(data)
    except ValueError:
        pass
    try:
        return parse(data)
    except Unreadable:
        return None


def _last_object(text: bytes, name: str) -> dict[str, Any]:
    """The last member of that name which is an object, in the end of a cut-off document."""
    for match in reversed([*re.finditer(rb'"%s"\s*:\s*(?=\{)' % re.escape(name.encode()), text)]):
        try:
            value, _ = json.JSONDecoder().raw_decode(text[match.end() :].decode("utf-8", "replace"))
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict):
            return value
    return {}
