"""Anthropic replies, streamed or whole, into one Outcome.

The stream's grammar: ``message_start``, then blocks (start, deltas, stop), ``message_delta`` once
or more, ``message_stop``; ``ping`` and ``error`` anywhere; unknown frames are passed over. Numbers
in ``message_delta.usage`` are running totals: they replace, they never add. A whole reply is read
by the same functions, so both forms of one answer give one Outcome.

The one invariant: whatever the bytes and however they are split, nothing raises, and what is kept
is bounded (a long text keeps its beginning and the digest of all of it).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import orjson

from proxy.dialects.anthropic_blocks import call_item, read_block, text_item
from proxy.dialects.anthropic_usage import billing_lines, read_usage
from proxy.dialects.framing import Framing, load
from proxy.dialects.refrain import Refrain
from proxy.model import Event, Item, Outcome, ProviderError
from proxy.reading.identity import KEPT, RunningText, canonical, canonical_arguments

_MAX_BLOCKS = 10_000
_MAX_ARGUMENTS = 16 * KEPT
"""Characters of one call's arguments that are kept to be read as JSON."""
_MAX_KEPT = 64 * KEPT
"""Characters of a whole reply that are kept; beyond, only usage and the end are read."""
_MAX_ERROR = 4_000

_FIRST_OUTPUT = Event("first_output")
_USAGE = Event("usage")
_EXTRA = ("container", "stop_details", "stop_sequence", "input_transformations", "diagnostics")
_SERVED = ("service_tier", "speed", "inference_geo")


class _Block:
    """One content block on its way."""

    __slots__ = ("arguments", "item", "joined", "raw", "signature", "size", "text")

    def __init__(self, raw: dict[str, Any]) -> None:
        self.raw = raw
        kind = "text" if raw.get("type") == "text" else "thinking"
        self.text = RunningText(kind, "assistant")
        start = raw.get("text") if kind == "text" else raw.get("thinking")
        if isinstance(start, str) and start:
            self.text.add(start)
        self.arguments: list[str] = []
        self.size = 0
        self.signature: str | None = None
        """The newest that was told: the official clients assign it."""
        self.joined = ""
        """All that was told, one behind the other: what others send back where a gateway cut it up."""
        self.item: Item | None = None
        """Set when the block has come to its end."""


