"""A real ``looptap serve`` in front of a scripted model, and short words for asking both.

The model speaks Anthropic's messages and OpenAI's chat; a request's ``x-ending`` field says how its
answer ends, so that a test may end exchanges in every way there is.
"""

import http.client
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import yaml

from proxy.record import Reader

ROOT = Path(__file__).parents[2]
USAGE = {"input_tokens": 100, "output_tokens": 10}
PRICES = [{"model": "acme-*", "input": 3, "output": 15}]
COST = "0.00045"
"""What one plain answer costs: 100 × 3 + 10 × 15 millionths."""
WAIT_S = 120.0


class Model(ThreadingHTTPServer):
    """The provider. ``gate`` closed: answers wait until it opens."""

    daemon_threads = True
    request_queue_size = 256

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answer)
        self.asked: list[dict[str, Any]] = []
        self.gate = threading.Event()
        self.gate.set()
        self.background = "in_progress"
        """What a reply made in the background has come to when it is fetched."""
        self._lock = threading.Lock()
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def note(self, path: str, body: bytes, headers: dict[str, str]) -> int:
        with self._lock:
            self.asked.append({"path": path, "body": body, "headers": headers})
            return len(self.asked)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients and the proxy hang up on purpose here."""


class _Answer(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Model

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        number = int(self.path.partition("?")[0].rpartition("_")[2])
        self.server.note(self.path, b"", {})
        if self.server.background.isdigit():
            self._json(int(self.server.background), {"error": {"type": "server_error", "message": "no"}})
        else:
            self._json(200, _response(number, self.server.background))

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        number = self.server.note(self.path, body, {k.lower(): v for k, v in self.headers.items()})
        ending = self.headers.get("x-ending", "plain")
        self.server.gate.wait(WAIT_S)
        if ending.isdigit():
            self._json(int(ending), {"type": "error", "error": {"type": "api_error", "message": "no"}})
        elif ending == "reset":
            self._reset()
        elif ending in ("stream", "cut", "slow"):
            self._stream(number, ending)
        elif "count_tokens" in self.path:
            self._json(200, {"input_tokens": 7})
        elif "/responses" in self.path:
            asked = json.loads(body)
            self._json(200, _response(number, "queued" if asked.get("background") else "completed"))
        elif "completions" in self.path:
            self._json(200, _completion(number))
        else:
            told = _message(number, self.headers.get("x-calls"), json.loads(body or b"{}"))
            for block in told["content"][1:]:
                block["id"] += self.headers.get("x-run", "")
            told["usage"]["output_tokens"] = int(self.headers.get("x-tokens", USAGE["output_tokens"]))
            self._json(200, told)

    def _json(self, status: int, value: Any) -> None:
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _stream(self, number: int, ending: str) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "close")
        self.end_headers()
        start = {**_message(number, None, {}), "content": [], "stop_reason": None}
        start["usage"] = {"input_tokens": 100, "output_tokens": 1}
        self._event({"type": "message_start", "message": start})
        self._event(
            {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
        )
        for word in ("one ", "two ", "three"):
            delta = {"type": "text_delta", "text": word}
            self._event({"type": "content_block_delta", "index": 0, "delta": delta})
        if ending == "cut":
            self._reset()
            return
        if ending == "slow":
            self.server.gate.wait(WAIT_S)
            time_out = threading.Event()
            time_out.wait(2.0)
        self._event({"type": "content_block_stop", "index": 0})
        self._event(
            {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 10}}
        )
        self._event({"type": "message_stop"})
        self.close_connection = True

    def _event(self, value: dict[str, Any]) -> None:
        self.wfile.write(f"event: {value['type']}\ndata: {json.dumps(value)}\n\n".encode())
        self.wfile.flush()

    def _reset(self) -> None:
        self.wfile.flush()
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close_connection = True
        self.connection.close()


def _message(number: int, calls: str | None, asked: dict[str, Any]) -> dict[str, Any]:
    content: list[dict[str, Any]] = [{"type": "text", "text": f"answer {number}"}]
    for index in range(int(calls or 0)):
        content.append(
            {"type": "tool_use", "id": f"toolu_{number:08}{index:04}", "name": "Bash", "input": {"n": index}}
        )
    return {
        "id": f"msg_{number:08}", "type": "message", "role": "assistant",
        "model": asked.get("model", "acme-1"), "content": content, "usage": dict(USAGE),
        "stop_reason": "tool_use" if calls else "end_turn",
    }  # fmt: skip


def _response(number: int, status: str) -> dict[str, Any]:
    done = status == "completed"
    content = [{"type": "output_text", "text": f"answer {number}", "annotations": []}]
    said = {"type": "message", "id": f"msg_{number}", "role": "assistant", "content": content}
    usage = {"input_tokens": 100, "output_tokens": 10, "total_tokens": 110}
    return {
        "id": f"resp_{number}", "object": "response", "created_at": 1, "model": "acme-1", "status": status,
        "background": True, "output": [said] if done else [], "usage": usage if done else None,
    }  # fmt: skip


def _completion(number: int) -> dict[str, Any]:
    return {
        "id": f"chatcmpl-{number}", "object": "chat.completion", "created": 1, "model": "acme-1",
        "choices": [
            {
                "index": 0, "finish_reason": "stop",
                "message": {"role": "assistant", "content": f"answer {number}"},
            }
        ],
        "usage": {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110},
    }  # fmt: skip


@dataclass
class Said:
    """An answer that a client got."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def fields(self) -> dict[str, Any]:
        """What a refusal says in fields."""
        error = self.json["error"]
        found = error.get("looptap") or error["details"].get("looptap") or error["details"]
        assert isinstance(found, dict)
        return found


