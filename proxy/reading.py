"""Bodies into requests, without reading again what was read before.

An agent resends its whole history at every step. A ``Library`` keeps recent readings (least
recently used, bounded by bytes), finds the one a new body grew from, and parses only what is new:
the common prefix is found by comparing bytes and snapped to the stored offsets of the messages.
Both shapes that real clients send stay fast: cache marks that move (the old last message changes)
and fields that follow the message list.

The one invariant: an incremental reading equals a reading from scratch. It rests on two facts.
The text up to the end of a message is common, so a parser is in the same state there; and what
follows is parsed strictly as list elements and fields. Whatever does not fit that frame (double
keys, a list that is none, elements that are no objects) is read plainly and never serves as a base.
"""

import re
from array import array
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any

import msgspec
import orjson

from proxy.model import Exchange, Item, Message, ModelRequest, Splice
from proxy.ports import Dialect, Unreadable

SEED = bytes(16)
"""Where every chain begins: the history of nothing."""

_CHUNK = 65_536
_KEYED_BYTES = 96
"""Bytes of the list's beginning that group readings; the probes then tell them apart."""
_SIBLINGS = 64
"""Readings kept under one key (parallel runs of one agent begin alike)."""
_PROBE = 32
_PROBES = 4
_MOVED = 8
"""From this many new messages on, moved ones are looked up by their bytes."""

_SESSION_FIELDS = (
    b"x-claude-code-session-id",
    b"x-claude-code-agent-id",
    b"thread-id",
    b"session-id",
    b"x-session-id",
)
_UNREAD_FIELDS = frozenset({b"content-length", b"traceparent", b"tracestate", b"x-request-id", b"date"})
_SPACE = b" \t\n\r"
_GAP = re.compile(rb"[ \t\n\r]*")
_KEY = re.compile(rb'[ \t\n\r]*("[^"\\]*(?:\\.[^"\\]*)*")[ \t\n\r]*:[ \t\n\r]*', re.DOTALL)
_ESCAPE = re.compile(
    rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|u[dD][89a-fA-F][0-9a-fA-F]{2}|.)",
    re.DOTALL,
)

_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])
_LIST = msgspec.json.Decoder(list[msgspec.Raw])


@dataclass(slots=True)
class Reading:
    """One body, read: the request, and the offsets from which the next body is read."""

    exchange: str
    body: bytes
    request: ModelRequest
    fields: dict[str, Any]
    """Every parsed field but the message list."""
    spans: dict[str, tuple[int, int]]
    """Where those fields' values stand in the body."""
    list_start: int
    """Just behind the list's bracket; 0: this reading cannot serve as a base."""
    list_end: int
    """At the closing bracket."""
    starts: "array[int]"
    ends: "array[int]"
    head: tuple[Any, ...]
    """What of the head may say something about the request."""
    splice: Splice | None = None

    @property
    def weight(self) -> int:
        """Rough bytes that this reading holds: the body, its text as items, the objects."""
        return 2 * len(self.body) + 900 * len(self.starts) + 2_000


@dataclass(slots=True)
class _Layout:
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


class Library:
    """Recent readings, newest kept. Not thread-safe; one per process."""

    def __init__(self, max_bytes: int = 256_000_000) -> None:
        self.max_bytes = max_bytes
        self.held_bytes = 0
        self._readings: OrderedDict[str, tuple[tuple[Any, ...], Reading]] = OrderedDict()
        self._groups: dict[tuple[Any, ...], list[str]] = {}

    def __len__(self) -> int:
        return len(self._readings)

    def read(self, dialect: Dialect, exchange: Exchange, body: bytes) -> Reading:
        """Read a body (content encoding undone). Raises Unreadable."""
        key = _group(dialect, exchange, body)
        base = self._candidate(key, body)
        reading = read(dialect, exchange, body, base)
        self._keep(key, reading, base)
        return reading

    def _candidate(self, key: tuple[Any, ...], body: bytes) -> Reading | None:
        """The reading that shares most with this body, told by a few bytes at message ends."""
        best: Reading | None = None
        depth = 0
        for name in reversed(self._groups.get(key, ())):
            reading = self._readings[name][1]
            if best is None:
                best = reading
            known = reading.body
            for end in reversed(reading.ends[-_PROBES:]):
                if end <= depth:
                    break
                if body.startswith(known[end - _PROBE : end], end - _PROBE):
                    best, depth = reading, end
                    break
        return best

    def _keep(self, key: tuple[Any, ...], reading: Reading, base: Reading | None) -> None:
        if not reading.list_start or 2 * len(reading.body) > self.max_bytes:
            return
        if base is not None and reading.request.shared >= len(base.starts) - 2:
            self._drop(base.exchange)  # all of it but its end lives on in the new reading
        self._drop(reading.exchange)
        group = self._groups.setdefault(key, [])
        if len(group) >= _SIBLINGS:
            self._drop(group[0])
            group = self._groups.setdefault(key, [])
        group.append(reading.exchange)
        self._readings[reading.exchange] = (key, reading)
        self.held_bytes += reading.weight
        while self.held_bytes > self.max_bytes and len(self._readings) > 1:
            self._drop(next(iter(self._readings)))

    def _drop(self, name: str) -> None:
        entry = self._readings.pop(name, None)
        if entry is None:
            return
        key, reading = entry
        self.held_bytes -= reading.weight
        group = self._groups[key]
        group.remove(name)
        if not group:
            del self._groups[key]


