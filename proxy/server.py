"""The data port: accepts connections and runs one exchange after the other on each.

One ``ClientConnection`` per connection, with one task that takes its requests in order (pipelined
ones wait, bounded). All limits of time are looked at by one sweep, twice a second, so that no
timer is armed per request or chunk, and a leaving that only the kernel knows of (a client whose
connection we do not read) is still noticed within a second.

The one invariant: a connection carries one exchange at a time, and ends only after what was
written to it has left, unless it is meant to be seen broken.
"""

import asyncio
import contextlib
import os
import select
import socket
import struct
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal, cast

from proxy.exchange import LiveExchange, Shell
from proxy.model import Exchange, Head, Identity
from proxy.verdict import Reply
from proxy.wire import answers
from proxy.wire.dial import keep_alive
from proxy.wire.guard import Faults, Opened, Thinker
from proxy.wire.heads import WireLimits, own_answer
from proxy.wire.incoming import HOLD_TURN, HOLD_UNCLAIMED, BadRequest, IncomingRequest, Room
from proxy.wire.reader import RequestReader
from proxy.wire.routes import RouteTable
from proxy.wire.upstream import UpstreamPool

try:
    from uvloop import new_event_loop as _new_event_loop
except ImportError:  # where it does not install, asyncio's own loop does the same, slower
    from asyncio import new_event_loop as _new_event_loop  # type: ignore[assignment]

SWEEP_S = 0.5
CLOSING_TURNS = 100
LAST_CALL_S = 1.0
"""How long a connection without a request may still bring one while the server stops."""
ABRUPT = struct.pack("ii", 1, 0)
"""SO_LINGER that makes close() send a reset."""
PEER_LEFT = getattr(select, "POLLRDHUP", 0) | select.POLLHUP | select.POLLERR
AT_ONCE = 512 * 1024
"""Bytes of one client that are read until others have had their turn: uvloop would read on for megabytes."""
_LARGE = 64 * 1024
HEAD_WEIGHT = 1024
"""What a request waiting in line is taken to weigh, beside its body."""


def new_event_loop() -> asyncio.AbstractEventLoop:
    """uvloop where it is installed."""
    return _new_event_loop()


