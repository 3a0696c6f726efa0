"""Chat Completions: what OpenAI began and a dozen providers speak, each a little differently.

Lives here: requests and their messages, whole and streamed replies, edits, refusals. Where
providers differ in usage, reasoning or caps is ``compat``; how errors look is ``openai_errors``.

The one invariant: an assistant message has one reading, whether it was streamed, came whole, or
was sent back by a client: reasoning, then text, then calls, each at most once but the calls.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from proxy.dialects import chat_message
from proxy.dialects.chat_stream import ChatDecoder
from proxy.dialects.compat import LISTED_REASONING, PLAIN_REASONING, cap_field, is_openai, nudge_role
from proxy.dialects.hints import last_ask, read_hints
from proxy.dialects.memo import Remembered
from proxy.dialects.nudges import behind, follower, nudged
from proxy.dialects.openai_errors import error_object, refuse
from proxy.dialects.refusals import plain_words, refusal_fields
from proxy.dialects.splice import lower_number, set_field, span_of
from proxy.model import Carrier, Head, Insertion, Item, Message, ModelRequest, Tool
from proxy.ports import ResponseDecoder, Unreadable
from proxy.reading.identity import KEPT, canonical, item_digest, without_marks
from proxy.verdict import Edit, Reply, Terminal

_CAPS = ("max_completion_tokens", "max_tokens")
_UNTOLD = frozenset({"tools", "functions"})
_DEPLOYMENT = re.compile(r"/(?:deployments|serving-endpoints)/([^/]+)/")
_MAX_CHOICES = 16


class OpenAIChat:
    """The dialect of ``/chat/completions``."""

    name = "openai_chat"
    list_key = "messages"

    def __init__(self) -> None:
        self._tools = Remembered(_tools)
        self._functions = Remembered(_functions)

    def read_message(self, raw: Any) -> Message:
        """Read one element of ``messages``."""
        return chat_message.read_message(raw)

    def read_request(
        self, head: Head, path: str, fields: Mapping[str, Any], messages: tuple[Message, ...]
    ) -> ModelRequest:
        """Put a request together. Azure names the model in the path."""
        model = fields.get("model")
        if not isinstance(model, str) or not model:
            deployment = _DEPLOYMENT.search(path)
            if deployment is None and not messages:
                raise Unreadable("a chat completion without model and messages")
            model = deployment[1] if deployment is not None else ""
        bound = fields.get("response_format")
        return ModelRequest(
            dialect="openai_chat",
            operation="chat",
            model=model,
            stream=fields.get("stream") is True,
            messages=messages,
            list_key=self.list_key,
            tools=self._tools(fields.get("tools")) + self._functions(fields.get("functions")),
            max_output_tokens=_cap(fields),
            hints=read_hints(head, fields, system=_begin(messages), ask=last_ask(messages)),
            output_schema=isinstance(bound, dict) and bound.get("type") == "json_schema",
            options={name: value for name, value in fields.items() if name not in _UNTOLD},
        )

    def decoder(self, request: ModelRequest, status: int, content_type: str) -> ResponseDecoder:
        """A decoder; what the reply is shows in its first byte, whatever its content type says."""
        return ChatDecoder(status)

    def edit_request(self, body: bytes, request: ModelRequest, edits: Sequence[Edit]) -> bytes:
        """``clamp`` lowers the cap in place, ``nudge`` adds a last message, ``land`` also forbids calls.

        Other kinds change nothing.
        """
        for edit in edits:
            if edit.kind == "clamp" and edit.max_output_tokens is not None:
                body = _clamp(body, request.model, edit.max_output_tokens)
            elif edit.kind in ("nudge", "land"):
                body = nudged(self, body, request, edit.text) if edit.text else body
                if edit.kind == "land" and request.tools:
                    old = span_of(body, "functions") is not None and span_of(body, "tools") is None
                    body = set_field(body, (), "function_call" if old else "tool_choice", b'"none"') or body
        return body

    def nudge(self, request: ModelRequest, text: str) -> Carrier | None:
        """A message of its own, in the name of whoever may speak there."""
        role = nudge_role(request.model, request.messages[-1].role if request.messages else "user")
        return Carrier(orjson.dumps({"role": role, "content": text})) if role is not None else None

    def insertions(
        self, message: bytes, carrier: Carrier, request: ModelRequest, index: int
    ) -> Sequence[Insertion] | None:
        """Behind the message; never between a call and its results, nor in a role that the model lacks."""
        foreign = b'"role":"developer"' in carrier.raw and not is_openai(request.model)
        return None if foreign or follower(request, index) == "tool" else behind(message, carrier)

    def thought(self, item: Item, request: ModelRequest) -> Carrier | None:
        """The field beside the content: typed pieces where there are some, else the plain text."""
        if item.kind != "thinking" or len(item.text) >= KEPT or len(item.signature or "") >= KEPT:
            return None
        if item.pieces and item.form in LISTED_REASONING:
            return Carrier(orjson.dumps(item.pieces), inside=item.form)
        plain = item.form in PLAIN_REASONING and item.signature is None
        return Carrier(orjson.dumps(item.text), inside=item.form) if plain else None

    def refusal(self, request: ModelRequest | None, why: Terminal, request_id: str) -> Reply:
        """An error (400), or for ``message`` a whole reply that says what was reached."""
        if why.kind != "message" or request is None:
            return refuse(why, request_id)
        if request.stream:
            fields = refusal_fields(why, request_id, b"text/event-stream; charset=utf-8")
            return Reply(200, fields, _streamed_reply(request, why, request_id))
        return Reply(
            200, refusal_fields(why, request_id, b"application/json"), _whole_reply(request, why, request_id)
        )

    def closing_frames(self, request: ModelRequest, why: Terminal) -> bytes:
        """An error chunk, which SDKs raise, and the end mark; nothing where the reply is one document."""
        if not request.stream:
            return b""
        return _frame({"error": error_object(why)}) + b"data: [DONE]\n\n"


# -- reading


def _begin(messages: Sequence[Message]) -> str:
    """The instructions, where the list begins with them."""
    items = messages[0].items if messages else ()
    return next((item.text for item in items if item.kind == "system"), "")


def _tools(listed: Any) -> tuple[Tool, ...]:
    tools: list[Tool] = []
    for raw in listed if isinstance(listed, list) else ():
        if isinstance(raw, dict):
            kind = str(raw.get("type", "function"))
            inner = raw.get(kind)
            name = (inner if isinstance(inner, dict) else raw).get("name")
            server = kind not in ("function", "custom")
            tools.append(Tool(name if isinstance(name, str) else kind, _digest(raw), server))
    return tuple(tools)


def _functions(listed: Any) -> tuple[Tool, ...]:
    """The older form, without a type."""
    raws = [raw for raw in listed if isinstance(raw, dict)] if isinstance(listed, list) else []
    return tuple(Tool(str(raw.get("name", "")), _digest(raw)) for raw in raws)


def _digest(raw: Any) -> bytes:
    return item_digest("tool", "system", canonical(without_marks(raw, chat_message.MARKS)))


def _cap(fields: Mapping[str, Any]) -> int | None:
    for name in _CAPS:
        value = fields.get(name)
        if isinstance(value, int) and not isinstance(value, bool):
            return value
    return None


# -- editing


def _clamp(body: bytes, model: str, most: int) -> bytes:
    """Lower every cap that the request has; give it one where it has none."""
    spans = {name: span for name in _CAPS if (span := span_of(body, name)) is not None}
    if any(body[start:end] != b"null" for start, end in spans.values()):
        for name in spans:
            body = lower_number(body, (name,), most)
        return body
    return set_field(body, (), cap_field(model), b"%d" % most) or body


# -- speaking


def _about(request: ModelRequest, request_id: str, kind: str) -> dict[str, Any]:
    return {"id": f"chatcmpl-{request_id}", "object": kind, "created": 0, "model": request.model}


def _choices(request: ModelRequest) -> range:
    wanted = request.options.get("n")
    return range(min(wanted, _MAX_CHOICES) if isinstance(wanted, int) and wanted > 1 else 1)


_NOTHING = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}


def _whole_reply(request: ModelRequest, why: Terminal, request_id: str) -> bytes:
    message = {"role": "assistant", "content": plain_words(why.message), "refusal": None}
    choices = [
        {"index": index, "message": message, "logprobs": None, "finish_reason": "stop"}
        for index in _choices(request)
    ]
    return orjson.dumps(
        {**_about(request, request_id, "chat.completion"), "choices": choices, "usage": _NOTHING}
    )


def _streamed_reply(request: ModelRequest, why: Terminal, request_id: str) -> bytes:
    about = _about(request, request_id, "chat.completion.chunk")
    frames: list[bytes] = []
    for index in _choices(request):
        delta = {"role": "assistant", "content": plain_words(why.message)}
        for said, reason in ((delta, None), ({}, "stop")):
            choice = {"index": index, "delta": said, "logprobs": None, "finish_reason": reason}
            frames.append(_frame({**about, "choices": [choice]}))
    wanted = request.options.get("stream_options")
    if isinstance(wanted, dict) and wanted.get("include_usage") is True:
        frames.append(_frame({**about, "choices": [], "usage": _NOTHING}))
    return b"".join((*frames, b"data: [DONE]\n\n"))


def _frame(value: Mapping[str, Any]) -> bytes:
    return b"data: " + orjson.dumps(value, default=str) + b"\n\n"
