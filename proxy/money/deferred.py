"""What is held for replies that are made in the background, until a fetch brings them.

Written into the memory of the thread that ordered it, under the reply's id: so a fetch after a restart, or
at another instance, settles what was held, too. What nobody fetches ends with its lease, charged as held.

The one invariant: a grant that is found again settles the counters that it was drawn from, or none.
"""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from proxy.tracking.placement import Placement
from proxy.verdict import Claim, Grant, Hold

MEMORY = "held"
"""Under this name a thread remembers what is held for its background replies, by the reply's id."""
_OF_A_THREAD = 16


def written(placement: Placement, reply: str, grant: Grant) -> Mapping[str, Mapping[str, Any]]:
    """The thread's memory with one more grant; the newest are kept."""
    known = dict(placement.memories.get(MEMORY, {}))
    known[reply] = {
        "grant": grant.id,
        "expires_ns": grant.expires_ns,
        "holds": [asdict(hold) for hold in grant.holds],
    }
    return {MEMORY: dict(list(known.items())[-_OF_A_THREAD:])}


def struck_out(placement: Placement, reply: str) -> Mapping[str, Mapping[str, Any]]:
    """The memory without a grant that is settled; nothing where it was not in it."""
    known = placement.memories.get(MEMORY, {})
    if reply not in known:
        return {}
    return {MEMORY: {name: told for name, told in known.items() if name != reply}}


def found(placement: Placement, reply: str) -> Grant | None:
    """The grant that was held when a reply was ordered; None where its thread knows of none."""
    told = placement.memories.get(MEMORY, {}).get(reply)
    try:
        return _grant(told) if told is not None else None
    except (KeyError, TypeError):
        return None


def _grant(told: Mapping[str, Any]) -> Grant:
    holds = []
    for hold in told["holds"]:
        claim = dict(hold["claim"])
        claim["alert_at"] = tuple(claim["alert_at"])
        holds.append(Hold(**{**hold, "claim": Claim(**claim)}))
    return Grant(told["grant"], tuple(holds), expires_ns=told["expires_ns"])
