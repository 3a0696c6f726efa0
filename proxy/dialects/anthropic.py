"""Anthropic Messages: requests, edits and refusals (``/v1/messages``, count_tokens, Vertex).

Lives here: what a request says beside its messages, where text for the model may lawfully be put,
and our own answers in this API's shape. Blocks are read in ``anthropic_blocks``, replies in
``anthropic_stream``.

The one invariant: an edit changes the bytes it must and no others, and a body that is not what it
should be stays as it is.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import orjson

from proxy.dialects.anthropic_blocks import MARKS, read_message, text_item
from proxy.dialects.anthropic_stream import AnthropicDecoder
from proxy.dialects.hints import last_ask, read_hints
from proxy.dialects.memo import Remembered
from proxy.dialects.nudges import behind, follower, nudged, within
from proxy.dialects.refusals import plain_words, refusal_fields, shown
from proxy.dialects.splice import insert_field, replace_number, set_field, span_of
from proxy.model import (
    Carrier,
    Head,
    Hints,
    Insertion,
    Item,
    Message,
    ModelRequest,
    Operation,
    Tool,
)
from proxy.ports import ResponseDecoder, Unreadable
from proxy.reading.identity import KEPT, canonical, item_digest, without_marks
from proxy.structs import replace
from proxy.verdict import Edit, Reply, Terminal

_OPTIONS = (
    "thinking", "tool_choice", "service_tier", "speed", "inference_geo", "context_management", "metadata",
    "output_config", "cache_control", "container", "fallbacks", "compaction", "billing_policy", "thread",
    "anthropic_version",
)  # fmt: skip
"""Fields that policies and prices read. ``mcp_servers`` is not among them: it holds credentials."""

_VERTEX = re.compile(r"/models/([^/:]+):(?:rawPredict|streamRawPredict)$")

_SERVER_TOOLS = (
    "web_search", "web_fetch", "code_execution", "tool_search", "mcp_toolset", "advisor",
    "bash_code_execution", "text_editor_code_execution",
)  # fmt: skip
"""How the types of tools begin that the provider runs; ``bash_…`` or ``computer_…`` are the client's."""

_MODEL = re.compile(r"claude-([a-z]+)-(\d{1,2})(?:[.-](\d{1,2}))?(?!\d)")
_SYSTEM_SINCE: Mapping[str, tuple[int, int]] = {
    "opus": (4, 8),
    "sonnet": (5, 5),
    "haiku": (5, 5),
    "fable": (5, 0),
    "mythos": (5, 0),
}
"""From which version on a family takes ``system`` messages inside the conversation."""
_UNKNOWN_SINCE = (5, 5)