@dataclass
class Served:
    """A running proxy."""

    process: "subprocess.Popen[str]"
    url: str
    admin: str
    token: str
    data: Path
    config: Path
    log: Path
    says: list[str] = field(default_factory=list)

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def post(self, path: str, body: Any, **headers: str) -> Said:
        """One request, one connection, no retries."""
        return send(self.port, path, body, **headers)

    def get(self, path: str) -> Said:
        return send(self.port, path, b"", "GET")

    def ask(self, text: str = "hello", **headers: str) -> Said:
        """A whole conversation of one message."""
        return self.post("/v1/messages", request(text), **headers)

    def looptap(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        """Run a command on the same config and data."""
        return looptap(self.config, self.data, *arguments)

    def told(self, *arguments: str) -> Any:
        """What a command answers in JSON."""
        done = self.looptap(*arguments, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def budgets(self, **wanted: str) -> list[dict[str, Any]]:
        """The live counters that have these values."""
        return [one for one in self._counters() if all(one[name] == value for name, value in wanted.items())]

    def idle(self) -> list[dict[str, Any]]:
        """The counters once nothing is held any more."""
        found: list[dict[str, Any]] = []

        def none_held() -> bool:
            found[:] = self._counters()
            return all(float(one["reserved"]) == 0 for one in found)

        eventually(none_held, f"still held: {found}")
        return found

    def _counters(self) -> list[dict[str, Any]]:
        """As `looptap budgets --json` tells them, without the second that its start takes."""
        port = int(self.admin.rpartition(":")[2])
        found: list[dict[str, Any]] = []

        def told() -> bool:
            said = send(port, "/api/v1/budgets", b"", "GET", authorization=f"Bearer {self.token}")
            if said.status == 503:  # a shared ledger that was away comes back to an instance a moment later
                return False
            assert said.status == 200, said.body
            found[:] = said.json
            return True

        eventually(told, "the ledger was to come back")
        return found

    def recorded_request(self) -> bytes:
        """The body of the newest step as the record keeps it."""
        done = looptap(self.config, self.data, "show", "last", "--request")
        assert done.returncode == 0, done.stderr
        return done.stdout.encode()

    def log_lines(self, word: str) -> list[str]:
        return [line for line in self.log.read_text().splitlines() if word in line]


def request(
    text: str = "hello", *, max_tokens: int = 100, model: str = "acme-1", **more: Any
) -> dict[str, Any]:
    """A conversation of one message."""
    messages = [{"role": "user", "content": text}]
    return {"model": model, "max_tokens": max_tokens, "messages": messages, **more}


def grown(
    body: dict[str, Any], answer: dict[str, Any], *, error: bool = False, text: str = ""
) -> dict[str, Any]:
    """The next request of the same conversation: calls answered, or a new question."""
    calls = [block for block in answer["content"] if block["type"] == "tool_use"]
    content: list[dict[str, Any]] = [
        {
            "type": "tool_result",
            "tool_use_id": call["id"],
            "content": f"result {call['id']}",
            "is_error": error,
        }
        for call in calls
    ]
    if text or not calls:
        content.append({"type": "text", "text": text or "go on"})
    reply = {"role": "assistant", "content": answer["content"]}
    return {**body, "messages": [*body["messages"], reply, {"role": "user", "content": content}]}


def send(port: int, path: str, body: Any, method: str = "POST", /, **headers: str) -> Said:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT_S)
    try:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        named = {"content-type": "application/json", "x-api-key": "sk-client", **named}
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        connection.request(method, path, data, named)
        with connection.getresponse() as answer:  # one that breaks off would keep the socket else
            fields = {name.lower(): value for name, value in answer.getheaders()}
            return Said(answer.status, fields, answer.read())
    finally:
        connection.close()


def eventually(holds: Callable[[], bool], otherwise: str) -> None:
    """Wait for something that another process does."""
    until = time.monotonic() + WAIT_S
    pause = threading.Event()
    while not holds():
        assert time.monotonic() < until, otherwise
        pause.wait(0.05)


def wait_s(seconds: float) -> None:
    """Let a limit's own time pass, where nothing else can be waited for."""
    threading.Event().wait(seconds)


def looptap(config: Path, data: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "proxy", *arguments, "--config", str(config), "--data-dir", str(data)]
    return subprocess.run(
        command, cwd=ROOT, env=_clean(), capture_output=True, text=True, timeout=60, check=False
    )


def write_config(place: Path, model_url: str, settings: dict[str, Any]) -> Path:
    """A config with the scripted model as every upstream."""
    upstreams = {
        "anthropic": {"url": model_url, "api": "anthropic"},
        "openai": {"url": f"{model_url}/v1", "api": "openai"},
        "nobody": {"url": "http://127.0.0.1:9", "api": "anthropic"},
    }
    given = {
        "listen": "127.0.0.1:0", "admin": "127.0.0.1:0", "prices": PRICES,
        **settings,
    }  # fmt: skip
    given["upstreams"] = {
        name: {**one, **given.get("upstreams", {}).get(name, {})} for name, one in upstreams.items()
    }
    place.mkdir(parents=True, exist_ok=True)
    path = place / "looptap.yaml"
    path.write_text(yaml.safe_dump(given))
    return path


def start(place: Path, config: Path) -> Served:
    """Start ``looptap serve`` and wait until it listens."""
    log = place / "serve.log"
    command = [sys.executable, "-m", "proxy", "serve", "--json", "--config", str(config)]
    with log.open("a") as errors:
        process = subprocess.Popen(
            [*command, "--data-dir", str(place / "data")], cwd=ROOT, env=_clean(),
            stdout=subprocess.PIPE, stderr=errors, text=True,
        )  # fmt: skip
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        process.wait(WAIT_S)
        raise AssertionError(log.read_text())
    up = json.loads(line)
    admin, _, token = up["admin_url"].partition("/?token=")
    return Served(process, up["data_url"], admin, token, place / "data", config, log, up["says"])


def stop(served: Served) -> None:
    assert served.process.stdout is not None
    served.process.send_signal(signal.SIGTERM)
    try:
        served.process.wait(WAIT_S)
    finally:
        served.process.kill()
        served.process.wait(WAIT_S)
        served.process.stdout.close()


@contextmanager
def model() -> Iterator[Model]:
    provider = Model()
    try:
        yield provider
    finally:
        provider.gate.set()
        provider.shutdown()
        provider.server_close()


@contextmanager
def serve(place: Path, provider: Model, **settings: Any) -> Iterator[Served]:
    """A proxy with these settings in front of a model."""
    served = start(place, write_config(place, provider.url, settings))
    try:
        yield served
    finally:
        stop(served)


def _clean() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("LOOPTAP_")}


def leave(port: int, body: dict[str, Any], ending: str) -> None:
    """Send a request and hang up: at once, or in the middle of its stream."""
    data = json.dumps(body).encode()
    head = (
        "POST /v1/messages HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
        f"x-api-key: sk-client\r\nx-ending: {ending}\r\ncontent-length: {len(data)}\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", port), timeout=WAIT_S) as connection:
        connection.sendall(head.encode() + data)
        if ending == "slow":
            seen = b""
            while b"one" not in seen:
                piece = connection.recv(65_536)
                assert piece, "the stream ended early"
                seen += piece


def events(data: Path, kind: str) -> list[dict[str, Any]]:
    """What the record holds of one kind of event."""
    with Reader(data) as reader:
        return [dict(record.data) for _, record in reader.events(0, types=[kind])]


def recorded(data: Path, kind: str, least: int = 1) -> list[dict[str, Any]]:
    """The same, once there are so many: the record is written a moment after the answer."""
    eventually(lambda: len(events(data, kind)) >= least, f"fewer than {least} of {kind} were recorded")
    return events(data, kind)
