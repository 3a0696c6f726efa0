"""Where requests wait for an operator: who waits, why, since when, and what became of it.

A wait ends by a yes, by a stop of what it belongs to, by room under its budget, by its time, or because
somebody leaves. Yes and stop are read from the ledger's store (``heed``), so that an operator may say them
at any instance; who waits for a budget asks the ledger again by itself whenever it is woken.

The one invariant: nothing is sent and nothing is held in the ledger for whoever is in here, and they are
few: at most ``MOST``, with bodies of at most what the settings let them keep.
"""

import asyncio
import time
from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from proxy.core import Opened
from proxy.model import Exchange, rfc3339
from proxy.ports import Reading
from proxy.structs import replace
from proxy.verdict import Terminal, Verdict

MOST = 256
"""Requests that wait at the same time."""
AGAIN_S = 1.0
"""How often the ledger is asked again where nobody wakes those who wait: a window may begin anew."""
YES = "yes:"
"""Before an exchange's id, among what is stopped in the ledger: its operator said yes."""
FORGOTTEN_NS = 86_400_000_000_000
"""A yes to what nobody waits for any more is kept so long."""


class Wait:
    """One request that waits."""

    __slots__ = (
        "_waker", "adds", "exchange", "names", "opened", "said", "since_ns", "size", "stopped",
        "until", "until_ns", "why",
    )  # fmt: skip

    def __init__(
        self, exchange: Exchange, opened: Opened, why: Terminal, names: Sequence[str], patience_s: float
    ) -> None:
        self._waker: asyncio.Future[None] | None = None
        self.exchange = exchange
        self.opened = opened
        self.names = frozenset(names)
        """By which of these it may be stopped."""
        self.size = len(opened.body)
        self.since_ns = time.time_ns()
        self.until = time.monotonic() + patience_s
        self.until_ns = self.since_ns + int(patience_s * 1e9)
        self.why = why
        self.adds: int | float | str | None = None
        """What a yes adds to the limit of its budget, in its unit; None: a yes lets just this request go."""
        self.said: Verdict | None = None
        self.stopped = ""
        """What was stopped, where that is the answer."""

    async def news(self) -> Verdict | None:
        """What became of it; None: nothing yet, but there may be room by now."""
        if self.said is None:
            left_s = self.until - time.monotonic()
            if left_s > 0:
                self._waker = asyncio.get_running_loop().create_future()
                await asyncio.wait({self._waker}, timeout=min(left_s, AGAIN_S))
            elif self.said is None:
                return "nobody"
        return self.said

    def wake(self, said: Verdict | None = None) -> None:
        """Something has changed, or (``said``) it is decided."""
        self.said = self.said or said
        if self._waker is not None and not self._waker.done():
            self._waker.set_result(None)

    def heed(self, stops: Mapping[str, int], taken_ns: int | None) -> None:
        """What operators have said, of all there is. ``taken_ns``: when a yes was that it had already."""
        if stops.get(YES + self.exchange.id, taken_ns) != taken_ns:
            self.wake("yes")
        elif stopped := next((name for name in self.names if name in stops), ""):
            self.stopped = stopped
            self.wake("no")
        else:
            self.wake()

    @property
    def model(self) -> str | None:
        """Which model it asks."""
        return self.opened.request.model if self.opened.request is not None else None

    @property
    def agent(self) -> str | None:
        """Who asks, as far as the client says it."""
        if self.opened.placement is None:
            return None
        thread = self.opened.placement.thread_state
        return thread.agent or thread.session.client or None

    def public(self) -> dict[str, Any]:
        """As the admin port lists it."""
        placement, why = self.opened.placement, self.why
        told: dict[str, Any] = {
            "id": self.exchange.id,
            "since": rfc3339(self.since_ns),
            "until": rfc3339(self.until_ns),
            "policy": why.policy,
            "code": why.code,
            "says": why.message.removeprefix("Looptap: "),
            "model": self.model,
            "agent": self.agent,
            "key": self.exchange.identity.key,
            "labels": dict(self.exchange.identity.labels),
            "facts": dict(why.fields),
        }
        if placement is not None:
            told |= {"session": placement.session, "thread": placement.thread}
            told |= {"turn": placement.turn, "step": placement.step}
        if self.adds is not None:
            told["adds"] = self.adds
        return told


