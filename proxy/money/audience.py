"""One request before its operator: it waits, and what the operator says is carried out.

A yes to what a policy wants to end lets this one request go. A yes to what does not fit a budget raises its
limit by what the request needs, and the ledger is asked again: a cap is raised, never passed over.

The one invariant: whoever has begun to wait leaves the lobby exactly once, on every way out.
"""

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Protocol

from proxy.core import Opened
from proxy.model import Exchange, rfc3339
from proxy.money.demands import UNBOUNDED
from proxy.money.lobby import AGAIN_S, Lobby, Wait, crowded, leaving, unanswered
from proxy.money.passbook import Passbook
from proxy.ports import Ledger, LedgerAway
from proxy.structs import replace
from proxy.verdict import Claim, Refusal, Terminal, Verdict, public_amount


class Words(Protocol):
    """Who words a stop (``policies.budgets``)."""

    def refusal(self, why: Refusal, *, now_ns: int) -> Terminal: ...


class Patience(Protocol):
    """What the configuration says about waiting."""

    @property
    def enforce(self) -> bool: ...
    @property
    def patience(self) -> str:
        """How long a request waits, as people read it."""
        ...

    @property
    def patience_s(self) -> float: ...
    @property
    def waiting_bytes(self) -> int: ...


class Desk(Protocol):
    """The purse, as far as an audience needs it."""

    ledger: Ledger
    lobby: Lobby
    book: Passbook

    @property
    def rules(self) -> Words: ...
    @property
    def posture(self) -> Patience: ...


