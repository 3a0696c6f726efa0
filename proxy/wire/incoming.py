"""A client's request while it arrives: the head, then a body that is kept, passed on or dropped.

``IncomingRequest`` is filled by the parser's side (``server``) and emptied by the exchange, which
chooses once what becomes of the body: ``whole`` (a model call), ``stream_to`` or ``discard``.
``Room`` is the bound on all bodies held whole.

The one invariant: bytes that nobody has chosen a use for are bounded; beyond that the client's
connection is simply not read, which is all the back-pressure there is.
"""

import asyncio
from collections.abc import Callable
from typing import Protocol

from proxy.model import Head
from proxy.wire.heads import Framing
from proxy.wire.rounds import Rounds


class BadRequest(Exception):
    """The request cannot be taken as it is: the status and the words for the client."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


HOLD_UNCLAIMED = 1
HOLD_UPSTREAM = 2
HOLD_ROOM = 4
HOLD_TURN = 8
"""Why a client's connection is not being read: bits, as several reasons can hold at once."""


class Pulse:
    """What all connections of a server share: the loop, a coarse clock, whose turn it is, open answers."""

    __slots__ = ("now", "open_streams", "rounds", "stopping")

    def __init__(self) -> None:
        self.now = 0.0
        """The loop's time at the last sweep: near enough for every limit of the wire."""
        self.open_streams = 0
        self.rounds = Rounds()
        self.stopping = False

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The server's, as its rounds keep it."""
        return self.rounds.loop


class Held(Protocol):
    """The client's connection, as far as a request needs it."""

    def hold(self, why: int) -> None: ...
    def unhold(self, why: int) -> None: ...
    def unclaimed(self, size: int) -> None:
        """Count bytes that wait for their exchange (negative: they found it)."""
        ...


SMALL = 1024 * 1024
"""Bytes up to which an announced body is read although the room is full: it fits beside the large ones."""
_OVER = 8
"""The part of the limit that small bodies may take above it."""


