"""Reasoning that a client lost, put back where it was: what to keep of a reply, and what to change in a body.

Lives here: what is the same for every API. In which bytes a piece of reasoning goes back each dialect says
itself (``thought``); what is kept of which thread, ``tracking.repairs`` knows.

A reply is made whole or left alone. Between what has an identity (texts, calls) stand gaps; each gap must
hold what it held in the reply. What is missing is inserted, what is another takes the original's bytes;
where more stands there than was said, or something beside it did not come back, nothing is touched.

The one invariant: every byte of the client's stays, but those of a piece of reasoning that came changed.
"""

import base64
import binascii
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

from proxy.dialects.compat import PLAIN_REASONING
from proxy.dialects.nudges import span_of_message
from proxy.dialects.splice import Path, set_member, span_of
from proxy.model import Attempt, Carrier, Change, Item, Kept, Message, ModelRequest, Outcome, Thought
from proxy.ports import Dialect
from proxy.reading.library import Reading, fold
from proxy.tracking.repairs import around, letter

_APART = frozenset({"openai_responses", "openai_chat"})
"""Where reasoning is an element of the message list, or a member of a message; else of what is in one."""
_ALPHABET = str.maketrans("-_", "+/")

Place = tuple[int, Item]
"""An item, and the index of its message."""


# -- what is kept of a reply


def kept_of(
    dialect: Dialect, request: ModelRequest, ask: bytes, reply: Outcome, step: str, source: str
) -> Kept | None:
    """A whole reply's reasoning; None where it has none, or cannot be put back whole."""
    thoughts: list[Thought] = []
    shape = ""
    for place, item in enumerate(reply.items):
        carrier = _carrier(dialect, item, request)
        if carrier is not None:
            names = names_of(request, item, strict=True)
            thoughts.append(Thought(place, carrier, names))
        elif item.form == "fallback" or _counts(request, item):
            return None
        shape += letter(item, goes_back=carrier is not None and item.kind == "thinking")
    if not thoughts or request.held is not None or "i" not in shape or shape.rstrip("-").endswith("t"):
        return None
    after = fold(ask, reply.items)
    return Kept(step, after, source, request.model, around(request), shape, tuple(thoughts))


def _carrier(dialect: Dialect, item: Item, request: ModelRequest) -> Carrier | None:
    try:
        return dialect.thought(item, request)
    except TypeError:  # a lone surrogate: no bytes could stand for it
        return None


def _counts(request: ModelRequest, item: Item) -> bool:
    """Whether an item is reasoning that is missed where it does not come back."""
    return item.kind == "thinking" and request.dialect != "gemini"


def names_of(request: ModelRequest, item: Item, *, strict: bool = False) -> tuple[bytes, ...]:
    """Names of a piece of reasoning by its content. ``strict``: only those that prove it whole."""
    proofs = [proof for proof in (item.signature, *item.variants) if proof]
    if request.dialect == "gemini":
        return tuple(_name(_plain(proof)) for proof in proofs)
    text = item.text if request.dialect == "anthropic" else ""
    worded = [_name(proof, text) for proof in proofs if text]
    bare = [_name(proof) for proof in proofs]
    told = [_name("id", item.item_id)] if item.item_id else [_name("text", item.text)] if item.text else []
    if strict:
        return tuple(worded or bare or told)
    return (*worded, *bare, *told)


def _name(*parts: str) -> bytes:
    return blake2b("\0".join(parts).encode("utf-8", "replace"), digest_size=8).digest()


def _plain(signature: str) -> str:
    """A signature in the one alphabet: clients write it in the other, with or without padding."""
    plain = signature.translate(_ALPHABET).rstrip("=")
    try:
        return base64.b64decode(plain + "=" * (-len(plain) % 4), validate=True).hex()
    except (binascii.Error, ValueError):
        return signature


# -- what to change in a body


def made_whole(dialect: Dialect, reading: Reading, index: int, kept: Kept) -> list[Change] | str:
    """What to change for a reply that ends in the message of this index to be whole; else why it cannot."""
    try:
        return list(_Mending(dialect, reading, kept).changes(index))
    except _Unmended as error:
        return str(error)


