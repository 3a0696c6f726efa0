"""Recordings as scripts: what the client sent and what came back, played over real sockets again.

A ``Play`` is one exchange; it is opened, told so far, finished or left in steps, so that exchanges
overlap exactly as a test says. ``play`` runs a whole recording one exchange after the other.
"""

import asyncio
import base64
import gzip
import random
import re
import zlib
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import brotli
import orjson
import zstandard

from tests.live.kit import (
    LAST,
    PATIENCE_S,
    Json,
    Message,
    Peer,
    Stage,
    answer_head,
    frame,
    pieces,
    request_bytes,
    until,
)

_HOP = {
    "content-length", "transfer-encoding", "connection", "keep-alive", "host", "expect", "te", "trailer",
    "proxy-connection", "upgrade",
}  # fmt: skip
_CODERS = {
    "gzip": lambda data: gzip.compress(data, 1, mtime=0),
    "deflate": zlib.compress,
    "br": brotli.compress,
    "zstd": lambda data: zstandard.ZstdCompressor().compress(data),
}


def pairs(headers: Any) -> list[tuple[str, str]]:
    """Recorded fields in either form, less those of one hop."""
    listed = headers.items() if isinstance(headers, dict) else headers or []
    return [(name, value) for name, value in listed if name.lower() not in _HOP]


def body_of(line: Json, key: str) -> bytes:
    coded = line.get(f"{key}_b64")
    return (
        base64.b64decode(coded)
        if coded is not None
        else (line.get(key) or "").encode("utf-8", "surrogatepass")
    )


@dataclass
class Play:
    """One exchange, played in steps."""

    line: Json
    target: str
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    released: asyncio.Event = field(default_factory=asyncio.Event)
    client: Peer | None = None
    upstream: Peer | None = None
    answer: Message | None = None
    said: int = 0
    """Bytes of the answer's body that have left the upstream."""
    begun: bool = False
    chunked: bool = False

    @property
    def request(self) -> bytes:
        fields = pairs(self.line["request_headers"])
        if self.line["method"] == "GET" and any(n.lower() == "sec-websocket-key" for n, _ in fields):
            fields += [("Connection", "Upgrade"), ("Upgrade", "websocket")]
        return request_bytes(self.line["method"], self.target, fields, self.request_body)

    @property
    def request_body(self) -> bytes:
        return body_of(self.line, "request_body")

    @property
    def response(self) -> bytes:
        """The answer's body as the wire had it: an encoding that the recorder undid is done again."""
        body = body_of(self.line, "response_body")
        if self.line.get("decoded"):
            for name, value in pairs(self.line["response_headers"]):
                if name.lower() == "content-encoding":
                    body = _CODERS[value.strip().lower()](body)
        return body

    @property
    def bodiless(self) -> bool:
        return self.line["method"] == "HEAD" or self.line["status"] in (204, 304)

    @property
    def broken(self) -> bool:
        """The recorded answer did not come to its end."""
        return bool(self.line.get("fault")) or self.line.get("end", "complete") != "complete"


