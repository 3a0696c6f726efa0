"""The shared thread index beside the traffic: the next step of a turn may come to any instance.

Before a request is placed, what other instances know of its thread is taken in; before it goes out, and
when all is known of its answer, the thread is put back. Whoever put it back first wins; the other takes
that in, adds its own and tries again. A look-up is waited for briefly; where the store is away, or slow,
what is known here has to do: that is counted, told once, and put right when the store is back.

The one invariant: the traffic never waits longer for the index than its store's bound.
"""

import asyncio
import time
from collections.abc import Callable, Iterator

from proxy.core import Core, Opened
from proxy.model import Exchange
from proxy.ports import Reading, ThreadsAway, ThreadStore
from proxy.tracking.lookups import name_of_thread
from proxy.tracking.placement import Placement
from proxy.tracking.threads import Thread
from proxy.wire import guard

SHARE_S = 0.25
"""How long a request waits until its thread is in the index."""
SAVING_S = (0.002, 0.005, 0.01, 0.02, 0.04, 0.08)
"""A client's next request follows its last chunk in milliseconds, and may be quicker at this instance than
the reply is in the index: pauses before it is looked up again."""
TRIES = 8
"""How often a head is put on top of one that was quicker."""
_MOST_OWED = 500
"""Heads told again in one beat after the store was away."""


class Commons:
    """One per process; used from the event loop's thread."""

    def __init__(self, store: ThreadStore, core: Core, warn: Callable[[str], None]) -> None:
        self.store = store
        self.failures = 0
        """Look-ups and heads that the store did not take."""
        self.conflicts = 0
        """Heads that had to be put on top of a newer one."""
        self._core = core
        self._warn = warn
        self._away = False
        self._putting: dict[str, asyncio.Task[None]] = {}
        self._again: set[str] = set()
        self._owed: dict[str, Thread] = {}
        """Threads that the store has yet to learn of."""

    def readings(self) -> Iterator[Reading]:
        """Figures for ``/metrics``."""
        yield Reading("thread_index_failures_total", "Look-ups and heads that the shared index did not take.",
                      [((), self.failures)])  # fmt: skip
        yield Reading("thread_index_conflicts_total", "Heads put on top of another instance's newer one.",
                      [((), self.conflicts)])  # fmt: skip

    # -- on an exchange's way

    async def look(self, exchange: Exchange, asked: guard.Asked) -> None:
        """Take in what others know of the thread that this request may belong to."""
        tracker, request = self._core.tracker, asked.request
        if request is None:
            return
        names = tracker.names(exchange, request)
        taken = await self._take_in(names, tracker.known(exchange, request))
        for pause_s in SAVING_S:
            if not taken or not tracker.lacks_reply(exchange, request):
                return
            await asyncio.sleep(pause_s)
            taken = await self._take_in(names, tracker.known(exchange, request))

    async def share(self, opened: guard.Opened) -> None:
        """Have the request's thread in the index before it goes out."""
        assert isinstance(opened, Opened)
        if opened.placement is not None:
            await asyncio.wait({self._put(opened.placement.thread_state)}, timeout=SHARE_S)

    async def keep(self, placement: Placement) -> bool:
        """Have the thread in the index now; False where it could not be."""
        thread = placement.thread_state
        self._owed.pop(thread.id, None)
        done, _ = await asyncio.wait({self._put(thread)}, timeout=SHARE_S)
        return bool(done) and thread.id not in self._owed

    def closed(self, placement: Placement) -> None:
        """All is known of an exchange: its thread is put back, and nobody waits for it."""
        self._put(placement.thread_state)

    # -- now and then

    async def beat(self) -> None:
        """Tell what is owed, and ask about turns that seem to be over."""
        owed, self._owed = self._owed, {}
        for thread in list(owed.values())[:_MOST_OWED]:
            self._put(thread)
        self._owed.update(list(owed.items())[_MOST_OWED:])
        idle = {thread.id: thread for thread in self._core.tracker.idle(time.time_ns())}
        if idle:
            names = [name_of_thread(thread.scope.name, id) for id, thread in idle.items()]
            await self._take_in(names, {id: thread.agreed.rev for id, thread in idle.items()})

    async def close(self) -> None:
        """Tell what is on its way."""
        if self._putting:
            await asyncio.wait(set(self._putting.values()), timeout=SHARE_S)

    # -- the store

    async def _take_in(self, names: list[bytes], known: dict[str, int]) -> bool:
        """Ask the store; False where it did not answer."""
        try:
            heads = await self.store.pull(names, known)
        except ThreadsAway as error:
            self._failed(error)
            return False
        self._away = False
        self._core.tracker.absorb(heads, time.time_ns())
        return True

    def _put(self, thread: Thread) -> "asyncio.Task[None]":
        """Put a thread back; while it is on its way, once more behind it."""
        task = self._putting.get(thread.id)
        if task is not None:
            self._again.add(thread.id)
            return task
        task = asyncio.get_running_loop().create_task(self._put_back(thread))
        self._putting[thread.id] = task
        return task

    async def _put_back(self, thread: Thread) -> None:
        try:
            more = True
            while more:
                self._again.discard(thread.id)
                await self._agree(thread)
                more = thread.id in self._again
        except ThreadsAway as error:
            self._owed[thread.id] = thread
            self._failed(error)
        finally:
            del self._putting[thread.id]
            self._again.discard(thread.id)

    async def _agree(self, thread: Thread) -> None:
        tracker = self._core.tracker
        for _ in range(TRIES):
            head, memories = tracker.shared_head(thread), dict(thread.memories)
            newer = await self.store.push([head])
            if not newer:
                self._away = False
                tracker.agree(thread, head, memories)
                return
            self.conflicts += 1
            tracker.absorb(newer, time.time_ns())
        raise ThreadsAway("the shared thread index took others' heads of one thread again and again")

    def _failed(self, error: ThreadsAway) -> None:
        self.failures += 1
        if not self._away:
            self._warn(f"{error}; until it is back, turns do not go on across instances")
        self._away = True
