"""Where budgets stand by what passed here: the ``balances`` that policies see.

Adds up what each attempt really took, budget by budget, by the rule that also makes the claims. It asks
no ledger, so it costs no round trip and stands the same in a replay; what it cannot know it leaves out:
top-ups, other instances, what is still held. Dimensions that no reply tells (time, pace, tool retries)
are not counted.

The one invariant: a counter is never above what the exchanges seen here took.
"""

from collections import OrderedDict
from collections.abc import Mapping
from typing import Protocol, TypeVar

from proxy.model import Attempt, Exchange, ModelRequest
from proxy.money.demands import SPENT, subjects_of
from proxy.stores.windows import Windows
from proxy.tracking.placement import Placement
from proxy.tracking.threads import Turn
from proxy.verdict import Balance, Claim, Demand, to_nano

_MOST = 20_000
"""Counters and steps remembered; what rested longest goes."""
_COUNTED = SPENT | {"steps"}

Key = tuple[str, str, str, int]
K = TypeVar("K")
V = TypeVar("V")


class Claims(Protocol):
    """Which budgets a request falls under (``policies.budgets``)."""

    def claims(self, demand: Demand) -> list[Claim]: ...


class Standing:
    """One per core; used from its thread."""

    def __init__(self, rules: Claims, zone: str = "UTC") -> None:
        self.rules = rules
        self._windows = Windows(zone)
        self._used: OrderedDict[Key, int] = OrderedDict()
        self._stepped: OrderedDict[str, None] = OrderedDict()

    def balances(
        self, exchange: Exchange, placement: Placement, request: ModelRequest, now_ns: int
    ) -> Mapping[str, Balance]:
        """The counters that a request falls under, by ``budget/dimension``."""
        asked = self._demand(exchange, placement, request, steps=1, tokens=(1, 1), nano=1)
        found: dict[str, Balance] = {}
        for claim in self.rules.claims(asked):
            if claim.dimension not in _COUNTED:
                continue
            window = self._windows.at(claim.window, now_ns)
            found[f"{claim.budget}/{claim.dimension}"] = Balance(
                name=claim.budget,
                scope=claim.scope,
                subject=claim.subject,
                window=claim.window,
                dimension=claim.dimension,
                limit=claim.limit,
                hard=claim.hard if claim.hard is not None else claim.limit,
                used=self._counter(claim, window.starts_ns, placement),
                reserved=0,
                resets_at_ns=window.ends_ns,
            )
        return found

    def charge(
        self, exchange: Exchange, placement: Placement, request: ModelRequest, attempt: Attempt
    ) -> None:
        """An attempt is over, and its turn does not know yet: add what it took."""
        if attempt.outcome == "refused":
            return
        usage, usd = attempt.usage, attempt.cost.usd
        tokens = (usage.input_tokens or 0, usage.output_tokens or 0) if usage is not None else (0, 0)
        new = self._new_step(placement)
        taken = self._demand(
            exchange,
            placement,
            request,
            steps=new,
            tokens=tokens,
            nano=to_nano(usd) if usd is not None else 0,
        )
        for claim in self.rules.claims(taken):
            if claim.dimension in _COUNTED:
                starts_ns = self._windows.at(claim.window, attempt.arrived_ns).starts_ns
                used = self._counter(claim, starts_ns, placement, new)
                _keep(self._used, _key(claim, starts_ns), used + claim.amount)

    def _demand(
        self,
        exchange: Exchange,
        placement: Placement,
        request: ModelRequest,
        *,
        steps: int,
        tokens: tuple[int, int],
        nano: int,
    ) -> Demand:
        return Demand(
            subjects=subjects_of(exchange, placement, request),
            labels=exchange.identity.labels,
            steps=steps,
            input_tokens=tokens[0],
            output_tokens=tokens[1],
            spend_nano=nano,
        )

    def _new_step(self, placement: Placement) -> int:
        """1 for the first attempt of a step that counts."""
        if placement.is_side or placement.step in self._stepped:
            return 0
        _keep(self._stepped, placement.step, None)
        return 1

    def _counter(self, claim: Claim, starts_ns: int, placement: Placement, begun: int = 0) -> int:
        """What was used. A running turn that outlived the process brings its own sums.

        ``begun``: of its steps, the one whose charge is under way.
        """
        known = self._used.get(_key(claim, starts_ns))
        if known is not None:
            return known
        turn = placement.step_state.turn
        if claim.scope == "turn" and claim.subject == turn.id and claim.window == "life":
            known = _of_turn(turn, claim.dimension)
            known -= begun if claim.dimension == "steps" and placement.step_state.started else 0
            _keep(self._used, _key(claim, starts_ns), known)
        return known or 0


def _of_turn(turn: Turn, dimension: str) -> int:
    tokens = turn.bill.tokens
    taken, given = tokens.get("input_tokens", 0), tokens.get("output_tokens", 0)
    match dimension:
        case "steps":
            return turn.steps
        case "spend_usd":
            return to_nano(turn.bill.usd)
        case "total_tokens":
            return taken + given
        case _:
            return taken if dimension == "input_tokens" else given


def _key(claim: Claim, starts_ns: int) -> Key:
    return claim.budget, claim.subject, claim.dimension, starts_ns


def _keep(table: OrderedDict[K, V], key: K, value: V) -> None:
    """Keep a value as the newest; the oldest goes when there are too many."""
    table[key] = value
    table.move_to_end(key)
    if len(table) > _MOST:
        table.popitem(last=False)
