"""The live glue between what requests may cost and the ledger that holds it.

``admit`` is awaited before anything goes upstream: it works out the worst case, has it held under all
budgets at once, and either lets the request go with a ``Tab`` or has it refused in its client's
words. The tab is told how the exchange ended and settles in a task of its own.

The one invariant: what was held is settled exactly once on every way out; what nobody can tell any
more ends with its lease and is charged as held.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, Protocol

from proxy.core import Glance, Opened
from proxy.model import Attempt, EndKind, Exchange, Upstream
from proxy.money import deferred, door
from proxy.money.audience import Audience
from proxy.money.bounds import Bounds
from proxy.money.deadlines import clocks_of, time_up
from proxy.money.demands import (
    MEMORY,
    SPENT,
    UNBOUNDED,
    actual,
    affordable,
    counted,
    demand_of,
    names_of,
    payers_of,
    streak_memory,
    waited_by_scope,
    without_idle_clamps,
)
from proxy.money.landing import LastStep
from proxy.money.lobby import Lobby
from proxy.money.passbook import Passbook
from proxy.money.tally import Tally
from proxy.money.unread import is_billable
from proxy.ports import Dialect, Ledger, LedgerAway, Sink
from proxy.pricing import Pricing, choices
from proxy.tracking.placement import Placement
from proxy.verdict import Claim, Demand, Grant, Refusal, Reply, Terminal
from proxy.wire import guard

PACE_S = 10.0
"""How long a request may wait for the next minute before it is sent back."""
SETTLING_S = 10.0
DEFERRED = 10_000
"""Background replies whose hold is kept at hand for the fetch that settles it."""


class Rules(door.Rules, Protocol):
    """What the door asks of the budgets, and what happens to a reply under way."""

    def last_step(self, why: Refusal, *, now_ns: int) -> Terminal: ...
    def cuts(self, budget: str) -> bool: ...
    def unpriced(self, budget: str, what: str) -> Terminal: ...
    def away(self) -> Terminal: ...


@dataclass(frozen=True, slots=True)
class Posture:
    """What the configuration says about holding."""

    enforce: bool = True
    away_open: bool = False
    ttl_s: int = 900
    unmodelled: Literal["refuse", "pass"] | int = "refuse"
    """What happens to a request without a price; a number: hold this many nano-dollars."""
    patience: str = "10m"
    """How long a request waits for an operator, as people read it."""
    patience_s: float = 600.0
    waiting_bytes: int = 256_000_000
    """Bytes of bodies that may wait."""


class Purse:
    """One per process; used from the event loop's thread."""

    def __init__(
        self,
        ledger: Ledger,
        rules: Rules,
        prices: Pricing,
        sink: Sink,
        speaker: Callable[[Upstream], Dialect],
        remember: Callable[[Placement, Mapping[str, Mapping[str, Any]]], None],
        posture: Posture,
        warn: Callable[[str], None],
        glance: Callable[[Exchange, bytes, int], Glance | None],
    ) -> None:
        self.ledger = ledger
        self.rules = rules
        self.prices = prices
        self.posture = posture
        self.book = Passbook(sink, warn)
        self._speaker = speaker
        self._remember = remember
        self._bounds = Bounds()
        self.tally = Tally()
        self.door = door.Door(ledger, self._bounds, self.book, self.tally, glance, lambda: self.posture.ttl_s)
        """Refuses what was refused before, without a closer look."""
        self.lobby = Lobby()
        """Where requests wait for an operator."""
        self._open: dict[str, Grant] = {}
        self._deferred: dict[str, _Tab] = {}
        """What is held for replies made in the background, by the reply's id, until they are fetched."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._renewed_ns = time.time_ns()
        self.keep: Callable[[Opened], Awaitable[None]] | None = None
        """Stores a thread with what a model is about to read of ours."""

    # -- before a request goes out

    async def admit(self, exchange: Exchange, opened: guard.Opened) -> None:
        """Hold what this request may cost, or have it refused. Nothing has gone upstream yet."""
        assert isinstance(opened, Opened)
        if opened.refusal is not None:
            return
        if opened.fetches is not None:
            opened.tab = self._deferred.pop(opened.fetches, None) or self._found(exchange, opened)
            return
        placement, request = opened.placement, opened.request
        if placement is None or request is None:
            await self._admit_unread(exchange, opened)
            return
        names = names_of(exchange, placement)
        if opened.held is not None and not await self._allowed(exchange, opened, opened.held, names):
            return
        now_ns = time.time_ns()
        demand = demand_of(exchange, opened, placement, request, self.prices, self._bounds, now_ns)
        told = demand
        if demand.spend_nano is None:
            priced = self._ceiling(demand, exchange, opened, f"the price of model {request.model!r}")
            if priced is None:
                return
            told = priced if priced.spend_nano else demand  # a policy may know what to do without a price
            demand = priced
        edits = self.posture.enforce and exchange.head.get(b"content-encoding") is None
        claims = [
            *without_idle_clamps(self.rules.claims(demand), lambda claim: edits and self.rules.acts(claim)),
            *opened.claims(told, now_ns),
        ]
        last = self._last_step(exchange, opened, demand, claims) if self.rules.lands else None
        grant = await self._hold(exchange, opened, claims, names, last)
        if grant is None:
            return
        if last is not None:
            demand = last.demand or demand
        most = affordable(grant, demand)
        if most is not None and not opened.clamp(max(1, most // choices(request))):
            await asyncio.shield(self._give_back(grant))
            if last is not None and last.ended:
                why = next(iter(last.ended.values()))
                self._refuse(exchange, opened, self.rules.refusal(why, now_ns=time.time_ns()), why)
                return
            claims = [replace(c, minimum=None) for c in (last.claims if last is not None else claims)]
            grant = await self._hold(exchange, opened, claims, names)
            if grant is None:
                return
        elif most is not None:
            self.book.intervened(exchange, opened, "clamp", {"max_output_tokens": most // choices(request)})
        if last is not None and last.ended and not await self._land(exchange, opened, last, grant):
            return
        if demand.streaks:
            self._remember(placement, {MEMORY: streak_memory(placement, demand.streaks)})
        tab = self._open_tab(exchange, opened, grant)
        clocks = clocks_of(claims, [self.posture.enforce and self.rules.cuts(c.budget) for c in claims])
        if clocks:
            tab.clock = asyncio.get_running_loop().create_task(self._cut_in_time(tab, clocks, names))

    async def _admit_unread(self, exchange: Exchange, opened: Opened) -> None:
        """What no dialect reads: free, or refused (or held flat) under a cap on spend."""
        request = opened.request
        if request is not None and request.operation == "count":
            return
        billable = is_billable(exchange.head.method, exchange.path)
        subjects = payers_of(exchange)
        if not billable or (budget := self.rules.caps_spend(subjects)) is None:
            return
        choice = self.posture.unmodelled
        if choice == "refuse":
            what = f"what {exchange.head.method} {exchange.path} costs"
            self._refuse(exchange, opened, self.rules.unpriced(budget, what))
        elif choice != "pass":
            demand = Demand(subjects, exchange.identity.labels, spend_nano=choice)
            names = (exchange.identity.key,)
            grant = await self._hold(exchange, opened, self.rules.claims(demand), names)
            if grant is not None:
                self._open_tab(exchange, opened, grant)

    def _ceiling(self, demand: Demand, exchange: Exchange, opened: Opened, what: str) -> Demand | None:
        """What is held for a request without a price; None where it is refused for that."""
        choice = self.posture.unmodelled
        if isinstance(choice, int):
            return replace(demand, spend_nano=choice, input_nano=choice)
        budget = self.rules.caps_spend(demand.subjects) if choice == "refuse" else None
        if budget is not None:
            why = self.rules.unpriced(budget, what)
            if self._refuse(exchange, opened, why):
                return None
        return replace(demand, spend_nano=0, input_nano=0)

    async def _hold(
        self,
        exchange: Exchange,
        opened: Opened,
        claims: Sequence[Claim],
        names: Sequence[str],
        last: LastStep | None = None,
    ) -> Grant | None:
        """Have it held. None: the request is refused, and has been told so.

        ``last``: how it goes out as its turn's last step where a budget has no room for another.
        """
        waited_until = time.monotonic() + PACE_S
        claims = last.claims if last is not None else claims
        landed = False
        audience: Audience | None = None
        try:
            while True:
                now_ns = time.time_ns()
                try:
                    grant = await self.ledger.reserve(
                        claims, ttl_s=self.posture.ttl_s, now_ns=now_ns, names=names
                    )
                except LedgerAway:
                    self.tally.trouble("reserve")
                    if audience is not None and await audience.outlasts():
                        continue
                    if self.posture.away_open or not self._refuse(exchange, opened, self.rules.away()):
                        return self.ledger.unheld(claims, now_ns=now_ns)
                    return None
                self.tally.answered()
                self.book.alerted(grant.alerts, exchange, opened)
                why = grant.refusal
                if why is None:
                    if audience is not None:
                        audience.over()
                    return grant
                if why.claim is not None and self._only_observes(why.claim):
                    if why.claim.hard != UNBOUNDED:
                        kind = "land" if last is not None and last.fits(why) else None
                        self._observed(exchange, opened, self.rules.refusal(why, now_ns=now_ns), kind)
                    claims = _unbounded(claims, why.claim)
                    continue
                if last is not None and last.take(why):
                    claims = last.claims if audience is None else audience.freed(last.claims)
                    continue
                wait_s = _until_next_minute(why, now_ns)
                if wait_s is not None and time.monotonic() + wait_s <= waited_until:
                    await asyncio.sleep(wait_s)
                    continue
                if opened.placement is not None and why.claim is not None and self.rules.waits(why.claim):
                    audience = audience or Audience(self, exchange, opened, names)
                    refused = await audience.ask(self.rules.refusal(why, now_ns=now_ns), why)
                    if refused is None:
                        claims = audience.freed(claims)
                        continue
                    self._refuse(exchange, opened, refused, why)
                    return None
                if audience is not None:  # stopped, or the settings are others by now
                    audience.over("no")
                if last is not None:
                    why, landed = last.told(why)
                    claims = last.asked_again(claims)
                told = self.rules.refusal(why, now_ns=now_ns, landed=landed)
                if told.kind == "hold":  # what nobody reads has no turn in which it could wait
                    told = replace(told, kind="deny")
                if self._refuse(exchange, opened, told, why) and told.retry_after_s is None:
                    self.door.refused(exchange, opened, why, claims, names, landed=landed)
                return None
        except BaseException:
            if audience is not None:
                audience.left()
            raise

    # -- as a turn's last step

    def _last_step(
        self, exchange: Exchange, opened: Opened, demand: Demand, claims: Sequence[Claim]
    ) -> LastStep:
        """How this request could be its turn's last."""
        placement, request = opened.placement, opened.request
        assert placement is not None
        assert request is not None

        def anew() -> tuple[Demand, Sequence[Claim]]:
            more = demand_of(
                exchange, opened, placement, request, self.prices, self._bounds, time.time_ns(),
                more=opened.room_of_last_words,
            )  # fmt: skip
            if more.spend_nano is None:
                more = replace(more, spend_nano=demand.spend_nano, input_nano=demand.input_nano)
            return more, [*self.rules.claims(more), *(claim for claim in claims if claim.policy)]

        again = opened.landing is not None and opened.landing.policy == "budgets"
        return LastStep(claims, anew, possible=opened.may_land, again=again)

    async def _land(self, exchange: Exchange, opened: Opened, last: LastStep, grant: Grant) -> bool:
        """Make it the last step. False: that cannot be, it is refused, and ``grant`` is given back."""
        of = next(iter(last.ended.values()))
        why = self.rules.last_step(of, now_ns=time.time_ns())
        landed = False
        try:
            if opened.land(why, time.time_ns()):
                if opened.unsaved and self.keep is not None:
                    await self.keep(opened)
                landed = opened.landing is not None
        finally:
            if not landed:  # also where its client leaves while the words are stored
                self._give_back(grant)
        if landed:
            self.book.landed(exchange, opened, why)
        else:
            self._refuse(exchange, opened, self.rules.refusal(of, now_ns=time.time_ns()), of)
        return landed

    def _only_observes(self, claim: Claim) -> bool:
        return not self.posture.enforce or not self.rules.acts(claim)

    # -- refusing

    def _refuse(self, exchange: Exchange, opened: Opened, why: Terminal, of: Refusal | None = None) -> bool:
        """Refuse a request, where anything may be refused at all."""
        stopped = of is not None and of.stopped is not None
        if not self.posture.enforce and not stopped:
            self._observed(exchange, opened, why)
            return False
        self.tally.refused(why, acted=True)
        reply = None
        if opened.placement is None:
            assert exchange.upstream is not None
            reply = self._speaker(exchange.upstream).refusal(None, why, exchange.id)
        opened.refuse(why, reply, time.time_ns())
        self.book.refused(exchange, opened, why, why.kind)
        return True

    async def _allowed(self, exchange: Exchange, opened: Opened, why: Terminal, names: Sequence[str]) -> bool:
        """Wait for an operator's yes to what a policy wants to end. False: the request is refused."""
        audience = Audience(self, exchange, opened, names)
        try:
            refused = await audience.allowed(why)
        except BaseException:
            audience.left()
            raise
        if refused is None:
            return True
        opened.held = None
        return not self._refuse(exchange, opened, refused)

    async def again(self, exchange: Exchange, body: bytes) -> Reply | None:
        """The answer to a request that is refused at the door."""
        enforce = self.posture.enforce
        return await self.door.answer(exchange, body, self.rules, self.prices, enforce=enforce)

    def _observed(self, exchange: Exchange, opened: Opened, why: Terminal, kind: str | None = None) -> None:
        self.tally.refused(why, acted=False)
        self.book.refused(exchange, opened, why, f"would_{kind or why.kind}")

    # -- after it

    async def _cut_in_time(self, tab: "_Tab", clocks: Sequence[Claim], names: Sequence[str]) -> None:
        """End the reply when its time is up, unless all of it has come by then."""
        reached = await time_up(self.ledger, clocks, names, partial(waited_by_scope, tab.opened.placement))
        if tab.opened.is_told:
            return
        why = self.rules.refusal(reached, now_ns=time.time_ns())
        self.book.refused(tab.exchange, tab.opened, why, "cut")
        tab.opened.cut(why)

    def _open_tab(self, exchange: Exchange, opened: Opened, grant: Grant) -> "_Tab":
        now_ns = time.time_ns()
        opened.tab = tab = _Tab(self, exchange, opened, grant)
        self._open[grant.id] = grant
        opened.admit(now_ns)
        if grant.holds:
            self.book.reserved(exchange, opened, grant)
        return tab

    def settle(self, tab: "_Tab", amounts: Sequence[int | None], now_ns: int) -> None:
        """Tell the ledger, without anybody waiting for it."""
        if not tab.grant.holds:
            self._open.pop(tab.grant.id, None)
            return
        self._apart(self._settle(tab, amounts, now_ns))

    def _give_back(self, grant: Grant) -> "asyncio.Task[None]":
        """Hold what was granted no more, whoever leaves meanwhile."""

        async def release() -> None:
            with suppress(LedgerAway):  # the ledger is closed
                await self.ledger.release(grant, now_ns=time.time_ns())

        return self._apart(release())

    def _apart(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _settle(self, tab: "_Tab", amounts: Sequence[int | None], now_ns: int) -> None:
        grant, exchange, opened = tab.grant, tab.exchange, tab.opened
        try:
            receipt = await self.ledger.settle(grant, amounts, now_ns=now_ns)
        except LedgerAway:
            self.tally.trouble("settle")
            return  # the ledger is closed: the lease ends by itself, charged as held
        finally:
            self._open.pop(grant.id, None)
        if receipt.queued:
            self.tally.trouble("settle")
        self.book.settled(exchange, opened, grant, amounts, receipt)

    def _found(self, exchange: Exchange, opened: Opened) -> "_Tab | None":
        """What was held before a restart for a reply that is fetched now."""
        assert opened.fetches is not None
        grant = deferred.found(opened.placement, opened.fetches) if opened.placement is not None else None
        return _Tab(self, exchange, opened, grant) if grant is not None else None

    def defer(self, tab: "_Tab", reply: str) -> None:
        """The reply comes later, by a fetch. Until then the hold stands; not renewed, it ends as assumed."""
        self._open.pop(tab.grant.id, None)
        self._deferred[reply] = tab
        placement = tab.opened.placement
        if placement is not None and tab.grant.lease is None:  # what was drawn ahead goes down with its lease
            self._remember(placement, deferred.written(placement, reply, tab.grant))
        while len(self._deferred) > DEFERRED:
            del self._deferred[next(iter(self._deferred))]

    def fetched(self, tab: "_Tab", reply: str) -> None:
        """The reply has come: it is settled like any other."""
        if tab.opened.placement is not None:
            self._remember(tab.opened.placement, deferred.struck_out(tab.opened.placement, reply))

    def learn(self, exchange: Exchange, attempt: Attempt) -> None:
        """What the provider counted is where the next prompt's bound begins."""
        if attempt.reply.usage is not None:
            self._bounds.learn(exchange.id, attempt.reply.response_id, attempt.reply.usage)

    # -- now and then

    async def beat(self) -> None:
        """Keep what is still running from expiring, and end what has."""
        now_ns = time.time_ns()
        self.book.tell_rest(now_ns)
        try:
            if self._open and now_ns - self._renewed_ns > self.posture.ttl_s * 1_000_000_000 // 3:
                self._renewed_ns = now_ns
                await self.ledger.renew(list(self._open.values()), ttl_s=self.posture.ttl_s, now_ns=now_ns)
            self.book.alerted(await self.ledger.sweep(now_ns=now_ns), None, None)
        except LedgerAway:
            self.tally.trouble("beat")
        else:
            self.tally.answered()

    async def count(self) -> None:
        """Ask how all budgets stand, for the figures. What cannot be had now stays as it was."""
        try:
            self.tally.stand(await self.ledger.balances(now_ns=time.time_ns(), lasting=True))
        except LedgerAway:
            self.tally.trouble("balances")

    async def drain(self) -> None:
        """Wait for settlements under way."""
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=SETTLING_S)