class Anthropic:
    """The dialect of ``/v1/messages``."""

    name = "anthropic"
    list_key = "messages"

    def __init__(self) -> None:
        self._tools = Remembered(_tools)

    def read_message(self, raw: Any) -> Message:
        """Read one element of ``messages``."""
        return read_message(raw)

    def read_request(
        self, head: Head, path: str, fields: Mapping[str, Any], messages: tuple[Message, ...]
    ) -> ModelRequest:
        """Put a request together. Raises Unreadable for other routes of this API."""
        operation, model = _route(path, fields)
        system = _system(fields.get("system"))
        hints = read_hints(
            head, fields, system="\n".join(item.text for item in system), ask=last_ask(messages)
        )
        max_tokens = fields.get("max_tokens")
        cap = max_tokens if type(max_tokens) is int and max_tokens >= 0 else None
        return ModelRequest(
            dialect="anthropic",
            operation=operation,
            model=model,
            stream=fields.get("stream") is True or path.endswith(":streamRawPredict"),
            messages=messages,
            list_key=self.list_key,
            system=system,
            tools=self._tools(fields.get("tools")),
            max_output_tokens=cap,
            hints=_probe(hints, cap),
            held=_held(fields.get("thread")),
            output_schema=_schema(fields),
            options=_options(head, fields),
        )

    def decoder(self, request: ModelRequest, status: int, content_type: str) -> ResponseDecoder:
        """A decoder for the reply; the reply's own bytes tell whether it is a stream."""
        return AnthropicDecoder(status)

    def edit_request(self, body: bytes, request: ModelRequest, edits: Sequence[Edit]) -> bytes:
        """The body with the edits applied, each where it finds its lawful place."""
        for edit in edits:
            edited: bytes | None = None
            if edit.kind == "clamp" and edit.max_output_tokens is not None:
                edited = _clamp(body, edit.max_output_tokens)
            elif edit.kind in ("nudge", "land"):
                edited = nudged(self, body, request, edit.text) if edit.text else body
                if edit.kind == "land" and request.tools:
                    edited = set_field(edited, (), "tool_choice", b'{"type":"none"}')
            body = edited if edited is not None else body
        return body

    def nudge(self, request: ModelRequest, text: str) -> Carrier | None:
        """A message or a block, by what the model takes, behind everything that it has read.

        Never behind an assistant message: the model would have to go on from there.
        """
        role = request.messages[-1].role if request.messages else None
        if role in ("user", "system") and takes_system_messages(request.model):
            return Carrier(orjson.dumps({"role": "system", "content": text}))
        if role == "user":
            return Carrier(orjson.dumps({"type": "text", "text": text}), inside="content")
        return None

    def insertions(
        self, message: bytes, carrier: Carrier, request: ModelRequest, index: int
    ) -> Sequence[Insertion] | None:
        """A ``system`` message may be the last or stand before the model's words, nowhere else; and the
        client may have changed to a model that takes none."""
        if not carrier.inside:
            lawful = follower(request, index) != "user" and takes_system_messages(request.model)
            return behind(message, carrier) if lawful else None
        span = span_of(message, carrier.inside)
        if span is not None and message[span[0] : span[0] + 1] == b'"':
            return [(span[0], b'[{"type":"text","text":'), (span[1], b"}," + carrier.raw + b"]")]
        return within(message, carrier)

    def thought(self, item: Item, request: ModelRequest) -> Carrier | None:
        """A block of its own; an unfinished one, without its signature, does not go back."""
        if item.kind != "thinking" or not item.signature or len(item.text) >= KEPT:
            return None
        if item.form == "redacted_thinking":
            return Carrier(orjson.dumps({"type": item.form, "data": item.signature}))
        block = {"type": "thinking", "thinking": item.text, "signature": item.signature}
        return Carrier(orjson.dumps(block))

    def refusal(self, request: ModelRequest | None, why: Terminal, request_id: str) -> Reply:
        """An error that no client of this API repeats (402), or a final message."""
        if why.kind == "message" and request is not None and request.held is None:
            return _message(request, why, request_id)
        waits = why.retry_after_s is not None
        error = _error("rate_limit_error" if waits else "billing_error", why)
        body = {"type": "error", "error": error, "request_id": request_id}
        return Reply(
            429 if waits else 402,
            refusal_fields(why, request_id, b"application/json", id_name=b"request-id"),
            orjson.dumps(body, default=str),
        )

    def closing_frames(self, request: ModelRequest, why: Terminal) -> bytes:
        """An error event: SDKs raise it with its words."""
        return _frame({"type": "error", "error": _error("invalid_request_error", why)})


# -- reading


def _route(path: str, fields: Mapping[str, Any]) -> tuple[Operation, str]:
    vertex = _VERTEX.search(path)
    path = path.rstrip("/")
    named = fields.get("model")
    if vertex is not None:
        return "chat", vertex[1]
    if not isinstance(named, str) or not named:
        raise Unreadable("no model is named")
    if path.endswith("/messages"):
        return "chat", named
    if path.endswith("/messages/count_tokens"):
        return "count", named
    raise Unreadable("no model call")


def _system(raw: Any) -> tuple[Item, ...]:
    if isinstance(raw, str):
        return (text_item("system", raw, ("system",)),)
    if not isinstance(raw, list):
        return ()
    items: list[Item] = []
    for index, block in enumerate(raw):
        text = block.get("text") if isinstance(block, dict) else block
        if isinstance(text, str):
            items.append(text_item("system", text, ("system", index)))
    return tuple(items)