class AnthropicDecoder:
    """Reads the reply to one ``/v1/messages`` request."""

    __slots__ = (
        "_blocks", "_chars", "_error", "_events", "_framing", "_growing", "_kept",
        "_message", "_refrain", "_status", "_stopped", "_usage",
    )  # fmt: skip

    def __init__(self, status: int) -> None:
        self._status = status
        self._framing = Framing()
        self._refrain = Refrain()
        self._growing: tuple[_Add, _Block] | None = None
        """What the refrain's string is added to."""
        self._message: dict[str, Any] = {}
        """The message object as it has come together, less its content."""
        self._usage: dict[str, Any] = {}
        self._blocks: dict[int, _Block] = {}
        self._error: ProviderError | None = None
        self._stopped = False
        self._chars = 0
        self._kept = 0
        self._events: list[Event] = []

    def feed(self, data: bytes) -> Sequence[Event]:
        """Take plain body bytes."""
        if self.repeats(data):
            return ()
        frames = self._framing.feed(data)
        self._refrain.between(self._framing.at_rest)
        if not frames:
            return ()
        self._events = []
        grown = None
        for _, raw in frames:
            grown = self._frame(raw)
        if grown is not None and len(frames) == 1:
            add, block, piece = grown
            if self._refrain.learn(data, frames[0], piece):
                self._growing = (add, block)
        return self._events

    def repeats(self, data: bytes) -> bool:
        """Take the bytes if they are further deltas like the one that was learned from."""
        if self._growing is None or (pieces := self._refrain.again(data)) is None:
            return False
        add, block = self._growing
        more = "".join(pieces)
        if self._kept + len(more) <= _MAX_KEPT and block.size + len(more) <= _MAX_ARGUMENTS:
            add(self, block, more)
        else:  # what is kept ends within a piece's bounds, however the pieces came
            for piece in pieces:
                add(self, block, piece)
        return True

    @property
    def whole(self) -> bool:
        """``message_stop`` has come."""
        return self._stopped

    def finish(self) -> Outcome:
        """The reply as far as it came."""
        for _, raw in self._framing.finish():
            self._frame(raw)
        if not self._framing.streamed:
            tail = self._framing.last_object("usage")
            if tail:
                return Outcome(usage=read_usage(tail), whole=True)
            return whole_outcome(self._framing.document, self._status)
        items: list[Item] = []
        for index in sorted(self._blocks):
            block = self._blocks[index]
            if block.item is not None:
                items.append(block.item)
            elif (cut := self._cut(index, block)) is not None:
                items.append(cut)
        return _outcome(
            self._message, self._usage, tuple(items), self._error,
            whole=self._stopped and self._error is None, chars=self._chars,
        )  # fmt: skip

    def _frame(self, raw: bytes) -> "_Grown | None":
        """Take one event; what it added to which block, if that is all it did."""
        try:
            frame = orjson.loads(raw)
        except ValueError:
            frame = load(raw)
        if not isinstance(frame, dict):
            return None
        kind = frame.get("type")
        if kind == "content_block_delta":
            delta = frame.get("delta")
            index = frame.get("index")
            block = self._blocks.get(index) if type(index) is int else None
            if block is not None and isinstance(delta, dict):
                return self._grow(block, delta)
        elif kind == "content_block_start":
            self._start(frame)
        elif kind == "content_block_stop":
            self._stop(frame.get("index"))
        elif kind == "message_delta":
            self._merge(frame.get("delta"), frame.get("usage"))
            self._merge({name: frame[name] for name in _TOP if name in frame}, None)
        elif kind == "message_start":
            message = frame.get("message")
            if isinstance(message, dict):
                self._merge(message, message.get("usage"))
        elif kind == "message_stop":
            self._stopped = True
        elif kind == "error":
            self._error = read_error(frame, self._status)
            self._events.append(Event("error"))
        return None

    def _merge(self, members: Any, usage: Any) -> None:
        """Take over what a frame says of the message; null says nothing."""
        if isinstance(members, dict):
            for name, value in members.items():
                if value is not None and name not in ("content", "usage"):
                    self._message[name] = value
        if isinstance(usage, dict):
            for name, value in usage.items():
                if value is not None:
                    self._usage[name] = value
            self._events.append(_USAGE)

    def _start(self, frame: Mapping[str, Any]) -> None:
        raw, index = frame.get("content_block"), frame.get("index")
        if not isinstance(raw, dict) or type(index) is not int or len(self._blocks) >= _MAX_BLOCKS:
            return
        if not self._blocks:
            self._events.append(_FIRST_OUTPUT)
        if index in self._blocks:
            self._growing = None
        self._blocks[index] = _Block(raw)

    def _grow(self, block: _Block, delta: Mapping[str, Any]) -> "_Grown | None":
        kind = delta.get("type")
        if kind == "signature_delta":
            piece = delta.get("signature")
            if isinstance(piece, str):
                block.signature = piece
                block.joined += piece if len(block.joined) + len(piece) <= _MAX_ARGUMENTS else ""
            return None
        member, add = _GROWING.get(kind, ("", None)) if type(kind) is str else ("", None)
        if add is None:
            _grow_otherwise(block, delta)
        elif type(piece := delta.get(member)) is str:
            add(self, block, piece)
            return add, block, piece
        return None

    def _say(self, block: _Block, piece: str) -> None:
        """More text, or thinking."""
        size = len(piece)
        self._chars += size
        if self._room(size):
            block.text.add(piece)

    def _ask(self, block: _Block, piece: str) -> None:
        """More of a call's arguments."""
        size = len(piece)
        self._chars += size
        block.size += size
        if piece and block.size <= _MAX_ARGUMENTS and self._room(size):
            block.arguments.append(piece)

    def _room(self, size: int) -> bool:
        self._kept += size
        return self._kept <= _MAX_KEPT

    def _stop(self, index: Any) -> None:
        block = self._blocks.get(index) if type(index) is int else None
        if block is None or block.item is not None:
            return
        block.item = _item(index, block)
        self._events.append(Event("item", block.item))

    def _cut(self, index: int, block: _Block) -> Item | None:
        """An unfinished block of a reply that broke off; a half call is none."""
        if self._stopped or (block.raw.get("type") in ("text", "thinking") and block.text.chars):
            return _item(index, block)
        return None


