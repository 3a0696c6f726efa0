"""What this instance has charged to the shared ledger and still holds there, as absolute values.

The server may lose its last second, or everything. So each instance remembers its own part from
the moment at which it decides it, and publishes it whole whenever it connects: that puts back
what was lost, drops what the server still holds for nobody, and is the retry of everything that
was under way. No IO here.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from proxy.stores.ledger import MAX_AMOUNT
from proxy.verdict import Claim, Grant, Hold

KEEP_NS = 2 * 86_400_000_000_000
"""How long totals outlive their window, or their subject's last request."""
REMEMBERED = 20_000
"""Grants of which a second settlement is known without asking."""

WireClaim = list[Any]


def wire_claim(claim: Claim, hold: Hold) -> WireClaim:
    """A claim as the scripts read it (see common.lua)."""
    limit = min(claim.limit, MAX_AMOUNT)
    hard = limit if claim.hard is None else min(claim.hard, MAX_AMOUNT)
    return [
        hold.key,
        hold.starts_ns // 1000,
        False if hold.ends_ns is None else hold.ends_ns // 1000,
        orjson.dumps([claim.budget, claim.scope, claim.subject, claim.dimension, claim.window]).decode(),
        str(min(claim.amount, MAX_AMOUNT)),
        str(limit),
        str(hard),
        False if claim.minimum is None else str(claim.minimum),
        False if claim.level is None else str(claim.level),
        ",".join(map(str, claim.alert_at)),
        str(min(claim.spare, MAX_AMOUNT)),
    ]


@dataclass(slots=True)
class Line:
    """This instance's part of one counter, and what it last saw of the whole."""

    claim: WireClaim
    ends_ns: int | None
    own: int = 0
    assumed: int = 0
    seen: str = "0"
    topup: str = "0"
    alerted: str = "0"
    touched_ns: int = 0
    holding: int = 0
    """Open grants that hold something of it."""


class Totals:
    """The lines, and the grants that are not settled yet."""

    def __init__(self) -> None:
        self.open: dict[str, tuple[Grant, int]] = {}
        """By id, with the microsecond at which each ends."""
        self.changed = False
        """Something has changed since the last `publish`."""
        self._lines: dict[str, Line] = {}
        self._closed: OrderedDict[str, None] = OrderedDict()

    def granted(self, grant: Grant, claims: Sequence[WireClaim], expires_us: int, now_ns: int) -> None:
        """A grant is ours to settle."""
        self.changed = True
        self.open[grant.id] = (grant, expires_us)
        for hold, claim in zip(grant.holds, claims, strict=True):
            line = self._lines.get(hold.key)
            if line is None:
                line = self._lines[hold.key] = Line(claim, hold.ends_ns)
            line.claim = claim
            line.touched_ns = now_ns
            line.holding += 1

    def close(self, grant_id: str) -> bool:
        """A grant is being settled or given back; False: not ours, or not any more."""
        known = self.open.pop(grant_id, None)
        if known is None:
            return False
        self.changed = True
        self._closed[grant_id] = None
        if len(self._closed) > REMEMBERED:
            self._closed.popitem(last=False)
        for hold in known[0].holds:
            self._lines[hold.key].holding -= 1
        return True

    def was_closed(self, grant_id: str) -> bool:
        """Whether this instance has settled or given back a grant already."""
        return grant_id in self._closed

    def charge(self, grant: Grant, amounts: Iterable[int | None], sign: int = 1) -> None:
        """What a grant of ours cost; ``sign`` -1 takes it back."""
        self.changed = True
        for hold, actual in zip(grant.holds, amounts, strict=True):
            line = self._lines[hold.key]
            line.own += sign * (hold.amount if actual is None else actual)
            if actual is None:
                line.assumed += sign * hold.amount

    def renewed(self, grant_ids: Iterable[str], expires_us: int) -> None:
        """Grants got more time."""
        for grant_id in grant_ids:
            known = self.open.get(grant_id)
            if known is not None:
                self.open[grant_id] = (known[0], expires_us)

    def saw(self, holds: Iterable[Hold], seen: Iterable[Any]) -> None:
        """What a script said of the counters: used, topped up, alerted."""
        for hold, one in zip(holds, seen, strict=True):
            line = self._lines.get(hold.key)
            if line is not None and one:
                line.seen, line.topup, line.alerted = one

    def publish(self) -> dict[str, Any]:
        """Everything, as join.lua reads it."""
        self.changed = False
        lines = [
            [line.claim, str(line.own), str(line.assumed), line.seen, line.topup, line.alerted]
            for line in self._lines.values()
        ]
        open_grants = [
            [grant.id, str(expires_us), [[hold.key, str(hold.amount)] for hold in grant.holds]]
            for grant, expires_us in self.open.values()
            if any(hold.amount for hold in grant.holds)
        ]
        return {"lines": lines, "open": open_grants}

    def forget(self, now_ns: int) -> list[str]:
        """Drop lines that nobody needs any more; returns their keys."""
        over = [
            key
            for key, line in self._lines.items()
            if not line.holding and (line.ends_ns or line.touched_ns) + KEEP_NS < now_ns
        ]
        for key in over:
            del self._lines[key]
        return over
