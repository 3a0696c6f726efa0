"""Responses: OpenAI's item format, spoken by Codex, the newer SDK loops and some other providers.

Lives here: requests, edits, refusals. One item is ``responses_item``, a reply ``responses_stream``.
Not here: WebSocket upgrades (the data port answers them), stored responses (no model calls).

The one invariant: whatever stands in ``input``, string or items, is read as one list of messages,
one a top-level item.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from proxy.dialects import responses_item
from proxy.dialects.hints import last_ask, read_hints
from proxy.dialects.memo import Remembered
from proxy.dialects.nudges import behind, follower, nudged
from proxy.dialects.openai_errors import error_object, refuse
from proxy.dialects.refusals import plain_words, refusal_fields
from proxy.dialects.responses_stream import ResponsesDecoder
from proxy.dialects.splice import lower_number, set_field, span_of
from proxy.model import Carrier, Head, Insertion, Item, Message, ModelRequest, Operation, Tool
from proxy.ports import ResponseDecoder, Unreadable
from proxy.reading.identity import canonical, clip, item_digest, text_digest, without_marks
from proxy.verdict import Edit, Reply, Terminal

_CAP = "max_output_tokens"
_UNTOLD = frozenset({"tools", "instructions"})
_OPERATIONS: Mapping[str, Operation] = {"/compact": "compact", "/input_tokens": "count"}
_CLIENT_TOOLS = frozenset(
    {"function", "custom", "local_shell", "shell", "apply_patch", "computer", "computer_use_preview"}
)
_AFTER_ALL = 1_000_000
"""A sequence number above any that a stream reaches."""


class OpenAIResponses:
    """The dialect of ``/responses``."""

    name = "openai_responses"
    list_key = "input"

    def __init__(self) -> None:
        self._tools = Remembered(_tools)

    def read_message(self, raw: Any) -> Message:
        """Read one element of ``input``, or a string that stands in its place."""
        return responses_item.read_message(raw)

    def read_request(
        self, head: Head, path: str, fields: Mapping[str, Any], messages: tuple[Message, ...]
    ) -> ModelRequest:
        """Put a request together. A stored prompt may name the model instead.

        A ``GET`` asks for a reply that was made in the background: ``held`` is that reply's id.
        """
        if head.method == "GET":
            return _fetch(head, path)
        model = fields.get("model")
        if not isinstance(model, str):
            model = ""
        held = _held(fields)
        if not model and not messages and held is None and "prompt" not in fields:
            raise Unreadable("a response without model and input")
        instructions = fields.get("instructions")
        system: tuple[Item, ...] = ()
        if isinstance(instructions, str) and instructions:
            digest = text_digest("system", "system", instructions)
            system = (
                Item(
                    "system",
                    "system",
                    clip(instructions),
                    form="instructions",
                    at=("instructions",),
                    digest=digest,
                ),
            )
        text = fields.get("text")
        bound = text.get("format") if isinstance(text, dict) else None
        cap = fields.get(_CAP)
        return ModelRequest(
            dialect="openai_responses",
            operation=next(
                (op for tail, op in _OPERATIONS.items() if path.rstrip("/").endswith(tail)), "chat"
            ),
            model=model,
            stream=fields.get("stream") is True,
            messages=messages,
            list_key=self.list_key,
            system=system,
            tools=self._tools(fields.get("tools")),
            max_output_tokens=cap if isinstance(cap, int) and not isinstance(cap, bool) else None,
            hints=read_hints(head, fields, system=_begin(system, messages), ask=last_ask(messages)),
            held=held,
            output_schema=isinstance(bound, dict) and bound.get("type") == "json_schema",
            options={name: value for name, value in fields.items() if name not in _UNTOLD},
        )

    def decoder(self, request: ModelRequest, status: int, content_type: str) -> ResponseDecoder:
        """A decoder; what the reply is shows in its first byte, whatever its content type says."""
        return ResponsesDecoder(status)

    def edit_request(self, body: bytes, request: ModelRequest, edits: Sequence[Edit]) -> bytes:
        """``clamp`` lowers the cap in place, ``nudge`` adds a last message, ``land`` also forbids calls.

        Other kinds change nothing.
        """
        for edit in edits:
            if edit.kind == "clamp" and edit.max_output_tokens is not None:
                body = _clamp(body, edit.max_output_tokens)
            elif edit.kind in ("nudge", "land") and request.operation == "chat":
                body = nudged(self, body, request, edit.text) if edit.text else body
                if edit.kind == "land" and request.tools:
                    body = set_field(body, (), "tool_choice", b'"none"') or body
        return body

    def nudge(self, request: ModelRequest, text: str) -> Carrier | None:
        """A developer message behind the input; never behind a reply that is still to be continued."""
        if request.operation != "chat" or (request.messages and request.messages[-1].role == "assistant"):
            return None
        return Carrier(orjson.dumps({"type": "message", "role": "developer", "content": text}))

    def insertions(
        self, message: bytes, carrier: Carrier, request: ModelRequest, index: int
    ) -> Sequence[Insertion] | None:
        """Behind the item; an input that is one string becomes a list."""
        if message[:1] == b'"':
            return [(0, b'[{"role":"user","content":'), (len(message), b"}," + carrier.raw + b"]")]
        return None if follower(request, index) == "tool" else behind(message, carrier)

    def thought(self, item: Item, request: ModelRequest) -> Carrier | None:
        """A reasoning item; one without its content only where the provider keeps it under its id."""
        stored = bool(item.item_id) and request.options.get("store") is not False
        if item.kind != "thinking" or item.form != "reasoning" or not (item.signature or stored):
            return None
        raw: dict[str, Any] = {"type": "reasoning"}
        if item.item_id:
            raw["id"] = item.item_id
        raw["summary"] = [{"type": "summary_text", "text": text} for text in item.summary]
        if item.signature:
            raw["encrypted_content"] = item.signature
        return Carrier(orjson.dumps(raw))

    def refusal(self, request: ModelRequest | None, why: Terminal, request_id: str) -> Reply:
        """An error (400), or for ``message`` a whole reply that says what was reached.

        A history that the provider holds cannot take in a reply of ours: there it is the error.
        """
        if (
            why.kind != "message"
            or request is None
            or request.held is not None
            or request.operation != "chat"
        ):
            return refuse(why, request_id)
        if request.stream:
            fields = refusal_fields(why, request_id, b"text/event-stream; charset=utf-8")
            return Reply(200, fields, _streamed_reply(request, why, request_id))
        fields = refusal_fields(why, request_id, b"application/json")
        item = _message(plain_words(why.message), request_id)
        return Reply(200, fields, orjson.dumps(_response(request, request_id, "completed", [item])))

    def closing_frames(self, request: ModelRequest, why: Terminal) -> bytes:
        """``response.failed`` with ``invalid_prompt``: the one code that Codex takes as final and shows."""
        if not request.stream:
            return b""
        response = _response(request, "looptap", "failed", [])
        response["usage"] = None  # what the provider will bill is not ours to say
        told = error_object(why)
        response["error"] = {"code": "invalid_prompt", "message": told["message"], "looptap": told["looptap"]}
        return _frame("response.failed", _AFTER_ALL, {"response": response})


# -- reading


def _fetch(head: Head, path: str) -> ModelRequest:
    """``GET /responses/ID``, with ``stream=true`` to go on with its events."""
    query = head.target.partition("?")[2]
    return ModelRequest(
        dialect="openai_responses",
        operation="fetch",
        model="",
        stream="stream=true" in query.split("&"),
        messages=(),
        held=path.rstrip("/").rpartition("/")[2],
    )


def _held(fields: Mapping[str, Any]) -> str | None:
    """The history at the provider that this request goes on with."""
    previous = fields.get("previous_response_id")
    if isinstance(previous, str) and previous:
        return previous
    conversation = fields.get("conversation")
    if isinstance(conversation, dict):
        conversation = conversation.get("id")
    return conversation if isinstance(conversation, str) and conversation else None


def _begin(system: tuple[Item, ...], messages: Sequence[Message]) -> str:
    """The instructions, here or at the beginning of the list."""
    items = (*system, *(messages[0].items if messages else ()))
    return next((item.text for item in items if item.kind == "system"), "")


def _tools(listed: Any) -> tuple[Tool, ...]:
    tools: list[Tool] = []
    for raw in listed if isinstance(listed, list) else ():
        if isinstance(raw, dict):
            inner = raw.get("tools") if raw.get("type") == "namespace" else None
            named = inner if isinstance(inner, list) else [raw]
            tools.extend(_tool(one) for one in named if isinstance(one, dict))
    return tuple(tools)


def _tool(raw: Mapping[str, Any]) -> Tool:
    kind = str(raw.get("type", "function"))
    name = raw.get("name") or raw.get("server_label")
    digest = item_digest("tool", "system", canonical(without_marks(raw, frozenset({"cache_control"}))))
    return Tool(name if isinstance(name, str) else kind, digest, kind not in _CLIENT_TOOLS)


# -- editing


def _clamp(body: bytes, most: int) -> bytes:
    span = span_of(body, _CAP)
    if span is None or body[span[0] : span[1]] == b"null":
        return set_field(body, (), _CAP, b"%d" % most) or body
    return lower_number(body, (_CAP,), most)


# -- speaking


def _response(
    request: ModelRequest, request_id: str, status: str, output: list[dict[str, Any]]
) -> dict[str, Any]:
    return {
        "id": f"resp_{request_id}",
        "object": "response",
        "created_at": 0,
        "status": status,
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "metadata": {},
        "model": request.model,
        "output": output,
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": {
            "input_tokens": 0,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": 0,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": 0,
        },
    }


def _message(text: str, request_id: str) -> dict[str, Any]:
    return {
        "id": f"msg_{request_id}",
        "type": "message",
        "status": "completed",
        "role": "assistant",
        "content": [_part(text)],
    }


def _part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": []}


def _streamed_reply(request: ModelRequest, why: Terminal, request_id: str) -> bytes:
    text = plain_words(why.message)
    item = _message(text, request_id)
    begun = {**_response(request, request_id, "in_progress", []), "usage": None}
    here = {"output_index": 0}
    there = {**here, "item_id": item["id"], "content_index": 0}
    events: tuple[tuple[str, dict[str, Any]], ...] = (
        ("response.created", {"response": begun}),
        ("response.in_progress", {"response": begun}),
        ("response.output_item.added", {**here, "item": {**item, "status": "in_progress", "content": []}}),
        ("response.content_part.added", {**there, "part": _part("")}),
        ("response.output_text.delta", {**there, "delta": text, "logprobs": []}),
        ("response.output_text.done", {**there, "text": text, "logprobs": []}),
        ("response.content_part.done", {**there, "part": _part(text)}),
        ("response.output_item.done", {**here, "item": item}),
        ("response.completed", {"response": _response(request, request_id, "completed", [item])}),
    )
    return b"".join(_frame(name, number, data) for number, (name, data) in enumerate(events))


def _frame(name: str, number: int, data: Mapping[str, Any]) -> bytes:
    body = orjson.dumps({"type": name, "sequence_number": number, **data}, default=str)
    return b"event: " + name.encode() + b"\ndata: " + body + b"\n\n"
