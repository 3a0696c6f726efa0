"""Reads a Chat Completions reply: chunks of a stream, or one document, into the same Outcome.

Lives here: putting deltas together. What a provider may do in a stream and is borne: no index or
no id in call deltas, several calls under one index, whole arguments at once, content as parts, an
empty ``choices``, usage in any chunk (the last counts), a second finish chunk, ids that change,
errors under status 200, no ``[DONE]``.

The one invariant: a streamed reply and the same reply as a document give equal Outcomes.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import orjson

from proxy.dialects import chat_message as reading
from proxy.dialects.compat import LISTED_REASONING, PLAIN_REASONING, read_usage, reported_cost
from proxy.dialects.framing import Frame, Framing
from proxy.dialects.openai_errors import http_error, read_error
from proxy.dialects.refrain import Refrain
from proxy.model import Event, Item, Outcome, ProviderError, Usage
from proxy.reading.identity import KEPT, RunningText

_FIRST = Event("first_output")
_USAGE = Event("usage")
_ERROR = Event("error")
_MAX_ARGUMENTS = 4 * KEPT
_MAX_CALLS = 1_000
_MAX_DETAILS = 100_000


class _Call:
    """A call whose arguments still arrive."""

    __slots__ = ("arguments", "call_id", "form", "name", "size")

    def __init__(self, form: str) -> None:
        self.form = form
        self.name = ""
        self.call_id: str | None = None
        self.arguments: list[str] = []
        self.size = 0

    def add(self, piece: str) -> None:
        if self.size < _MAX_ARGUMENTS:
            self.arguments.append(piece)
        self.size += len(piece)


class ChatDecoder:
    """One reply of ``choices[0]``; further choices only count through the usage."""

    __slots__ = (
        "_audio", "_begun", "_by_index", "_calls", "_chars", "_details", "_done", "_ended", "_error",
        "_extra", "_field", "_framing", "_last", "_listed", "_model", "_others", "_parts", "_piece",
        "_plain", "_refrain", "_refusal", "_response_id", "_status", "_stop", "_text", "_told", "_usage",
        "_whole",
    )  # fmt: skip

    def __init__(self, status: int) -> None:
        self._status = status
        self._framing = Framing()
        self._refrain = Refrain()
        self._piece = ""
        """What the newest chunk that was read with care said, if it said nothing else."""
        self._text = RunningText("text", "assistant")
        self._refusal = RunningText("text", "assistant")
        self._plain = RunningText("thinking", "assistant")
        self._parts = RunningText("thinking", "assistant")
        self._field = ""
        self._listed = ""
        self._details: list[Any] = []
        self._audio: dict[str, Any] = {}
        self._calls: list[_Call] = []
        self._by_index: dict[Any, _Call] = {}
        self._last: _Call | None = None
        self._usage: Usage | None = None
        self._error: ProviderError | None = None
        self._model: str | None = None
        self._response_id: str | None = None
        self._stop: str | None = None
        self._extra: dict[str, Any] = {}
        self._begun = 0
        """Items that have begun."""
        self._whole = False
        self._others = False
        """Further choices come beside the first, or it went on behind its end: ends tell nothing."""
        self._ended: int | None = None
        """Characters of the first choice when it last came to its end."""
        self._done = False
        """The end mark has come."""
        self._chars = 0
        self._told: list[Item] = []
        """Items announced as complete, in their order."""

    # -- the port

    def feed(self, data: bytes) -> Sequence[Event]:
        """Take decoded body bytes."""
        if self.repeats(data):
            return ()
        frames = self._framing.feed(data)
        self._refrain.between(self._framing.at_rest)
        if not frames:
            return ()
        events: list[Event] = []
        self._piece = ""
        for frame in frames:
            self._frame(frame, events)
        if self._piece and len(frames) == 1 and not events:
            self._refrain.learn(data, frames[0], self._piece)
        return events

    def repeats(self, data: bytes) -> bool:
        """Take the bytes if they are further chunks that only say more."""
        pieces = self._refrain.again(data)
        if pieces is None:
            return False
        more = "".join(pieces)
        self._chars += len(more)
        self._text.add(more)
        return True

    @property
    def whole(self) -> bool:
        """The one choice has come to its end, or all of them and the end mark."""
        return self._done or (self._ended == self._chars and not self._others)

    def finish(self) -> Outcome:
        """The reply as far as it came."""
        for frame in self._framing.finish():
            self._frame(frame, [])
        if self._framing.streamed:
            items = tuple(map(self._as_told, range(self._begun), self._items()))
        else:
            items = self._document(self._framing.document)
        error = self._error
        if error is None and self._status >= 400:
            error = http_error(self._status)
        return Outcome(
            items=items,
            usage=self._usage,
            stop_reason=self._stop,
            model=self._model,
            response_id=self._response_id,
            error=error,
            whole=self._whole,
            streamed_chars=self._chars,
            extra=self._extra,
        )

    # -- a document

    def _document(self, document: Any) -> tuple[Item, ...]:
        self._error = read_error(document, failed=self._status >= 400)
        if not isinstance(document, dict):
            return ()
        self._about(document)
        self._whole = self._status < 400
        choice = _first_choice(document.get("choices"))
        if choice is None:
            return ()
        self._ending(choice)
        message = choice.get("message")
        if not isinstance(message, dict):
            return ()
        self._chars = _spoken_chars(message)
        return reading.assistant_items(message, replied=True)

    # -- a stream

    def _frame(self, frame: Frame, events: list[Event]) -> None:
        name, data = frame
        try:
            chunk = orjson.loads(data)
        except ValueError:
            if data[:6] == b"[DONE]":
                self._whole = self._done = True
                self._announce(events, done=True)
            return
        if type(chunk) is not dict:
            return
        choices = chunk.get("choices")
        listed: list[Any] = choices if type(choices) is list else []
        choice: Any = listed[0] if listed else None
        if choice is not None and (
            len(listed) > 1 or type(choice) is not dict or choice.get("index", 0) != 0
        ):
            choice = _first_choice(listed)
            self._others = self._others or len(listed) > 1 or choice is None
        if choice is not None:
            delta = choice.get("delta")
            if type(delta) is dict:
                self._delta(delta, events)
            reason = choice.get("finish_reason")
            if reason is not None:
                self._piece = ""
                self._ending(choice)
            if reason:  # some write an empty one into each chunk
                self._others = self._others or self._ended not in (None, self._chars)
                self._whole, self._ended = True, self._chars
                self._announce(events, done=True)
        if self._response_id is None or chunk.get("usage") or chunk.get("x_groq"):
            self._piece = ""  # what it tells about the reply may have changed in between
            known = self._usage
            self._about(chunk)
            if self._usage is not known:
                events.append(_USAGE)
        if "error" in chunk or name == "error" or self._stop == "error":
            self._failed(read_error(chunk, failed=name == "error"), events)

    def _failed(self, error: ProviderError | None, events: list[Event]) -> None:
        if error is None and self._stop == "error" and self._error is None:
            error = ProviderError("error", "the reply ended in an error")
        if error is not None and (self._error is None or self._error.type == "error"):
            self._error = error
            events.append(_ERROR)

    def _delta(self, delta: Mapping[str, Any], events: list[Event]) -> None:
        known = self._begun
        content = delta.get("content")
        if content:
            if type(content) is str:
                if not self._text.chars:
                    self._begin(events)
                self._chars += len(content)
                self._text.add(content)
                if len(delta) == 1 and self._begun == known:
                    self._piece = content
                    return  # most chunks end here
            else:
                self._content_parts(content, events)
        self._reasoning(delta, events)
        refusal = delta.get("refusal")
        if refusal and isinstance(refusal, str):
            if not self._refusal.chars:
                self._begin(events)
            self._refusal.add(refusal)
            self._chars += len(refusal)
        audio = delta.get("audio")
        if audio and isinstance(audio, dict) and audio.get("id") and not self._audio:
            self._begin(events)
            self._audio["id"] = audio["id"]
        calls = delta.get("tool_calls")
        if calls and isinstance(calls, list):
            for raw in calls:
                if isinstance(raw, dict):
                    self._call(raw, events)
        else:
            legacy = delta.get("function_call")
            if legacy and isinstance(legacy, dict) and any(legacy.values()):
                self._grow(self._open("function_call", "function_call", events), legacy)
        if self._begun != known:
            self._announce(events, done=False)

    def _begin(self, events: list[Event]) -> None:
        """Another item begins."""
        if not self._begun:
            events.append(_FIRST)
        self._begun += 1

    def _content_parts(self, content: Any, events: list[Event]) -> None:
        text, thought = reading.text_of(content), reading.thoughts(content)
        self._chars += len(text) + len(thought)
        if text:
            if not self._text.chars:
                self._begin(events)
            self._text.add(text)
        if thought:
            self._think(events)
            self._parts.add(thought)

    def _reasoning(self, delta: Mapping[str, Any], events: list[Event]) -> None:
        for name in PLAIN_REASONING:
            value = delta.get(name)
            if value and isinstance(value, str):
                self._think(events)
                self._field = self._field or name
                if name == self._field:
                    self._plain.add(value)
                    self._chars += len(value)
                break
        for name in LISTED_REASONING:
            value = delta.get(name)
            if value and isinstance(value, list):
                self._think(events)
                self._listed = name
                if len(self._details) < _MAX_DETAILS:
                    self._details.extend(value)

    def _think(self, events: list[Event]) -> None:
        if not (self._plain.chars or self._parts.chars or self._details):
            self._begin(events)

    # -- calls

    def _call(self, raw: Mapping[str, Any], events: list[Event]) -> None:
        index, call_id = raw.get("index"), raw.get("id")
        if not isinstance(index, (int, str)):
            index = None
        form, inner = reading.call_body(raw)
        found = self._by_index.get(index) if index is not None else self._last
        names_another = bool(call_id) and bool(inner.get("name"))
        if found is not None and names_another and found.call_id not in (None, call_id):
            found = None  # several calls under one index, or none
        if found is None and index is None and not inner.get("name") and not call_id:
            found = self._last
        if found is None:
            self._by_index.pop(index, None)
            found = self._open(index, form, events)
        if isinstance(call_id, str) and call_id and found.call_id is None:
            found.call_id = call_id
        self._last = found
        self._grow(found, inner)

    def _open(self, index: Any, form: str, events: list[Event]) -> _Call:
        found = self._by_index.get(index) if index is not None else None
        if found is None:
            self._begin(events)
            found = _Call(form)
            if len(self._calls) < _MAX_CALLS:
                self._calls.append(found)
            if index is not None:
                self._by_index[index] = found
        return found

    def _grow(self, found: _Call, inner: Mapping[str, Any]) -> None:
        name = inner.get("name")
        if isinstance(name, str) and not found.name:
            found.name = name
        piece = inner.get("input") if found.form == "custom" else inner.get("arguments")
        if piece is not None:
            text = reading.argument_text(piece)
            found.add(text)
            self._chars += len(text)

    # -- what is complete

    def _announce(self, events: list[Event], *, done: bool) -> None:
        """Say which items are complete: all that stand before the newest, in the end all."""
        ready = self._begun - (0 if done else 1)
        if ready > len(self._told):
            fresh = self._items(len(self._told))[: ready - len(self._told)]
            events.extend(Event("item", item) for item in fresh)
            self._told.extend(fresh)

    def _as_told(self, place: int, item: Item) -> Item:
        """The very item that was announced, unless more of it came afterwards."""
        known = self._told[place] if place < len(self._told) else None
        return known if known == item else item

    def _items(self, start: int = 0) -> tuple[Item, ...]:
        """The items from a place on, as far as they have come: those before it are not made again."""
        said: list[Callable[[], Item]] = []
        if self._plain.chars or self._details or self._parts.chars:
            said.append(self._thought)
        if self._text.chars:
            said.append(lambda: reading.said(self._text.text(), self._text.digest()))
        if self._refusal.chars:
            said.append(lambda: reading.refused(self._refusal.text()))
        if self._audio:
            said.append(lambda: reading.spoken_audio(self._audio))
        first_call = max(0, start - len(said))
        calls = map(self._asked, range(first_call, len(self._calls)), self._calls[first_call:])
        return (*(make() for make in said[start:]), *calls)

    def _thought(self) -> Item:
        plain, parts = self._plain.text(), self._parts.text()
        return reading.thinking(self._field, plain, self._listed, self._details, parts, replied=True)

    @staticmethod
    def _asked(index: int, one: _Call) -> Item:
        at = ("function_call",) if one.form == "function_call" else ("tool_calls", index)
        return reading.call(one.name, one.call_id, "".join(one.arguments), one.form, at)

    # -- what stands around the message

    def _about(self, chunk: Mapping[str, Any]) -> None:
        if self._response_id is None:
            self._response_id = _word(chunk.get("id"))
        if self._model is None:
            self._model = _word(chunk.get("model"))
        raw = chunk.get("usage")
        if not isinstance(raw, dict):
            groq = chunk.get("x_groq")
            raw = groq.get("usage") if isinstance(groq, dict) else None
        if isinstance(raw, dict) and (usage := read_usage(raw)) is not None:
            self._usage = usage
            cost = reported_cost(raw)
            if cost is not None:
                self._extra["cost_usd"] = cost
        for name in ("service_tier", "provider"):
            value = _word(chunk.get(name))
            if value is not None:
                self._extra[name] = value

    def _ending(self, choice: Mapping[str, Any]) -> None:
        reason = choice.get("finish_reason")
        if isinstance(reason, str) and (reason or self._stop is None):
            self._stop = reason
        native = _word(choice.get("native_finish_reason"))
        if native is not None:
            self._extra["native_finish_reason"] = native


def _first_choice(choices: Any) -> Mapping[str, Any] | None:
    """The choice that goes on as the conversation: index 0."""
    if not isinstance(choices, list):
        return None
    for choice in choices:
        if isinstance(choice, dict) and choice.get("index") in (0, None):
            return choice
    return None


def _spoken_chars(message: Mapping[str, Any]) -> int:
    """Characters of output in a whole message, counted as a stream of it would be."""
    content = message.get("content")
    total = len(reading.text_of(content)) + len(reading.thoughts(content))
    total += next((len(v) for name in PLAIN_REASONING if isinstance(v := message.get(name), str) and v), 0)
    refusal = message.get("refusal")
    total += len(refusal) if isinstance(refusal, str) else 0
    listed = message.get("tool_calls")
    bearers = [raw for raw in listed if isinstance(raw, dict)] if isinstance(listed, list) else []
    inner = [reading.call_body(raw)[1] for raw in bearers]
    legacy = message.get("function_call")
    if isinstance(legacy, dict) and not bearers:
        inner.append(legacy)
    for one in inner:
        total += len(reading.argument_text(one.get("arguments", one.get("input"))))
    return total


def _word(value: Any) -> str | None:
    return value[:500] if isinstance(value, str) and value else None
