"""The facts of one request that budgets claim by: whose it is, and what it may take at the most.

Reads exchange, placement and request; asks nobody. What an attempt really took is read here too, so
that both sides of a settlement stand in one place.

The one invariant: nothing here is below what the provider can bill, as far as a request bounds it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from proxy.core import Glance, Opened
from proxy.model import Attempt, Exchange, ModelRequest
from proxy.money.bounds import Bounds
from proxy.pricing import Pricing, RateCard, Writes, choices, output_bound, upper_bound
from proxy.pricing.facts import writes_what_is_marked
from proxy.tracking.placement import Placement
from proxy.tracking.waits import waited_ns
from proxy.verdict import Claim, Demand, Grant, to_nano

USEFUL_OUTPUT = 1_024
"""A limit on output is not lowered below this."""
UNBOUNDED = 4 * 10**18
"""As much as a counter can hold (``stores.ledger``): a limit that is never reached."""
MEMORY = "budgets"
"""Under this name streaks of failed calls are remembered in a thread."""


def demand_of(
    exchange: Exchange,
    opened: Opened,
    placement: Placement,
    request: ModelRequest,
    prices: Pricing,
    bounds: Bounds,
    now_ns: int,
    *,
    more: int = 0,
) -> Demand:
    """Everything that a model call may take. ``more``: bytes of ours that it may yet get."""
    assert exchange.upstream is not None
    step = placement.step_state
    card = prices.card(request, exchange.upstream, exchange.arrived_ns)
    out = opened.out
    read = None if out.coded else out.plain
    prompt = bounds.prompt(exchange.id, request, read, len(out.plain), opened.splice, card) + out.added + more
    output = output_bound(request, card)
    spend = fixed = None
    if card is not None:
        writes = Writes.LONG
        if writes_what_is_marked(exchange.upstream):
            writes = bounds.writes(exchange.id, request, read, opened.splice)
        spend, fixed = _priced(request, card, prompt, writes)
    calls: dict[str, int] = {}
    for tool, _ in placement.brought:
        calls[tool] = calls.get(tool, 0) + 1
    return Demand(
        subjects=subjects_of(exchange, placement, request),
        labels=exchange.identity.labels,
        steps=0 if placement.is_side or step.started else 1,
        input_tokens=prompt,
        output_tokens=output,
        least_output=min(output, _least_output(request) * choices(request)),
        spend_nano=spend,
        input_nano=fixed or 0,
        calls=calls,
        streaks=_streaks(placement),
        ran_ms=ran_ms(placement, now_ns),
    )


def demand_at_the_door(
    exchange: Exchange, glance: Glance, body: bytes, card: RateCard | None, bounds: Bounds
) -> Demand:
    """What a request that was not placed may take of those who pay; nothing of money without a price."""
    request = glance.request
    prompt = bounds.glance(request, body, len(body), glance.splice, card)
    output = output_bound(request, card)
    spend = fixed = 0
    assert exchange.upstream is not None
    if card is not None:
        writes = Writes.LONG
        if writes_what_is_marked(exchange.upstream):
            writes = bounds.writes(None, request, body, glance.splice)
        spend, fixed = _priced(request, card, prompt, writes)
    return Demand(
        subjects={**payers_of(exchange), "model": request.model},
        labels=exchange.identity.labels,
        steps=1,
        input_tokens=prompt,
        output_tokens=output,
        least_output=min(output, _least_output(request) * choices(request)),
        spend_nano=spend,
        input_nano=fixed,
    )


def _priced(request: ModelRequest, card: RateCard, prompt: int, writes: Writes) -> tuple[int, int]:
    """The most that a request can cost, and the part of it that no output adds to; nano-dollars."""
    silent = replace(request, max_output_tokens=0)
    whole, fixed = (upper_bound(one, card, prompt, writes) for one in (request, silent))
    return to_nano(whole, up=True), to_nano(fixed, up=True)


def without_idle_clamps(claims: Sequence[Claim], may_edit: Callable[[Claim], bool]) -> Sequence[Claim]:
    """Less than the worst case is only of use where the request can then be lowered."""
    return [
        claim if claim.minimum is None or may_edit(claim) else replace(claim, minimum=None)
        for claim in claims
    ]  # fmt: skip


# -- whose it is


def payers_of(exchange: Exchange) -> dict[str, str]:
    """Whom its budgets are kept for, by scope: the key, its team, its org, the upstream."""
    identity = exchange.identity
    subjects = {"key": identity.key, "team": identity.team, "org": identity.org}
    if exchange.upstream is not None:
        subjects["upstream"] = exchange.upstream.name
    return subjects


def subjects_of(exchange: Exchange, placement: Placement, request: ModelRequest) -> dict[str, str]:
    """Every subject that a budget may be of."""
    return {
        **payers_of(exchange),
        "model": request.model,
        "step": placement.step,
        "turn": placement.root_turn,
        "thread": placement.thread,
        "session": placement.session,
    }


def names_of(exchange: Exchange, placement: Placement) -> tuple[str, ...]:
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


def streak_memory(placement: Placement, streaks: Mapping[str, int]) -> dict[str, Any]:
    """What the thread is to remember of a demand's streaks, for its next step in this turn."""
    return {"turn": placement.turn, "streaks": {tool: count for tool, count in streaks.items() if count}}


def ran_ms(placement: Placement, now_ns: int) -> dict[str, int]:
    """Since the first request, less what waited for an operator."""
    thread = placement.thread_state
    root = thread.root_turn()
    began = {
        "step": placement.step_state.arrived_ns,
        "turn": root.began_ns if root is not None else 0,
        "thread": thread.began_ns,
        "session": thread.session.began_ns,
    }
    waited = waited_by_scope(placement, now_ns)
    return {
        scope: max(0, now_ns - since - waited[scope]) // 1_000_000 for scope, since in began.items() if since
    }


def waited_by_scope(placement: Placement | None, now_ns: int) -> dict[str, int]:
    """How long requests of step, turn, thread and session waited for an operator, in nanoseconds."""
    if placement is None:
        return {}
    step, thread = placement.step_state, placement.thread_state
    clocks = {"step": step, "turn": thread.root_turn(), "thread": thread, "session": thread.session}
    return {scope: waited_ns(one, now_ns) for scope, one in clocks.items()}


def affordable(grant: Grant, demand: Demand) -> int | None:
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


# -- what it took

SPENT = frozenset({"input_tokens", "output_tokens", "total_tokens", "spend_usd"})
"""Dimensions that the reply tells; the others are known when the request goes out."""


def actual(claim: Claim, held: int, attempt: Attempt) -> int | None:
    """What an attempt took of what a claim had held; None where nobody knows."""
    dimension = claim.dimension
    if dimension == "spend_usd":
        return to_nano(attempt.cost.usd) if attempt.cost.usd is not None else None
    if dimension not in SPENT:
        return counted(claim, held)
    usage = attempt.usage
    if usage is None:
        return 0
    taken, given = usage.input_tokens, usage.output_tokens
    if dimension == "input_tokens":
        return taken
    if dimension == "output_tokens":
        return given
    return taken + given if taken is not None and given is not None else None


def counted(claim: Claim, held: int) -> int:
    """What a claim adds to its account when settled; one with a level sets what the account stands at."""
    return 0 if claim.level is not None else held