class Room:
    """Bytes of request bodies held whole, over all connections.

    A full room is not read into, but for two kinds of bodies: small ones, up to an eighth above the
    limit, so that one client's large uploads do not stop all others; and the oldest, since half-read
    bodies would otherwise wait for each other.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self._last = limit + min(limit // _OVER, 64 * SMALL)
        self._full_since: float | None = None
        self._readers: dict[IncomingRequest, None] = {}
        """Bodies still being read, in order of arrival."""

    def enter(self, request: "IncomingRequest") -> None:
        self._readers[request] = None
        if self.is_full and not self._may_read(request):
            request.connection.hold(HOLD_ROOM)

    def leave(self, request: "IncomingRequest") -> None:
        """No more of this body will come."""
        if request not in self._readers:
            return
        del self._readers[request]
        if self.is_full and self._readers:
            next(iter(self._readers)).connection.unhold(HOLD_ROOM)

    def add(self, size: int) -> None:
        """Account for bytes (negative: for their release); reading stops and goes on by it."""
        before = self.used
        self.used += size
        if self.used < self.limit:
            if before >= self.limit:
                self._full_since = None
                for reader in list(self._readers):
                    reader.connection.unhold(HOLD_ROOM)
        elif before < self.limit or (before < self._last) != (self.used < self._last):
            for reader in list(self._readers):
                if self._may_read(reader):
                    reader.connection.unhold(HOLD_ROOM)
                else:
                    reader.connection.hold(HOLD_ROOM)

    def _may_read(self, request: "IncomingRequest") -> bool:
        """Whether a body is read although the room is full."""
        small = 0 < request.length <= SMALL and self.used < self._last
        return small or request is next(iter(self._readers), None)

    @property
    def is_full(self) -> bool:
        return self.used >= self.limit

    def sweep(self, now: float, patience_s: float) -> None:
        """A full room that stays full (its oldest body does not come, say): give the newest up."""
        if not self.is_full or not self._readers:
            self._full_since = None
        elif self._full_since is None:
            self._full_since = now
        elif now - self._full_since > patience_s:
            newest = next(reversed(self._readers))
            newest.fail(BadRequest(503, "too many request bodies at once (limits.max_buffered); try again"))


class IncomingRequest:
    """One request. ``feed``, ``flush``, ``finish`` and ``fail`` are the parser's side."""

    __slots__ = (
        "_failure", "_held", "_keeps", "_pieces", "_room", "_size", "_take", "_unclaimed", "_waiter",
        "complete", "connection", "expects_continue", "framing", "head", "http_1_0", "keep_alive", "length",
        "own_fields", "upgrade",
    )  # fmt: skip

    def __init__(self, connection: Held, room: Room, head: Head, framing: Framing, length: int) -> None:
        self.connection = connection
        self.head = head
        self.framing = framing
        self.length = length
        """As announced; 0 where it is not."""
        self.http_1_0 = False
        self.keep_alive = True
        self.expects_continue = False
        self.upgrade = False
        """A WebSocket handshake."""
        self.own_fields = False
        """Fields of ours (``x-looptap-…``) are in the head."""
        self.complete = framing is Framing.NONE
        self._room = room
        self._pieces: list[bytes] = []
        self._size = 0
        self._held = 0
        """Bytes accounted for in the room."""
        self._unclaimed = True
        self._keeps = True
        self._take: Callable[[bytes, bool], None] | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._failure: BadRequest | None = None

    # -- the parser's side

    def feed(self, data: bytes) -> None:
        """A piece of the body; pieces of one read are passed on together by ``flush``."""
        if not self._keeps:
            return
        self._pieces.append(data)
        size = len(data)
        self._size += size
        if self._unclaimed:
            self.connection.unclaimed(size)
        elif self._take is None:
            self._held += size
            self._room.add(size)
            if self._size > self._room.limit:
                self.fail(too_large(self._room.limit))

    def flush(self) -> None:
        """The read that brought these pieces is over."""
        if self._take is not None and self._pieces:
            self._take(self._taken(), False)

    def finish(self) -> None:
        """The body is complete."""
        self.complete = True
        self._room.leave(self)
        if self._take is not None:
            self._take(self._taken(), True)
        self._wake()

    def fail(self, failure: BadRequest) -> None:
        """The rest of the body will not come, or cannot be understood or held."""
        self._failure = failure
        self._room.leave(self)
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # -- the exchange's side

    async def whole(self) -> bytes:
        """The entire body, held until ``release``. Raises BadRequest."""
        if self.length > self._room.limit:
            raise too_large(self._room.limit)
        self._claim()
        if self._size:
            self._held = self._size
            self._room.add(self._size)
        if not self.complete:
            self._room.enter(self)
            try:
                await self._wait()
            finally:
                self.connection.unhold(HOLD_ROOM)
        return self._taken()

    def taken(self) -> bytes:
        """What has come so far of a body that is passed on."""
        return self._taken()

    def stream_to(self, take: Callable[[bytes, bool], None]) -> None:
        """Pass on what comes from here on, read by read, the last time with True."""
        self._take = take
        self._claim()

    def discard(self) -> None:
        """Drop what is there and what comes."""
        self._keeps = False
        self._take = None
        self._claim()
        self._pieces.clear()
        self.release()

    async def drained(self) -> None:
        """Wait for the end of a body that is being dropped. Raises BadRequest."""
        if not self.complete:
            await self._wait()

    @property
    def failure(self) -> BadRequest | None:
        return self._failure

    def release(self) -> None:
        """The body's bytes are no longer held for this request."""
        self._room.leave(self)
        if self._held:
            held, self._held = self._held, 0
            self._room.add(-held)

    async def _wait(self) -> None:
        if self._failure is None:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
            self._waiter = None
        if self._failure is not None:
            raise self._failure

    def _claim(self) -> None:
        if self._unclaimed:
            self._unclaimed = False
            self.connection.unclaimed(-self._size)

    def _taken(self) -> bytes:
        pieces = self._pieces
        if not pieces:
            return b""
        data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        self._pieces = []
        return data


def too_large(limit: int) -> BadRequest:
    """The refusal of a body that a dialect wants whole and that is longer than we keep."""
    return BadRequest(413, f"the body is larger than limits.max_buffered ({limit} bytes)")