def read(dialect: Dialect, exchange: Exchange, body: bytes, base: Reading | None = None) -> Reading:
    """Read one body, from a base where one is given. Pure; raises Unreadable."""
    layout: _Layout | None = None
    splice: Splice | None = None
    if base is not None and base.list_start:
        prefix = common_prefix(base.body, body)
        splice = Splice(base.exchange, prefix, common_suffix(base.body, body, prefix))
        if prefix >= base.list_start:
            layout = _follow(dialect.list_key, base, body, splice)
    if layout is None:
        layout = _survey(dialect.list_key, body)
        if layout is None:
            return _read_plainly(dialect, exchange, body)
        if base is not None and base.list_start:
            _compare(base, body, layout)
        else:
            base = None
    fields, changed = _fields(body, layout, base)
    messages, shared = _messages(dialect, body, layout, base)
    old_chain = base.request.chain if base is not None else ()
    chain = _chain(messages, old_chain[:shared], base, layout)
    head = _telling(exchange)
    if base is not None and not changed and head == base.head:
        request = replace(base.request, messages=messages, chain=chain, shared=shared)
    else:
        request = dialect.read_request(exchange.head, exchange.path, fields, messages)
        request = replace(request, chain=chain, shared=shared)
    return Reading(
        exchange.id, body, request, fields, layout.spans, layout.list_start, layout.list_end,
        layout.starts, layout.ends, head, splice,
    )  # fmt: skip


# -- where things stand


def _survey(list_key: str, body: bytes) -> _Layout | None:
    """Find every field and message of a body; None where it is no plain object with a list."""
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
    return _Layout(spans, at + 1, end - 1, *elements)


def _follow(list_key: str, base: Reading, body: bytes, splice: Splice) -> _Layout | None:
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
    return _Layout(spans, base.list_start, list_end, starts, ends, head)


def _follow_list(
    base: Reading, body: bytes, splice: Splice, head: int, cut: int, list_end: int
) -> _Layout | None:
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
    return _Layout(spans, base.list_start, list_end, starts, ends, head, tail, framed=True)


def _compare(base: Reading, body: bytes, layout: _Layout) -> None:
    """Find the leading and trailing messages that a base has too, wherever they stand now."""
    known, starts, ends = base.body, base.starts, base.ends
    most = min(len(starts), len(layout.starts))

    def same(at: int) -> bool:
        return _same(known, starts[at], ends[at], body, layout.starts[at], layout.ends[at])

    head = tail = 0
    while head < most and same(head):
        head += 1
    while tail < most - head and same(-1 - tail):
        tail += 1
    layout.head, layout.tail = head, tail


def _same(one: bytes, start: int, end: int, other: bytes, from_: int, to: int) -> bool:
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


def _elements(
    text: bytes, at: int, offset: int, raws: Sequence[msgspec.Raw]
) -> "tuple[array[int], array[int]] | None":
    """Offsets of a list's elements; None where one is no object (its end would not show itself)."""
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
    at = 0
    while at < most:
        step = min(_CHUNK, most - at)
        if not other.startswith(one[at : at + step], at):
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


# -- what things say


def _fields(body: bytes, layout: _Layout, base: Reading | None) -> tuple[dict[str, Any], bool]:
    """Parse the fields beside the list, unless the base has the very same text."""
    if base is not None and layout.framed:
        return base.fields, False
    fields: dict[str, Any] = {}
    changed = base is None or layout.spans.keys() != base.spans.keys()
    for name, (start, end) in layout.spans.items():
        if base is not None and name in base.spans and _same(base.body, *base.spans[name], body, start, end):
            fields[name] = base.fields[name]
        else:
            fields[name] = parse(body[start:end])
            changed = True
    return fields, changed


