"""Gemini generateContent: requests, edits and refusals (AI Studio, Vertex, publisher paths).

The model stands in the path, the verb says whether the reply is streamed, and field names come in
two spellings. Parts are read in ``gemini_parts``, replies in ``gemini_stream``.

The one invariant: an edit changes the bytes it must and no others, and a body that is not what it
should be stays as it is.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from proxy.dialects.gemini_parts import get, read_message, read_parts
from proxy.dialects.gemini_stream import GeminiDecoder
from proxy.dialects.hints import last_ask, read_hints
from proxy.dialects.memo import Remembered
from proxy.dialects.nudges import nudged, within
from proxy.dialects.refusals import plain_words, refusal_fields, shown
from proxy.dialects.splice import insert_field, replace_number, replace_value, span_of
from proxy.model import Carrier, Head, Insertion, Item, Message, ModelRequest, Operation, Tool
from proxy.ports import ResponseDecoder, Unreadable
from proxy.reading.identity import canonical, item_digest, without_marks
from proxy.verdict import Edit, Reply, Terminal

_VERB = re.compile(r"/([^/:]+):(generateContent|streamGenerateContent|countTokens)$")
_SSE = re.compile(r"[?&](?:\$|%24)?alt=sse(?:[;%&]|$)")

_OPTIONS = (
    "generationConfig", "toolConfig", "serviceTier", "cachedContent", "labels", "continuationToken",
)  # fmt: skip
_SCHEMAS = ("responseSchema", "responseJsonSchema", "responseFormat")
_NONE: frozenset[str] = frozenset()


class Gemini:
    """The dialect of ``…/models/MODEL:generateContent``."""

    name = "gemini"
    list_key = "contents"

    def __init__(self) -> None:
        self._tools = Remembered(_tools)

    def read_message(self, raw: Any) -> Message:
        """Read one element of ``contents``."""
        return read_message(raw)

    def read_request(
        self, head: Head, path: str, fields: Mapping[str, Any], messages: tuple[Message, ...]
    ) -> ModelRequest:
        """Put a request together. Raises Unreadable for other verbs of this API."""
        match = _VERB.search(path)
        if match is None:
            raise Unreadable("no model call")
        operation: Operation = "count" if match[2] == "countTokens" else "chat"
        if operation == "chat" and not messages:
            raise Unreadable("a request without contents")
        instruction = get(fields, "systemInstruction")
        if isinstance(instruction, dict):
            instruction = instruction.get("parts")
        system = read_parts(instruction, "system", "systemInstruction")
        config = get(fields, "generationConfig")
        config = config if isinstance(config, dict) else {}
        cap = get(config, "maxOutputTokens")
        options = {name: get(fields, name) for name in _OPTIONS if get(fields, name) is not None}
        if _SSE.search(head.target):
            options["alt"] = "sse"
        if (wanted := get(config, "candidateCount")) is not None:
            options["n"] = wanted  # as elsewhere: each of them may be as long as the limit lets it
        return ModelRequest(
            dialect="gemini",
            operation=operation,
            model=match[1],
            stream=match[2] == "streamGenerateContent",
            messages=messages,
            list_key=self.list_key,
            system=system,
            tools=self._tools(fields.get("tools")),
            max_output_tokens=cap if type(cap) is int and cap >= 0 else None,
            hints=read_hints(
                head, fields, system="\n".join(item.text for item in system), ask=last_ask(messages)
            ),
            output_schema=any(isinstance(get(config, name), dict) for name in _SCHEMAS),
            options=options,
        )

    def decoder(self, request: ModelRequest, status: int, content_type: str) -> ResponseDecoder:
        """A decoder for the reply; the reply's own bytes tell which form it has."""
        return GeminiDecoder(status)

    def edit_request(self, body: bytes, request: ModelRequest, edits: Sequence[Edit]) -> bytes:
        """The body with the edits applied, each where it finds its lawful place."""
        for edit in edits:
            edited: bytes | None = None
            if edit.kind == "clamp" and edit.max_output_tokens is not None:
                edited = _clamp(body, edit.max_output_tokens)
            elif edit.kind in ("nudge", "land"):
                edited = nudged(self, body, request, edit.text) if edit.text else body
                if edit.kind == "land" and request.tools:
                    edited = _without_calls(edited)
            body = edited if edited is not None else body
        return body

    def nudge(self, request: ModelRequest, text: str) -> Carrier | None:
        """One more text part in the last user content, behind its results: a content of its own would
        begin a new turn, in which the provider asks for no more signatures, but also forgets the old."""
        if not request.messages or request.messages[-1].role != "user":
            return None
        return Carrier(orjson.dumps({"text": text}), inside="parts")

    def insertions(
        self, message: bytes, carrier: Carrier, request: ModelRequest, index: int
    ) -> Sequence[Insertion] | None:
        """Behind the parts of the content."""
        return within(message, carrier)

    def thought(self, item: Item, request: ModelRequest) -> Carrier | None:
        """A signature in the part of a call: what bears it elsewhere need not come back."""
        if item.kind != "tool_call" or item.server or not item.signature:
            return None
        return Carrier(orjson.dumps(item.signature), inside="thoughtSignature")

    def refusal(self, request: ModelRequest | None, why: Terminal, request_id: str) -> Reply:
        """An error that clients of this API take as final (400), or a final message."""
        if why.kind == "message" and request is not None:
            return _message(request, why, request_id)
        body = orjson.dumps({"error": _error(why)}, default=str)
        return Reply(_status(why), refusal_fields(why, request_id, b"application/json; charset=UTF-8"), body)

    def closing_frames(self, request: ModelRequest, why: Terminal) -> bytes:
        """An error as the last chunk; SDKs know it by its beginning, so nothing may precede it."""
        error = orjson.dumps({"error": _error(why)}, default=str)
        return b"data: " + error + b"\r\n\r\n" if request.options.get("alt") == "sse" else b"," + error + b"]"


