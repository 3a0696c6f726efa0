"""The data port: accepts connections, parses requests, and runs one exchange after the other on each.

One ``ClientConnection`` per connection, with one task that takes its requests in order (pipelined
ones wait, bounded). All limits of time are looked at by one sweep, twice a second, so that no
timer is armed per request or chunk and a leaving that only the kernel knows of (a client whose
connection we do not read) is still noticed within a second.

The one invariant: bytes of a client are read as a request exactly once and strictly; what the
parser does not accept ends the connection.
"""

import asyncio
import contextlib
import select
import socket
import struct
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal, cast

import httptools

from proxy import answers
from proxy.dial import keep_alive
from proxy.exchange import Faults, LiveExchange, Opened, Shell, Thinker
from proxy.incoming import HOLD_UNCLAIMED, BadRequest, IncomingRequest, Room
from proxy.model import Exchange, Head, Identity
from proxy.routes import RouteTable
from proxy.upstream import UpstreamPool
from proxy.verdict import Reply
from proxy.wire import OWN_PREFIX, Framing, WireLimits

try:
    from uvloop import new_event_loop as _new_event_loop
except ImportError:  # where it does not install, asyncio's own loop does the same, slower
    from asyncio import new_event_loop as _new_event_loop  # type: ignore[assignment]

SWEEP_S = 0.5
ABRUPT = struct.pack("ii", 1, 0)
"""SO_LINGER that makes close() send a reset."""
_PEER_LEFT = getattr(select, "POLLRDHUP", 0) | select.POLLHUP | select.POLLERR


def new_event_loop() -> asyncio.AbstractEventLoop:
    """uvloop where it is installed."""
    return _new_event_loop()


@dataclass(frozen=True, slots=True)
class WireCounters:
    """What the data port is doing, at one moment."""

    open_connections: int
    open_exchanges: int
    open_streams: int
    requests_total: int
    rejected_connections_total: int
    upstream_connections: int
    idle_upstream_connections: int
    buffered_bytes: int
    faults: dict[tuple[str, str], int]
    """Our own bugs, by place and kind."""


class Server:
    """The listening socket and everything on it."""

    def __init__(
        self,
        routes: RouteTable,
        thinker: Thinker,
        pool: UpstreamPool,
        limits: WireLimits,
        identify: Callable[[Head], Identity],
        on_fault: Callable[[str, BaseException], None],
        *,
        admit: Callable[[Exchange, Opened], Awaitable[None]] | None = None,
        on_internal_error: Literal["open", "closed"] = "open",
        on_abort: Literal["cancel", "drain"] = "cancel",
        refuse_websocket: bool = False,
    ) -> None:
        self.shell = Shell(
            routes,
            thinker,
            pool,
            limits,
            identify,
            Faults(on_fault),
            Room(limits.max_buffered),
            admit,
            on_internal_error,
            on_abort,
            refuse_websocket,
        )
        self._connections: set[ClientConnection] = set()
        self._rejected = 0
        self._listener: asyncio.Server | None = None
        self._sweeper: asyncio.TimerHandle | None = None
        self._empty: asyncio.Event = asyncio.Event()

    async def start(self, host: str, port: int) -> tuple[str, int]:
        """Listen; returns the address (port 0 picks a free one)."""
        loop = self.shell.loop = asyncio.get_running_loop()
        self.shell.now = loop.time()
        self.shell.pool.sweep(self.shell.now)
        self._listener = await loop.create_server(lambda: ClientConnection(self), host, port, backlog=4096)
        self._sweeper = loop.call_later(SWEEP_S, self._sweep)
        address = self._listener.sockets[0].getsockname()
        return address[0], address[1]

    async def stop(self, grace_s: float) -> None:
        """Stop accepting, close what is idle, let exchanges end for ``grace_s``, then cut them."""
        self.shell.stopping = True
        if self._listener is not None:
            self._listener.close()
        self._empty.clear()
        for connection in list(self._connections):
            connection.retire()
        if self._connections:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._empty.wait(), grace_s)
        for exchange in list(self.shell.draining):
            exchange.cancel()
        tasks = [task for c in list(self._connections) if (task := c.cut()) is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=5)
        if self._sweeper is not None:
            self._sweeper.cancel()
        self.shell.pool.close()

    @property
    def counters(self) -> WireCounters:
        shell = self.shell
        return WireCounters(
            len(self._connections),
            shell.open_exchanges,
            shell.open_streams,
            shell.requests,
            self._rejected,
            shell.pool.open_connections,
            shell.pool.idle_connections,
            shell.room.used,
            dict(shell.faults.counts),
        )

    def accept(self, connection: "ClientConnection") -> bool:
        """Take a new connection, unless there are too many."""
        if len(self._connections) >= self.shell.limits.max_connections or self.shell.stopping:
            self._rejected += 1
            return False
        self._connections.add(connection)
        return True

    def forget(self, connection: "ClientConnection") -> None:
        self._connections.discard(connection)
        if not self._connections:
            self._empty.set()

    def _sweep(self) -> None:
        loop = self.shell.loop
        now = self.shell.now = loop.time()
        self._sweeper = loop.call_later(SWEEP_S, self._sweep)
        unread: dict[int, ClientConnection] = {}
        for connection in list(self._connections):
            connection.sweep(now)
            if (descriptor := connection.unread_descriptor) is not None:
                unread[descriptor] = connection
        for exchange in list(self.shell.draining):
            exchange.sweep(now)
        if unread:
            poll = select.poll()
            for descriptor in unread:
                poll.register(descriptor, _PEER_LEFT)
            for descriptor, _ in poll.poll(0):
                unread[descriptor].left_unread()
        self.shell.room.sweep(now, self.shell.limits.room_s)
        self.shell.pool.sweep(now)


