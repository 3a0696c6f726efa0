"""One pipelined connection to a Redis server.

Requests are written as they come and answered in order, so a slow answer delays nobody but those
behind it on this connection, and a request costs a tenth of what a general client takes. What is
unexpected (an error reply, silence, a closed socket) ends the connection: whoever waits is told
``RespGone`` and must find out anew what the server did. No reconnecting here, no scripts, no keys.
"""

import asyncio
import ssl
from collections import deque
from dataclasses import dataclass
from typing import cast
from urllib.parse import parse_qs, unquote, urlsplit

SILENCE_S = 2.0
"""A request that is not answered by then ends the connection."""
STILL_S = 0.05
CONNECT_S = 5.0
_LINE = b"\r\n"


class RespGone(Exception):
    """The connection is over; the message says why."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a server is, out of its URL. Prints without the password."""

    host: str
    port: int
    path: str | None
    tls: bool
    database: int
    words: tuple[str, ...]
    """Of the AUTH command."""

    @classmethod
    def parse(cls, url: str) -> "Place":
        """``redis://[user[:password]@]host[:port][/database]``, ``rediss://…`` or ``unix:///path?db=0``."""
        parts = urlsplit(url)
        secrets = [unquote(word) for word in (parts.username, parts.password) if word]
        if parts.scheme == "unix":
            database = parse_qs(parts.query).get("db", ["0"])[0]
            return cls("", 0, unquote(parts.path), False, int(database or 0), tuple(secrets))
        if parts.scheme not in ("redis", "rediss"):
            raise ValueError("ledger.url: use redis://, rediss:// or unix://")
        database = parts.path.strip("/")
        tls = parts.scheme == "rediss"
        host = parts.hostname or "127.0.0.1"
        return cls(host, parts.port or 6379, None, tls, int(database or 0), tuple(secrets))

    def __str__(self) -> str:
        return self.path or f"{self.host}:{self.port}"

    def __repr__(self) -> str:
        return f"Place({self})"


class Resp(asyncio.Protocol):
    """A connection. Make it with ``connect``."""

    def __init__(self, loop: asyncio.AbstractEventLoop, silence_s: float) -> None:
        self.gone = loop.create_future()
        """Done with the reason when the connection is over."""
        self._loop = loop
        self._silence_s = silence_s
        self._transport: asyncio.Transport | None = None
        self._waiting: deque[asyncio.Future[bytes]] = deque()
        self._buffer = bytearray()
        self._answered = 0
        self._watch: asyncio.TimerHandle | None = None

    @classmethod
    async def connect(cls, place: Place, silence_s: float = SILENCE_S) -> "Resp":
        """Connect, authenticate and choose the database. Raises RespGone."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(CONNECT_S):
                if place.path is not None:
                    _, resp = await loop.create_unix_connection(lambda: cls(loop, silence_s), place.path)
                else:
                    context = ssl.create_default_context() if place.tls else None
                    _, resp = await loop.create_connection(
                        lambda: cls(loop, silence_s), place.host, place.port, ssl=context
                    )
        except (OSError, TimeoutError) as error:
            raise RespGone(f"cannot reach {place}: {str(error) or 'no answer'}") from None
        try:
            if place.words:
                await resp.call("AUTH", *place.words)
            if place.database:
                await resp.call("SELECT", str(place.database))
        except BaseException:
            resp.end("not let in")
            raise
        return resp

    def call(self, *words: str | bytes) -> asyncio.Future[bytes]:
        """Send a command; the future brings its answer or RespGone."""
        future: asyncio.Future[bytes] = self._loop.create_future()
        if self._transport is None or self.gone.done():
            future.set_exception(RespGone("not connected"))
            return future
        pieces = [b"*%d\r\n" % len(words)]
        for word in words:
            raw = word if isinstance(word, bytes) else word.encode()
            pieces.append(b"$%d\r\n%b\r\n" % (len(raw), raw))
        self._transport.write(b"".join(pieces))
        self._waiting.append(future)
        if self._watch is None:
            self._watch = self._loop.call_later(self._silence_s, self._look, self._answered)
        return future

    def end(self, why: str) -> None:
        """Close; everybody who waits is told."""
        if self._transport is not None:
            self._transport.abort()
        self._over(why)

    # -- called by the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, error: Exception | None) -> None:
        self._over(str(error or "the server closed the connection"))

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        at = 0
        while self._waiting:
            end = self._buffer.find(_LINE, at)
            if end < 0:
                break
            kind, after = bytes(self._buffer[at : at + 1]), end + 2
            answer = bytes(self._buffer[at + 1 : end])
            if kind == b"$" and answer != b"-1":
                size = int(answer)
                if len(self._buffer) < after + size + 2:
                    break
                answer = bytes(self._buffer[after : after + size])
                after += size + 2
            elif kind not in (b"+", b":", b"$"):
                # An error, or what none of our commands is answered with.
                self.end(answer.decode("utf-8", "replace")[:200])
                return
            at = after
            self._answered += 1
            future = self._waiting.popleft()
            if not future.done():
                future.set_result(answer)
        del self._buffer[:at]

    # -- inside

    def _look(self, answered: int, last: bool = False) -> None:
        """End the connection when nothing was answered since the last look."""
        self._watch = None
        if not self._waiting or self.gone.done():
            return
        if answered != self._answered:
            self._watch = self._loop.call_later(self._silence_s, self._look, self._answered)
        elif not last:
            # A loop that stood still runs its timers before it reads: what has come is read first.
            self._watch = self._loop.call_later(STILL_S, self._look, answered, True)
        else:
            self.end(f"no answer within {self._silence_s:g} s")

    def _over(self, why: str) -> None:
        if self.gone.done():
            return
        self.gone.set_result(why)
        if self._watch is not None:
            self._watch.cancel()
        while self._waiting:
            future = self._waiting.popleft()
            if not future.done():
                future.set_exception(RespGone(why))
                future.exception()  # the caller may have gone: nobody has to look at it
