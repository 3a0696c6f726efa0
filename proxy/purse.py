"""The live glue between what requests may cost and the ledger that holds it.

``admit`` is awaited before anything goes upstream: it works out the worst case, has it held under all
budgets at once, and either lets the request go with a ``Tab`` or has it refused in its client's
words. The tab is told how the exchange ended and settles in a task of its own.

The one invariant: what was held is settled exactly once on every way out; what nobody can tell any
more ends with its lease and is charged as held.
"""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

from proxy import thinking
from proxy.bounds import Bounds
from proxy.core import Opened
from proxy.model import Attempt, EndKind, Exchange, ModelRequest, Record, Upstream
from proxy.placement import Placement
from proxy.ports import Dialect, Ledger, LedgerAway, Sink
from proxy.pricing import Pricing, choices, output_bound, upper_bound
from proxy.unread import is_billable
from proxy.verdict import (
    Alert,
    Balance,
    Claim,
    Demand,
    Grant,
    Receipt,
    Refusal,
    Terminal,
    public_amount,
    to_nano,
)

PACE_S = 10.0
"""How long a request may wait for the next minute before it is sent back."""
USEFUL_OUTPUT = 1_024
"""A limit on output is not lowered below this."""
STORM_NS = 60_000_000_000
"""Within so long a time, refusals of one kind are told once."""
SETTLING_S = 10.0
UNBOUNDED = 4 * 10**18
MEMORY = "budgets"
"""Under this name streaks of failed calls are remembered in a thread."""


class Rules(Protocol):
    """Which budgets a request falls under (``policies.budgets``)."""

    def acts(self, budget: str) -> bool: ...
    def caps_spend(self, subjects: Mapping[str, str]) -> str | None: ...
    def claims(self, demand: Demand) -> list[Claim]: ...
    def refusal(self, why: Refusal, *, now_ns: int) -> Terminal: ...
    def unpriced(self, budget: str, what: str) -> Terminal: ...
    def away(self) -> Terminal: ...