class Audience:
    """Made where a request has to wait for the first time; ``over`` or ``left`` ends it."""

    def __init__(self, desk: Desk, exchange: Exchange, opened: Opened, names: Sequence[str]) -> None:
        self._desk = desk
        self._exchange = exchange
        self._opened = opened
        self._names = names
        self._wait: Wait | None = None
        self._of: Claim | None = None
        """What does not fit, where the wait is for room."""
        self._said_yes = False
        self._stands = False
        """The limit was raised for it, and it is not out yet: the yes holds until it is."""
        self._freed: list[Claim] = []
        """A policy's claims that an operator lets this request pass."""

    async def allowed(self, why: Terminal) -> Terminal | None:
        """A policy wants a yes to this request. None: it may go; else how it is refused."""
        while True:
            if not self._desk.posture.enforce:  # by now nothing waits any more
                self.over("room")
                return None
            refused = await self.ask(why, None)
            if refused is not None or self._said_yes:
                return refused

    async def ask(self, why: Terminal, of: Refusal | None) -> Terminal | None:
        """Wait until something changes. None: ask the ledger again; else how the request is refused.

        ``of``: what did not fit; None where a policy wants a yes.
        """
        claim = of.claim if of is not None else None
        self._desk.lobby.raising.discard(self._exchange.id)
        if self._wait is not None and not _same(claim, self._of):
            self.over()
        wait = self._wait = self._wait or self._begin(why, of)
        if wait is None:
            return crowded(why)
        wait.why, wait.adds, self._of = why, _adds(of), claim
        verdict = await self._news(wait)
        if verdict == "yes":
            try:
                await self._obey(wait, of)
            except LedgerAway:  # what was said stands until it can be carried out
                verdict = "nobody" if time.monotonic() > wait.until else None
                await asyncio.sleep(AGAIN_S)
            else:
                return None
        if verdict is None:
            return None
        self.over(verdict)
        return self._refusal(verdict, wait)

    async def _news(self, wait: Wait) -> Verdict | None:
        """What became of it. Room that was just made for another is left to that one."""
        if self._stands and time.monotonic() < wait.until:
            return "yes"  # somebody who did not wait has taken the room
        verdict = await wait.news()
        while verdict is None and self._desk.lobby.raising:
            verdict = await wait.news()
        return verdict

    async def outlasts(self) -> bool:
        """Whether a request goes on waiting while the ledger is away; it was asked in vain just now."""
        wait = self._wait
        if wait is None or wait.said not in (None, "yes") or time.monotonic() > wait.until:
            self.over("nobody")
            return False
        await asyncio.sleep(AGAIN_S)
        return True

    def freed(self, claims: Sequence[Claim]) -> list[Claim]:
        """The same claims; a policy's that an operator lets pass are counted, not bounded."""
        return [
            replace(claim, hard=UNBOUNDED) if any(_same(claim, one) for one in self._freed) else claim
            for claim in claims
        ]

    def left(self) -> None:
        """Its client has left, which is told when the exchange is closed."""
        self._desk.lobby.raising.discard(self._exchange.id)
        if self._wait is not None:
            self._desk.lobby.leave(self._wait, "gone")

    def over(self, verdict: Verdict | None = None) -> None:
        """It waits no longer; without a word of the operator there is room now."""
        wait, self._wait = self._wait, None
        stands, self._stands = self._stands, False
        self._desk.lobby.raising.discard(self._exchange.id)
        if wait is None:
            return
        told = verdict or ("yes" if stands else "room")
        self._desk.lobby.leave(wait, told)
        self._opened.let_go(told, time.time_ns(), allowed=told == "yes" and self._of is None)

    def _begin(self, why: Terminal, of: Refusal | None) -> Wait | None:
        posture = self._desk.posture
        wait = self._desk.lobby.enter(
            self._exchange, self._opened, why, self._names,
            patience_s=posture.patience_s, room=posture.waiting_bytes,
        )  # fmt: skip
        if wait is None:
            return None
        adds = _adds(of)
        told = {"adds": adds, "model": wait.model, "agent": wait.agent, "until": rfc3339(wait.until_ns)}
        more = {name: value for name, value in told.items() if value is not None}
        self._opened.hold(why, more, wait.since_ns)
        self._desk.book.held(self._exchange, self._opened, why)
        return wait

    async def _obey(self, wait: Wait, of: Refusal | None) -> None:
        """Carry out a yes."""
        desk, claim = self._desk, of.claim if of is not None else None
        if of is not None and claim is not None and claim.policy:
            self._freed.append(claim)
        elif of is not None and claim is not None:
            desk.lobby.raising.add(self._exchange.id)
            counter = replace(claim, amount=0, level=None, minimum=None)
            raised = await desk.ledger.topup(counter, _shortfall(of), now_ns=time.time_ns())
            facts = {"scope": claim.scope, "subject": claim.subject, "dimension": claim.dimension}
            limit = public_amount(claim.dimension, raised.limit)
            added = {"policy": "operator", "budget": claim.budget, **facts, "add": _adds(of), "limit": limit}
            desk.book.intervened(self._exchange, self._opened, "topup", added)
        self._said_yes, self._stands = True, claim is not None
        name = desk.lobby.take(wait)
        with suppress(LedgerAway):
            await desk.ledger.resume(name, now_ns=time.time_ns())
        if claim is None:
            self.over("yes")

    def _refusal(self, verdict: Verdict, wait: Wait) -> Terminal:
        if verdict == "no":
            return self._desk.rules.refusal(Refusal(stopped=wait.stopped), now_ns=time.time_ns())
        if verdict == "shutdown":
            return leaving(wait.why)
        posture = self._desk.posture
        return unanswered(wait.why, posture.patience, posture.patience_s)


def _same(one: Claim | None, other: Claim | None) -> bool:
    """Whether both are of one counter."""
    if one is None or other is None:
        return one is other
    return (one.budget, one.subject, one.dimension) == (other.budget, other.subject, other.dimension)


def _shortfall(of: Refusal) -> int:
    """By how much a limit has to be raised for a request."""
    assert of.claim is not None
    assert of.balance is not None
    balance = of.balance
    return max(1, of.claim.amount + balance.used + balance.reserved - balance.hard)


def _adds(of: Refusal | None) -> int | float | str | None:
    """The same as people read it; None where a yes raises nothing."""
    if of is None or of.claim is None or of.balance is None or of.claim.policy:
        return None
    return public_amount(of.claim.dimension, _shortfall(of))
