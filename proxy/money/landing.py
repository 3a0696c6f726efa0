"""How a request goes out as its turn's last step, where a budget has no room for one step more.

A budget with ``on_exhausted: land`` claims with a word on what must stay free for the last step
(``Claim.spare``) and on the least that this one takes (``Claim.last``). A request that does not fit so is
asked for once more: with that least, and with the turn's only place in the counter of last steps. The
ledger takes both at once or neither, so that parallel requests, other instances and a restart get no
second one.

The one invariant: what a last step takes has been held like everything else; no cap gives way for it.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from policies.budgets import LANDING
from proxy.verdict import Balance, Claim, Demand, Refusal

Told = tuple[Refusal, bool]
"""Why a request is refused, and whether its turn has had its last step."""


class LastStep:
    """One request's claims, as any other step's or as the last's."""

    def __init__(
        self,
        claims: Sequence[Claim],
        anew: Callable[[], tuple[Demand, Sequence[Claim]]],
        *,
        possible: bool,
        again: bool = False,
    ) -> None:
        """``anew``: what it takes and claims with the words of a last step in its prompt. ``possible``: it
        may be one. ``again``: it is another attempt of the turn's last step."""
        self._anew = anew
        self._possible = possible and not again
        self.ended: dict[str, Refusal] = {}
        """The budgets for which it is the last, and what they had no room for."""
        self.demand: Demand | None = None
        """What it takes as the last step."""
        self.claims = [_plain(claim) for claim in claims] if not self._possible else list(claims)
        if again:
            self.claims = [lenient(claim) for claim in claims if not is_ticket(claim)]

    def fits(self, why: Refusal) -> bool:
        """Whether it could go out as the last step of its turn, as far as this budget is concerned."""
        claim = why.claim
        return self._possible and claim is not None and claim.last is not None and claim.last <= why.available

    def take(self, why: Refusal) -> bool:
        """Try it as the last step; ``claims`` are other ones then. Also where there is no room for that: it
        is told whether the turn has had it."""
        claim = why.claim
        if not self._possible or claim is None or claim.last is None or is_ticket(claim):
            return False
        if claim.budget in self.ended:
            return False
        self.ended[claim.budget] = why
        tickets, rest = [], []
        self.demand, claims = self._anew()
        for claim in claims:
            if claim.budget not in self.ended:
                rest.append(claim)
            elif is_ticket(claim):
                tickets.append(replace(claim, amount=1, spare=0, last=None))
            else:
                rest.append(lenient(claim))
        self.claims = [*tickets, *rest]  # whether the turn has had its last step is asked first
        return True

    def asked_again(self, claims: Sequence[Claim]) -> list[Claim]:
        """What the same request is asked for where it comes again: no more than a last step takes."""
        return [
            replace(claim, amount=0, spare=1, last=1) if is_ticket(claim) else lenient(claim)
            for claim in sorted(claims, key=is_ticket)
        ]

    def told(self, why: Refusal) -> Told:
        """What the client is told of a refusal."""
        claim = why.claim
        if claim is None:
            return why, False
        return self.ended.get(claim.budget, why), is_ticket(claim)


def lenient(claim: Claim) -> Claim:
    """A claim with the least with which it could still go out."""
    if claim.last is None:
        return claim
    minimum = claim.last if claim.last < claim.amount else None
    return replace(claim, spare=0, last=None, minimum=minimum)


def _plain(claim: Claim) -> Claim:
    """A claim of what can be no last step: nothing is kept free for one."""
    return claim if claim.last is None or is_ticket(claim) else replace(claim, spare=0, last=None)


def is_ticket(claim: Claim | Balance) -> bool:
    """Whether this is about the counter of last steps."""
    return claim.dimension.startswith(f"{LANDING}:")
