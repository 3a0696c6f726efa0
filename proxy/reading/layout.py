"""Where the fields and messages of a body stand, found anew or from an earlier body.

Offsets only: nothing here reads what the text says. ``survey`` walks a whole body; ``follow`` lays
out a body that shares its text with a ``Frame`` (an earlier body with its offsets) up to some
message, and walks only what comes after; ``compare`` finds the messages that two bodies share.

The one invariant: an offset is never guessed. What does not fit the frame (double keys, elements
that are no objects) gives None, and the body is read as a whole instead.
"""

import re
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec
import orjson

from proxy.model import Splice
from proxy.ports import Unreadable
from proxy.structs import struct

MAX_ELEMENTS = 100_000
"""Messages, or blocks in the messages that are new, of one request: as many as the most generous
provider takes. Each becomes objects many times its size, made while everybody waits."""
_CHUNK = 65_536
_SPACE = b" \t\n\r"
_GAP = re.compile(rb"[ \t\n\r]*")
_KEY = re.compile(rb'[ \t\n\r]*("[^"\\]*(?:\\.[^"\\]*)*")[ \t\n\r]*:[ \t\n\r]*', re.DOTALL)
_ESCAPE = re.compile(
    rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|u[dD][89a-fA-F][0-9a-fA-F]{2}|.)",
    re.DOTALL,
)

_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])
_LIST = msgspec.json.Decoder(list[msgspec.Raw])


class Frame(Protocol):
    """A body whose offsets are known."""

    @property
    def body(self) -> bytes: ...
    @property
    def spans(self) -> dict[str, tuple[int, int]]: ...
    @property
    def list_start(self) -> int: ...
    @property
    def list_end(self) -> int: ...
    @property
    def starts(self) -> "array[int]": ...
    @property
    def ends(self) -> "array[int]": ...


@struct(slots=True)
class Layout:
    """Where everything stands in a body, and which messages a base already has."""

    spans: dict[str, tuple[int, int]]
    list_start: int
    list_end: int
    starts: "array[int]"
    ends: "array[int]"
    head: int = 0
    """Leading messages whose bytes are the base's."""
    tail: int = 0
    """Trailing ones."""
    framed: bool = False
    """Everything outside the list is the base's."""


def survey(list_key: str, body: bytes) -> Layout | None:
    """Find every field and message of a body; None where it is no plain object with a list."""
    try:
        raws = _OBJECT.decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        body = mended(body)  # of the same length: offsets hold
        try:
            raws = _OBJECT.decode(body)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
            raise Unreadable(f"the body is no JSON object: {type(error).__name__}") from None
    start = body.index(b"{") + 1
    spans = _walk_fields(body, start, raws)
    if spans is None or list_key not in spans:
        return None
    at, end = spans.pop(list_key)
    if body[at] != 0x5B:
        return None
    elements = _elements(body, at + 1, 0, _LIST.decode(raws[list_key]))
    if elements is None:
        return None
    return Layout(spans, at + 1, end - 1, *elements)


def follow(list_key: str, base: Frame, body: bytes, splice: Splice) -> Layout | None:
    """Lay out a body whose text is the base's into the list; None where that does not hold."""
    head = bisect_right(base.ends, splice.prefix)
    cut = base.ends[head - 1] if head else base.list_start
    behind = len(base.body) - base.list_end
    shift = len(body) - len(base.body)
    if splice.suffix >= behind and base.list_end + shift >= cut:
        return _follow_list(base, body, splice, head, cut, base.list_end + shift)
    rest = body[cut:].lstrip(_SPACE)
    if head:
        if rest[:1] == b",":
            rest = rest[1:].lstrip(_SPACE)
            if rest[:1] == b"]":
                return None
        elif rest[:1] != b"]":
            return None
    opening = b'{"' + list_key.encode() + b'":['
    text = opening + rest
    offset = len(body) - len(text)
    try:
        raws = _OBJECT.decode(text)
        fields = _walk_fields(text, 1, raws)
        if fields is None:
            return None
        elements = _elements(text, len(opening), offset, _LIST.decode(raws[list_key]))
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return None
    if elements is None:
        return None
    list_end = fields.pop(list_key)[1] - 1 + offset
    spans = {name: span for name, span in base.spans.items() if span[0] < base.list_start}
    for name, (start, end) in fields.items():
        if name in spans:
            return None
        spans[name] = (start + offset, end + offset)
    starts, ends = base.starts[:head] + elements[0], base.ends[:head] + elements[1]
    return Layout(spans, base.list_start, list_end, starts, ends, head)


