"""Reads a Responses reply: events of a stream, or one document, into the same Outcome.

Lives here: which event says what, and how the three tellings of one item are told apart.
``output_item.done`` is the item (its encrypted reasoning is what clients send back); the final
response's spelling of the same proof is kept as a variant, that of ``.added``, which may be cut, is not.
The final response has the last word on status, usage, error and order, and adds items that were
never streamed; it may also list nothing at all. A stream cut short is read from its deltas.

The one invariant: a streamed reply and the same reply as a document give equal Outcomes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import orjson

from proxy.dialects import responses_item as reading
from proxy.dialects.compat import read_usage, reported_cost
from proxy.dialects.framing import Frame, Framing
from proxy.dialects.openai_errors import http_error, read_error
from proxy.model import Event, Item, Outcome, ProviderError, Usage
from proxy.reading.identity import KEPT, RunningText

_FIRST = Event("first_output")
_USAGE = Event("usage")
_ERROR = Event("error")
_MAX_ITEMS = 10_000

_TERMINAL = frozenset(
    {"response.completed", "response.failed", "response.incomplete", "response.cancelled", "response.done"}
)
_ERRORS = frozenset({"error", "response.error"})
_TEXT_DELTA = "response.output_text.delta"
_DELTAS = {
    "response.refusal.delta": "refusal",
    "response.reasoning_text.delta": "thinking",
    "response.reasoning_summary_text.delta": "summary",
    "response.function_call_arguments.delta": "arguments",
    "response.custom_tool_call_input.delta": "arguments",
    "response.mcp_call_arguments.delta": "arguments",
    "response.code_interpreter_call_code.delta": "arguments",
}
"""Events that carry a piece of an item; the last two count as output, their item comes whole."""


_DEFERRED = frozenset({"queued", "in_progress"})
"""Statuses of a whole answer whose reply is still being made in the background."""


class _Slot:
    """One item of the output while it streams."""

    __slots__ = (
        "added", "arguments", "at", "done", "item_id", "refusal", "summary", "text", "thinking", "told",
    )  # fmt: skip

    def __init__(self, at: int) -> None:
        self.at = at
        self.added: Mapping[str, Any] = {}
        self.done: Mapping[str, Any] | None = None
        self.item_id: str | None = None
        self.told: tuple[Item, ...] = ()
        """The items announced as complete."""
        self.text = RunningText("text", "assistant")
        self.refusal = RunningText("text", "assistant")
        self.thinking = RunningText("thinking", "assistant")
        self.summary = RunningText("thinking", "assistant")
        self.arguments = RunningText("tool_call", "assistant")

    def part(self, kind: str) -> RunningText:
        """The text that a kind of delta belongs to."""
        found: RunningText = getattr(self, kind)
        return found


class ResponsesDecoder:
    """One reply."""

    __slots__ = (
        "_chars", "_error", "_extra", "_final", "_first", "_framing", "_model", "_response_id", "_slots",
        "_status", "_stop", "_usage", "_whole",
    )  # fmt: skip

    def __init__(self, status: int) -> None:
        self._status = status
        self._framing = Framing()
        self._slots: dict[int, _Slot] = {}
        self._final: list[Any] = []
        """``output`` of the final response."""
        self._usage: Usage | None = None
        self._error: ProviderError | None = None
        self._model: str | None = None
        self._response_id: str | None = None
        self._stop: str | None = None
        self._extra: dict[str, Any] = {}
        self._first = False
        self._whole = False
        self._chars = 0

    # -- the port

    def feed(self, data: bytes) -> Sequence[Event]:
        """Take decoded body bytes."""
        frames = self._framing.feed(data)
        if not frames:
            return ()
        events: list[Event] = []
        for frame in frames:
            self._frame(frame, events)
        return events

    def repeats(self, data: bytes) -> bool:
        """Never: each event has a number of its own, so two differ in more than their words."""
        return False

    @property
    def whole(self) -> bool:
        """A final event has come."""
        return self._whole

    def finish(self) -> Outcome:
        """The reply as far as it came."""
        for frame in self._framing.finish():
            self._frame(frame, [])
        if not self._framing.streamed:
            self._document(self._framing.document)
        items = self._items()
        error = self._error
        if error is None and self._status >= 400:
            error = http_error(self._status)
        return Outcome(
            items=items,
            usage=self._priced(items),
            stop_reason=self._stop,
            model=self._model,
            response_id=self._response_id,
            error=error,
            whole=self._whole,
            deferred=self._whole and self._stop in _DEFERRED,
            streamed_chars=self._chars,
            extra=self._extra,
        )

    # -- a document, which the final event carries too

    def _document(self, document: Any) -> None:
        if isinstance(document, dict) and isinstance(document.get("output"), list):
            self._response(document)
            self._whole = self._status < 400
            self._chars = sum(_spoken_chars(raw) for raw in self._final)
        else:
            self._error = read_error(document, failed=self._status >= 400)

    def _response(self, response: Mapping[str, Any]) -> None:
        """Take over what a final response says."""
        self._about(response)
        output = response.get("output")
        self._final = (
            [raw for raw in output if isinstance(raw, dict)][:_MAX_ITEMS] if isinstance(output, list) else []
        )
        status = response.get("status")
        if isinstance(status, str):
            self._stop = status
        raw = response.get("usage")
        if isinstance(raw, dict):
            self._usage = read_usage(raw)
            cost = reported_cost(raw)
            if cost is not None:
                self._extra["cost_usd"] = cost
        self._searches(response.get("tool_usage"))
        error = read_error(response)
        if error is not None and not error.type:
            error = replace(error, type=error.code or "")
        if error is None and status == "failed":
            error = ProviderError("failed", "the response failed")
        self._error = error or self._error
        details = response.get("incomplete_details")
        if isinstance(details, dict) and isinstance(details.get("reason"), str):
            self._extra["incomplete_reason"] = details["reason"]
        changed = response.get("input_transformations")
        if isinstance(changed, list) and changed:
            self._extra["input_transformations"] = changed

    def _about(self, response: Mapping[str, Any]) -> None:
        self._response_id = _word(response.get("id")) or self._response_id
        self._model = _word(response.get("model")) or self._model
        tier = _word(response.get("service_tier"))
        if tier is not None:
            self._extra["service_tier"] = tier

    def _searches(self, used: Any) -> None:
        """Tool units that the reply itself counts."""
        if not isinstance(used, dict) or self._usage is None:
            return
        extra = dict(self._usage.extra)
        for member, name in (("web_search", "web_searches"), ("file_search", "storage_searches")):
            inner = used.get(member)
            count = inner.get("num_requests") if isinstance(inner, dict) else None
            if isinstance(count, int) and count > 0:
                extra[name] = count
        self._usage = replace(self._usage, extra=extra)

    def _priced(self, items: tuple[Item, ...]) -> Usage | None:
        """The usage with searches counted from the items, where the reply does not count them."""
        usage = self._usage
        if usage is None:
            return None
        extra = dict(usage.extra)
        for tool, name in (("web_search", "web_searches"), ("file_search", "storage_searches")):
            count = sum(item.server and item.kind == "tool_call" and item.tool == tool for item in items)
            if count and name not in extra:
                extra[name] = count
        return replace(usage, extra=extra)

    # -- a stream

    def _frame(self, frame: Frame, events: list[Event]) -> None:
        try:
            event = orjson.loads(frame[1])
        except ValueError:
            return
        if type(event) is not dict:
            return
        kind = event.get("type") or frame[0]
        if kind == _TEXT_DELTA:
            self._delta(event, "text", events)
        elif not isinstance(kind, str):
            return
        elif kind in _DELTAS:
            self._delta(event, _DELTAS[kind], events)
        elif kind == "response.output_item.added":
            self._added(event, events)
        elif kind == "response.output_item.done":
            self._done(event, events)
        elif kind in _TERMINAL:
            self._terminal(event, events)
        elif kind in _ERRORS or (kind == "" and event.get("error")):
            self._failed(event, events)
        elif isinstance(event.get("response"), dict):
            self._about(event["response"])

    def _slot(self, event: Mapping[str, Any]) -> _Slot | None:
        index = self._index(event)
        slot = self._slots.get(index)
        if slot is None and len(self._slots) < _MAX_ITEMS:
            slot = self._slots[index] = _Slot(index)
            item_id = event.get("item_id")
            slot.item_id = item_id if isinstance(item_id, str) else None
        return slot

    def _index(self, event: Mapping[str, Any]) -> int:
        """The place of an event's item. Where a server numbers none, ids and the order tell them apart."""
        index = event.get("output_index")
        if type(index) is int:
            return index
        item = event.get("item")
        item_id = item.get("id") if isinstance(item, dict) else event.get("item_id")
        newest = -1
        for at, slot in self._slots.items():
            if item_id and slot.item_id == item_id:
                return at
            newest = max(newest, at)
        if newest < 0:
            return 0
        last = self._slots[newest]
        another = bool(item_id and last.item_id) or last.done is not None
        return newest + 1 if another or event.get("type") == "response.output_item.added" else newest

    def _delta(self, event: Mapping[str, Any], kind: str, events: list[Event]) -> None:
        piece = event.get("delta")
        if not piece or not isinstance(piece, str):
            return
        if not self._first:
            self._began(events)
        self._chars += len(piece)
        slot = self._slot(event)
        if slot is None:
            return
        text = slot.part(kind)
        if kind == "summary" and event.get("summary_index") and text.chars:
            _paragraph(slot, event["summary_index"], text)
        if kind != "arguments" or text.chars < 4 * KEPT:
            text.add(piece)

    def _began(self, events: list[Event]) -> None:
        if not self._first:
            self._first = True
            events.append(_FIRST)

    def _added(self, event: Mapping[str, Any], events: list[Event]) -> None:
        item, slot = event.get("item"), self._slot(event)
        if isinstance(item, dict) and slot is not None:
            self._began(events)
            slot.added = item
            slot.item_id = _word(item.get("id"))

    def _done(self, event: Mapping[str, Any], events: list[Event]) -> None:
        item, slot = event.get("item"), self._slot(event)
        if not isinstance(item, dict) or slot is None:
            return
        self._began(events)
        slot.done = item
        slot.item_id = _word(item.get("id")) or slot.item_id
        slot.told = _told(slot, None, ("output", slot.at))
        events.extend(Event("item", one) for one in slot.told)

    def _terminal(self, event: Mapping[str, Any], events: list[Event]) -> None:
        response = event.get("response")
        if not isinstance(response, dict):
            response = {"error": event.get("error")}
        known = self._error
        self._response(response)
        self._whole = True
        if self._stop is None and event.get("type") != "response.done":
            self._stop = str(event.get("type")).partition(".")[2]
        if self._usage is not None:
            events.append(_USAGE)
        if self._error is not known:
            events.append(_ERROR)

    def _failed(self, event: Mapping[str, Any], events: list[Event]) -> None:
        inner = event if isinstance(event.get("error"), (dict, str)) else {"error": {**event, "type": ""}}
        error = read_error(inner)
        if error is not None and not error.type:
            error = replace(error, type=error.code or "error")
        self._error = error or self._error
        events.append(_ERROR)

    # -- the items in the end

    def _items(self) -> tuple[Item, ...]:
        left = dict(self._slots)
        items: list[Item] = []
        for index, raw in enumerate(self._final):
            slot = _counterpart(index, raw, left)
            items.extend(_told(slot, raw, ("output", index)))
        at = len(self._final)
        for slot in left.values():
            told = _told(slot, None, ("output", at))
            items.extend(told)
            at += bool(told)
        return tuple(items)