@dataclass(frozen=True, slots=True)
class WireCounters:
    """What the data port is doing, at one moment."""

    open_connections: int
    held_connections: int
    """Clients that are not being read: their upstream is slow, or there is no room."""
    open_exchanges: int
    open_streams: int
    """Answers under way whose head is out."""
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
            on_internal_error=on_internal_error,
            on_abort=on_abort,
            refuse_websocket=refuse_websocket,
        )
        """Shared by all exchanges; routes and switches may be replaced while running."""
        self._connections: set[ClientConnection] = set()
        self._rejected = 0
        self._listener: asyncio.Server | None = None
        self._sweeper: asyncio.TimerHandle | None = None
        self._all_gone = asyncio.Event()
        self._hurried = False

    async def start(self, host: str, port: int) -> tuple[str, int]:
        """Listen; returns the address (port 0 picks a free one)."""
        loop = self.shell.pulse.rounds.loop = asyncio.get_running_loop()
        self._sweep()
        self._listener = await loop.create_server(lambda: ClientConnection(self), host, port, backlog=4096)
        address = self._listener.sockets[0].getsockname()
        return address[0], address[1]

    async def stop(self, grace_s: float) -> None:
        """Stop accepting, close what is idle, let exchanges end for ``grace_s``, then cut them."""
        if self._listener is not None:
            await self._close_listener(self._listener)
        self.shell.pulse.stopping = True
        for connection in list(self._connections):
            connection.retire()
        if self._connections and not self._hurried:
            self._all_gone.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._all_gone.wait(), grace_s)
        tasks = [exchange.cancel() for exchange in list(self.shell.draining)]
        tasks += [task for connection in list(self._connections) for task in connection.cut()]
        if tasks:
            await asyncio.wait(tasks, timeout=5)
        self.shell.pulse.rounds.finish()
        if self._sweeper is not None:
            self._sweeper.cancel()
        self.shell.pool.close()
        for _ in range(CLOSING_TURNS):  # transports close in a later turn of the loop
            if not self._connections and not self.shell.pool.open_connections:
                break
            await asyncio.sleep(0.01)

    def hurry(self) -> None:
        """Give what is still under way no more time."""
        self._hurried = True
        self._all_gone.set()

    async def _close_listener(self, listener: asyncio.Server) -> None:
        """Take what the kernel has accepted for us, then refuse: a mere close would reset those."""
        with contextlib.ExitStack() as stack:
            sockets = [
                stack.enter_context(socket.socket(fileno=os.dup(one.fileno()))) for one in listener.sockets
            ]
            for one in sockets:
                one.setblocking(False)
            await asyncio.sleep(0)  # asyncio loses what it has accepted and not yet begun with
            listener.close()
            for one in sockets:
                with contextlib.suppress(OSError):  # nobody waits any more, or nothing can be taken
                    while True:
                        await self._take(one.accept()[0])
        await asyncio.sleep(0)  # the last ones taken are made connections in the next turn

    async def _take(self, client: socket.socket) -> None:
        client.setblocking(False)
        try:
            await self.shell.pulse.loop.connect_accepted_socket(lambda: ClientConnection(self), client)
        except OSError:  # it has left meanwhile; others may still wait behind it
            client.close()
        except BaseException:
            client.close()
            raise

    @property
    def counters(self) -> WireCounters:
        shell = self.shell
        return WireCounters(
            open_connections=len(self._connections),
            held_connections=sum(connection.is_held for connection in self._connections),
            open_exchanges=shell.open_exchanges,
            open_streams=shell.pulse.open_streams,
            requests_total=shell.requests,
            rejected_connections_total=self._rejected,
            upstream_connections=shell.pool.open_connections,
            idle_upstream_connections=shell.pool.idle_connections,
            buffered_bytes=shell.room.used,
            faults=dict(shell.faults.counts),
        )

    def accept(self, connection: "ClientConnection") -> bool:
        """Take a new connection, unless there are too many."""
        if len(self._connections) >= self.shell.limits.max_connections:
            self._rejected += 1
            return False
        self._connections.add(connection)
        return True

    def forget(self, connection: "ClientConnection") -> None:
        self._connections.discard(connection)
        if not self._connections:
            self._all_gone.set()

    def _sweep(self) -> None:
        shell = self.shell
        now = shell.pulse.now = shell.pulse.loop.time()
        self._sweeper = shell.pulse.loop.call_later(SWEEP_S, self._sweep)
        unread: dict[int, ClientConnection] = {}
        for connection in list(self._connections):
            connection.sweep(now)
            if (descriptor := connection.unread_descriptor) is not None:
                unread[descriptor] = connection
        if unread:
            poll = select.poll()
            for descriptor in unread:
                poll.register(descriptor, PEER_LEFT)
            for descriptor, _ in poll.poll(0):
                unread[descriptor].left_unread()
        for exchange in list(shell.draining):
            exchange.sweep(now)
        shell.room.sweep(now, shell.limits.room_s)
        shell.pool.sweep(now)


