"""Bodies into requests, without reading again what was read before.

An agent resends its whole history at every step. A ``Library`` keeps recent readings (least
recently used, bounded by bytes), finds the one a new body grew from, and parses only what is new:
the common prefix is found by comparing bytes and snapped to the stored offsets of the messages.
Both shapes that real clients send stay fast: cache marks that move (the old last message changes)
and fields that follow the message list.

A reading is made in slices (``slices``): what drives them may let others go on in between.

The one invariant: an incremental reading equals a reading from scratch. It rests on two facts.
The text up to the end of a message is common, so a parser is in the same state there; and what
follows is parsed strictly as list elements and fields. Whatever does not fit that frame (double
keys, a list that is none, elements that are no objects) is read plainly and never serves as a base.
"""

from array import array
from collections import OrderedDict
from collections.abc import Generator, Sequence
from hashlib import blake2b
from typing import Any, TypeVar

import orjson

from proxy.model import Exchange, Item, Message, ModelRequest, Splice
from proxy.ports import Dialect, Unreadable
from proxy.reading.layout import (
    Layout,
    bounded,
    common_prefix,
    common_suffix,
    compare,
    follow,
    mended,
    same_text,
    survey,
)
from proxy.structs import replace, struct

SEED = bytes(16)
"""Where every chain begins: the history of nothing."""

_KEYED_BYTES = 96
"""Bytes of the list's beginning that group readings; the probes then tell them apart."""
_SIBLINGS = 64
"""Readings kept under one key (parallel runs of one agent begin alike)."""
_PROBE = 32
_PROBES = 4
_MOVED = 8
"""From this many new messages on, moved ones are looked up by their bytes."""

_SLICE = 32_768
"""Bytes of new messages that are read in one go: some 0.5 ms."""
T = TypeVar("T")
Slices = Generator[None, None, T]
"""Work that stops now and then, and ends with a value."""

_SESSION_FIELDS = frozenset(
    {
        b"x-claude-code-session-id",
        b"x-claude-code-agent-id",
        b"thread-id",
        b"session-id",
        b"x-session-id",
    }
)


@struct(slots=True)
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
    splice: Splice | None = None
    parts: int = 0
    """Objects that its messages hold, at most."""

    @property
    def weight(self) -> int:
        """Rough bytes that this reading holds: the body, its text as items, the objects."""
        return 2 * len(self.body) + 900 * self.parts + 2_000


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
        return _at_once(self.slices(dialect, exchange, body))

    def slices(self, dialect: Dialect, exchange: Exchange, body: bytes) -> "Slices[Reading]":
        """The same, stopping now and then. What others read meanwhile does no harm."""
        key = _group(dialect, exchange, body)
        base = self._candidate(key, body)
        reading = yield from _slices(dialect, exchange, body, base)
        self._keep(key, reading, base)
        return reading

    def glance(self, dialect: Dialect, exchange: Exchange, body: bytes) -> Reading:
        """The same without keeping anything of it. Raises Unreadable."""
        return read(dialect, exchange, body, self._candidate(_group(dialect, exchange, body), body))

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
        for name in [one for one in self._groups.get(key, ()) if _lives_on(self._readings[one][1], reading)]:
            self._drop(name)  # what others read meanwhile from the same base
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


def _lives_on(old: Reading, new: Reading) -> bool:
    """Whether a later reading has the messages of this one, as they are written, but perhaps its last two."""
    before, now = old.request, new.request
    at = len(before.messages) - 3
    if not 0 <= at < len(now.messages) or before.chain[at] != now.chain[at]:
        return False
    if before.messages[at] is now.messages[at]:
        return True
    return new.body.startswith(memoryview(old.body)[: old.ends[at]])  # read from one base, side by side


def read(dialect: Dialect, exchange: Exchange, body: bytes, base: Reading | None = None) -> Reading:
    """Read one body, from a base where one is given. Pure; raises Unreadable."""
    return _at_once(_slices(dialect, exchange, body, base))


def _at_once(slices: "Slices[T]") -> T:
    while True:
        try:
            next(slices)
        except StopIteration as end:
            found: T = end.value
            return found


