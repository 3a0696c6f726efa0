"""Counters of those who pay that refuse one request after the other, whatever is in it.

While one does, a request that falls under it and is no more than a new conversation, or one more try of a
turn that it has ended, is refused after a glance: the first ones in a minute are recorded one by one, the
rest is counted. The ledger is asked all the same, for all who wait at once: whether the least of what they
need is to be had. So a top-up, a stop that is lifted or a new window holds for the very next request.

The one invariant: what is remembered here never refuses anything by itself.
"""

import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field, replace

from policies.budgets import NONE
from proxy.model import Exchange
from proxy.money.storms import MINUTE_NS, NAMELESS, Question, worded
from proxy.ports import Dialect
from proxy.verdict import Claim, Refusal, Reply, Terminal

RECORDED = 20
"""Refusals under one counter that are recorded in a minute."""
_MOST = 4_096
_STOP = "stopped"
_LABEL = "label:"
_KNOWN = frozenset({"key", "team", "org", "upstream"})
"""Scopes whose subject a request tells before anybody has read it; so do labels."""

Mark = tuple[str, str, str]
"""Scope, subject, and the key whose requests were refused."""
Ask = Callable[[list[Claim], tuple[str, ...]], Awaitable[Refusal | None]]
"""The ledger's word: why claims cannot be held, or what of those names is stopped. None: they can."""


@dataclass(slots=True)
class Pressed:
    """One counter, or a stop of a key."""

    mark: Mark
    limit: tuple[str, str]
    """Budget and dimension; empty for a stop."""
    since_ns: int
    """By a clock that nobody puts back."""
    count: int = 0
    _question: Question[Refusal | None] = field(default_factory=Question)
    _least: Claim | None = None
    """The smallest claim of those who wait for the next question."""
    _said: dict[str, tuple[Terminal, Reply]] = field(default_factory=dict)

    @property
    def is_stop(self) -> bool:
        return self.mark[0] == _STOP

    def claim_of(self, claims: list[Claim]) -> Claim | None:
        """What a request would claim of this counter."""
        for claim in claims:
            if (claim.budget, claim.dimension) == self.limit and claim.subject == self.mark[1]:
                return claim
        return None

    async def asked(self, claim: Claim | None, ask: Ask) -> Refusal | None:
        """Why a request is refused with this claim. Where the least of several does not fit, none does."""
        if claim is not None:
            least = replace(claim, amount=_least(claim), minimum=None)
            if self._least is None or least.amount < self._least.amount:
                self._least = least
        why = await self._question.put(lambda: self._ask(ask))
        return replace(why, claim=claim) if why is not None and why.claim is not None else why

    async def _ask(self, ask: Ask) -> Refusal | None:
        least, self._least = self._least, None
        key = self.mark[2]
        return await ask([least] if least is not None else [], (key, f"key:{key}"))

    def worded(self, dialect: Dialect, why: Terminal, id: str) -> Reply:
        """An error in the client's form; the same words but for the id as long as nothing changes."""
        known = self._said.get(dialect.name)
        if known is None or known[0] != why:
            known = self._said[dialect.name] = why, dialect.refusal(None, why, NAMELESS)
        return worded(known[1], id)


class Pressure:
    """One per door."""

    def __init__(self) -> None:
        self._pressed: OrderedDict[Mark, Pressed] = OrderedDict()
        self._labels: set[str] = set()
        """Labels among the scopes of all that was ever pressed."""

    def press(self, key: str, why: Refusal) -> None:
        """Something was refused to this key."""
        mark, limit = _mark(key, why)
        if mark is None:
            return
        now_ns = time.monotonic_ns()
        pressed = self._pressed.get(mark)
        if pressed is None or now_ns - pressed.since_ns >= MINUTE_NS:
            pressed = Pressed(mark, limit, now_ns)
        elif pressed.limit != limit:  # who waits for an answer must not get that of another counter
            pressed = Pressed(mark, limit, pressed.since_ns, pressed.count)
        pressed.count += 1
        self._pressed[mark] = pressed
        self._pressed.move_to_end(mark)
        if mark[0].startswith(_LABEL):
            self._labels.add(mark[0])
        if len(self._pressed) > _MOST:
            self._pressed.popitem(last=False)

    def on(self, exchange: Exchange) -> list[Pressed]:
        """The counters that this request may fall under, and that refused many in the last minute."""
        if not self._pressed:
            return []
        now_ns, found = time.monotonic_ns(), []
        for mark in self._marks(exchange):
            pressed = self._pressed.get(mark)
            if pressed is not None and pressed.count >= RECORDED and now_ns - pressed.since_ns < MINUTE_NS:
                found.append(pressed)
        return found

    def _marks(self, exchange: Exchange) -> Iterator[Mark]:
        identity = exchange.identity
        key = identity.key
        yield _STOP, key, key
        yield "key", key, key
        yield "team", identity.team, key
        yield "org", identity.org, key
        if exchange.upstream is not None:
            yield "upstream", exchange.upstream.name, key
        for scope in self._labels:
            yield scope, identity.labels.get(scope.removeprefix(_LABEL)) or NONE, key

    def relax(self, pressed: Pressed) -> None:
        """Something was let through."""
        if self._pressed.get(pressed.mark) is pressed:
            del self._pressed[pressed.mark]

    def clear(self) -> None:
        """Other budgets or prices hold from now on."""
        self._pressed.clear()


def _mark(key: str, why: Refusal) -> tuple[Mark | None, tuple[str, str]]:
    """What is remembered of a refusal, where a request tells whom it hits before anybody knows its thread."""
    if why.stopped is not None:
        return ((_STOP, key, key) if why.stopped in (key, f"key:{key}") else None), ("", "")
    claim = why.claim
    if claim is None or not (claim.scope in _KNOWN or claim.scope.startswith(_LABEL)):
        return None, ("", "")
    return (claim.scope, claim.subject, key), (claim.budget, claim.dimension)


def _least(claim: Claim) -> int:
    """With how much it would still go out."""
    return claim.amount if claim.minimum is None else claim.minimum
