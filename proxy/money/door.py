"""The door: what is refused again, before it is read or placed and without a record of its own.

Asked by the live shell before it thinks about a request. Two kinds are answered here, as long as the
ledger refuses them: the same bytes again (``storms``), and what is new each time under a counter that
refuses all that comes (``pressure``). Each counts in the metric, the event and the line of its budget;
everything else is left to the purse. So is what policies claim, which may be other by now than it was: a
budget that refuses does so with or without it.

The one invariant: an answer given here is the ledger's of this moment, in the words of a first refusal.
"""

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol

from proxy.core import Glance, Opened
from proxy.model import Exchange
from proxy.money.bounds import Bounds
from proxy.money.demands import demand_at_the_door, without_idle_clamps
from proxy.money.landing import lenient
from proxy.money.passbook import Passbook
from proxy.money.pressure import Pressed, Pressure
from proxy.money.storms import Repeated, Storms
from proxy.money.tally import Tally
from proxy.ports import Ledger, LedgerAway
from proxy.pricing import Pricing
from proxy.verdict import Claim, Demand, Refusal, Reply, Terminal
from proxy.wire.guard import Asked

_NEVER = Claim("(door)", "key", "(door)", "steps", "total", amount=1, limit=0, hard=0)
"""Fits no ledger, and none holds a part of what it is asked for: to ask whether the rest would fit takes
nothing from those who come meanwhile."""


class Rules(Protocol):
    """Which budgets a request falls under (``policies.budgets``)."""

    lands: bool

    def acts(self, claim: Claim) -> bool: ...
    def waits(self, claim: Claim) -> bool: ...
    def caps_spend(self, subjects: Mapping[str, str]) -> str | None: ...
    def claims(self, demand: Demand) -> list[Claim]: ...
    def refusal(self, why: Refusal, *, now_ns: int, landed: bool = False) -> Terminal: ...