class _Unmended(Exception):
    """Why a reply cannot be made whole."""


@dataclass(slots=True)
class _Gap:
    """What stands between two things that have an identity."""

    thoughts: list[Thought] = field(default_factory=list)
    there: list[Place] = field(default_factory=list)
    """Reasoning that stands there now."""


class _Mending:
    """One reply in one request."""

    __slots__ = ("_changes", "_dialect", "_kept", "_reading", "_request")

    def __init__(self, dialect: Dialect, reading: Reading, kept: Kept) -> None:
        self._dialect = dialect
        self._reading = reading
        self._request = reading.request
        self._kept = kept
        self._changes: list[Change] = []

    def changes(self, index: int) -> list[Change]:
        """What to change, in the order of the body."""
        run = self._run(index)
        anchors = [place for place, kind in run if kind == "i"]
        thoughts = {thought.place: thought for thought in self._kept.thoughts}
        if any(thought.carrier.inside for thought in thoughts.values()):
            self._members(run, anchors, thoughts)
        else:
            self._blocks(run, anchors, thoughts)
        return sorted(self._changes, key=lambda change: change[0])

    def _run(self, index: int) -> list[tuple[Place, str]]:
        """The reply's items as they stand in the request."""
        wanted = self._kept.shape.count("i")
        found: list[tuple[Place, str]] = []
        messages = self._request.messages
        while index >= 0 and _assistant(messages[index]):
            for item in reversed(messages[index].items):
                thinks = item.kind == "thinking" and self._request.dialect != "gemini"
                kind = letter(item, goes_back=thinks)
                if kind == "i" and wanted == 0:
                    return found[::-1]
                wanted -= kind == "i"
                if kind != "-":
                    found.append(((index, item), kind))
            index -= 1
        if wanted:
            raise _Unmended("the reply did not come back as one")
        return found[::-1]

    # -- as elements

    def _blocks(
        self, run: Sequence[tuple[Place, str]], anchors: Sequence[Place], thoughts: dict[int, Thought]
    ) -> None:
        said = [(place, kind) for place, kind in enumerate(self._kept.shape) if kind != "-"]
        theirs, ours = _cut([kind for _, kind in said]), _cut([kind for _, kind in run])
        for number, (wanted, present) in enumerate(zip(theirs, ours, strict=True)):
            if not any(said[at][1] == "t" for at in wanted) and not any(run[at][1] == "t" for at in present):
                continue
            others = [run[at][0] for at in present if run[at][1] == "o"]
            if sum(said[at][1] == "o" for at in wanted) != len(others):
                raise _Unmended("something that stood beside it did not come back")
            ends = [*others, anchors[number] if number < len(anchors) else None]
            parts = zip(
                _cut([said[at][1] for at in wanted], "o"),
                _cut([run[at][1] for at in present], "o"),
                ends,
                strict=True,
            )
            for mine, there, end in parts:
                gap = _Gap(
                    [thoughts[said[wanted[at]][0]] for at in mine], [run[present[at]][0] for at in there]
                )
                self._fill(gap, end)

    def _fill(self, gap: _Gap, anchor: Place | None) -> None:
        """Bring a gap's reasoning to what it was; ``anchor``: what follows it."""
        left = list(gap.there)
        if len(left) == len(gap.thoughts):
            for thought, place in zip(gap.thoughts, left, strict=True):
                if not self._same(thought, place):
                    self._replace(place, thought.carrier.raw)
            return
        waiting: list[bytes] = []
        for thought in gap.thoughts:
            if left and self._same(thought, left[0]):
                self._insert(left.pop(0), waiting)
                waiting = []
            else:
                waiting.append(thought.carrier.raw)
        if left:
            raise _Unmended("other reasoning stands in its place")
        if waiting and anchor is None:
            raise _Unmended("nothing follows it")
        if anchor is not None:
            self._insert(anchor, waiting)

    def _same(self, thought: Thought, place: Place) -> bool:
        return not set(thought.names).isdisjoint(names_of(self._request, place[1]))

    def _insert(self, place: Place, raws: Sequence[bytes]) -> None:
        """Elements before one that is there."""
        if not raws:
            return
        start, end, first = self._span(place, self._path(place[1]))
        if first == b'"':  # all of the content is one text
            self._changes += [
                (start, b"", b"[" + b",".join(raws) + b',{"type":"text","text":'),
                (end, b"", b"}]"),
            ]
        else:
            self._changes.append((start, b"", b"".join(raw + b"," for raw in raws)))

    def _replace(self, place: Place, raw: bytes) -> None:
        start, end, _ = self._span(place, self._path(place[1]))
        self._changes.append((start, self._reading.body[start:end], raw))

    # -- as members

    def _members(
        self, run: Sequence[tuple[Place, str]], anchors: Sequence[Place], thoughts: dict[int, Thought]
    ) -> None:
        kinds = self._kept.shape
        numbers = [place for place, kind in enumerate(kinds) if kind == "i"]
        if "t" in kinds:  # beside the content of the one message
            if len(thoughts) > 1 or len({index for index, _ in anchors}) > 1:
                raise _Unmended("the reply came back in several messages")
            there = [place for place, kind in run if kind == "t"]
            (thought,) = thoughts.values()
            fields = (thought.carrier.inside, *PLAIN_REASONING)
            if any(place[1].at[0] not in fields for place in there):
                raise _Unmended("other reasoning stands in its place")
            if not there or not self._same(thought, there[0]):
                self._member(anchors[-1], thought.carrier)
            return
        for place, anchor in zip(numbers, anchors, strict=True):
            if place in thoughts and not self._same(thoughts[place], anchor):
                self._member(anchor, thoughts[place].carrier)

    def _member(self, place: Place, carrier: Carrier) -> None:
        start, end, _ = self._span(place, ())
        message, path = self._reading.body[start:end], self._path(place[1])
        key = carrier.inside
        if self._request.dialect == "gemini":
            key = _spelt(message, path)
        change = set_member(message, path, key, carrier.raw)
        if change is None:
            raise _Unmended("its place was not found")
        at, gone, text = change
        self._changes.append((start + at, gone, text))

    # -- places

    def _path(self, item: Item) -> Path:
        return () if self._request.dialect in _APART else item.at

    def _span(self, place: Place, path: Path) -> tuple[int, int, bytes]:
        """Where something stands in the body, and how it begins."""
        message = span_of_message(self._dialect, self._reading, place[0])
        body = self._reading.body
        span = span_of(body[message[0] : message[1]], *path) if message is not None else None
        if message is None or span is None:
            raise _Unmended("its place was not found")
        start = message[0] + span[0]
        return start, message[0] + span[1], body[start : start + 1]


def _cut(kinds: Sequence[str], at_each: str = "i") -> list[list[int]]:
    """The numbers of what stands before each thing of a kind, and behind the last one."""
    gaps: list[list[int]] = [[]]
    for at, kind in enumerate(kinds):
        if kind == at_each:
            gaps.append([])
        else:
            gaps[-1].append(at)
    return gaps


def _assistant(message: Message) -> bool:
    return message.role == "assistant" or not message.items


def _spelt(message: bytes, path: Path) -> str:
    """How a part of Gemini's spells the signature."""
    for key in ("thoughtSignature", "thought_signature"):
        if span_of(message, *path, key) is not None:
            return key
    snake = span_of(message, *path, "function_call") is not None
    return "thought_signature" if snake else "thoughtSignature"


# -- what the provider says of it


_BLAME = re.compile(
    r"bound to a different conversation|thinking|thought[ _]?signature|signature|reasoning|encrypted",
    re.IGNORECASE,
)


def refused(attempt: Attempt) -> bool:
    """Whether the provider refused a request for what putting reasoning back can bring about."""
    error = attempt.reply.error
    if attempt.status not in (400, 422) or error is None:
        return False
    return _BLAME.search(f"{error.code or ''} {error.message}") is not None
