"""The whole product on loopback: a scripted upstream, ``app.start``, a raw client, and what was recorded.

Everything runs in the test's own event loop, so a test decides what happens in which order. HTTP is
read and written here without any code under test. Nothing waits for time: every wait is for an
event, and bounded.
"""

import asyncio
import json
import random
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from proxy import app
from proxy.cli import cli
from proxy.config import Settings, load
from proxy.exchange_log import write_log
from proxy.record import Reader
from proxy.trees import Forest

PATIENCE_S = 60.0
Json = dict[str, Any]
Fields = Sequence[tuple[str, str]]
LARGEST = 1 << 26
LAST = b"0\r\n\r\n"


@dataclass
class Message:
    """One HTTP message as it was on a socket."""

    start: str
    fields: list[tuple[str, str]]
    body: bytes = b""
    whole: bool = False

    def get(self, name: str) -> str | None:
        return next((value for key, value in self.fields if key.lower() == name), None)

    @property
    def status(self) -> int:
        return int(self.start.split(" ")[1])

    @property
    def target(self) -> str:
        return self.start.split(" ")[1]

    def json(self) -> Any:
        return json.loads(self.body)


class Peer:
    """One end of a connection, read as HTTP messages."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def head(self) -> Message | None:
        try:
            raw = await self.reader.readuntil(b"\r\n\r\n")
        except (asyncio.IncompleteReadError, ConnectionError):
            return None
        start, *lines = raw[:-4].decode("latin-1").split("\r\n")
        return Message(start, [(n, v.strip(" \t")) for n, _, v in (line.partition(":") for line in lines)])

    async def body(self, message: Message, *, until_close: bool = False) -> None:
        """Read what follows the head; ``whole`` says whether it came to its end."""
        length = message.get("content-length")
        try:
            if message.get("transfer-encoding") is not None:
                while piece := await self.chunk():
                    message.body += piece
            elif length is not None:
                message.body = await self.reader.readexactly(int(length))
            elif until_close:
                message.body = await self.reader.read()
            message.whole = True
        except asyncio.IncompleteReadError as error:
            message.body += error.partial
        except ConnectionError:
            pass

    async def chunk(self) -> bytes:
        """The next chunk of a chunked body; nothing at its end."""
        size = int((await self.reader.readuntil(b"\r\n")).split(b";")[0], 16)
        piece = await self.reader.readexactly(size + 2)
        return piece[:-2]

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    def reset(self) -> None:
        """End the connection so that the other side sees it broken."""
        sock = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()

    def close(self) -> None:
        self.writer.close()

    async def ended(self) -> None:
        """Wait until the other side has gone."""
        try:
            while await self.reader.read(1 << 16):
                pass
        except ConnectionError:
            pass


Respond = Callable[[Message, Peer], Awaitable[None]]


@dataclass
class Upstream:
    """Takes requests and lets ``respond`` answer them; after it the connection goes on."""

    respond: Respond
    seen: list[Message] = field(default_factory=list)
    port: int = 0
    _server: asyncio.Server | None = None
    _peers: set[Peer] = field(default_factory=set)

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=LARGEST)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        for peer in self._peers:
            peer.close()
        await self._server.wait_closed()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = Peer(reader, writer)
        self._peers.add(peer)
        try:
            while (message := await peer.head()) is not None:
                await peer.body(message)
                self.seen.append(message)
                await self.respond(message, peer)
                if writer.is_closing():
                    break
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self._peers.discard(peer)
            writer.close()


def request_bytes(method: str, target: str, fields: Fields, body: bytes) -> bytes:
    """A request as a client sends it: its fields, and what this hop needs."""
    lines = [f"{method} {target} HTTP/1.1", "Host: looptap.test", *(f"{n}: {v}" for n, v in fields)]
    if body or method not in ("GET", "HEAD"):
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


def answer_head(status: int, fields: Fields, length: int | None) -> bytes:
    """An answer's head; without a length the body follows in chunks."""
    framing = "Transfer-Encoding: chunked" if length is None else f"Content-Length: {length}"
    lines = [f"HTTP/1.1 {status} Told", *(f"{n}: {v}" for n, v in fields), framing]
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


