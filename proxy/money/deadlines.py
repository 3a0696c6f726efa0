"""Ends what is under way when its time is up, where a budget on time asks for it (``on_exhausted: cut``).

The time left is known when a request is let through; when it is over the ledger is asked again, since a
top-up may have been given meanwhile, or an operator may have stopped the turn. While the ledger is away
nothing is cut: a request that was let through may end.
"""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from proxy.ports import Ledger, LedgerAway
from proxy.verdict import Claim, Refusal

AGAIN_S = 1.0
"""Pause between two looks at a limit that was topped up."""
_TTL_S = 60


def clocks_of(claims: Sequence[Claim], cuts: Sequence[bool]) -> list[Claim]:
    """The limits on time among claims whose budgets cut."""
    return [claim for claim, cut in zip(claims, cuts, strict=True) if cut and claim.dimension == "wall_clock"]


async def time_up(
    ledger: Ledger,
    clocks: Sequence[Claim],
    names: Sequence[str],
    waited: Callable[[int], Mapping[str, int]] = lambda now_ns: {},
) -> Refusal:
    """Wait until a limit on time is reached; answers which. ``clocks`` say how much had run before.

    ``waited``: for how many nanoseconds, by scope, others that waited for an operator kept a clock still.
    """
    began_ns = time.time_ns()
    before = waited(began_ns)
    left_ms = min(
        (claim.limit if claim.hard is None else claim.hard) - (claim.level or 0) for claim in clocks
    )
    pause_s = left_ms / 1000 + 0.002
    while True:
        await asyncio.sleep(max(pause_s, 0))
        now_ns = time.time_ns()
        still = {scope: ns - before.get(scope, 0) for scope, ns in waited(now_ns).items()}
        claims = [
            replace(
                claim,
                level=(claim.level or 0) + (now_ns - began_ns - still.get(claim.scope, 0)) // 1_000_000,
            )
            for claim in clocks
        ]
        try:
            grant = await ledger.reserve(claims, ttl_s=_TTL_S, now_ns=now_ns, names=names)
            if grant.refusal is not None:
                return grant.refusal
            await ledger.release(grant, now_ns=now_ns)
        except LedgerAway:
            pass
        pause_s = AGAIN_S
