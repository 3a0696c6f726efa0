"""The upstream's side of the wire: one HTTP/1.1 connection at a time, and the pool of idle ones.

A connection carries one exchange; its answer goes to the exchange's ``ReplySink`` as plain calls,
at most one ``on_data`` per read, so that no task wakes up for a chunk. The pool hands out the
newest idle connection first and forgets any that ended or sent bytes nobody asked for.

The one invariant: whatever was written to a connection is written once. Nothing in here sends a
request again; the exchange decides that, and only where it is harmless.
"""

import asyncio
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, cast

import httptools

from proxy.model import ResponseHead, Upstream
from proxy.wire.dial import Dialer, Origin, TlsSettings, origin_of
from proxy.wire.heads import LAST_CHUNK, SPECIAL, Framing, chunk, plain_names, response_framing

_KEEP_ALIVE_TIMEOUT = re.compile(rb"timeout=(\d{1,6})", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Broken:
    """How an upstream connection failed its exchange."""

    words: str
    answered: bool
    """Some byte of the answer had come."""
    reset: bool
    """By a reset (or the lack of TLS's own goodbye) rather than an ordinary close."""


class ReplySink(Protocol):
    """What an exchange offers to the connection that carries it. Plain calls, none may wait."""

    def on_continue(self) -> None: ...
    def on_head(self, head: ResponseHead, framing: Framing) -> None: ...
    def on_data(self, data: bytes, complete: bool) -> None: ...
    def on_upgraded(self, head: ResponseHead, tail: bytes) -> None: ...
    def on_tunnel_data(self, data: bytes) -> None: ...
    def on_broken(self, broken: Broken) -> None: ...
    def on_upload_paused(self) -> None: ...
    def on_upload_resumed(self) -> None: ...


class Peer:
    """One origin with its idle connections; upstreams of the same origin and settings share it."""

    __slots__ = ("authority", "idle", "origin", "target_prefix")

    def __init__(self, origin: Origin) -> None:
        self.origin = origin
        self.authority = origin.authority
        plain_proxy = origin.proxy is not None and origin.scheme == "http"
        self.target_prefix = f"http://{self.authority.decode()}" if plain_proxy else ""
        """What stands before the target on the request line: only a plain proxy wants the host."""
        self.idle: dict[UpstreamConnection, None] = {}
        """Oldest first; a dict because any of them may leave at any time."""

    @property
    def proxy_authorization(self) -> bytes | None:
        """Goes with each request to a plain proxy (with CONNECT it went before)."""
        proxy = self.origin.proxy
        return proxy.authorization if proxy is not None and self.target_prefix else None


class UpstreamPool:
    """Connections to all upstreams. One per process, used from the event loop's thread."""

    def __init__(
        self,
        dialer: Dialer | None = None,
        *,
        tls: Mapping[str, TlsSettings] | None = None,
        max_idle: int = 1024,
        idle_s: float = 30.0,
        max_reply_fields: int = 1024 * 1024,
    ) -> None:
        self._dialer = dialer if dialer is not None else Dialer()
        self._tls = dict(tls or {})
        self._max_idle = max_idle
        self._idle_s = idle_s
        self.max_reply_fields = max_reply_fields
        self._peers: dict[Origin, Peer] = {}
        self._by_name: dict[tuple[str, str], Peer] = {}
        self._live: set[UpstreamConnection] = set()
        self._now = 0.0
        """As of the last sweep: an idle time needs no better clock."""

    def peer(self, upstream: Upstream) -> Peer:
        """The peer behind a configured upstream. ValueError where its URL or the proxy's is wrong."""
        peer = self._by_name.get((upstream.name, upstream.url))
        if peer is None:
            tls = self._tls.get(upstream.name, TlsSettings())
            origin = origin_of(upstream.url, tls, self._dialer.environ)
            peer = self._peers.setdefault(origin, Peer(origin))
            self._by_name[upstream.name, upstream.url] = peer
        return peer

    def take(self, peer: Peer) -> "UpstreamConnection | None":
        """The newest idle connection that is still open."""
        while peer.idle:
            connection, _ = peer.idle.popitem()
            if not connection.is_closing:
                return connection
        return None

    async def connect(self, peer: Peer) -> "UpstreamConnection":
        """A fresh connection. Raises Unreachable."""
        return await self._dialer.connect(peer.origin, lambda: UpstreamConnection(self, peer))

    def give_back(self, connection: "UpstreamConnection", promised_s: float | None) -> None:
        """Keep a connection for the next request; ``promised_s`` is the upstream's own limit."""
        idle_s = self._idle_s if promised_s is None else min(self._idle_s, max(promised_s - 1, 0))
        connection.idle_until = self._now + idle_s
        idle = connection.peer.idle
        idle[connection] = None
        if len(idle) > self._max_idle:
            oldest = next(iter(idle))
            del idle[oldest]
            oldest.abort()

    def sweep(self, now: float) -> None:
        """Close what has been idle for too long."""
        self._now = now
        for peer in self._peers.values():
            for connection in [c for c in peer.idle if c.idle_until <= now]:
                del peer.idle[connection]
                connection.abort()

    def close(self) -> None:
        """End every connection; exchanges that still run on one are told that it broke."""
        for connection in list(self._live):
            connection.end()

    @property
    def idle_connections(self) -> int:
        return sum(len(peer.idle) for peer in self._peers.values())

    @property
    def open_connections(self) -> int:
        return len(self._live)

    def opened(self, connection: "UpstreamConnection") -> None:
        self._live.add(connection)

    def lost(self, connection: "UpstreamConnection") -> None:
        self._live.discard(connection)
        connection.peer.idle.pop(connection, None)


class UpstreamConnection(asyncio.Protocol):
    """One connection. ``begin`` lends it to an exchange until its answer is complete or it breaks."""

    def __init__(self, pool: UpstreamPool, peer: Peer) -> None:
        self.peer = peer
        self.idle_until = 0.0
        self.carried = 0
        """Exchanges begun on this connection; more than one means that it came from the pool."""
        self._pool = pool
        self._transport: asyncio.Transport | None = None
        self._parser: httptools.HttpResponseParser | None = None
        self._sink: ReplySink | None = None
        self._eof = False
        self._tunnel = False
        self._paused = False
        self._reset_reply("GET")

    def _reset_reply(self, method: str) -> None:
        self._method = method
        self._reason = b""
        self._fields: list[tuple[bytes, bytes]] = []
        self._special: dict[bytes, bytes] = {}
        self._pieces: list[bytes] = []
        self._head: ResponseHead | None = None
        """Parsed and not yet handed over."""
        self._framing: Framing | None = None
        self._keep = False
        self._promised_s: float | None = None
        self._interim = False
        self._complete = False
        self._surplus = False
        """Bytes came after the end of the answer."""
        self._answered = False
        self._sent_whole = False
        self._chunked_upload = False
        self._upgrade = False
        self._silent_bytes = 0

    # -- sending

    @property
    def is_closing(self) -> bool:
        return self._transport is None or self._transport.is_closing()

    def begin(
        self, sink: ReplySink, method: str, head: bytes, *, chunked: bool, whole: bool, upgrade: bool = False
    ) -> None:
        """Write a request's head; ``whole`` when no ``send_body`` with ``last`` will follow."""
        self._reset_reply(method)
        self._sink = sink
        self._chunked_upload = chunked
        self._sent_whole = whole
        self._upgrade = upgrade
        self.carried += 1
        if self._parser is None:
            self._parser = httptools.HttpResponseParser(self)
            self._parser.set_dangerous_leniencies(
                lenient_headers=True, lenient_optional_cr_before_lf=True, lenient_spaces_after_chunk_size=True
            )
        self.write(head)

    def send_body(self, data: bytes | memoryview, last: bool) -> None:
        """Pass on body bytes with the request's own framing."""
        if data:
            self.write(chunk(bytes(data)) if self._chunked_upload else data)
        if last:
            self._sent_whole = True
            if self._chunked_upload:
                self.write(LAST_CHUNK)

    def write(self, data: bytes | memoryview) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def pause_reading(self) -> None:
        if not self._paused and self._transport is not None and not self._transport.is_closing():
            self._paused = True
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        if self._paused and self._transport is not None and not self._transport.is_closing():
            self._paused = False
            self._transport.resume_reading()

    def abort(self) -> None:
        """Drop the connection without a word to the exchange."""
        self._sink = None
        self.end()

    def finish_writing(self) -> None:
        """Let go after what was written has left (the end of a tunnel)."""
        self._sink = None
        if self._transport is not None:
            self._transport.close()

    def end(self) -> None:
        """Drop the connection; an exchange on it is told by ``on_broken``."""
        if self._transport is not None:
            self._transport.abort()

    # -- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport = cast(asyncio.Transport, transport)  # uvloop's are no subclass
        self._pool.opened(self)

    def pause_writing(self) -> None:
        if self._sink is not None:
            self._sink.on_upload_paused()

    def resume_writing(self) -> None:
        if self._sink is not None:
            self._sink.on_upload_resumed()

    def data_received(self, data: bytes) -> None:
        sink = self._sink
        if sink is None or self._parser is None:  # nobody asked: not to be trusted with a request
            self.abort()
            return
        if self._tunnel:
            sink.on_tunnel_data(data)
            return
        self._answered = True
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as switched:
            self._switch(sink, data[switched.args[0] :])
            return
        except httptools.HttpParserError as error:
            if not self._complete:
                self._fail(_parser_words(error), reset=False)
                return
            self._surplus = True
        self._deliver(sink, len(data))

    def eof_received(self) -> bool:
        self._eof = self._transport is None or _said_goodbye(self._transport)
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self._parser = None
        self._pool.lost(self)
        sink, self._sink = self._sink, None
        if sink is None:
            return
        orderly = error is None and self._eof
        if self._framing is Framing.UNTIL_CLOSE and orderly and not self._tunnel:
            sink.on_data(b"", True)
        else:
            words = "closed the connection" if orderly else "reset the connection"
            sink.on_broken(Broken(f"it {words} before its answer was complete", self._answered, not orderly))

    # -- httptools

    def on_message_begin(self) -> None:
        if self._complete:
            self._surplus = True

    def on_status(self, reason: bytes) -> None:
        self._reason += reason

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._framing is not None:
            return  # a trailer, which is not forwarded
        value = value.rstrip(b" \t")
        self._fields.append((name, value))
        if name not in plain_names:
            low = name.lower()
            if low in SPECIAL:
                before = self._special.get(low)
                self._special[low] = value if before is None else before + b"," + value

    def on_headers_complete(self) -> None:
        parser = self._parser
        assert parser is not None
        status = parser.get_status_code()
        if status < 100:  # the parser lets it have a body, which would go out without a head
            raise ValueError(f"its answer has the status {status:03}")
        if status < 200 and status != 101:
            self._interim = True
            if status == 100 and self._sink is not None and not self._complete:
                self._sink.on_continue()
            return
        if self._complete:
            return
        if status == 101 and not (self._upgrade and parser.should_upgrade()):
            raise ValueError("it switched protocols unasked")
        special = self._special
        keep = parser.get_http_version() == "1.1" and b"close" not in special.get(b"connection", b"").lower()
        if promise := _KEEP_ALIVE_TIMEOUT.search(special.get(b"keep-alive", b"")):
            self._promised_s = float(promise[1])
        length, coding = special.get(b"content-length"), special.get(b"transfer-encoding")
        self._framing = response_framing(self._method, status, length, coding)
        self._keep = keep and self._framing is not Framing.UNTIL_CLOSE
        self._head = ResponseHead(status, self._reason, tuple(self._fields))
        if self._method == "HEAD":
            # The parser cannot be told that no body follows, so its work ends here.
            self._complete = True
            self._parser = None

    def on_body(self, data: bytes) -> None:
        if self._complete:
            self._surplus = True
        else:
            self._pieces.append(data)

    def on_message_complete(self) -> None:
        if self._interim:
            self._interim = False
            self._fields.clear()
            self._special.clear()
            self._reason = b""
        elif self._head is not None or self._framing is not None:
            self._complete = True

    # -- handing over

    def _deliver(self, sink: ReplySink, size: int) -> None:
        """Hand over what one read brought, in one call where possible."""
        head = self._head
        if head is not None:
            self._head = None
            assert self._framing is not None
            sink.on_head(head, self._framing)
        pieces = self._pieces
        if pieces:
            data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
            self._pieces = []
            self._silent_bytes = 0
        else:
            data = b""
            self._silent_bytes += size
            if self._silent_bytes > self._pool.max_reply_fields:  # an endless field or trailer
                self._fail("the fields of its answer are too large", reset=False)
                return
        if self._complete:
            self._release()
            sink.on_data(data, True)
        elif data or head is not None:
            sink.on_data(data, False)

    def _release(self) -> None:
        """The answer is complete: keep the connection if it can carry another exchange."""
        self._sink = None
        if self._keep and self._sent_whole and not self._surplus and not self.is_closing:
            self.resume_reading()
            self._pool.give_back(self, self._promised_s)
        elif self._transport is not None:
            self._transport.abort()

    def _switch(self, sink: ReplySink, tail: bytes) -> None:
        """101: from here on the bytes are not HTTP."""
        head, self._head = self._head, None
        assert head is not None  # only a 101 to an upgrade that was asked for stops the parser
        self._tunnel = True
        sink.on_upgraded(head, tail)

    def _fail(self, words: str, *, reset: bool) -> None:
        sink, self._sink = self._sink, None
        if sink is not None:
            if self._head is not None and self._framing is not None and self._method != "HEAD":
                head, self._head = self._head, None
                sink.on_head(head, self._framing)
            if self._pieces:  # what was well-formed before the fault still goes out, as it would direct
                sink.on_data(b"".join(self._pieces), False)
            sink.on_broken(Broken(words, self._answered, reset))
        self.end()


def _said_goodbye(transport: asyncio.Transport) -> bool:
    """Whether an end is TLS's own (close_notify): anybody on the way can close the connection below.

    uvloop reports only those to the protocol, asyncio both; the TLS object knows which it was.
    """
    tls = transport.get_extra_info("ssl_object")
    if tls is None:
        return True
    try:
        return not tls.read(1)
    except ssl.SSLZeroReturnError:
        return True
    except ssl.SSLError:  # it wants more: no goodbye has come
        return False


def _parser_words(error: httptools.HttpParserError) -> str:
    if isinstance(error, httptools.HttpParserCallbackError):
        return str(error.__context__)
    return f"its answer is no valid HTTP ({error})"