class Lobby:
    """One per purse; used from the event loop's thread."""

    def __init__(self) -> None:
        self._waits: dict[str, Wait] = {}
        self._bytes = 0
        self._stops: Mapping[str, int] = {}
        self._taken: OrderedDict[str, int] = OrderedDict()
        """Each yes that was acted upon, by its exchange and as of when: it is no yes to another limit."""
        self._closed = False
        self.raising: set[str] = set()
        """Exchanges for which a limit is being raised, and that have not asked the ledger again yet."""
        self.over: Counter[Verdict] = Counter()
        """How many waits ended so."""

    def __len__(self) -> int:
        return len(self._waits)

    def enter(
        self,
        exchange: Exchange,
        opened: Opened,
        why: Terminal,
        names: Sequence[str],
        *,
        patience_s: float,
        room: int,
    ) -> Wait | None:
        """Begin to wait, at most so long; None: too many do. ``room``: bytes of bodies that may wait."""
        wait = Wait(exchange, opened, why, names, patience_s)
        if len(self._waits) >= MOST or self._bytes + wait.size > room:
            return None
        self._waits[exchange.id] = wait
        self._bytes += wait.size
        if self._closed:
            wait.said = "shutdown"
        else:
            wait.heed(self._stops, self._taken.get(exchange.id))
        return wait

    def leave(self, wait: Wait, verdict: Verdict) -> None:
        """It waits no longer."""
        if self._waits.pop(wait.exchange.id, None) is not None:
            self._bytes -= wait.size
            self.over[verdict] += 1

    def take(self, wait: Wait) -> str:
        """Its yes is acted upon; the name under which the ledger can forget it."""
        name = YES + wait.exchange.id
        self._taken[wait.exchange.id] = self._stops.get(name, 0)
        if len(self._taken) > MOST:
            self._taken.popitem(last=False)
        wait.said = None
        return name

    def heed(self, stops: Mapping[str, int]) -> None:
        """The ledger's store has changed: this is what operators have said."""
        self._stops = stops
        for wait in list(self._waits.values()):
            wait.heed(stops, self._taken.get(wait.exchange.id))

    def close(self) -> None:
        """We go: whoever waits is told so, and whoever comes."""
        self._closed = True
        for wait in list(self._waits.values()):
            wait.wake("shutdown")

    def listing(self) -> list[dict[str, Any]]:
        """Who waits, and why; longest first."""
        return [wait.public() for wait in self._waits.values()]

    def readings(self) -> Iterator[Reading]:
        """Figures for ``/metrics``."""
        yield Reading("held_requests", "Requests that wait for an operator.", [((), float(len(self._waits)))])
        rows = [((verdict,), float(count)) for verdict, count in self.over.items()]
        yield Reading("holds_total", "Waits for an operator that are over.", rows, ("verdict",))


def unheard(stops: Mapping[str, int], now_ns: int) -> list[str]:
    """Each yes to what nobody waits for any more."""
    return [name for name, since in stops.items() if name.startswith(YES) and now_ns - since > FORGOTTEN_NS]


# -- what is said to those who get no yes


def unanswered(why: Terminal, patience: str, patience_s: float) -> Terminal:
    """Nobody has answered."""
    message = f"{why.message} It waited {patience} for an operator, and nobody answered."
    return replace(why, kind="deny", message=message, fields={**why.fields, "waited_s": round(patience_s)})


def crowded(why: Terminal) -> Terminal:
    """Too many wait already."""
    return replace(why, kind="deny", message=f"{why.message} Too many requests wait for an operator already.")


def leaving(why: Terminal) -> Terminal:
    """We go. The turn stays open: whoever asks again soon may wait at the next process."""
    message = (
        "Looptap: it is being stopped, while this request waited for an operator. Nothing was sent. "
        "To go on: ask again."
    )
    return Terminal("deny", why.policy, "looptap_stopping", message, why.cause, {}, retry_after_s=1)