class _Tab:
    """What was held for one exchange, until it is settled."""

    __slots__ = ("_awaits", "_done", "_purse", "clock", "exchange", "grant", "opened")

    def __init__(self, purse: Purse, exchange: Exchange, opened: Opened, grant: Grant) -> None:
        self._purse = purse
        self.exchange = exchange
        self.opened = opened
        self.grant = grant
        self._done = False
        self.clock: asyncio.Task[None] | None = None
        """Ends the reply when its time is up."""
        self._awaits: str | None = opened.fetches
        """Id of the reply that is made in the background and tells what was taken."""

    def settle(self, attempt: Attempt, now_ns: int) -> None:
        """The attempt is over: its usage and cost are what is charged."""
        self._stop_clock()
        if self._done:
            return
        if attempt.reply.deferred:
            self._awaits = attempt.reply.response_id
        elif attempt.reply.whole and self._awaits is not None:
            self._purse.fetched(self, self._awaits)
            self._awaits = None
        if self._awaits is not None:  # also after a fetch that failed
            self._purse.defer(self, self._awaits)
            return
        self._done = True
        self._purse.learn(self.exchange, attempt)
        amounts = [actual(hold.claim, hold.amount, attempt) for hold in self.grant.holds]
        self._purse.settle(self, amounts, now_ns)

    def end(self, end: EndKind, status: int | None, now_ns: int) -> None:
        """Nobody read the reply. An error or none at all costs nothing, the rest what was held."""
        self._stop_clock()
        if self._done or self._awaits is not None:
            return
        self._done = True
        nothing = (status is None and end not in ("client_gone", "shutdown")) or (
            status is not None and status >= 400
        )
        amounts = [
            (0 if nothing else None) if hold.claim.dimension in SPENT else counted(hold.claim, hold.amount)
            for hold in self.grant.holds
        ]
        self._purse.settle(self, amounts, now_ns)

    def _stop_clock(self) -> None:
        if self.clock is not None:
            self.clock.cancel()


def _unbounded(claims: Sequence[Claim], failing: Claim) -> list[Claim]:
    """The same claims, with the one that did not fit counted, not bounded; or left out where it is full."""
    if failing.hard == UNBOUNDED:
        return [claim for claim in claims if claim != failing]
    return [replace(claim, hard=UNBOUNDED) if claim == failing else claim for claim in claims]


def _until_next_minute(why: Refusal, now_ns: int) -> float | None:
    """How long until a limit on the pace begins anew; None for every other limit."""
    if why.claim is None or why.claim.dimension != "requests_per_minute" or why.balance is None:
        return None
    resets_ns = why.balance.resets_at_ns
    return (resets_ns - now_ns) / 1e9 + 0.005 if resets_ns is not None else None
