"""The demo's model: a scripted provider on loopback that speaks Anthropic Messages and OpenAI chat.

It keeps no state. Which script is played follows from the first user text, and where in the
script we are from the number of assistant messages in the history, so that every run gives the
same replies, ids and token counts. Tokens are a plain function of the text (four characters
each), with the history that was sent before read from a cache, as the real ones do.
"""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson
from aiohttp import web

_CHUNK_S = 0.025
_PIECE = 24
"""Characters in one streamed piece."""
_CACHE_FLOOR = 128
"""OpenAI's cached tokens come in blocks of this many."""


@dataclass(frozen=True, slots=True)
class Call:
    """The model asks for a tool."""

    tool: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Line:
    """One reply of a script: thinking, then text, then calls."""

    thinking: str = ""
    text: str = ""
    calls: Sequence[Call] = ()


@dataclass(frozen=True, slots=True)
class Script:
    """What the model answers to one task. The last line is said again and again."""

    task: str
    lines: Sequence[Line]
    first_output_s: float = 0.06
    cached: bool = True
    """Whether the history that was sent before is read from a cache."""


@dataclass(frozen=True, slots=True)
class _Reply:
    script: Script
    line: Line
    key: str
    """Names this very reply; ids and signatures are derived from it."""
    model: str
    fresh_tokens: int
    cached_tokens: int
    thinking_tokens: int
    output_tokens: int

    def name(self, prefix: str, index: int = 0) -> str:
        return prefix + hashlib.sha256(f"{self.key}/{prefix}/{index}".encode()).hexdigest()[:20]