class ClientConnection(asyncio.Protocol):
    """One client's connection: the parser's callbacks in, requests in a row out."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._shell = server.shell
        self._limits = server.shell.limits
        self._transport: asyncio.Transport | None = None
        self._parser: httptools.HttpRequestParser | None = httptools.HttpRequestParser(self)
        self._task: asyncio.Task[None] | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._queue: deque[IncomingRequest | BadRequest] = deque()
        self._exchange: LiveExchange | None = None
        self._arriving: IncomingRequest | None = None
        """The request whose body the parser is in."""
        self.write_paused = False
        self._held = 0
        self._unclaimed = 0
        self._deaf = False
        """Nothing more is read as a request: what still comes is dropped."""
        self._tunnel: Callable[[bytes], None] | None = None
        self._tail: list[bytes] | None = None
        """Bytes behind a handshake whose answer is not known yet."""
        self._replaying = False
        self._last_request = False
        """The request being read asks to close: nothing behind it counts."""
        self._body_came = False
        self._idle_since = server.shell.now
        self._head_since = 0.0
        self._stalled_since = 0.0
        self._body_since = 0.0
        self._closing_since = 0.0
        self._lingering = False
        self._begin_head()

    def _begin_head(self) -> None:
        self._in_head = False
        self._target = b""
        self._fields: list[tuple[bytes, bytes]] = []
        self._field_bytes = 0
        self._special: dict[bytes, bytes] = {}
        self._own_fields = False
        self._overhead = 0

    # -- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport = cast(asyncio.Transport, transport)  # uvloop's are no subclass
        if not self._server.accept(self):
            self._deaf = True
            reply = answers.text(503, "too many connections", [(b"retry-after", b"1")])
            transport.write(_closing(reply))
            transport.close()
            return
        sock = transport.get_extra_info("socket")
        if sock is not None:
            keep_alive(sock)

    def data_received(self, data: bytes) -> None:
        if self._tunnel is not None:
            self._tunnel(data)
        elif self._deaf:
            return
        elif self._tail is not None:
            self._tail.append(data)
            self.unclaimed(len(data))
        else:
            self._parse(data)

    def eof_received(self) -> bool:
        # A client that shuts its sending side has left: proxies and clients agree on that, and
        # without it nobody could tell a client that is gone from one that listens on.
        exchange = self._exchange
        if exchange is not None and self._tunnel is None:
            exchange.on_client_left()
            self.abort()
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self._server.forget(self)
        self._transport = None
        self._parser = None
        self._deaf = True
        if self._exchange is not None:
            self._exchange.on_client_left()
        elif self._task is not None:
            self._task.cancel()
        for request in self._queue:
            if isinstance(request, IncomingRequest):
                request.discard()
        self._queue.clear()

    def pause_writing(self) -> None:
        self.write_paused = True
        self._stalled_since = self._shell.now
        if self._exchange is not None:
            self._exchange.on_client_paused()

    def resume_writing(self) -> None:
        self.write_paused = False
        self._stalled_since = 0.0
        if self._exchange is not None:
            self._exchange.on_client_resumed()

    # -- parsing

    def _parse(self, data: bytes) -> None:
        parser = self._parser
        if parser is None:
            return
        try:
            parser.feed_data(data)
        except httptools.HttpParserUpgrade as switched:
            self._after_upgrade(data[switched.args[0] :])
        except httptools.HttpParserCallbackError as error:
            cause = error.__context__
            self._bad(cause if isinstance(cause, BadRequest) else BadRequest(400, "not a valid HTTP request"))
            if not isinstance(cause, BadRequest) and cause is not None:
                self._shell.faults.caught("parse", cause)
        except httptools.HttpParserError as error:
            self._bad(BadRequest(400, f"not a valid HTTP request: {error}"))
        arriving = self._arriving
        if arriving is not None:
            self._body_since = self._shell.now
            arriving.flush()
            if arriving.framing is Framing.CHUNKED:
                self._overhead = 0 if self._body_came else self._overhead + len(data)
                self._body_came = False
                if self._overhead > self._limits.max_fields:
                    self._bad(BadRequest(400, "endless chunk extensions or trailers"))
        elif self._in_head:
            self._watch_head(len(data))

    def _watch_head(self, size: int) -> None:
        """A head that is not complete yet: bound its size and its time."""
        if not self._head_since:
            self._head_since = self._shell.loop.time()
        self._overhead += size
        limits = self._limits
        if self._overhead > limits.max_target + limits.max_fields:
            self._bad(BadRequest(431 if self._target else 414, "the request head is too large"))

    def on_message_begin(self) -> None:
        if not self._replaying:
            self._begin_head()
            self._in_head = True

    def on_url(self, part: bytes) -> None:
        if self._replaying:
            return
        self._target += part
        if len(self._target) > self._limits.max_target:
            raise BadRequest(414, f"the request target is longer than {self._limits.max_target} bytes")

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._in_head:
            return  # a trailer: dropped, like the TE that would have asked for it
        self._field_bytes += len(name) + len(value)
        value = value.rstrip(b" \t")
        self._fields.append((name, value))
        low = name.lower()
        if low in _SPECIAL:
            if low == b"host" and low in self._special:
                raise BadRequest(400, "more than one Host field")
            before = self._special.get(low)
            self._special[low] = value if before is None else before + b"," + value
        elif low.startswith(OWN_PREFIX):
            self._own_fields = True

    def on_headers_complete(self) -> None:
        if self._replaying:
            return
        parser, special, limits = self._parser, self._special, self._limits
        assert parser is not None
        self._in_head = False
        self._head_since = 0.0
        self._overhead = 0
        if self._field_bytes > limits.max_fields or len(self._fields) > limits.max_field_count:
            raise BadRequest(431, f"the request's fields exceed {limits.max_fields} bytes")
        method = _METHODS.get(parser.get_method()) or parser.get_method().decode("ascii")
        version = parser.get_http_version()
        if version not in ("1.1", "1.0"):
            raise BadRequest(505, "only HTTP/1.1 and HTTP/1.0 are spoken here")
        if method == "CONNECT":
            raise BadRequest(405, "Looptap is no forward proxy")
        head = Head(method, self._target.decode("latin-1"), tuple(self._fields))
        framing, length = _request_framing(special)
        request = IncomingRequest(self, self._shell.room, head, framing, length)
        request.own_fields = self._own_fields
        if special:
            options = special.get(b"connection", b"").lower()
            request.keep_alive = b"close" not in options
            request.expects_continue = special.get(b"expect", b"").lower() == b"100-continue"
            if b"upgrade" in special:
                self._replaying = parser.should_upgrade() and request.framing is not Framing.NONE
                request.upgrade = (
                    parser.should_upgrade()
                    and method == "GET"
                    and version == "1.1"
                    and request.framing is Framing.NONE
                    and special[b"upgrade"].lower() == b"websocket"
                )
        request.http_1_0 = version == "1.0"
        if request.upgrade:
            self._tail = []
        if request.framing is not Framing.NONE:
            self._arriving = request
        self._enqueue(request)

    def on_body(self, data: bytes) -> None:
        arriving = self._arriving
        if arriving is not None:
            self._body_came = True
            arriving.feed(data)

    def on_message_complete(self) -> None:
        if self._replaying:  # the parser takes an upgrade's body for the new protocol: not the end
            return
        arriving, self._arriving = self._arriving, None
        if arriving is not None:
            self._body_since = 0.0
            arriving.finish()
        if self._last_request:
            self._deaf = True

    def _after_upgrade(self, tail: bytes) -> None:
        """The parser stopped behind a head that asks for another protocol."""
        self._parser = httptools.HttpRequestParser(self)
        if self._tail is not None:
            if tail:
                self._tail.append(tail)
                self.unclaimed(len(tail))
            return
        arriving = self._arriving
        if arriving is not None and self._replaying:
            # Not one that we carry (h2c): the body is HTTP all the same. A head of the same framing
            # brings the fresh parser to where the body begins.
            chunked = arriving.framing is Framing.CHUNKED
            framing = b"Transfer-Encoding: chunked" if chunked else b"Content-Length: %d" % arriving.length
            self._parser.feed_data(b"POST / HTTP/1.1\r\n" + framing + b"\r\n\r\n")
            self._replaying = False
        if tail:
            self._parse(tail)

    def _enqueue(self, request: IncomingRequest | BadRequest) -> None:
        self._queue.append(request)
        if isinstance(request, IncomingRequest):
            self.unclaimed(_HEAD_WEIGHT)
            self._last_request = not request.keep_alive or request.http_1_0
        if self._task is None:
            self._task = self._shell.loop.create_task(self._serve())
        elif self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _bad(self, failure: BadRequest) -> None:
        """What came is no valid request: answered in its turn, then the connection ends."""
        if self._deaf:
            return
        self._deaf = True
        self._in_head = False
        self._head_since = 0.0
        arriving, self._arriving = self._arriving, None
        if arriving is None:
            self._enqueue(failure)
        elif self._exchange is not None and self._exchange.carries(arriving):
            self._exchange.on_bad_body(failure)
        else:
            arriving.fail(failure)

    # -- serving

    async def _serve(self) -> None:
        """Take this connection's requests, one after the other."""
        while True:
            while not self._queue:
                if self._shell.stopping or self._deaf:
                    self.finish()
                    return
                self._idle_since = self._shell.now
                self._waiter = self._shell.loop.create_future()
                await self._waiter
                self._waiter = None
            request = self._queue.popleft()
            if isinstance(request, BadRequest):
                self.write(_closing(answers.text(request.status, str(request))))
                self.finish()
                return
            self.unclaimed(-_HEAD_WEIGHT)
            assert self._task is not None
            exchange = self._exchange = LiveExchange(self._shell, self, request, self._task)
            await exchange.run()
            self._exchange = None
            if not exchange.reusable:
                self.finish()
                return

    # -- the exchange's side (exchange.Client, incoming.Held)

    def write(self, data: bytes) -> None:
        transport = self._transport
        if transport is not None and not transport.is_closing():
            transport.write(data)

    def hold(self, why: int) -> None:
        if not self._held and self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()
        self._held |= why

    def unhold(self, why: int) -> None:
        if not self._held & why:
            return
        self._held &= ~why
        self._body_since = self._shell.now
        if not self._held and self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def unclaimed(self, size: int) -> None:
        self._unclaimed += size
        if self._unclaimed > self._limits.max_unclaimed:
            self.hold(HOLD_UNCLAIMED)
        elif size < 0:
            self.unhold(HOLD_UNCLAIMED)

    def break_off(self, *, reset: bool) -> None:
        transport = self._transport
        if transport is None:
            return
        self._deaf = True
        sock = transport.get_extra_info("socket")
        if reset and sock is not None:
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, ABRUPT)
        self._closing_since = self._shell.now
        transport.close()

    def tunnel(self, take: Callable[[bytes], None]) -> None:
        tail, self._tail = self._tail, None
        self._tunnel = take
        for data in tail or ():
            self.unclaimed(-len(data))
            take(data)

    def no_tunnel(self) -> None:
        tail, self._tail = self._tail, None
        for data in tail or ():
            self.unclaimed(-len(data))
            if not self._deaf:
                self._parse(data)

    # -- ending

    def finish(self) -> None:
        """Close after what was written has left, without destroying it by a reset."""
        transport = self._transport
        if transport is None or self._closing_since:
            return
        self._deaf = True
        self._closing_since = self._shell.now
        if self._arriving is None and not self._held:
            transport.close()
            return
        # Closing with unread bytes would send a reset, which can overtake the answer: end our
        # side, and read on for a while into the void.
        self._lingering = True
        self.unhold(self._held)
        if transport.can_write_eof():
            transport.write_eof()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def retire(self) -> None:
        """The server stops: go at once when idle, else after the exchange in progress."""
        if self._exchange is None and not self._queue:
            self.finish()

    def cut(self) -> "asyncio.Task[None] | None":
        """The server's patience is over."""
        task = self._task
        if task is not None and not task.done():
            task.cancel()
        else:
            task = None
        self.break_off(reset=True)
        self.abort()
        return task

    # -- the sweep's side

    def sweep(self, now: float) -> None:
        limits = self._limits
        if self._closing_since:
            patience = limits.linger_s if self._lingering else limits.stalled_write_s
            if now - self._closing_since > patience:
                self.abort()
        elif self._stalled_since and now - self._stalled_since > limits.stalled_write_s:
            self.abort()
        elif self._head_since and now - self._head_since > limits.head_s:
            self._bad(BadRequest(408, f"the request head took longer than {limits.head_s:g} s"))
        elif self._exchange is not None:
            self._exchange.sweep(now)
            if self._body_since and not self._held and now - self._body_since > self._body_patience():
                self._bad(BadRequest(408, "the rest of the request did not come"))
        elif not self._queue and now - self._idle_since > limits.idle_s:
            self.finish()

    def _body_patience(self) -> float:
        exchange = self._exchange
        lingering = exchange is not None and exchange.answered_early
        return self._limits.linger_s if lingering else self._limits.silence_s

    @property
    def unread_descriptor(self) -> int | None:
        """Set while we do not read this client, so that only the kernel knows whether it left."""
        if not self._held or self._transport is None or self._transport.is_closing():
            return None
        sock = self._transport.get_extra_info("socket")
        return sock.fileno() if sock is not None else None

    def left_unread(self) -> None:
        if self._exchange is not None:
            self._exchange.on_client_left()
        self.abort()


_SPECIAL = frozenset({b"host", b"connection", b"content-length", b"transfer-encoding", b"expect", b"upgrade"})
_METHODS = {name.encode(): name for name in ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")}
_HEAD_WEIGHT = 1024
"""What a request waiting in line is taken to weigh, beside its body."""


def _request_framing(special: dict[bytes, bytes]) -> tuple[Framing, int]:
    """How the body ends, and its announced length; the parser has refused contradictions."""
    coding = special.get(b"transfer-encoding")
    if coding is not None:
        if coding.lower() != b"chunked":
            raise BadRequest(501, "the only transfer coding understood is chunked")
        return Framing.CHUNKED, 0
    length = int(special.get(b"content-length", b"0"))
    return (Framing.LENGTH if length else Framing.NONE), length


def _closing(reply: Reply) -> bytes:
    """An answer outside of any exchange, after which the connection ends."""
    lines = [b"HTTP/1.1 %d %b" % (reply.status, answers.reason(reply.status))]
    lines += [name + b": " + value for name, value in reply.headers]
    lines += [b"content-length: %d" % len(reply.body), b"Connection: close"]
    return b"\r\n".join(lines) + b"\r\n\r\n" + reply.body