def _counterpart(index: int, raw: Mapping[str, Any], left: dict[int, _Slot]) -> _Slot | None:
    """The streamed telling of an item of the final response: by id, else by place and type."""
    item_id = raw.get("id")
    for at, slot in left.items():
        if item_id and slot.item_id == item_id:
            return left.pop(at)
    here = left.get(index)
    if here is not None and (here.done or here.added).get("type") == raw.get("type"):
        return left.pop(index)
    return None


def _told(slot: _Slot | None, final: Mapping[str, Any] | None, at: tuple[str | int, ...]) -> tuple[Item, ...]:
    """One item from up to three tellings, with the other spellings of its proof."""
    if slot is None:
        return reading.items_of(final, at) if final is not None else ()
    main = slot.done if slot.done is not None else final
    if main is None:
        return _cut(slot, at)
    items = reading.items_of(main, at)
    if main.get("type") in ("reasoning", "compaction"):
        items = _with_variants(items, slot, final)
    return slot.told if items == slot.told else items


def _with_variants(items: tuple[Item, ...], slot: _Slot, final: Mapping[str, Any] | None) -> tuple[Item, ...]:
    proofs: list[str] = []
    for telling in (slot.done, final):
        sealed = telling.get("encrypted_content") if telling is not None else None
        if isinstance(sealed, str) and sealed and sealed not in proofs:
            proofs.append(sealed)
    return tuple(
        replace(item, variants=tuple(one for one in proofs if one != item.signature)) for item in items
    )


