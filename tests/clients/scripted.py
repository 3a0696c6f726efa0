"""A scripted model API: one script drives any agent loop, in any of the four dialects, streamed or not.

The step of a request is the number of model replies it already carries; past the script's end the last
reply repeats. Every request is kept as the bytes that arrived. A request that offers no tool the step
asks for (titles, routing, summaries) is answered with text, or with JSON of the shape it asks for.
"""

import io
import json
import re
import socket
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.clients.dialects import DIALECTS, JSON, Answer, Call, Tool, usage
from tests.clients.wire import Listener, Message, read_message


@dataclass(frozen=True, slots=True)
class Wish:
    """A tool call in the script: the first offered tool that matches, and a pool of arguments for it."""

    tool: str
    args: JSON = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Reply:
    """One step of the script."""

    text: str | None = None
    thinking: str | None = None
    wishes: tuple[Wish, ...] = ()


def fit(schema: JSON, pool: JSON, name: str | None = None) -> Any:
    """The smallest value that fits a JSON schema, taken from the pool where it knows the property."""
    kind = schema.get("type", "object" if "properties" in schema else "string")
    kind = (kind[0] if isinstance(kind, list) else kind).lower()
    if name in pool:
        value = pool[name]
        return ["bash", "-lc", value] if kind == "array" and isinstance(value, str) else value
    for union in ("anyOf", "oneOf"):
        if union in schema:
            return fit(schema[union][0], pool, name)
    if "const" in schema or "enum" in schema:
        return schema.get("const", schema.get("enum", [None])[0])
    if kind == "object":
        required = schema.get("required", [])
        properties = schema.get("properties", {})
        return {key: fit(sub, pool, key) for key, sub in properties.items() if key in required or key in pool}
    if kind == "array":
        return [fit(schema.get("items", {}), pool)] if schema.get("minItems") else []
    return {"string": "x", "integer": 1, "number": 1, "boolean": False}.get(kind)


def wanted_shape(body: JSON) -> JSON | None:
    """The JSON schema that a request asks its answer to have, in whatever dialect."""
    config = body.get("generationConfig") or {}
    places = (
        (body.get("output_config") or {}).get("format", {}).get("schema"),
        (body.get("response_format") or {}).get("json_schema", {}).get("schema"),
        (body.get("text") or {}).get("format", {}).get("schema"),
        config.get("responseJsonSchema"),
        config.get("responseSchema"),
    )
    return next((schema for schema in places if schema), None)


class ScriptedUpstream:
    """The model API on a loopback port."""

    def __init__(self, script: Sequence[Reply]) -> None:
        self._script = script
        self._lock = threading.Lock()
        self.requests: list[Message] = []
        self.answers: list[Message] = []
        """What was sent back, in no order."""
        self.counted: dict[int, tuple[int, int, int]] = {}
        """Input, cached and output tokens told for each step of the script."""
        self._listener = Listener(self._serve)
        self.url, self.port = self._listener.url, self._listener.port

    def close(self) -> None:
        self._listener.close()

    def __enter__(self) -> "ScriptedUpstream":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def bodies(self) -> list[JSON]:
        """The bodies of the model calls, parsed, in order of arrival."""
        calls = [r for r in self.requests if any(d.path.search(r.target.partition("?")[0]) for d in DIALECTS)]
        return [json.loads(request.body) for request in calls]

    def _serve(self, connection: socket.socket) -> None:
        with connection.makefile("rb") as source:
            while (request := read_message(source)) is not None:
                with self._lock:
                    self.requests.append(request)
                tape = bytearray()
                for data in self._answer(request):
                    tape += data
                    connection.sendall(data)
                answer = read_message(io.BytesIO(tape), bodyless=request.method == "HEAD")
                assert answer is not None
                with self._lock:
                    self.answers.append(answer)

    def _answer(self, request: Message) -> Iterator[bytes]:
        path = request.target.partition("?")[0]
        if request.field(b"upgrade") is not None:
            yield _whole(426, {"error": {"message": "no WebSocket here"}})
            return
        dialect = next((d for d in DIALECTS if d.path.search(path)), None)
        if request.method == "HEAD":
            yield b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"
        elif path.endswith("/count_tokens"):
            yield _whole(200, {"input_tokens": len(request.body) // 4})
        elif dialect is None or request.method != "POST":
            yield _whole(404, {"error": {"message": f"nothing at {path}", "type": "not_found_error"}})
        else:
            body = json.loads(request.body)
            answer = self._speak(dialect.step(body), dialect.tools(body), body)
            if dialect.tools(body):
                self.counted[answer.step] = usage(body, answer)
            reply = dialect.reply(body, answer)
            if dialect.streams(path, body):
                done = b"data: [DONE]\n\n" if path.endswith("/chat/completions") else b""
                yield from _streamed(dialect.events(reply, body), done)
            else:
                yield _whole(200, reply)

    def _speak(self, step: int, tools: list[Tool], body: JSON) -> Answer:
        line = self._script[min(step, len(self._script) - 1)]
        calls = []
        for wish in line.wishes:
            tool = next((tool for tool in tools if re.fullmatch(wish.tool, tool.name)), None)
            if tool is not None:
                args = (
                    wish.args if tool.kind == "custom" else fit({"type": "object"} | tool.schema, wish.args)
                )
                calls.append(Call(tool, args))
        shape = None if tools else wanted_shape(body)
        text = json.dumps(fit(shape, {})) if shape else line.text or (None if calls else "ok")
        return Answer(step, line.thinking, text, tuple(calls))


def _whole(status: int, body: JSON) -> bytes:
    data = json.dumps(body).encode()
    head = f"HTTP/1.1 {status} Scripted\r\nContent-Type: application/json\r\nrequest-id: req_{len(data)}\r\n"
    return head.encode() + b"Content-Length: %d\r\n\r\n" % len(data) + data


def _streamed(events: Iterator[JSON], done: bytes) -> Iterator[bytes]:
    yield (
        b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nCache-Control: no-cache\r\n"
        b"request-id: req_stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    for event in events:
        name = f"event: {event['type']}\n" if "type" in event else ""
        # A bare U+2028 would be lawful JSON, but some clients' stream readers take it for a line end.
        data = json.dumps(event, ensure_ascii=False).replace("\u2028", "\\u2028")
        yield _chunk(f"{name}data: {data}\n\n".encode())
    if done:
        yield _chunk(done)
    yield b"0\r\n\r\n"


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)