_Add = Callable[[AnthropicDecoder, _Block, str], None]
_Grown = tuple[_Add, _Block, str]
_GROWING: Mapping[str, tuple[str, _Add]] = {
    "text_delta": ("text", AnthropicDecoder._say),
    "thinking_delta": ("thinking", AnthropicDecoder._say),
    "input_json_delta": ("partial_json", AnthropicDecoder._ask),
}
"""Kinds of deltas: which member grows, and how."""
_TOP = ("context_management", "input_transformations", "diagnostics", "model", "container")


def _grow_otherwise(block: _Block, delta: Mapping[str, Any]) -> None:
    """A delta of another kind (``compaction_delta`` …): its texts belong to the block's members."""
    for name, value in delta.items():
        if name in ("type", "citation") or value is None:
            continue
        known = block.raw.get(name)
        if (
            isinstance(value, str)
            and isinstance(known, str)
            and name not in ("signature", "encrypted_content")
        ):
            if len(known) < KEPT:
                block.raw[name] = known + value
        else:
            block.raw[name] = value


def _item(index: int, block: _Block) -> Item:
    at = ("content", index)
    form = block.raw.get("type")
    if form == "text":
        return text_item("assistant", block.text.text(), at, digest=block.text.digest())
    if form == "thinking":
        signature = block.signature or block.raw.get("signature")
        return Item(
            "thinking",
            "assistant",
            block.text.text(),
            form="thinking",
            signature=signature if isinstance(signature, str) and signature else None,
            variants=(block.joined,) if block.joined and block.joined != signature else (),
            at=at,
        )
    if block.arguments:
        return call_item(block.raw, canonical_arguments("".join(block.arguments)), at)
    if block.signature is not None:
        block.raw["signature"] = block.signature
    return read_block(block.raw, "assistant", at)


# -- whole replies


def whole_outcome(document: Any, status: int) -> Outcome:
    """A plain JSON reply, or an error answer."""
    if not isinstance(document, dict):
        if status >= 400:
            return Outcome(error=ProviderError(f"http_{status}", ""), whole=True)
        return Outcome()
    if status >= 400 or document.get("type") == "error" or "error" in document:
        return Outcome(error=read_error(document, status), whole=True)
    content = document.get("content")
    blocks = content if isinstance(content, list) else []
    items = tuple(
        read_block(block, "assistant", ("content", index)) for index, block in enumerate(blocks[:_MAX_BLOCKS])
    )
    usage = document.get("usage")
    members = {name: value for name, value in document.items() if value is not None}
    return _outcome(
        members, usage if isinstance(usage, dict) else {}, items, None,
        whole=True, chars=sum(map(_chars_of, blocks)),
    )  # fmt: skip


def read_error(body: Mapping[str, Any], status: int) -> ProviderError:
    """The error in an answer's body or in a frame of the stream."""
    error = body.get("error", body)
    if isinstance(error, str):
        return ProviderError(f"http_{status}", error[:_MAX_ERROR])
    if not isinstance(error, dict):
        return ProviderError(f"http_{status}", "")
    details = error.get("details")
    code = details.get("error_code") if isinstance(details, dict) else None
    code = code or error.get("code")
    message = error.get("message") or body.get("message")
    return ProviderError(
        str(error.get("type") or f"http_{status}")[:256],
        message[:_MAX_ERROR] if isinstance(message, str) else "",
        str(code)[:256] if isinstance(code, (str, int)) else None,
    )


def _chars_of(block: Any) -> int:
    if not isinstance(block, dict):
        return 0
    text = block.get("text") or block.get("thinking")
    if isinstance(text, str):
        return len(text)
    return len(canonical(block["input"])) if block.get("input") else 0


# -- both


def _outcome(
    message: Mapping[str, Any],
    raw_usage: Mapping[str, Any],
    items: tuple[Item, ...],
    error: ProviderError | None,
    *,
    whole: bool,
    chars: int,
) -> Outcome:
    model = _text(message.get("model"))
    extra = {name: message[name] for name in _EXTRA if message.get(name) is not None}
    extra |= {name: raw_usage[name] for name in _SERVED if isinstance(raw_usage.get(name), str)}
    management = message.get("context_management")
    if isinstance(management, dict) and management.get("applied_edits"):
        extra["applied_edits"] = management["applied_edits"]
    usage = read_usage(raw_usage)
    return Outcome(
        items=items,
        usage=usage,
        billing=billing_lines(raw_usage, model or "", usage),
        stop_reason=_text(message.get("stop_reason")),
        model=model,
        response_id=_text(message.get("id")),
        error=error,
        whole=whole,
        streamed_chars=chars,
        extra=extra,
    )


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None