class ClientConnection(asyncio.Protocol):
    """One client's connection: bytes to the reader, requests in a row to exchanges."""

    def __init__(self, server: Server) -> None:
        shell = server.shell
        self._server = server
        self._shell = shell
        self._transport: asyncio.Transport | None = None
        self._reader = RequestReader(
            self, shell.pulse, shell.room, shell.limits, self._enqueue, self._on_bad, shell.faults.caught
        )
        self._task: asyncio.Task[None] | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._queue: deque[IncomingRequest | BadRequest] = deque()
        self._exchange: LiveExchange | None = None
        self._tunnel: Callable[[bytes], None] | None = None
        self.write_paused = False
        self._held = 0
        self._unclaimed = 0
        self._this_turn = 0
        """Bytes of large reads since the loop last looked at other connections."""
        self._idle_since = shell.pulse.now
        self._stalled_since = 0.0
        self._closing_since = 0.0
        self._lingering = False

    # -- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport = cast(asyncio.Transport, transport)  # uvloop's are no subclass
        if not self._server.accept(self):
            self._reader.deaf = True
            transport.write(_last(answers.text(503, "too many connections", [(b"retry-after", b"1")])))
            transport.close()
            return
        sock = transport.get_extra_info("socket")
        if sock is not None:
            keep_alive(sock)

    def data_received(self, data: bytes) -> None:
        if len(data) > _LARGE:
            self._take_turns(len(data))
        if self._tunnel is None:
            self._reader.feed(data)
        else:
            self._tunnel(data)

    def _take_turns(self, size: int) -> None:
        if not self._this_turn:
            self._shell.pulse.loop.call_soon(self._next_turn)
        self._this_turn += size
        if self._this_turn >= AT_ONCE:
            self.hold(HOLD_TURN)

    def _next_turn(self) -> None:
        self._this_turn = 0
        self.unhold(HOLD_TURN)

    def eof_received(self) -> bool:
        # A client that shuts its sending side has left: proxies and clients agree on that, and
        # without it nobody could tell a client that is gone from one that listens on.
        exchange = self._exchange
        if exchange is not None and self._tunnel is None and not exchange.is_answered:
            exchange.on_client_left()
            self.abort()
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self._server.forget(self)
        self._transport = None
        self._reader.close()
        if self._exchange is not None:
            self._exchange.on_client_left()
        elif self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
        for request in self._queue:
            if isinstance(request, IncomingRequest):
                request.discard()
        self._queue.clear()

    def pause_writing(self) -> None:
        self.write_paused = True
        self._stalled_since = self._shell.pulse.now
        if self._exchange is not None:
            self._exchange.relay.on_client_paused()

    def resume_writing(self) -> None:
        self.write_paused = False
        self._stalled_since = 0.0
        if self._exchange is not None:
            self._exchange.relay.on_client_resumed()

    # -- requests in a row

    def _enqueue(self, request: IncomingRequest | BadRequest) -> None:
        self._queue.append(request)
        if isinstance(request, IncomingRequest):
            self.unclaimed(HEAD_WEIGHT)
        if self._task is None:
            self._task = self._shell.pulse.loop.create_task(self._serve())
        elif self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _on_bad(self, failure: BadRequest, arriving: IncomingRequest | None) -> None:
        """What came is no valid request: answered in its turn, then the connection ends."""
        if arriving is None:
            self._enqueue(failure)
        elif self._exchange is not None and self._exchange.carries(arriving):
            self._exchange.on_bad_body(failure)
        else:
            arriving.fail(failure)

    async def _serve(self) -> None:
        """Take this connection's requests, until it ends or is given up.

        A cancelled task keeps its error, and the error its frames: a reference cycle that holds bodies.
        """
        with contextlib.suppress(asyncio.CancelledError):
            await self._serve_requests()

    async def _serve_requests(self) -> None:
        """One after the other."""
        while True:
            while not self._queue:
                if self._reader.deaf:
                    self.finish()
                    return
                if self._shell.pulse.stopping:
                    self.retire()
                self._idle_since = self._shell.pulse.now
                self._waiter = self._shell.pulse.loop.create_future()
                await self._waiter
                self._waiter = None
            request = self._queue.popleft()
            if isinstance(request, BadRequest):
                self.write(_last(answers.text(request.status, str(request))))
                self.finish(lingering=True)
                return
            reusable, complete = await self._carry(request)
            del request  # nothing of an exchange is held while the next one is waited for
            if not reusable:
                self.finish(lingering=not complete)
                return

    async def _carry(self, request: IncomingRequest) -> tuple[bool, bool]:
        """Run one exchange; whether another may follow, and whether its request has come whole."""
        self.unclaimed(-HEAD_WEIGHT)
        assert self._task is not None
        exchange = self._exchange = LiveExchange(self._shell, self, request, self._task)
        try:
            await exchange.run()
        finally:
            self._exchange = None
        return exchange.reusable, request.complete

    # -- the exchange's and the request's side (relay.Client, incoming.Held)

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
        if not self._held and self._transport is not None and not self._transport.is_closing():
            if self._reader.body_since:
                self._reader.body_since = self._shell.pulse.now
            self._transport.resume_reading()

    def unclaimed(self, size: int) -> None:
        self._unclaimed += size
        if self._unclaimed > self._shell.limits.max_unclaimed:
            self.hold(HOLD_UNCLAIMED)
        elif size < 0:
            self.unhold(HOLD_UNCLAIMED)

    def break_off(self, *, reset: bool) -> None:
        self._shell.pulse.rounds.send()
        transport = self._transport
        if transport is None:
            return
        self._reader.deaf = True
        sock = transport.get_extra_info("socket")
        if reset and sock is not None:
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, ABRUPT)
        self._closing_since = self._shell.pulse.now
        transport.close()

    def tunnel(self, take: Callable[[bytes], None]) -> None:
        self._tunnel = take
        for data in self._reader.take_tail():
            take(data)

    def no_tunnel(self) -> None:
        self._reader.go_on()

    # -- ending

    def finish(self, *, lingering: bool = False) -> None:
        """Close after what was written has left.

        Closing with unread bytes would send a reset, which can overtake the answer; ``lingering``
        ends only our side and reads on for a while into the void.
        """
        transport = self._transport
        if transport is None or self._closing_since:
            return
        self._reader.deaf = True
        self._closing_since = self._shell.pulse.now
        if not lingering or not transport.can_write_eof():
            transport.close()
            return
        self._lingering = True
        self.unhold(self._held)
        transport.write_eof()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def retire(self) -> None:
        """The server stops: go at once when idle, else after the exchange in progress.

        A request on its way is an exchange to be: on a new connection it has a moment to come.
        """
        if self._exchange is not None or self._queue or self._reader.head_since:
            return
        self._idle_since = self._shell.pulse.loop.time()
        if self._task is not None and not self._has_unread():
            self.finish()

    def _has_unread(self) -> bool:
        """Whether bytes have come that the loop has not read yet."""
        sock = self._transport.get_extra_info("socket") if self._transport is not None else None
        if sock is None:
            return False
        poll = select.poll()
        poll.register(sock.fileno(), select.POLLIN)
        return bool(poll.poll(0))

    def cut(self) -> "list[asyncio.Task[None]]":
        """The server's patience is over; the tasks that still have to come to their end."""
        if self._exchange is not None:
            self._exchange.on_stopped()
        self.break_off(reset=True)
        self.abort()
        if self._task is None or self._task.done():
            return []
        self._task.cancel()
        return [self._task]

    @property
    def is_held(self) -> bool:
        return self._held != 0

    # -- the sweep's side

    def sweep(self, now: float) -> None:
        limits, reader = self._shell.limits, self._reader
        if self._closing_since:
            patience = limits.linger_s if self._lingering else limits.stalled_write_s
            if now - self._closing_since > patience:
                self.abort()
        elif self._stalled_since and now - self._stalled_since > limits.stalled_write_s:
            self.abort()
        elif reader.head_since and now - reader.head_since > limits.head_s:
            reader.fail(BadRequest(408, f"the request head took longer than {limits.head_s:g} s"))
        elif self._exchange is not None:
            self._exchange.sweep(now)
            if reader.body_since and not self._held and now - reader.body_since > self._body_patience():
                reader.fail(BadRequest(408, "the rest of the request did not come"))
        elif not self._queue and now - self._idle_since > self._idle_patience():
            self.finish()

    def _idle_patience(self) -> float:
        return LAST_CALL_S if self._shell.pulse.stopping else self._shell.limits.idle_s

    def _body_patience(self) -> float:
        answered = self._exchange is not None and self._exchange.is_answered
        return self._shell.limits.linger_s if answered else self._shell.limits.silence_s

    @property
    def unread_descriptor(self) -> int | None:
        """Set while we do not read this client, so that only the kernel knows whether it left."""
        if not self._held or self._transport is None or self._transport.is_closing():
            return None
        sock = self._transport.get_extra_info("socket")
        return cast(int, sock.fileno()) if sock is not None else None

    def left_unread(self) -> None:
        """The kernel says that the client is gone."""
        if self._exchange is not None:
            self._exchange.on_client_left()
        self.abort()


def _last(reply: Reply) -> bytes:
    """An answer outside of any exchange, after which the connection ends."""
    return own_answer(reply.status, answers.reason(reply.status), reply.headers, reply.body, close=True)