def _messages(
    dialect: Dialect, body: bytes, layout: _Layout, base: Reading | None
) -> tuple[tuple[Message, ...], int]:
    known = base.request.messages if base is not None else ()
    total = len(layout.starts)
    fresh: list[Message] = []
    moved: dict[bytes, Message] = {}
    if base is not None and total - layout.head - layout.tail >= _MOVED:
        moved = {message.raw_hash: message for message in known[layout.head : len(known) - layout.tail]}
    for index in range(layout.head, total - layout.tail):
        raw = body[layout.starts[index] : layout.ends[index]]
        name = blake2b(raw, digest_size=16).digest()
        message = moved.get(name)
        if message is None:
            message = replace(dialect.read_message(parse(raw)), raw_hash=name)
        fresh.append(message)
    messages = (*known[: layout.head], *fresh, *known[len(known) - layout.tail :])
    return messages, layout.head


def _chain(
    messages: Sequence[Message], done: tuple[bytes, ...], base: Reading | None, layout: _Layout
) -> tuple[bytes, ...]:
    """Name every history prefix; stops hashing where the base's names are met again."""
    chain: list[bytes] = []
    at = done[-1] if done else SEED
    for message in messages[len(done) : len(messages) - layout.tail]:
        at = fold(at, message.items)
        chain.append(at)
    if not layout.tail:
        return (*done, *chain)
    assert base is not None
    old = base.request.chain
    first = len(old) - layout.tail
    if at == (old[first - 1] if first else SEED):
        return (*done, *chain, *old[first:])
    for message in messages[len(messages) - layout.tail :]:
        at = fold(at, message.items)
        chain.append(at)
    return (*done, *chain)


def fold(at: bytes, items: Sequence[Item]) -> bytes:
    """The history's name after further items. System text stands outside the chain."""
    for item in items:
        if item.digest and item.kind != "system":
            at = blake2b(at + item.digest, digest_size=16).digest()
    return at


def parse(raw: bytes) -> Any:
    """JSON into values. A lone surrogate, which some clients cut out of an emoji, reads as U+FFFD."""
    try:
        return orjson.loads(raw)
    except orjson.JSONDecodeError:
        mended = _ESCAPE.sub(_whole, raw) if b"\\u" in raw else raw
        try:
            return orjson.loads(mended)
        except orjson.JSONDecodeError as error:
            raise Unreadable(f"the body is no valid JSON: {error.msg}") from None


def _whole(match: "re.Match[bytes]") -> bytes:
    text = match[0]
    lone = len(text) == 6 and text[1:3].lower() == b"ud" and text[3:4].lower() in b"89abcdef"
    return b"\\ufffd" if lone else text


def _read_plainly(dialect: Dialect, exchange: Exchange, body: bytes) -> Reading:
    """A body out of the usual frame: read once, as a whole, and kept for nobody."""
    value = parse(body)
    if not isinstance(value, dict):
        raise Unreadable("the body is no JSON object")
    listed = value.pop(dialect.list_key, None)
    parts = listed if isinstance(listed, list) else [] if listed is None else [listed]
    messages = tuple(dialect.read_message(part) for part in parts)
    chain: list[bytes] = []
    at = SEED
    for message in messages:
        at = fold(at, message.items)
        chain.append(at)
    request = dialect.read_request(exchange.head, exchange.path, value, messages)
    request = replace(request, chain=tuple(chain))
    return Reading(exchange.id, body, request, value, {}, 0, 0, array("q"), array("q"), _telling(exchange))


def _telling(exchange: Exchange) -> tuple[Any, ...]:
    """What of the head a dialect may read: all but what differs in every request and says nothing."""
    return (
        exchange.head.method,
        exchange.head.target,
        exchange.path,
        tuple(pair for pair in exchange.head.headers if pair[0].lower() not in _UNREAD_FIELDS),
    )


def _group(dialect: Dialect, exchange: Exchange, body: bytes) -> tuple[Any, ...]:
    """Bodies that may continue each other: same tenant, route, session fields, begin of the list."""
    head = exchange.head
    at = body.find(b'"' + dialect.list_key.encode() + b'"')
    beginning = body[at : at + _KEYED_BYTES] if at >= 0 else body[:_KEYED_BYTES]
    hints = tuple(head.get(name) for name in _SESSION_FIELDS)
    return (exchange.identity.scope, exchange.path, dialect.name, hints, beginning)