def _follow_list(
    base: Frame, body: bytes, splice: Splice, head: int, cut: int, list_end: int
) -> Layout | None:
    """The frame around the list is unchanged: lay out only the messages between."""
    shift = len(body) - len(base.body)
    first = bisect_left(base.starts, len(base.body) - splice.suffix)
    while first < len(base.starts) and (first < head or base.starts[first] + shift < cut):
        first += 1
    tail = len(base.starts) - first
    stop = base.starts[first] + shift if tail else list_end
    middle = body[cut:stop].strip(_SPACE)
    if head and tail and middle == b",":
        middle = b""
    else:
        if head and middle:
            if middle[:1] != b",":
                return None
            middle = middle[1:].lstrip(_SPACE)
            if not middle:
                return None
        if tail and middle:
            if middle[-1:] != b",":
                return None
            middle = middle[:-1].rstrip(_SPACE)
            if not middle:
                return None
        elif tail and head:
            return None  # no comma between two messages
    text = b"[" + middle + b"]"
    try:
        raws = _LIST.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return None
    at = body.find(middle, cut) if middle else cut
    elements = _elements(text, 1, at - 1, raws)
    if elements is None:
        return None
    starts = base.starts[:head] + elements[0] + array("q", [at + shift for at in base.starts[first:]])
    ends = base.ends[:head] + elements[1] + array("q", [at + shift for at in base.ends[first:]])
    spans = {
        name: span if span[0] < base.list_start else (span[0] + shift, span[1] + shift)
        for name, span in base.spans.items()
    }
    return Layout(spans, base.list_start, list_end, starts, ends, head, tail, framed=True)


def compare(base: Frame, body: bytes, layout: Layout) -> None:
    """Find the leading and trailing messages that a base has too, wherever they stand now."""
    known, starts, ends = base.body, base.starts, base.ends
    most = min(len(starts), len(layout.starts))

    def same(at: int) -> bool:
        return same_text(known, starts[at], ends[at], body, layout.starts[at], layout.ends[at])

    head = tail = 0
    while head < most and same(head):
        head += 1
    while tail < most - head and same(-1 - tail):
        tail += 1
    layout.head, layout.tail = head, tail


def same_text(one: bytes, start: int, end: int, other: bytes, from_: int, to: int) -> bool:
    """Whether two stretches of two bodies are equal, told without copying the second."""
    return end - start == to - from_ and other.startswith(one[start:end], from_)


def _walk_fields(text: bytes, at: int, raws: Mapping[str, msgspec.Raw]) -> dict[str, tuple[int, int]] | None:
    """Offsets of an object's values, given their lengths; None where a key stands twice."""
    spans: dict[str, tuple[int, int]] = {}
    for _ in range(len(raws)):
        match = _KEY.match(text, at)
        if match is None:
            return None
        name = orjson.loads(match[1])
        raw = raws.get(name)
        if raw is None or name in spans:
            return None
        start = match.end()
        end = start + memoryview(raw).nbytes
        if end - start < _CHUNK and not text.startswith(bytes(raw), start):
            return None  # a later field of the same name
        spans[name] = (start, end)
        gap = _GAP.match(text, end)
        assert gap is not None
        at = gap.end() + 1
        if text[gap.end() : at] != b",":
            break
    whole = len(spans) == len(raws) and text[at - 1 :].strip(_SPACE) == b"}"
    return spans if whole or not raws else None


def bounded(count: int) -> None:
    """Raises Unreadable where a request has more parts than any provider takes."""
    if count > MAX_ELEMENTS:
        raise Unreadable(f"the body has more than {MAX_ELEMENTS} messages or blocks")


def _elements(
    text: bytes, at: int, offset: int, raws: Sequence[msgspec.Raw]
) -> "tuple[array[int], array[int]] | None":
    """Offsets of a list's elements; None where one is no object (its end would not show itself)."""
    bounded(len(raws))
    starts, ends = array("q"), array("q")
    for raw in raws:
        while text[at] in _SPACE:
            at += 1
        if text[at] != 0x7B:
            return None
        starts.append(at + offset)
        at += memoryview(raw).nbytes
        ends.append(at + offset)
        while text[at] in _SPACE:
            at += 1
        at += 1
    return starts, ends


def common_prefix(one: bytes, other: bytes) -> int:
    """Length of the text that two bodies begin with."""
    most = min(len(one), len(other))
    view = memoryview(one)  # compared in place
    at = 0
    while at < most:
        step = min(_CHUNK, most - at)
        if not other.startswith(view[at : at + step], at):
            return at + _agreeing(one[at : at + step], other[at : at + step])
        at += step
    return most


def common_suffix(one: bytes, other: bytes, prefix: int) -> int:
    """Length of the text that two bodies end with, not counting their common prefix."""
    most = min(len(one), len(other)) - prefix
    size = 0
    while size < most:
        step = min(_CHUNK, most - size)
        a = one[len(one) - size - step : len(one) - size]
        b = other[len(other) - size - step : len(other) - size]
        if a != b:
            return size + _agreeing(a[::-1], b[::-1])
        size += step
    return most


def _agreeing(one: bytes, other: bytes) -> int:
    """How many leading bytes are equal, where not all are: halving, since comparing is the cheap part."""
    low, high = 0, len(one)
    while high - low > 1:
        middle = (low + high) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle
    return low


def mended(raw: bytes) -> bytes:
    """The same text with lone surrogates replaced, byte for byte as long."""
    return _ESCAPE.sub(_whole, raw) if b"\\ud" in raw or b"\\uD" in raw else raw


def _whole(match: "re.Match[bytes]") -> bytes:
    text = match[0]
    lone = len(text) == 6 and text[1:3].lower() == b"ud" and text[3:4].lower() in b"89abcdef"
    return b"\\ufffd" if lone else text