def frame(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def pieces(body: bytes, randomness: random.Random) -> list[bytes]:
    """A body cut at random places, often in the middle of an event, sometimes of a character."""
    most = max(1, min(len(body), 400))
    parts: list[bytes] = []
    at = 0
    while at < len(body):
        size = randomness.choice((1, 7, most, 4 * most, 40 * most))
        parts.append(body[at : at + size])
        at += size
    return parts


def sse(*events: Json, named: bool = True) -> bytes:
    """Events as a stream."""
    lines = []
    for event in events:
        name = f"event: {event['type']}\n" if named and "type" in event else ""
        lines.append(f"{name}data: {json.dumps(event)}\n\n")
    return "".join(lines).encode()


@dataclass
class Stage:
    """A running proxy in front of an upstream."""

    running: app.Running
    upstream: Upstream
    settings: Settings
    config: Path
    data_dir: Path
    warnings: list[str]

    @property
    def port(self) -> int:
        return int(self.running.data_url.rsplit(":", 1)[1])

    async def connect(self) -> Peer:
        return Peer(*await asyncio.open_connection("127.0.0.1", self.port, limit=LARGEST))

    async def ask(self, target: str, body: bytes, fields: Fields = (), *, method: str = "POST") -> Message:
        """One exchange from its first byte to its last, on a connection of its own."""
        peer = await self.connect()
        try:
            await peer.send(request_bytes(method, target, fields, body))
            answer = await peer.head()
            assert answer is not None
            if method != "HEAD" and answer.status not in (204, 304):
                await peer.body(answer, until_close=True)
            return answer
        finally:
            peer.close()

    async def idle(self) -> None:
        """Wait until no exchange is under way."""
        await until(lambda: self.running.parts.server.shell.open_exchanges == 0)

    def read(self) -> Reader:
        return Reader(self.data_dir)

    async def live_tree(self) -> Json:
        """What the record tells of all that passed, in the form of ``replay``."""
        await self.running.flush()
        with self.read() as reader:
            forest = Forest(record for _, record in reader.events())
            unread = [number for number, e in enumerate(reader.exchanges()) if e.step is None]
            return forest.tree(unread)

    async def write_log(self, file: Path) -> Path:
        """All that passed as an exchange log."""
        await self.running.flush()
        with self.read() as reader, file.open("wb") as out:
            for line in write_log(reader, reader.exchanges()):
                out.write(line)
        return file

    def looptap(self, *arguments: str) -> bytes:
        """What a command prints; it must succeed and warn of nothing."""
        done = CliRunner().invoke(cli, ["--config", str(self.config), *arguments], catch_exceptions=False)
        assert (done.exit_code, done.stderr) == (0, ""), done.output
        return done.stdout_bytes

    def replay(self, file: Path) -> Json:
        """The tree of an exchange log, by the command with this stage's configuration."""
        tree: Json = json.loads(self.looptap("replay", "--json", str(file)))
        return tree


@asynccontextmanager
async def stage(
    place: Path,
    respond: Respond,
    upstreams: Mapping[str, Json] | None = None,
    **more: Any,
) -> AsyncIterator[Stage]:
    """A proxy in front of one scripted upstream, which plays all the named ones."""
    place.mkdir(exist_ok=True, parents=True)
    upstream = Upstream(respond)
    await upstream.start()
    config = place / "looptap.yaml"
    data_dir = place / "data"
    named = upstreams or {
        "anthropic": {"api": "anthropic"},
        "openai": {"api": "openai"},
        "gemini": {"api": "gemini"},
    }
    told: Json = {
        "listen": "127.0.0.1:0",
        "admin": "127.0.0.1:0",
        "upstreams": {name: {"url": upstream.url, **facts} for name, facts in named.items()},
        **more,
        "store": {"path": str(data_dir), **more.get("store", {})},
    }
    config.write_text(json.dumps(told))
    settings = load(config, environ={})
    warnings: list[str] = []
    running = await app.start(settings, warnings.append)
    try:
        yield Stage(running, upstream, settings, config, data_dir, warnings)
    finally:
        await running.stop(0)
        await upstream.stop()


async def until(what: Callable[[], Any]) -> None:
    """Wait for a condition of the other parts; bounded."""
    async with asyncio.timeout(PATIENCE_S):
        while not what():
            await asyncio.sleep(0.002)


def bare(tree: Json) -> Json:
    """A tree less its ids: threads and steps are told by their places."""
    steps: dict[str, list[int]] = {}
    sessions = []
    for at_session, session in enumerate(tree["sessions"]):
        places = {thread["id"]: place for place, thread in enumerate(session["threads"])}
        threads = []
        for thread in session["threads"]:
            turns = []
            for at_turn, turn in enumerate(thread["turns"]):
                for at_step, step in enumerate(turn["steps"]):
                    steps[step["id"]] = [at_session, places[thread["id"]], at_turn, at_step]
                turns.append({**_less(turn), "steps": [_less(step) for step in turn["steps"]]})
            parent = {"parent": places.get(thread["parent"], "elsewhere")} if "parent" in thread else {}
            threads.append({**_less(thread), **parent, "turns": turns})
        sessions.append(threads)
    findings = [_placed(finding, steps) for finding in tree["findings"]]
    return {"sessions": sessions, "findings": findings, "unmodelled": tree["unmodelled"]}


def _placed(finding: Json, steps: dict[str, list[int]]) -> Json:
    """A finding with places where it names steps."""
    evidence = dict(finding["evidence"])
    if "reply" in evidence:
        evidence["reply"] = steps.get(evidence["reply"])
    return {**finding, "step": steps.get(finding["step"]), "evidence": evidence}


def _less(node: Json) -> Json:
    return {key: value for key, value in node.items() if key != "id"}


def sketch(tree: Json) -> list[list[str]]:
    """Each session's threads: kind, parent, exchanges; turns apart."""
    found = []
    for session in bare(tree)["sessions"]:
        threads = []
        for thread in session:
            turns = [
                " ".join("+".join(map(str, step["exchanges"])) for step in turn["steps"])
                + ("…" if turn["open"] else "")
                for turn in thread["turns"]
            ]
            parent = f"<{thread['parent']}" if "parent" in thread else ""
            threads.append(f"{thread['kind']}{parent}: {' | '.join(turns)}")
        found.append(threads)
    return found