@dataclass(slots=True)
class Stage:
    """The scripted model as an aiohttp application; knows its scripts by their task."""

    scripts: Sequence[Script]
    _runners: list[web.AppRunner] = field(default_factory=list)

    def application(self) -> web.Application:
        app = web.Application(client_max_size=32 * 2**20)
        app.router.add_post("/v1/messages", self._messages)
        app.router.add_post("/v1/chat/completions", self._chat)
        return app

    async def start(self) -> str:
        """Listen on a free loopback port; the base URL."""
        runner = web.AppRunner(self.application(), access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self._runners.append(runner)
        host, port = runner.addresses[0][:2]
        return f"http://{host}:{port}"

    async def stop(self) -> None:
        for runner in self._runners:
            await runner.cleanup()
        self._runners.clear()

    # -- Anthropic Messages

    async def _messages(self, request: web.Request) -> web.StreamResponse:
        body = orjson.loads(await request.read())
        reply = self._reply(body, [body.get("system"), body.get("tools")])
        if reply is None:
            error = {"type": "invalid_request_error", "message": "the demo's model knows no such task"}
            return _json({"type": "error", "error": error}, status=400)
        message = _anthropic_message(reply)
        if not body.get("stream"):
            await asyncio.sleep(reply.script.first_output_s)
            return _json(message)
        return await _stream(request, reply, _anthropic_events(message, reply))

    # -- OpenAI Chat Completions

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        body = orjson.loads(await request.read())
        reply = self._reply(body, [body.get("tools")])
        if reply is None:
            error = {"message": "the demo's model knows no such task", "type": "invalid_request_error"}
            return _json({"error": error | {"param": None, "code": None}}, status=400)
        if not body.get("stream"):
            await asyncio.sleep(reply.script.first_output_s)
            return _json(_chat_completion(reply))
        usage = bool((body.get("stream_options") or {}).get("include_usage"))
        return await _stream(request, reply, _chat_chunks(reply, usage))

    def _reply(self, body: Mapping[str, Any], standing: list[Any]) -> _Reply | None:
        messages = body.get("messages") or []
        task = _first_user_text(messages)
        script = next((s for s in self.scripts if s.task == task), None)
        if script is None:
            return None
        said = [i for i, m in enumerate(messages) if m.get("role") == "assistant"]
        line = script.lines[min(len(said), len(script.lines) - 1)]
        before = _tokens(standing) + _tokens(messages[: said[-1]]) if said and script.cached else 0
        total = _tokens(standing) + _tokens(messages)
        thinking = _tokens(line.thinking) if line.thinking else 0
        calls = [dict(c.arguments) | {"name": c.tool} for c in line.calls]
        return _Reply(
            script=script,
            line=line,
            key=f"{script.task}/{len(said)}",
            model=str(body.get("model")),
            fresh_tokens=total - before,
            cached_tokens=before,
            thinking_tokens=thinking,
            output_tokens=thinking + _tokens([line.text, calls]),
        )


def _tokens(value: Any) -> int:
    return len(orjson.dumps(value)) // 4 + 1


def _first_user_text(messages: Iterable[Mapping[str, Any]]) -> str:
    for message in messages:
        if message.get("role") == "user":
            content = message.get("content")
            if isinstance(content, str):
                return content
            return "".join(b.get("text", "") for b in content or [] if isinstance(b, dict))
    return ""


def _json(value: Any, status: int = 200) -> web.Response:
    return web.Response(body=orjson.dumps(value), status=status, content_type="application/json")


async def _stream(request: web.Request, reply: _Reply, frames: Sequence[bytes]) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
    await response.prepare(request)
    await asyncio.sleep(reply.script.first_output_s)
    async for frame in _paced(frames):
        await response.write(frame)
    await response.write_eof()
    return response


async def _paced(frames: Sequence[bytes]) -> AsyncIterator[bytes]:
    for index, frame in enumerate(frames):
        if index and index % 3 == 0:
            await asyncio.sleep(_CHUNK_S)
        yield frame


def _pieces(text: str) -> list[str]:
    return [text[i : i + _PIECE] for i in range(0, len(text), _PIECE)]


# -- wire forms


def _anthropic_blocks(reply: _Reply) -> list[dict[str, Any]]:
    blocks: list[dict[str, Any]] = []
    if reply.line.thinking:
        signature = reply.name("sig") + reply.name("nature")
        blocks.append({"type": "thinking", "thinking": reply.line.thinking, "signature": signature})
    if reply.line.text:
        blocks.append({"type": "text", "text": reply.line.text})
    for index, call in enumerate(reply.line.calls):
        identity = reply.name("toolu_", index)
        blocks.append({"type": "tool_use", "id": identity, "name": call.tool, "input": dict(call.arguments)})
    return blocks


def _anthropic_message(reply: _Reply) -> dict[str, Any]:
    written = max(0, reply.fresh_tokens - 4) if reply.script.cached else 0
    usage: dict[str, Any] = {
        "input_tokens": reply.fresh_tokens - written,
        "cache_read_input_tokens": reply.cached_tokens,
        "cache_creation_input_tokens": written,
        "cache_creation": {"ephemeral_5m_input_tokens": written, "ephemeral_1h_input_tokens": 0},
        "service_tier": "standard",
        "output_tokens": reply.output_tokens,
    }
    if reply.thinking_tokens:
        usage["output_tokens_details"] = {"thinking_tokens": reply.thinking_tokens}
    return {
        "id": reply.name("msg_"),
        "type": "message",
        "role": "assistant",
        "model": reply.model,
        "content": _anthropic_blocks(reply),
        "stop_reason": "tool_use" if reply.line.calls else "end_turn",
        "stop_sequence": None,
        "usage": usage,
    }


def _anthropic_events(message: dict[str, Any], reply: _Reply) -> list[bytes]:
    start = message | {"content": [], "stop_reason": None, "usage": message["usage"] | {"output_tokens": 1}}
    events: list[dict[str, Any]] = [{"type": "message_start", "message": start}, {"type": "ping"}]
    for index, block in enumerate(message["content"]):
        empty, deltas = _anthropic_deltas(block)
        events.append({"type": "content_block_start", "index": index, "content_block": empty})
        events.extend({"type": "content_block_delta", "index": index, "delta": d} for d in deltas)
        events.append({"type": "content_block_stop", "index": index})
    ending = {"stop_reason": message["stop_reason"], "stop_sequence": None}
    events.append({"type": "message_delta", "delta": ending, "usage": message["usage"]})
    events.append({"type": "message_stop"})
    return [b"event: %s\ndata: %s\n\n" % (e["type"].encode(), orjson.dumps(e)) for e in events]


def _anthropic_deltas(block: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    if block["type"] == "thinking":
        deltas = [{"type": "thinking_delta", "thinking": p} for p in _pieces(block["thinking"])]
        return block | {"thinking": "", "signature": ""}, [
            *deltas,
            {"type": "signature_delta", "signature": block["signature"]},
        ]
    if block["type"] == "text":
        return block | {"text": ""}, [{"type": "text_delta", "text": p} for p in _pieces(block["text"])]
    arguments = orjson.dumps(block["input"]).decode()
    return block | {"input": {}}, [
        {"type": "input_json_delta", "partial_json": p} for p in _pieces(arguments)
    ]


def _chat_calls(reply: _Reply) -> list[dict[str, Any]]:
    return [
        {
            "id": reply.name("call_", index),
            "type": "function",
            "function": {"name": call.tool, "arguments": orjson.dumps(dict(call.arguments)).decode()},
        }
        for index, call in enumerate(reply.line.calls)
    ]


def _chat_usage(reply: _Reply) -> dict[str, Any]:
    prompt = reply.fresh_tokens + reply.cached_tokens
    return {
        "prompt_tokens": prompt,
        "completion_tokens": reply.output_tokens,
        "total_tokens": prompt + reply.output_tokens,
        "prompt_tokens_details": {"cached_tokens": reply.cached_tokens // _CACHE_FLOOR * _CACHE_FLOOR},
        "completion_tokens_details": {"reasoning_tokens": reply.thinking_tokens},
    }


def _chat_head(reply: _Reply, kind: str) -> dict[str, Any]:
    return {"id": reply.name("chatcmpl-"), "object": kind, "created": 1_790_000_000, "model": reply.model}


def _chat_finish(reply: _Reply) -> str:
    return "tool_calls" if reply.line.calls else "stop"


def _chat_completion(reply: _Reply) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": reply.line.text or None}
    if reply.line.calls:
        message["tool_calls"] = _chat_calls(reply)
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": _chat_finish(reply)}
    return _chat_head(reply, "chat.completion") | {"choices": [choice], "usage": _chat_usage(reply)}


def _chat_chunks(reply: _Reply, usage: bool) -> list[bytes]:
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": "" if reply.line.text else None}]
    deltas.extend({"content": piece} for piece in _pieces(reply.line.text))
    for index, call in enumerate(_chat_calls(reply)):
        arguments = call["function"]["arguments"]
        opening = call | {"index": index, "function": {"name": call["function"]["name"], "arguments": ""}}
        deltas.append({"tool_calls": [opening]})
        deltas.extend(
            {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}
            for piece in _pieces(arguments)
        )
    head = _chat_head(reply, "chat.completion.chunk")
    chunks = [head | {"choices": [{"index": 0, "delta": d, "finish_reason": None}]} for d in deltas]
    chunks.append(head | {"choices": [{"index": 0, "delta": {}, "finish_reason": _chat_finish(reply)}]})
    if usage:
        chunks.append(head | {"choices": [], "usage": _chat_usage(reply)})
    return [b"data: %s\n\n" % orjson.dumps(c) for c in chunks] + [b"data: [DONE]\n\n"]