class Player:
    """Opens, tells and ends exchanges against one stage; its ``respond`` is the stage's upstream."""

    stage: Stage

    def __init__(self, seed: object = 0) -> None:
        self._random = random.Random(str(seed))
        self._expected: deque[Play] = deque()

    async def respond(self, request: Message, peer: Peer) -> None:
        """The upstream's side: hold the request of the exchange that is being opened."""
        play = self._expected.popleft()
        assert request.body == play.request_body
        play.upstream = peer
        play.arrived.set()
        await play.released.wait()

    async def open(self, play: Play) -> None:
        """The client sends its request; the upstream has all of it."""
        self._expected.append(play)
        play.client = await self.stage.connect()
        await play.client.send(play.request)
        async with asyncio.timeout(PATIENCE_S):
            await play.arrived.wait()

    async def begin(self, play: Play, held_back: int) -> None:
        """The client sends its request but for the last bytes; the proxy knows of it."""
        shell = self.stage.running.parts.server.shell
        before = shell.requests
        play.client = await self.stage.connect()
        request = play.request
        await play.client.send(request[: len(request) - held_back])
        await until(lambda: shell.requests > before)

    async def rest(self, play: Play, held_back: int) -> None:
        """The last bytes follow; the upstream has all of it."""
        assert play.client is not None
        self._expected.append(play)
        if held_back:
            await play.client.send(play.request[-held_back:])
        async with asyncio.timeout(PATIENCE_S):
            await play.arrived.wait()

    async def part(self, play: Play, share: float) -> None:
        """So much of the answer has come through to the client."""
        await self._say(play, share)
        await self._hear_head(play)

    async def finish(self, play: Play) -> None:
        """The upstream says all it has to say and ends as recorded; the client reads to the end."""
        assert play.upstream is not None
        assert play.client is not None
        if play.line["status"] is not None:
            await self._say(play, 1)
            if play.chunked and not play.broken:
                await play.upstream.send(LAST)
        if play.broken:
            play.upstream.reset()
        play.released.set()
        answer = await self._hear_head(play)
        if not play.bodiless:
            async with asyncio.timeout(PATIENCE_S):
                await play.client.body(answer, until_close=True)
        play.client.close()
        if not play.broken:
            assert answer.status == play.line["status"]
            assert answer.body == (b"" if play.bodiless else play.response)
            assert answer.whole or play.bodiless
        elif play.line["status"] is not None:
            assert not answer.whole
        else:
            assert answer.status == 502

    async def leave(self, play: Play) -> None:
        """The client goes away without a word, and the proxy has noticed."""
        assert play.client is not None
        shell = self.stage.running.parts.server.shell
        before = shell.open_exchanges
        play.client.reset()
        await until(lambda: shell.open_exchanges < before)
        play.released.set()

    async def play(self, play: Play) -> None:
        """An exchange on its own."""
        await self.open(play)
        await self.finish(play)

    async def _hear_head(self, play: Play) -> Message:
        if play.answer is None:
            assert play.client is not None
            async with asyncio.timeout(PATIENCE_S):
                play.answer = await play.client.head()
        assert play.answer is not None
        return play.answer

    async def _say(self, play: Play, share: float) -> None:
        """Say the head, if it was not said, and the body up to a share of it."""
        assert play.upstream is not None
        body = play.response
        if not play.begun:
            play.begun = True
            told = pairs(play.line["response_headers"])
            play.chunked = play.broken or share < 1 or any("event-stream" in value for _, value in told)
            play.chunked &= not play.bodiless
            await play.upstream.send(
                answer_head(
                    play.line["status"], told, None if play.chunked else len(body) * (not play.bodiless)
                )
            )
        upto = len(body) if share >= 1 else max(play.said, int(len(body) * share))
        for piece in pieces(body[play.said : upto], self._random) if not play.bodiless else ():
            await play.upstream.send(frame(piece) if play.chunked else piece)
        play.said = upto


# -- whole recordings


_APIS = (
    (re.compile(r"/messages(/|$)"), "anthropic"),
    (re.compile(r"/(chat/completions|responses|completions|embeddings)(/|$)"), "openai"),
    (re.compile(r":[A-Za-z]+$"), "gemini"),
)
_PROVIDERS = {
    "openai-chat": "openai", "openai-responses": "openai", "gemini": "google", "bedrock": "aws",
    "xai": "x-ai", "": "anthropic", "other": "openai",
}  # fmt: skip


def read(file: Path) -> tuple[list[Play], dict[str, Json]]:
    """The exchanges of a recording, and the upstreams that they went to."""
    plays: list[Play] = []
    upstreams: dict[str, Json] = {}
    for raw in file.read_bytes().splitlines():
        line = orjson.loads(raw)
        path = line["path"].partition("?")[0]
        provider = line.get("provider", "")
        shape = next((api for pattern, api in _APIS if pattern.search(path)), None)
        api = shape or (
            "gemini" if "gemini" in provider else "anthropic" if provider == "anthropic" else "openai"
        )
        name = f"{provider or 'any'}-{api}"
        upstreams[name] = {"api": api, "provider": _PROVIDERS.get(provider, provider)}
        plays.append(Play({**line, "upstream": name}, f"/{name}{line['path']}"))
    return plays, upstreams


def as_played(file: Path, plays: Iterable[Play], log: Path) -> Path:
    """The original recording, with the times at which it was played: prices depend on the date."""
    told = [orjson.loads(line) for line in log.read_bytes().splitlines()]
    with file.open("wb") as out:
        for play, live in zip(plays, told, strict=True):
            timeless = {key: value for key, value in play.line.items() if key not in ("t", "t_end")}
            out.write(orjson.dumps({**timeless, "t": live["t"], "t_end": live["t_end"]}) + b"\n")
    return file