def _slices(dialect: Dialect, exchange: Exchange, body: bytes, base: Reading | None) -> "Slices[Reading]":
    layout: Layout | None = None
    splice: Splice | None = None
    if base is not None and base.list_start:
        prefix = common_prefix(base.body, body)
        splice = Splice(base.exchange, prefix, common_suffix(base.body, body, prefix))
        yield
        if prefix >= base.list_start:
            layout = follow(dialect.list_key, base, body, splice)
    if layout is None:
        layout = survey(dialect.list_key, body)
        if layout is None:
            return _read_plainly(dialect, exchange, body)
        if base is not None and base.list_start:
            compare(base, body, layout)
        else:
            base = None
    yield
    fields = _fields(body, layout, base)
    messages, parts = yield from _messages(dialect, body, layout, base)
    known, old_chain = (base.request.messages, base.request.chain) if base is not None else ((), ())
    chain = _chain(messages, old_chain[: layout.head], base, layout)
    request = dialect.read_request(exchange.head, exchange.path, fields, messages)
    request = replace(
        request,
        chain=chain,
        exchange=exchange.id,
        base=base.exchange if base is not None else "",
        shared=_shared(known, messages, layout.head),
    )
    return Reading(
        exchange.id, body, request, fields, layout.spans, layout.list_start, layout.list_end,
        layout.starts, layout.ends, splice, parts,
    )  # fmt: skip


def _fields(body: bytes, layout: Layout, base: Reading | None) -> dict[str, Any]:
    """Parse the fields beside the list, unless the base has the very same text."""
    if base is not None and layout.framed:
        return base.fields
    fields: dict[str, Any] = {}
    for name, (start, end) in layout.spans.items():
        if (
            base is not None
            and name in base.spans
            and same_text(base.body, *base.spans[name], body, start, end)
        ):
            fields[name] = base.fields[name]
        else:
            fields[name] = parse(body[start:end])
    return fields


def _messages(
    dialect: Dialect, body: bytes, layout: Layout, base: Reading | None
) -> "Slices[tuple[tuple[Message, ...], int]]":
    """All messages, and how many objects they hold."""
    known = base.request.messages if base is not None else ()
    total = len(layout.starts)
    bounded(total)
    fresh: list[Message] = []
    parts = done = 0
    moved: dict[bytes, Message] = {}
    if base is not None and total - layout.head - layout.tail >= _MOVED:
        moved = {message.raw_hash: message for message in known[layout.head : len(known) - layout.tail]}
    for index in range(layout.head, total - layout.tail):
        raw = body[layout.starts[index] : layout.ends[index]]
        name = blake2b(raw, digest_size=16).digest()
        message = moved.get(name)
        if message is None:
            value = parse(raw)
            parts += _breadth(value)
            bounded(parts)
            read_now = dialect.read_message(value)
            message = Message(read_now.role, read_now.items, name)
        fresh.append(message)
        done += len(raw)
        if done >= _SLICE:
            done = 0
            yield
    messages = (*known[: layout.head], *fresh, *known[len(known) - layout.tail :])
    return messages, parts + (base.parts if base is not None else 0)


def _shared(known: Sequence[Message], messages: Sequence[Message], head: int) -> int:
    """How many messages at the beginning are the base's very own.

    More than the head of the text, where only the space between two messages has changed: then the
    head and the tail meet.
    """
    most = min(len(known), len(messages))
    while head < most and known[head] is messages[head]:
        head += 1
    return head


def _breadth(message: Any) -> int:
    """How many objects a message becomes: itself, and its blocks or calls."""
    lists = [value for value in message.values() if type(value) is list] if type(message) is dict else ()
    return 1 + sum(map(len, lists))


def _chain(
    messages: Sequence[Message], done: tuple[bytes, ...], base: Reading | None, layout: Layout
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
        try:
            return orjson.loads(mended(raw))
        except orjson.JSONDecodeError as error:
            raise Unreadable(f"the body is no valid JSON: {error.msg}") from None


def _read_plainly(dialect: Dialect, exchange: Exchange, body: bytes) -> Reading:
    """A body out of the usual frame: read once, as a whole, and kept for nobody."""
    value = parse(body)
    if not isinstance(value, dict):
        raise Unreadable("the body is no JSON object")
    listed = value.pop(dialect.list_key, None)
    parts = listed if isinstance(listed, list) else [] if listed is None else [listed]
    bounded(sum(map(_breadth, parts)))
    messages = tuple(dialect.read_message(part) for part in parts)
    chain: list[bytes] = []
    at = SEED
    for message in messages:
        at = fold(at, message.items)
        chain.append(at)
    request = dialect.read_request(exchange.head, exchange.path, value, messages)
    request = replace(request, chain=tuple(chain))
    return Reading(exchange.id, body, request, value, {}, 0, 0, array("q"), array("q"))


def _group(dialect: Dialect, exchange: Exchange, body: bytes) -> tuple[Any, ...]:
    """Bodies that may continue each other: same tenant, route, session fields, beginning of the list."""
    head = exchange.head
    at = body.find(b'"' + dialect.list_key.encode() + b'"')
    beginning = body[at : at + _KEYED_BYTES] if at >= 0 else body[:_KEYED_BYTES]
    hints = frozenset(head.among(_SESSION_FIELDS).items())
    return (exchange.identity.scope, exchange.path, dialect.name, hints, beginning)
