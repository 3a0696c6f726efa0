"""Whose turn it is between two looks at the sockets: chunks leave first, then what thinks takes its turn.

The first chunk of a millisecond leaves at once, further ones with those that other streams got in the same
look: woken once for several of them, a receiver costs less, and so does who writes. ``_TOGETHER`` bounds
for how many others one may wait.

Opening an exchange and closing it cost what thirty chunks do. When hundreds of streams begin or end
at once, doing all of that first would hold up the chunks of every other stream for as long. So a round
of the event loop does one such piece, or as many as fit in the time that the sockets took just before;
the others wait for the next round, in the order they came.

The invariants: no piece is done while a chunk waits. Pieces are done in their order, every end of an
exchange among them: a request is opened after all those have been closed that had ended when it came,
since it may go on from there.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol, TypeVar

T = TypeVar("T")

_LEAST_S = 0.001
_MOST_S = 0.008
"""What a round gives to pieces that wait: as much as its sockets took, within these bounds."""


_TOGETHER = 16
"""Chunks that leave together: some 0.3 ms of reading at the most."""


class Carrier(Protocol):
    """Whoever passes chunks on."""

    def pass_on(self, data: bytes) -> None: ...

    def heed(self, data: bytes) -> None:
        """Show it to what thinks; it has left."""
        ...


class Rounds:
    """One per server."""

    __slots__ = ("_leaving", "_left", "_look", "_running", "_waiting", "loop")

    loop: asyncio.AbstractEventLoop
    """Set when the server starts; kept because asking for it costs a system call before Python 3.12."""

    def __init__(self) -> None:
        self._leaving: list[tuple[Carrier, bytes]] = []
        self._look = 0.0
        """The loop's time when a chunk last left at once: uvloop's stands still between two looks."""
        self._waiting: deque[Callable[[], object]] = deque()
        self._running = False
        self._left = 0.0
        """When the last round's pieces were done."""

    def along(self, carrier: Carrier, data: bytes) -> None:
        """Pass a chunk on, with what else this look at the sockets brings where that is much."""
        leaving, now = self._leaving, self.loop.time()
        if now != self._look and not leaving:
            self._look = now
            carrier.pass_on(data)
            carrier.heed(data)
            return
        leaving.append((carrier, data))
        if len(leaving) == 1:
            self.loop.call_soon(self.send)
        elif len(leaving) == _TOGETHER:
            self.send()

    def send(self) -> None:
        """Pass on what waits, then show it to what thinks. Comes before all that its order matters to."""
        if not self._leaving:
            return
        leaving, self._leaving = self._leaving, []
        for carrier, data in leaving:
            carrier.pass_on(data)
        for carrier, data in leaving:
            carrier.heed(data)

    def do(self, piece: Callable[[], object]) -> None:
        """Do it now, if nothing was done in this round yet; else when its turn comes. It must not raise."""
        if self._running:
            self._waiting.append(piece)
        else:
            self._at_once(piece)

    async def through(self, piece: Callable[[], T]) -> T:
        """The same, waiting for what it gives; done in its turn even where nobody waits any more."""
        if not self._running:
            return self._at_once(piece)
        mine: asyncio.Future[T] = self.loop.create_future()

        def turn() -> None:
            try:
                given = piece()
            except Exception as error:  # noqa: BLE001 - it belongs to who waits
                if not mine.done():
                    mine.set_exception(error)
            else:
                if not mine.done():
                    mine.set_result(given)

        self._waiting.append(turn)
        return await mine

    async def caught_up(self) -> None:
        """Wait until all that waits now has been done."""
        if self._waiting:
            await self.through(lambda: None)

    def finish(self) -> None:
        """Do all that waits now: no more rounds may come."""
        self.send()
        while self._waiting:
            self._waiting.popleft()()

    def _at_once(self, piece: Callable[[], T]) -> T:
        self.send()
        self._running = True
        self.loop.call_soon(self._next)
        try:
            return piece()
        finally:
            self._left = time.perf_counter()

    def _next(self) -> None:
        self.send()
        waiting = self._waiting
        if not waiting:
            self._running = False
            return
        began = time.perf_counter()
        until = began + min(max(began - self._left, _LEAST_S), _MOST_S)
        self.loop.call_soon(self._next)
        while waiting:
            waiting.popleft()()
            self._left = time.perf_counter()
            if self._left >= until:
                break
