"""Budgets: what a request has to have held before it goes out, and what is said when it cannot be.

A rule over values: the ledger holds, the purse asks it, pricing knows the worst case; here stand only
which budgets a request falls under, under which subject, with which amount, and the words of a
refusal (also of one for what a policy claimed).

The one invariant: whatever a budget limits is claimed for every request that it matches; a
request that lacks the scope's fact (a label, a turn) falls under the subject ``(none)``.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from shlex import quote
from typing import Literal

from proxy.model import rfc3339
from proxy.verdict import (
    STOPPED,
    Balance,
    Claim,
    Demand,
    Reached,
    Refusal,
    Terminal,
    public_amount,
    public_name,
)

NONE = "(none)"
"""The subject of a request that lacks the fact a scope asks for."""
SHARES = 10_000
ACTING = frozenset({"deny", "message", "cut", "land", "hold"})
"""Of what happens at a limit: whatever refuses, at once or where no operator says yes."""
_FORMS: Mapping[Reached, Literal["message", "hold"]] = {"message": "message", "hold": "hold"}
"""What a refusal becomes; whatever is not here is denied."""
PACE = "requests_per_minute"
SPEND = "spend_usd"
LANDING = "landing"
"""Dimension of the counter of last steps: one for each turn, behind the colon the budget's own subject."""

_LIFE_SCOPES = frozenset({"step", "turn", "thread", "session"})
_CAUSES: Mapping[str, str] = {
    "steps": "steps",
    "input_tokens": "tokens",
    "output_tokens": "tokens",
    "total_tokens": "tokens",
    SPEND: "spend",
    "wall_clock": "wall_clock",
    "calls": "calls",
    "tool_retries": "tool_retries",
}
_UNITS: Mapping[str, str] = {
    "steps": "steps",
    "input_tokens": "input tokens",
    "output_tokens": "output tokens",
    "total_tokens": "tokens",
    SPEND: "USD",
    "wall_clock": "seconds",
    PACE: "requests a minute",
    "calls": "calls of {tool}",
}


@dataclass(frozen=True, slots=True)
class Budget:
    """A cap as configured, in whole units: spend in nano-dollars, time in milliseconds."""

    name: str
    scope: str
    window: str
    """``life`` where the scope ends by itself."""
    limits: Mapping[str, int]
    """By dimension, but for ``calls``."""
    calls: Mapping[str, int] = field(default_factory=dict)
    """Most calls by tool name; names may hold ``*``."""
    hard_at: int = SHARES
    """Ten-thousandths of the limit at which requests stop."""
    alert_at: tuple[int, ...] = ()
    on_exhausted: Reached = "deny"
    clamp: bool = False
    upstreams: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()

    @property
    def acts(self) -> bool:
        """Whether it refuses, and does not only tell."""
        return self.on_exhausted in ACTING

    @property
    def lands(self) -> bool:
        """Whether it gives a turn a last step before it refuses."""
        return self.on_exhausted == "land"

    def matches(self, subjects: Mapping[str, str]) -> bool:
        """Whether a request falls under it. A model that is not known may be any."""
        return (
            _fits(self.upstreams, subjects.get("upstream", ""))
            and _fits(self.keys, subjects.get("key", ""))
            and ("model" not in subjects or _fits(self.models, subjects["model"]))
        )