# -- reading


def _tools(raw: Any) -> tuple[Tool, ...]:
    """Functions by name; every other member of a tool is something that the provider runs."""
    tools: list[Tool] = []
    for one in raw if isinstance(raw, list) else [raw]:
        if not isinstance(one, dict):
            continue
        declared = get(one, "functionDeclarations")
        for function in declared if isinstance(declared, list) else ():
            if isinstance(function, dict):
                name = function.get("name")
                tools.append(Tool(name if isinstance(name, str) else "", _digest(function)))
        for name, member in one.items():
            if name not in ("functionDeclarations", "function_declarations") and member is not None:
                tools.append(Tool(name, _digest({name: member}), server=True))
    return tuple(tools)


def _digest(definition: Any) -> bytes:
    return item_digest("tool", "system", canonical(without_marks(definition, _NONE)))


# -- edits


def _place(body: bytes, *path: str) -> tuple[str, ...] | None:
    """A path of members in the spelling that the body uses; None where it is not there."""
    found: tuple[str, ...] = ()
    for name in path:
        snake = re.sub(r"([A-Z])", lambda match: "_" + match[1].lower(), name)
        spelled = next((way for way in (name, snake) if span_of(body, *found, way) is not None), None)
        if spelled is None:
            return None
        found = (*found, spelled)
    return found


def _clamp(body: bytes, most: int) -> bytes | None:
    place = _place(body, "generationConfig", "maxOutputTokens")
    if place is not None:
        return replace_number(body, place, most)
    config = _place(body, "generationConfig")
    if config is not None:
        edited = insert_field(body, config, "maxOutputTokens", b"%d" % most)
        return edited or replace_value(body, config, b'{"maxOutputTokens":%d}' % most)
    return insert_field(body, (), "generationConfig", b'{"maxOutputTokens":%d}' % most)


def _without_calls(body: bytes) -> bytes | None:
    none = b'{"mode":"NONE"}'
    place = _place(body, "toolConfig", "functionCallingConfig")
    if place is not None:
        return replace_value(body, place, none)
    config = _place(body, "toolConfig")
    if config is not None:
        edited = insert_field(body, config, "functionCallingConfig", none)
        return edited or replace_value(body, config, b'{"functionCallingConfig":' + none + b"}")
    return insert_field(body, (), "toolConfig", b'{"functionCallingConfig":' + none + b"}")


# -- our own answers


def _status(why: Terminal) -> int:
    return 429 if why.retry_after_s is not None else 400


def _error(why: Terminal) -> dict[str, Any]:
    details: list[dict[str, Any]] = [
        {
            "@type": "type.googleapis.com/google.rpc.ErrorInfo",
            "reason": why.code.upper(),
            "domain": "looptap",
            "metadata": {name: str(value) for name, value in shown(why).items() if value is not None},
        }
    ]
    if why.retry_after_s is not None:
        delay = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": f"{why.retry_after_s}s"}
        details.append(delay)
    return {
        "code": _status(why),
        "message": plain_words(why.message),
        "status": "RESOURCE_EXHAUSTED" if why.retry_after_s is not None else "FAILED_PRECONDITION",
        "details": details,
    }


def _message(request: ModelRequest, why: Terminal, request_id: str) -> Reply:
    """A whole answer that says what was reached, in the form that was asked for."""
    content = {"role": "model", "parts": [{"text": plain_words(why.message)}]}
    answer = orjson.dumps(
        {
            "candidates": [{"content": content, "finishReason": "STOP", "index": 0}],
            "usageMetadata": {"promptTokenCount": 0, "candidatesTokenCount": 0, "totalTokenCount": 0},
            "modelVersion": request.model,
            "responseId": request_id,
        }
    )
    kind = b"application/json; charset=UTF-8"
    if request.stream and request.options.get("alt") == "sse":
        kind, answer = b"text/event-stream", b"data: " + answer + b"\r\n\r\n"
    elif request.stream:
        answer = b"[" + answer + b"]"
    return Reply(200, refusal_fields(why, request_id, kind), answer)