@dataclass(frozen=True, slots=True)
class Posture:
    """What the configuration says about holding."""

    enforce: bool = True
    away_open: bool = False
    ttl_s: int = 900
    unmodelled: Literal["refuse", "pass"] | int = "refuse"
    """What happens to a request without a price; a number holds so many nano-dollars."""


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
    ) -> None:
        self.ledger = ledger
        self.rules = rules
        self.prices = prices
        self.posture = posture
        self._sink = sink
        self._speaker = speaker
        self._remember = remember
        self._warn = warn
        self._bounds = Bounds()
        self._open: dict[str, Grant] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._storms: dict[tuple[str, ...], tuple[int, int]] = {}
        """When refusals of a kind were last told, and how many came since."""
        self._renewed_ns = time.time_ns()
        self.refused = 0
        self.would_refuse = 0

    # -- before a request goes out

    async def admit(self, exchange: Exchange, opened: thinking.Opened) -> None:
        """Hold what this request may cost, or have it refused. Nothing has gone upstream yet."""
        assert isinstance(opened, Opened)
        if opened.refusal is not None:
            return
        placement, request = opened.placement, opened.request
        if placement is None or request is None:
            await self._admit_unread(exchange, opened)
            return
        subjects = _subjects(exchange, placement, request)
        demand = self._demand(exchange, opened, placement, request, subjects)
        if demand.spend_nano is None:
            priced = self._ceiling(demand, exchange, opened, f"the price of model {request.model!r}")
            if priced is None:
                return
            demand = priced
        claims = self._without_idle_clamps(self.rules.claims(demand), opened, exchange)
        names = _names(exchange, placement)
        grant = await self._hold(exchange, opened, claims, names)
        if grant is None:
            return
        most = _affordable(grant, demand)
        if most is not None and not opened.clamp(max(1, most // choices(request))):
            await self.ledger.release(grant, now_ns=time.time_ns())
            grant = await self._hold(exchange, opened, [replace(c, minimum=None) for c in claims], names)
            if grant is None:
                return
        elif most is not None:
            self._intervened(exchange, opened, "clamp", {"max_output_tokens": most // choices(request)})
        if demand.streaks:
            self._remember(placement, {MEMORY: _memory(placement, demand.streaks)})
        self._open_tab(exchange, opened, grant)

    async def _admit_unread(self, exchange: Exchange, opened: Opened) -> None:
        """What no dialect reads: free, or refused (or held flat) under a cap on spend."""
        request = opened.request
        if request is not None and request.operation == "count":
            return
        billable = is_billable(exchange.head.method, exchange.path)
        subjects = _payers(exchange)
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

    def _demand(
        self,
        exchange: Exchange,
        opened: Opened,
        placement: Placement,
        request: ModelRequest,
        subjects: Mapping[str, str],
    ) -> Demand:
        assert exchange.upstream is not None
        now_ns = time.time_ns()
        step = placement.step_state
        card = self.prices.card(request, exchange.upstream, exchange.arrived_ns)
        body = opened.body if opened.plain_bytes == len(opened.body) else None
        prompt = self._bounds.prompt(exchange.id, request, body, opened.plain_bytes, opened.splice, card)
        output = output_bound(request, card)
        spend = fixed = None
        if card is not None:
            spend = to_nano(upper_bound(request, card, prompt), up=True)
            fixed = to_nano(upper_bound(replace(request, max_output_tokens=0), card, prompt), up=True)
        calls: dict[str, int] = {}
        for tool, _ in placement.brought:
            calls[tool] = calls.get(tool, 0) + 1
        return Demand(
            subjects=subjects,
            labels=exchange.identity.labels,
            steps=0 if placement.is_side or step.started else 1,
            input_tokens=prompt,
            output_tokens=output,
            least_output=min(output, _least_output(request) * choices(request)),
            spend_nano=spend,
            input_nano=fixed or 0,
            calls=calls,
            streaks=_streaks(placement),
            ran_ms=_ran_ms(placement, now_ns),
        )

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

    def _without_idle_clamps(
        self, claims: Sequence[Claim], opened: Opened, exchange: Exchange
    ) -> Sequence[Claim]:
        """Less than the worst case is only of use where the request can then be lowered."""
        edits = self.posture.enforce and exchange.head.get(b"content-encoding") is None
        return [
            claim if claim.minimum is None or (edits and self.rules.acts(claim.budget))
            else replace(claim, minimum=None)
            for claim in claims
        ]  # fmt: skip

    async def _hold(
        self, exchange: Exchange, opened: Opened, claims: Sequence[Claim], names: Sequence[str]
    ) -> Grant | None:
        """Have it held. None: the request is refused, and has been told so."""
        ledger, ttl_s = self.ledger, self.posture.ttl_s
        waited_until = time.monotonic() + PACE_S
        while True:
            now_ns = time.time_ns()
            try:
                grant = await ledger.reserve(claims, ttl_s=ttl_s, now_ns=now_ns, names=names)
            except LedgerAway:
                if self.posture.away_open or not self._refuse(exchange, opened, self.rules.away()):
                    return ledger.unheld(claims, now_ns=now_ns)
                return None
            self._tell_alerts(grant.alerts, exchange, opened)
            why = grant.refusal
            if why is None:
                return grant
            if why.claim is not None and self._only_observes(why.claim.budget):
                self._observed(exchange, opened, self.rules.refusal(why, now_ns=now_ns))
                claims = _unbounded(claims, why.claim)
                continue
            wait_s = _until_next_minute(why, now_ns)
            if wait_s is not None and time.monotonic() + wait_s <= waited_until:
                await asyncio.sleep(wait_s)
                continue
            self._refuse(exchange, opened, self.rules.refusal(why, now_ns=now_ns), why)
            return None

    def _only_observes(self, budget: str) -> bool:
        return not self.posture.enforce or not self.rules.acts(budget)

    # -- refusing

    def _refuse(self, exchange: Exchange, opened: Opened, why: Terminal, of: Refusal | None = None) -> bool:
        """Refuse a request, where anything may be refused at all."""
        stopped = of is not None and of.stopped is not None
        if not self.posture.enforce and not stopped:
            self._observed(exchange, opened, why)
            return False
        self.refused += 1
        reply = None
        if opened.placement is None:
            assert exchange.upstream is not None
            reply = self._speaker(exchange.upstream).refusal(None, why, exchange.id)
        opened.refuse(why, reply, time.time_ns())
        self._tell_refusal(exchange, opened, why, why.kind)
        return True

    def _observed(self, exchange: Exchange, opened: Opened, why: Terminal) -> None:
        self.would_refuse += 1
        self._tell_refusal(exchange, opened, why, f"would_{why.kind}")

    def _tell_refusal(self, exchange: Exchange, opened: Opened, why: Terminal, kind: str) -> None:
        """One log line and one event per scope and minute; a storm of refusals is only counted."""
        scope = str(why.fields.get("budget") or why.fields.get("stopped") or why.code)
        key = (kind, why.code, scope, str(why.fields.get("scope", "")))
        now_ns = time.time_ns()
        told_ns, since = self._storms.get(key, (0, 0))
        if now_ns - told_ns < STORM_NS:
            self._storms[key] = (told_ns, since + 1)
            return
        if len(self._storms) > 1_000:
            self._storms.clear()
        self._storms[key] = (now_ns, 0)
        more = f" ({since} more since the last line)" if since else ""
        verb = "refused" if kind in ("deny", "message") else "would refuse"
        self._warn(f"{verb}: {why.message.removeprefix('Looptap: ')}{more}")
        data = {**why.fields, "exchange": exchange.id, "number": exchange.number, "action": kind}
        self._sink.put(_record("budget/exhausted", now_ns, opened, data))
        self._intervened(exchange, opened, kind, {"code": why.code, **why.fields})

    def _intervened(self, exchange: Exchange, opened: Opened, kind: str, more: Mapping[str, Any]) -> None:
        data = {
            "policy": "budgets", "kind": kind, "exchange": exchange.id, "number": exchange.number, **more,
        }  # fmt: skip
        self._sink.put(_record("intervention", time.time_ns(), opened, data))

    def _tell_alerts(self, alerts: Sequence[Alert], exchange: Exchange | None, opened: Opened | None) -> None:
        for alert in alerts:
            data = {"share": alert.share / 10_000, **_of_balance(alert.balance)}
            if exchange is not None:
                data["exchange"] = exchange.id
            self._sink.put(_record("budget/alert", time.time_ns(), opened, data))
            balance = alert.balance
            used = public_amount(balance.dimension, balance.used)
            limit = public_amount(balance.dimension, balance.limit)
            self._warn(
                f"budget {balance.name} of {balance.scope} {balance.subject} has reached "
                f"{alert.share / 100:g} %: {used} of {limit} {balance.dimension}"
            )

    # -- after it

    def _open_tab(self, exchange: Exchange, opened: Opened, grant: Grant) -> None:
        now_ns = time.time_ns()
        opened.tab = _Tab(self, exchange, opened, grant)
        self._open[grant.id] = grant
        opened.admit(now_ns)
        if grant.holds:
            data = {"grant": grant.id, "exchange": exchange.id, "holds": [_of_hold(h) for h in grant.holds]}
            self._sink.put(_record("budget/reserve", now_ns, opened, data))

    def settle(self, tab: "_Tab", amounts: Sequence[int | None], now_ns: int) -> None:
        """Tell the ledger, without anybody waiting for it."""
        if not tab.grant.holds:
            self._open.pop(tab.grant.id, None)
            return
        task = asyncio.get_running_loop().create_task(self._settle(tab, amounts, now_ns))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _settle(self, tab: "_Tab", amounts: Sequence[int | None], now_ns: int) -> None:
        grant, exchange, opened = tab.grant, tab.exchange, tab.opened
        try:
            receipt = await self.ledger.settle(grant, amounts, now_ns=now_ns)
        except LedgerAway:
            return  # the ledger is closed: the lease ends by itself, charged as held
        finally:
            self._open.pop(grant.id, None)
        charged = [
            {**_of_hold(hold), "charged": _public(hold.claim, hold.amount if actual is None else actual),
             "quality": "assumed" if actual is None else "known"}
            for hold, actual in zip(grant.holds, amounts, strict=True)
        ]  # fmt: skip
        data: dict[str, Any] = {"grant": grant.id, "exchange": exchange.id, "holds": charged}
        data.update(_of_receipt(receipt))
        self._sink.put(_record("budget/settle", time.time_ns(), opened, data))
        self._tell_alerts(receipt.alerts, exchange, opened)
        for balance in receipt.overruns:
            self._overran(balance, exchange, opened)

    def _overran(self, balance: Balance, exchange: Exchange, opened: Opened) -> None:
        data = {
            "policy": "budgets", "kind": "overrun", "severity": "violation",
            "evidence": _of_balance(balance), "exchange": exchange.id, "number": exchange.number,
        }  # fmt: skip
        self._sink.put(_record("finding", time.time_ns(), opened, data))

    def learn(self, exchange: Exchange, attempt: Attempt) -> None:
        """What the provider counted is where the next prompt's bound begins."""
        if attempt.reply.usage is not None:
            self._bounds.learn(exchange.id, attempt.reply.response_id, attempt.reply.usage)

    # -- now and then

    async def beat(self) -> None:
        """Keep what is still running from expiring, and end what has."""
        now_ns = time.time_ns()
        try:
            if self._open and now_ns - self._renewed_ns > self.posture.ttl_s * 1_000_000_000 // 3:
                self._renewed_ns = now_ns
                await self.ledger.renew(list(self._open.values()), ttl_s=self.posture.ttl_s, now_ns=now_ns)
            self._tell_alerts(await self.ledger.sweep(now_ns=now_ns), None, None)
        except LedgerAway:
            return

    async def drain(self) -> None:
        """Wait for settlements under way."""
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=SETTLING_S)


class _Tab:
    """What was held for one exchange, until it is settled."""

    __slots__ = ("_done", "_purse", "exchange", "grant", "opened")

    def __init__(self, purse: Purse, exchange: Exchange, opened: Opened, grant: Grant) -> None:
        self._purse = purse
        self.exchange = exchange
        self.opened = opened
        self.grant = grant
        self._done = False

    def settle(self, attempt: Attempt, now_ns: int) -> None:
        """The attempt is over: its usage and cost are what is charged."""
        if self._done:
            return
        self._done = True
        self._purse.learn(self.exchange, attempt)
        amounts = [_actual(hold.claim.dimension, hold.amount, attempt) for hold in self.grant.holds]
        self._purse.settle(self, amounts, now_ns)

    def end(self, end: EndKind, status: int | None, now_ns: int) -> None:
        """Nobody read the reply. An error or none at all costs nothing, the rest what was held."""
        if self._done:
            return
        self._done = True
        nothing = (status is None and end != "client_gone") or (status is not None and status >= 400)
        amounts = [
            (0 if nothing else None) if hold.claim.dimension in _SPENT else _counted(hold.claim, hold.amount)
            for hold in self.grant.holds
        ]
        self._purse.settle(self, amounts, now_ns)


_SPENT = frozenset({"input_tokens", "output_tokens", "total_tokens", "spend_usd"})
"""Dimensions that the reply tells; the others are known when the request goes out."""


def _actual(dimension: str, held: int, attempt: Attempt) -> int | None:
    """What an attempt took of one dimension; None where nobody knows."""
    if dimension == "spend_usd":
        return to_nano(attempt.cost.usd) if attempt.cost.usd is not None else None
    if dimension not in _SPENT:
        return 0 if dimension == "wall_clock" or dimension.startswith("tool_retries") else held
    usage = attempt.usage
    if usage is None:
        return 0
    taken, given = usage.input_tokens, usage.output_tokens
    if dimension == "input_tokens":
        return taken
    if dimension == "output_tokens":
        return given
    return taken + given if taken is not None and given is not None else None


def _counted(claim: Claim, held: int) -> int:
    return 0 if claim.level is not None else held


# -- facts of a request


def _payers(exchange: Exchange) -> dict[str, str]:
    identity = exchange.identity
    subjects = {"key": identity.key, "team": identity.team, "org": identity.org}
    if exchange.upstream is not None:
        subjects["upstream"] = exchange.upstream.name
    return subjects


def _subjects(exchange: Exchange, placement: Placement, request: ModelRequest) -> dict[str, str]:
    return {
        **_payers(exchange),
        "model": request.model,
        "step": placement.step,
        "turn": placement.root_turn,
        "thread": placement.thread,
        "session": placement.session,
    }


def _names(exchange: Exchange, placement: Placement) -> tuple[str, ...]:
    """Everything by which an operator may have stopped this."""
    thread = placement.thread_state
    names = (
        placement.root_turn, placement.turn, placement.thread, placement.session, exchange.identity.key,
        f"key:{exchange.identity.key}",
    )  # fmt: skip
    return (*names, thread.parent) if thread.parent is not None else names


def _least_output(request: ModelRequest) -> int:
    """Below this a lowered limit would fail or be of no use: thinking has to fit under it."""
    thinking = request.options.get("thinking")
    budget = thinking.get("budget_tokens") if isinstance(thinking, dict) else None
    if not isinstance(budget, int):
        config = request.options.get("generationConfig")
        config = config.get("thinkingConfig") if isinstance(config, dict) else None
        budget = config.get("thinkingBudget") if isinstance(config, dict) else None
    return USEFUL_OUTPUT + (budget if isinstance(budget, int) and budget > 0 else 0)


def _streaks(placement: Placement) -> dict[str, int]:
    """Failed calls in a row by tool, with what this request brings."""
    memory = placement.memories.get(MEMORY, {})
    streaks = dict(memory.get("streaks", {})) if memory.get("turn") == placement.turn else {}
    for tool, is_error in placement.brought:
        streaks[tool] = streaks.get(tool, 0) + 1 if is_error else 0
    return streaks


def _memory(placement: Placement, streaks: Mapping[str, int]) -> dict[str, Any]:
    return {"turn": placement.turn, "streaks": {tool: count for tool, count in streaks.items() if count}}


def _ran_ms(placement: Placement, now_ns: int) -> dict[str, int]:
    thread = placement.thread_state
    root = thread.root_turn()
    began = {
        "step": placement.step_state.arrived_ns,
        "turn": root.began_ns if root is not None else 0,
        "thread": thread.began_ns,
        "session": thread.session.began_ns,
    }
    return {scope: max(0, now_ns - since) // 1_000_000 for scope, since in began.items() if since}


def _affordable(grant: Grant, demand: Demand) -> int | None:
    """The most output that fits what was held; None where all of it does."""
    most = demand.output_tokens
    for hold in grant.holds:
        claim = hold.claim
        if claim.minimum is None or hold.amount >= claim.amount:
            continue
        if claim.dimension == "output_tokens":
            most = min(most, hold.amount)
        elif claim.dimension == "total_tokens":
            most = min(most, hold.amount - demand.input_tokens)
        elif claim.dimension == "spend_usd" and demand.spend_nano is not None:
            whole = demand.spend_nano - demand.input_nano
            left = hold.amount - demand.input_nano
            most = min(most, left * demand.output_tokens // whole if whole > 0 else most)
    return most if most < demand.output_tokens else None


def _unbounded(claims: Sequence[Claim], failing: Claim) -> list[Claim]:
    """The same claims, with the one that did not fit counted and not bounded."""
    return [
        replace(claim, hard=UNBOUNDED, limit=claim.limit) if claim is failing or claim == failing else claim
        for claim in claims
    ]


def _until_next_minute(why: Refusal, now_ns: int) -> float | None:
    """How long until a limit on the pace begins anew; None for every other limit."""
    if why.claim is None or why.claim.dimension != "requests_per_minute" or why.balance is None:
        return None
    resets_ns = why.balance.resets_at_ns
    return (resets_ns - now_ns) / 1e9 + 0.005 if resets_ns is not None else None


# -- records


def _record(kind: str, now_ns: int, opened: Opened | None, data: Mapping[str, Any]) -> Record:
    placement = opened.placement if opened is not None else None
    if placement is None:
        return Record(now_ns, kind, data=data)
    return Record(now_ns, kind, placement.session, placement.thread, placement.turn, placement.step, data)


def _public(claim: Claim, amount: int) -> int | float | str:
    return public_amount(claim.dimension, amount)


def _of_hold(hold: Any) -> dict[str, Any]:
    claim = hold.claim
    return {
        "budget": claim.budget, "scope": claim.scope, "subject": claim.subject,
        "dimension": claim.dimension, "held": _public(claim, hold.amount),
    }  # fmt: skip


def _of_balance(balance: Balance) -> dict[str, Any]:
    public = balance.public()
    return {"budget": public.pop("name"), **public}


def _of_receipt(receipt: Receipt) -> dict[str, Any]:
    return {"applied": receipt.applied, "late": receipt.late, "queued": receipt.queued}