class Door:
    """One per purse; used from the event loop's thread."""

    def __init__(
        self,
        ledger: Ledger,
        bounds: Bounds,
        book: Passbook,
        tally: Tally,
        glance: Callable[[Exchange, bytes, int], Glance | None],
        ttl_s: Callable[[], int],
    ) -> None:
        self._ledger = ledger
        self._bounds = bounds
        self._book = book
        self._tally = tally
        self._glance = glance
        self._ttl_s = ttl_s
        self.look: Callable[[Exchange, Asked], Awaitable[None]] | None = None
        """Takes in what other instances know of a request's thread."""
        self.caught_up: Callable[[], Awaitable[None]] | None = None
        """Waits until the answers that are complete have been settled: what they held may be free."""
        self._storms = Storms()
        self._pressure = Pressure()

    def refused(
        self,
        exchange: Exchange,
        opened: Opened,
        why: Refusal,
        claims: Sequence[Claim],
        names: Sequence[str],
        *,
        landed: bool = False,
    ) -> None:
        """A request was refused for good: know it, and what refused it, when the next one comes."""
        if why.claim is not None and why.claim.policy:
            return
        self._pressure.press(exchange.identity.key, why)
        dialect, request = opened.dialect, opened.request
        if dialect is not None and request is not None and not opened.out.coded:
            budgets = [claim for claim in claims if not claim.policy]
            self._storms.note(exchange, opened.out.plain, dialect, request, budgets, names, landed=landed)

    def clear(self) -> None:
        """Other budgets or prices hold from now on."""
        self._storms.clear()
        self._pressure.clear()

    async def answer(
        self, exchange: Exchange, body: bytes, rules: Rules, prices: Pricing, *, enforce: bool
    ) -> Reply | None:
        """The refusal of a request that needs no closer look; None for every other."""
        known = self._storms.find(exchange, body)
        pressed = self._pressure.on(exchange) if enforce and known is None else []
        if known is None and not pressed:
            return None
        if self.caught_up is not None:
            await self.caught_up()
        if known is not None:
            return await self._repeated(exchange, known, rules, enforce=enforce)
        now_ns = time.time_ns()
        glance = self._glance(exchange, body, now_ns)
        if glance is None:
            return None
        claims = self._claims(exchange, glance, body, rules, prices)
        for one in pressed:
            why = await self._word(one, claims, rules, now_ns)
            if why is None or glance.ended_by not in (None, why.cause):
                continue
            if one.limit[1] == "steps" and not await self._is_further(exchange, glance, body):
                return None
            self._count(exchange, why)
            if why.kind == "message":
                return glance.dialect.refusal(glance.request, why, exchange.id)
            return one.worded(glance.dialect, why, exchange.id)
        return None

    async def _is_further(self, exchange: Exchange, glance: Glance, body: bytes) -> bool:
        """Whether nobody has sent this step: what another instance sent in vain costs none."""
        if self.look is None:
            return True
        await self.look(exchange, glance)
        return self._glance(exchange, body, time.time_ns()) is not None

    async def _repeated(
        self, exchange: Exchange, known: Repeated, rules: Rules, *, enforce: bool
    ) -> Reply | None:
        """The answer to a request that repeats a refused one, as long as it is refused."""

        async def still() -> Terminal | None:
            now_ns = time.time_ns()
            why = await self._ask(known.claims_now(now_ns), known.names)
            acts = why is not None and (why.claim is None or (enforce and _refuses(rules, why.claim)))
            refused = why if acts else None
            return rules.refusal(refused, now_ns=now_ns, landed=known.landed) if refused is not None else None

        why = await known.question.put(still)
        if why is None:
            self._storms.forget(known)
            return None
        self._count(exchange, why)
        return known.worded(why, exchange.id)

    def _claims(
        self, exchange: Exchange, glance: Glance, body: bytes, rules: Rules, prices: Pricing
    ) -> list[Claim]:
        """What a request would claim of those who pay; nothing where a price is needed and not known."""
        assert exchange.upstream is not None
        card = prices.card(glance.request, exchange.upstream, exchange.arrived_ns)
        demand = demand_at_the_door(exchange, glance, body, card, self._bounds)
        if card is None and rules.caps_spend(demand.subjects) is not None:
            return []
        claims = [lenient(claim) for claim in rules.claims(demand)] if rules.lands else rules.claims(demand)
        return list(without_idle_clamps(claims, rules.acts))

    async def _word(
        self, pressed: Pressed, claims: list[Claim], rules: Rules, now_ns: int
    ) -> Terminal | None:
        """Why this counter refuses a request now; None: it does not, or not this one."""
        claim = pressed.claim_of(claims)
        if (claim is None and not pressed.is_stop) or (claim is not None and rules.waits(claim)):
            return None
        why = await pressed.asked(claim, self._ask)
        if why is None:
            self._pressure.relax(pressed)
            return None
        told = rules.refusal(why, now_ns=now_ns)
        return told if told.retry_after_s is None else None

    async def _ask(self, claims: Sequence[Claim], names: Sequence[str]) -> Refusal | None:
        """What the ledger says now; None: it may go out, or nobody can say."""
        asked, now_ns = [*claims, _NEVER], time.time_ns()
        try:
            grant = await self._ledger.reserve(asked, ttl_s=self._ttl_s(), now_ns=now_ns, names=names)
        except LedgerAway:
            return None
        self._book.alerted(grant.alerts, None, None)
        why = grant.refusal
        return None if why is None or why.claim == _NEVER else why

    def _count(self, exchange: Exchange, why: Terminal) -> None:
        self._tally.refused(why, acted=True)
        self._book.refused(exchange, None, why, why.kind)


def _refuses(rules: Rules, claim: Claim) -> bool:
    """Whether what does not fit is refused at once; who is to wait comes in."""
    return rules.acts(claim) and not rules.waits(claim)