def _tools(raw: Any) -> tuple[Tool, ...]:
    if not isinstance(raw, list):
        return ()
    tools: list[Tool] = []
    for one in raw:
        if not isinstance(one, dict):
            continue
        kind = one.get("type")
        name = one.get("name") or one.get("mcp_server_name") or kind
        digest = item_digest("tool", "system", canonical(without_marks(one, MARKS)))
        server = isinstance(kind, str) and kind.startswith(_SERVER_TOOLS)
        tools.append(Tool(name if isinstance(name, str) else "", digest, server))
    return tuple(tools)


def _held(thread: Any) -> str | None:
    """The reply that a provider-held history goes on from."""
    if not isinstance(thread, dict) or thread.get("type") != "continue":
        return None
    previous = thread.get("previous_message_id")
    return previous if isinstance(previous, str) and previous else None


def _schema(fields: Mapping[str, Any]) -> bool:
    config = fields.get("output_config")
    bound = config.get("format") if isinstance(config, dict) else None
    return isinstance(bound, dict) or isinstance(fields.get("output_format"), dict)


def _probe(hints: Hints, cap: int | None) -> Hints:
    """No output wanted warms the cache; one token of Claude Code's asks whether there is quota left."""
    if hints.kind not in ("", "main") or cap is None or cap > 1:
        return hints
    kind: Literal["prewarm", "side"] = "side" if cap else "prewarm"
    return replace(hints, kind=kind) if kind == "prewarm" or hints.client == "claude-code" else hints


def _options(head: Head, fields: Mapping[str, Any]) -> dict[str, Any]:
    options = {name: fields[name] for name in _OPTIONS if fields.get(name) is not None}
    if head.get(b"anthropic-beta") is None:
        return options
    betas = [value.decode("latin-1") for name, value in head.headers if name.lower() == b"anthropic-beta"]
    named = [beta.strip() for value in betas for beta in value.split(",") if beta.strip()]
    if named:
        options["betas"] = named
    return options


# -- edits


def _clamp(body: bytes, most: int) -> bytes | None:
    return replace_number(body, ("max_tokens",), most) or insert_field(body, (), "max_tokens", b"%d" % most)


def takes_system_messages(model: str) -> bool:
    """Whether a model takes ``system`` messages inside the conversation."""
    match = _MODEL.search(model)
    if match is None:
        return False
    version = (int(match[2]), int(match[3] or 0))
    return version >= _SYSTEM_SINCE.get(match[1], _UNKNOWN_SINCE)


# -- our own answers


def _error(kind: str, why: Terminal) -> dict[str, Any]:
    return {
        "type": kind,
        "message": plain_words(why.message),
        "details": {"error_code": why.code},
        "looptap": shown(why),
    }


def _message(request: ModelRequest, why: Terminal, request_id: str) -> Reply:
    """A whole assistant message that says what was reached, in the form that was asked for."""
    text = plain_words(why.message)
    message: dict[str, Any] = {
        "id": f"msg_{request_id}",
        "type": "message",
        "role": "assistant",
        "model": request.model,
        "content": [{"type": "text", "text": text}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {"input_tokens": 0, "output_tokens": 0},
    }
    if not request.stream:
        return Reply(
            200,
            refusal_fields(why, request_id, b"application/json", id_name=b"request-id"),
            orjson.dumps(message),
        )
    ending = {"stop_reason": "end_turn", "stop_sequence": None}
    frames: list[dict[str, Any]] = [
        {"type": "message_start", "message": message | {"content": [], "stop_reason": None}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": ending, "usage": {"output_tokens": 0}},
        {"type": "message_stop"},
    ]
    fields = refusal_fields(why, request_id, b"text/event-stream; charset=utf-8", id_name=b"request-id")
    return Reply(200, fields, b"".join(map(_frame, frames)))


def _frame(data: Mapping[str, Any]) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (data["type"].encode(), orjson.dumps(data, default=str))