def _cut(slot: _Slot, at: tuple[str | int, ...]) -> tuple[Item, ...]:
    """What had come of an item whose end never came."""
    kind = slot.added.get("type")
    if kind in ("function_call", "custom_tool_call"):
        name, call_id = _word(slot.added.get("name")), _word(slot.added.get("call_id"))
        arguments = slot.arguments.text()
        return (reading.call(name or "", arguments, str(kind), call_id or slot.item_id, slot.item_id, at),)
    thought = slot.thinking.text() or slot.summary.text()
    if kind == "reasoning" or thought:
        return (Item("thinking", "assistant", thought, form="reasoning", item_id=slot.item_id, at=at),)
    if slot.text.chars:
        return (reading.said(slot.text.text(), slot.text.digest(), slot.item_id, (*at, "content")),)
    if slot.refusal.chars:
        text, digest = slot.refusal.text(), slot.refusal.digest()
        place = (*at, "content", 0)
        return (
            Item("text", "assistant", text, form="refusal", item_id=slot.item_id, at=place, digest=digest),
        )
    return reading.items_of(slot.added, at) if kind not in (None, "message") else ()


def _paragraph(slot: _Slot, index: Any, text: RunningText) -> None:
    """A further part of a summary stands on a line of its own, as in the whole item."""
    seen = slot.added.get("_parts", 0)
    if isinstance(index, int) and index > seen:
        slot.added = {**slot.added, "_parts": index}
        text.add("\n")


def _spoken_chars(raw: Mapping[str, Any]) -> int:
    """Characters of output in a whole item, counted as a stream of it would be."""
    total = 0
    for member in ("content", "summary"):
        listed = raw.get(member)
        for part in listed if isinstance(listed, list) else ():
            if isinstance(part, dict):
                words = part.get("text") if part.get("type") != "refusal" else part.get("refusal")
                total += len(words) if isinstance(words, str) else 0
    for member in ("arguments", "input", "code"):
        words = raw.get(member)
        total += len(words) if isinstance(words, str) else 0
    return total


def _word(value: Any) -> str | None:
    return value[:500] if isinstance(value, str) and value else None
