"""Gemini replies into one Outcome: a document, an event stream, or one big list.

Every chunk has the shape of a whole answer with a part of its content; usage is a running total
in most of them, so the last number of a kind counts. There is no terminal event: a finish reason
(or the reason why the prompt was blocked) says that the reply is whole. An error is one plain
object, whatever the content type says.

The one invariant: whatever the bytes and however they are split, nothing raises, and streamed and
whole forms of one answer give one Outcome.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from proxy.dialects.elements import Elements
from proxy.dialects.framing import Framing, load
from proxy.dialects.gemini_parts import PartReader, get
from proxy.model import Event, Item, Outcome, ProviderError, Usage
from proxy.reading.identity import KEPT

_MAX_ITEMS = 10_000
_MAX_KEPT = 64 * KEPT
_MAX_ERROR = 4_000
_FIRST_OUTPUT = Event("first_output")
_USAGE = Event("usage")
_SPACE = b" \t\r\n\xef\xbb\xbf"

_REASONS = (
    "FINISH_REASON_UNSPECIFIED", "STOP", "MAX_TOKENS", "SAFETY", "RECITATION", "OTHER", "BLOCKLIST",
    "PROHIBITED_CONTENT", "SPII", "MALFORMED_FUNCTION_CALL",
)  # fmt: skip
"""Finish reasons by number, for clients that ask for enums as integers."""

_MODALITIES = {"AUDIO": "audio", "IMAGE": "image", "VIDEO": "video"}


class GeminiDecoder:
    """Reads the reply to one ``:generateContent`` or ``:streamGenerateContent`` request."""

    __slots__ = (
        "_chars", "_elements", "_ended", "_error", "_extra", "_framing", "_id", "_items", "_model", "_others",
        "_parts", "_reader", "_seen", "_status", "_stop", "_usage",
    )  # fmt: skip

    def __init__(self, status: int) -> None:
        self._status = status
        self._framing: Framing | None = None
        self._elements: Elements | None = None
        self._reader = PartReader("assistant")
        self._items: list[Item] = []
        self._parts = 0
        self._chars = 0
        self._seen = False
        """A chunk that says something has come."""
        self._stop: str | None = None
        self._others = False
        """Further candidates come beside the first, or it went on behind its end: ends tell nothing."""
        self._ended: int | None = None
        """Characters of the first candidate when it last came to its end."""
        self._model: str | None = None
        self._id: str | None = None
        self._usage: dict[str, Any] = {}
        self._extra: dict[str, Any] = {}
        self._error: ProviderError | None = None

    def feed(self, data: bytes) -> Sequence[Event]:
        """Take plain body bytes."""
        if self._framing is None and self._elements is None:
            data = data.lstrip(_SPACE)
            if not data:
                return ()
            if data[0] == 0x5B:
                self._elements = Elements()
            else:
                self._framing = Framing()
        if self._elements is not None:
            chunks = self._elements.feed(data)
        elif self._framing is not None:
            chunks = [raw for _, raw in self._framing.feed(data)]
        else:
            chunks = []
        events: list[Event] = []
        for raw in chunks:
            self._chunk(load(raw), events)
        return events

    def repeats(self, data: bytes) -> bool:
        """Never: each event counts the tokens anew, so two differ in more than their words."""
        return False

    @property
    def whole(self) -> bool:
        """The one candidate has come to its end."""
        return self._stop is not None and not self._others and self._ended in (None, self._chars)

    def finish(self) -> Outcome:
        """The reply as far as it came."""
        events: list[Event] = []
        document = False
        if self._framing is not None:
            for _, raw in self._framing.finish():
                self._chunk(load(raw), events)
            document = not self._framing.streamed
            if document:
                self._chunk(self._framing.document, events)
                self._usage.update(self._framing.last_object("usageMetadata"))
        if self._error is None and self._status >= 400:
            self._error = ProviderError(f"http_{self._status}", "", str(self._status))
        said = document and self._seen
        whole = said or self._status >= 400 or (self._stop is not None and self._error is None)
        self._items.extend(self._reader.finish(cut=not whole))
        return Outcome(
            items=tuple(self._items[:_MAX_ITEMS]),
            usage=read_usage(self._usage, self._extra),
            stop_reason=self._stop,
            model=self._model,
            response_id=self._id,
            error=self._error,
            whole=whole,
            streamed_chars=self._chars,
            extra=self._extra,
        )

    def _chunk(self, chunk: Any, events: list[Event]) -> None:
        """Take one answer object, whole or partial."""
        if not isinstance(chunk, dict):
            return
        wrapped = chunk.get("response")
        if isinstance(wrapped, dict) and "candidates" not in chunk:
            chunk = wrapped
        if "error" in chunk:
            self._seen = True
            self._error = read_error(chunk["error"], self._status)
            events.append(Event("error"))
            return
        self._about(chunk)
        usage = get(chunk, "usageMetadata")
        if isinstance(usage, dict):
            self._usage.update(usage)
            events.append(_USAGE)
        candidates = chunk.get("candidates")
        candidate = _first(candidates)
        if isinstance(candidates, list) and (len(candidates) > 1 or (candidates and candidate is None)):
            self._others = True
        if candidate is not None:
            self._candidate(candidate, events)

    def _about(self, chunk: Mapping[str, Any]) -> None:
        model, name = get(chunk, "modelVersion"), get(chunk, "responseId")
        if isinstance(model, str) and model:
            self._model, self._seen = model, True
        if isinstance(name, str) and name:
            self._id, self._seen = name, True
        feedback = get(chunk, "promptFeedback")
        if isinstance(feedback, dict):
            self._seen = True
            self._extra["prompt_feedback"] = feedback
            reason = _reason(get(feedback, "blockReason"))
            if reason is not None and self._stop is None:
                self._stop = reason

    def _candidate(self, candidate: Mapping[str, Any], events: list[Event]) -> None:
        self._seen = True
        content = candidate.get("content")
        parts = content.get("parts") if isinstance(content, dict) else None
        for part in parts if isinstance(parts, list) else ():
            if not self._parts:
                events.append(_FIRST_OUTPUT)
            self._chars += _chars_of(part)
            if self._chars <= _MAX_KEPT and len(self._items) < _MAX_ITEMS:
                self._done(self._reader.add(part, ("parts", self._parts)), events)
            self._parts += 1
        reason = _reason(get(candidate, "finishReason"))
        if reason is not None:
            self._others = self._others or self._ended not in (None, self._chars)
            self._stop, self._ended = reason, self._chars
            self._done(self._reader.finish(), events)
        said = get(candidate, "finishMessage")
        if isinstance(said, str) and said:
            self._extra["finish_message"] = said[:_MAX_ERROR]
        grounding = get(candidate, "groundingMetadata")
        if isinstance(grounding, dict):
            queries = get(grounding, "webSearchQueries")
            if isinstance(queries, list):
                self._extra["web_search_queries"] = len(queries)

    def _done(self, items: list[Item], events: list[Event]) -> None:
        for item in items:
            self._items.append(item)
            events.append(Event("item", item))


def read_usage(raw: Mapping[str, Any], extra: dict[str, Any]) -> Usage | None:
    """``usageMetadata`` made inclusive: tool input is input, thoughts are output."""
    for name in ("serviceTier", "trafficType"):
        value = get(raw, name)
        if isinstance(value, str):
            extra["service_tier" if name == "serviceTier" else "traffic_type"] = value
    prompt, tools = _count(raw, "promptTokenCount"), _count(raw, "toolUsePromptTokenCount")
    said, thought = _count(raw, "candidatesTokenCount"), _count(raw, "thoughtsTokenCount")
    if prompt is None and said is None and thought is None:
        return None
    further: dict[str, int] = {}
    for place, side in (("promptTokensDetails", "input"), ("candidatesTokensDetails", "output")):
        details = get(raw, place)
        for one in details if isinstance(details, list) else ():
            kind = _MODALITIES.get(str(one.get("modality"))) if isinstance(one, dict) else None
            count = _count(one, "tokenCount") if kind else None
            if kind and count:
                further[f"{side}_{kind}_tokens"] = further.get(f"{side}_{kind}_tokens", 0) + count
    searches = extra.get("web_search_queries")
    if isinstance(searches, int):
        further["web_searches"] = searches
    return Usage(
        input_tokens=None if prompt is None else prompt + (tools or 0),
        cache_read_tokens=_count(raw, "cachedContentTokenCount"),
        output_tokens=None if said is None and thought is None else (said or 0) + (thought or 0),
        reasoning_tokens=thought,
        extra=further,
    )


def read_error(error: Any, status: int) -> ProviderError:
    """The error of an answer, a chunk, or a list's element."""
    if not isinstance(error, dict):
        return ProviderError(f"http_{status}", str(error)[:_MAX_ERROR])
    code, message = error.get("code"), error.get("message")
    return ProviderError(
        str(error.get("status") or f"http_{code or status}")[:256],
        message[:_MAX_ERROR] if isinstance(message, str) else "",
        str(code)[:256] if isinstance(code, (str, int)) else None,
    )


def _first(candidates: Any) -> Mapping[str, Any] | None:
    """The candidate that becomes history; further ones are alternatives that nobody sends back."""
    for candidate in candidates if isinstance(candidates, list) else ():
        if isinstance(candidate, dict) and candidate.get("index", 0) == 0:
            return candidate
    return None


def _reason(value: Any) -> str | None:
    if type(value) is int:
        value = _REASONS[value] if 0 <= value < len(_REASONS) else str(value)
    if not isinstance(value, str) or not value or value.endswith("_UNSPECIFIED"):
        return None
    return value


def _count(raw: Mapping[str, Any], name: str) -> int | None:
    value = get(raw, name)
    return value if type(value) is int and value >= 0 else None


def _chars_of(part: Any) -> int:
    if not isinstance(part, dict):
        return 0
    text = part.get("text")
    if isinstance(text, str):
        return len(text)
    call = get(part, "functionCall")
    return len(str(call.get("args") or "")) if isinstance(call, dict) else 0