class Budgets:
    """The budgets of one configuration."""

    def __init__(self, budgets: Sequence[Budget]) -> None:
        self.by_name = {budget.name: budget for budget in budgets}
        self._all = tuple(budgets)
        self.lands = any(budget.lands for budget in budgets)
        """Whether any gives a last step."""

    def acts(self, claim: Claim) -> bool:
        """Whether what does not fit a claim is refused, and not only told of."""
        return self._reached(claim) in ACTING

    def waits(self, claim: Claim) -> bool:
        """Whether what does not fit a claim waits for an operator."""
        return self._reached(claim) == "hold" and claim.dimension != PACE

    def _reached(self, claim: Claim) -> Reached:
        known = self.by_name.get(claim.budget)
        return known.on_exhausted if known is not None else claim.on_exhausted

    def cuts(self, budget: str) -> bool:
        """Whether a budget ends what is under way, and does not only refuse what comes."""
        known = self.by_name.get(budget)
        return known is not None and known.on_exhausted == "cut"

    def caps_spend(self, subjects: Mapping[str, str]) -> str | None:
        """The first budget that stops this traffic at an amount of money."""
        for budget in self._all:
            if budget.acts and SPEND in budget.limits and budget.matches(subjects):
                return budget.name
        return None

    def claims(self, demand: Demand) -> list[Claim]:
        """What must be held for a request, budget by budget."""
        found: list[Claim] = []
        for budget in self._all:
            if budget.matches(demand.subjects):
                claims = list(_claims(budget, demand))
                found += _before_the_last(budget, claims, demand) if budget.lands else claims
        return found

    def refusal(self, why: Refusal, *, now_ns: int, landed: bool = False) -> Terminal:
        """What the client is told: which limit, how far, until when, and how to go on.

        ``landed``: its turn has had its last step.
        """
        if why.claim is None or why.balance is None:
            return _stopped(why.stopped or "")
        claim, balance = why.claim, why.balance
        dimension, _, tool = claim.dimension.partition(":")
        if dimension == LANDING:
            return self._landed(claim, tool)
        pace = dimension == PACE
        fields = _fields(claim, balance, dimension, tool)
        left_s = None
        if balance.resets_at_ns is not None:
            left_s = max(1, -(-(balance.resets_at_ns - now_ns) // 1_000_000_000))
        state = _state(claim, balance, dimension, tool)
        if landed:
            state += f"; {_GIVEN}"
            fields["landed"] = True
        message = f"Looptap: {state}. To go on: {fields['how_to_go_on']}."
        return Terminal(
            "deny" if pace else _FORMS.get(self._reached(claim), "deny"),
            claim.policy or "budgets",
            _code(dimension),
            message,
            _CAUSES.get(dimension, "policy"),
            fields,
            retry_after_s=left_s if pace else None,
            resets_s=None if pace else left_s,
        )

    def last_step(self, why: Refusal, *, now_ns: int) -> Terminal:
        """The same of a request that goes out as the last of its turn: what there was no more room for."""
        told = self.refusal(why, now_ns=now_ns)
        assert why.claim is not None
        assert why.balance is not None
        whose = f"budget {why.claim.budget!r} of {why.claim.scope} {public_name(why.claim.subject)}"
        dimension, _, tool = why.claim.dimension.partition(":")
        unit = _UNITS.get(dimension, dimension).format(tool=public_name(tool))
        used, limit = (public_amount(dimension, n) for n in (why.balance.used, why.balance.hard))
        message = f"Looptap: {whose} gives a last step, at {used} of {limit} {unit} used"
        return replace(told, message=f"{message}. To go on: {told.fields['how_to_go_on']}.")

    def _landed(self, claim: Claim, subject: str) -> Terminal:
        """Its turn has had its last step, whatever has become free since."""
        budget = self.by_name.get(claim.budget)  # None: it was taken out while the request was under way
        scope = budget.scope if budget is not None else claim.scope
        limits = budget.limits if budget is not None else {}
        dimension, limit = next(iter(limits.items()), ("calls", 0))
        how = _how(replace(claim, scope=scope, subject=subject, dimension=dimension), dimension, None)
        fields: dict[str, object] = {
            "budget": claim.budget,
            "scope": scope,
            "subject": subject,
            "dimension": dimension,
            "limit": public_amount(dimension, limit),
            "landed": True,
            "how_to_go_on": how,
        }
        whose = f"budget {claim.budget!r} of {scope} {public_name(subject)}"
        message = f"Looptap: {whose} had no room for one step more; {_GIVEN}. To go on: {how}."
        return Terminal(
            "deny", "budgets", _code(dimension), message, _CAUSES.get(dimension, "policy"), fields
        )

    def unpriced(self, budget: str, what: str) -> Terminal:
        """Nobody knows what it would cost, and a budget wants to know."""
        known = self.by_name[budget]
        how = "add a rule to `prices`, or set `unmodelled` to pass or to a hold_usd"
        limit = public_amount(SPEND, known.limits[SPEND])
        fields: dict[str, object] = {
            "budget": budget,
            "scope": known.scope,
            "dimension": SPEND,
            "limit": limit,
            "how_to_go_on": how,
        }
        message = (
            f"Looptap: budget {budget!r} caps spend at {limit} USD, and {what} is not known. To go on: {how}."
        )
        return Terminal("deny", "budgets", "looptap_unpriced", message, "spend", fields)

    def away(self) -> Terminal:
        """The ledger cannot be asked."""
        how = "bring the ledger back, or set `ledger.away` to open"
        message = (
            f"Looptap: the ledger of budgets cannot be reached, so nothing can be held. To go on: {how}."
        )
        return Terminal("deny", "budgets", "looptap_ledger_away", message, "policy", {"how_to_go_on": how})


def _code(dimension: str) -> str:
    if dimension == PACE:
        return "looptap_request_pace"
    return "looptap_step_limit" if dimension == "steps" else "looptap_budget_exceeded"


def _fits(patterns: Sequence[str], name: str) -> bool:
    return not patterns or any(fnmatchcase(name, pattern) for pattern in patterns)


# -- claims


def _claims(budget: Budget, demand: Demand) -> Iterator[Claim]:
    subject = _subject(budget.scope, demand)
    for dimension, limit in budget.limits.items():
        if dimension == "tool_retries":
            for tool, streak in demand.streaks.items():
                yield _claim(budget, subject, f"tool_retries:{tool}", limit, 0, level=streak)
        elif dimension == "wall_clock":
            ran_ms = demand.ran_ms.get(budget.scope, 0)
            yield _claim(budget, subject, dimension, limit, 0, level=ran_ms)
        else:
            amount, least = _amounts(dimension, demand)
            if amount:
                minimum = least if budget.clamp and least < amount and not budget.lands else None
                yield _claim(budget, subject, dimension, limit, amount, minimum=minimum)
    for pattern, limit in budget.calls.items():
        amount = sum(count for tool, count in demand.calls.items() if fnmatchcase(tool, pattern))
        if amount:
            yield _claim(budget, subject, f"calls:{pattern}", limit, amount)


def _subject(scope: str, demand: Demand) -> str:
    if scope.startswith("label:"):
        return demand.labels.get(scope[6:]) or NONE
    return demand.subjects.get(scope) or NONE


def _amounts(dimension: str, demand: Demand) -> tuple[int, int]:
    """The worst case of a dimension, and the least with which it would still go out."""
    tokens_in, tokens_out, least = demand.input_tokens, demand.output_tokens, demand.least_output
    match dimension:
        case "steps":
            return demand.steps, demand.steps
        case "input_tokens":
            return tokens_in, tokens_in
        case "output_tokens":
            return tokens_out, least
        case "total_tokens":
            return tokens_in + tokens_out, tokens_in + least
        case "spend_usd":
            spend, fixed = demand.spend_nano or 0, demand.input_nano
            share = -(-(spend - fixed) * least // tokens_out) if tokens_out else 0
            return spend, min(spend, fixed + share)
        case _:
            return 1, 1


def _before_the_last(budget: Budget, claims: Sequence[Claim], demand: Demand) -> Iterator[Claim]:
    """The claims of a step that is not the last: each says what must stay free, and what a last one takes."""
    for claim in claims:
        dimension = claim.dimension.partition(":")[0]
        last = claim.amount
        match dimension:
            case "steps" | "input_tokens":  # whoever takes the last of it is the last
                spare = claim.amount
            case "calls" | "tool_retries":
                spare = 1
            case "wall_clock":  # the time between the limit and where requests stop is that of the last step
                spare = (claim.hard or 0) - claim.limit
            case "output_tokens" | "total_tokens" | "spend_usd":
                spare, last = 0, min(last, _amounts(dimension, demand)[1])
            case _:  # a pace ends no turn
                yield claim
                continue
        yield replace(claim, spare=spare, last=last)
    turn = demand.subjects.get("turn")
    if claims and turn is not None:
        yield Claim(
            budget.name, "turn", turn, f"{LANDING}:{claims[0].subject}", budget.window, 0, 1, spare=1, last=1
        )


def _claim(
    budget: Budget,
    subject: str,
    dimension: str,
    limit: int,
    amount: int,
    *,
    level: int | None = None,
    minimum: int | None = None,
) -> Claim:
    pace = dimension == PACE
    return Claim(
        budget=budget.name,
        scope=budget.scope,
        subject=subject,
        dimension=dimension,
        window="minute" if pace else budget.window,
        amount=amount,
        limit=limit,
        hard=limit * budget.hard_at // SHARES,
        minimum=minimum,
        level=level,
        alert_at=() if pace else budget.alert_at,
    )


# -- words

_GIVEN = "this turn was given its last step, to sum up"


def _fields(claim: Claim, balance: Balance, dimension: str, tool: str) -> dict[str, object]:
    resets = rfc3339(balance.resets_at_ns) if balance.resets_at_ns is not None else None
    fields: dict[str, object] = {
        "budget": claim.budget,
        "scope": claim.scope,
        "subject": claim.subject,
        "dimension": dimension,
        "limit": public_amount(dimension, balance.limit),
        "used": public_amount(dimension, balance.used),
        "reserved": public_amount(dimension, balance.reserved),
        "resets_at": resets,
    }
    if balance.hard != balance.limit:
        fields["stops_at"] = public_amount(dimension, balance.hard)
    if tool:
        fields["tool"] = tool
    if claim.amount and dimension != PACE:
        fields["needed"] = public_amount(dimension, claim.amount)
    fields["how_to_go_on"] = _how(claim, dimension, resets)
    return fields


def _state(claim: Claim, balance: Balance, dimension: str, tool: str) -> str:
    """Whether all of it is used, or only what is left does not suffice."""

    def told(amount: int) -> str:
        return str(public_amount(dimension, amount))

    whose = f"budget {claim.budget!r} of {claim.scope} {public_name(claim.subject)}"
    unit = _UNITS.get(dimension, f"{dimension} of {{tool}}" if tool else dimension)
    tool = public_name(tool)
    if dimension == "tool_retries":
        return (
            f"{whose} is used up: {tool} has failed {told(balance.used)} times in a row, "
            f"and {told(balance.hard)} are allowed"
        )
    unit = unit.format(tool=tool)
    held = f", {told(balance.reserved)} held for requests under way" if balance.reserved else ""
    if claim.level is None and balance.left:
        of = told(balance.hard)
        if balance.hard != balance.limit:
            of += f" (where it stops; the limit is {told(balance.limit)})"
        return (
            f"{whose} has no room for this request: it may take {told(claim.amount)} {unit}, "
            f"and {told(balance.left)} is left of {of}; {told(balance.used)} used{held}"
        )
    stops = f", stops at {told(balance.hard)}" if balance.hard != balance.limit else ""
    need = f", and this request may take {told(claim.amount)}" if claim.amount > 1 else ""
    return f"{whose} is used up: {told(balance.used)} of {told(balance.limit)} {unit}{stops}{held}{need}"


def _how(claim: Claim, dimension: str, resets: str | None) -> str:
    """The command is pasted into shells, and a client chose the subject (labels, models, tools): quoted."""
    if dimension == PACE:
        return "try again after the time given"
    if claim.policy:
        more = f"raise the limit of policy {claim.policy!r} in the configuration"
    else:
        amount = {"spend_usd": "USD", "wall_clock": "30m"}.get(dimension, "N")
        more = f"looptap topup {quote(claim.budget)} --subject {quote(claim.subject)} --add {amount}"
        if dimension != SPEND:
            more += f" --dimension {quote(claim.dimension)}"
    wait = f", or wait until {resets}" if resets is not None else ""
    fresh = ", or begin anew" if claim.scope in _LIFE_SCOPES and resets is None else ""
    return f"{more}{wait}{fresh}"


def _stopped(name: str) -> Terminal:
    how = f"looptap stop --lift {quote(name)}"
    return Terminal(
        "deny",
        "budgets",
        STOPPED,
        f"Looptap: an operator has stopped {public_name(name)}. To go on: {how}.",
        "interrupted",
        {"stopped": name, "how_to_go_on": how},
    )
