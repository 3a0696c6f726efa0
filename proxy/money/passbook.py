"""What budgets did, written down: events for the record, lines for the operator.

The one invariant: a storm of refusals of one kind is one event and one line a minute; what came
besides is counted and told with the next.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from proxy.core import Opened
from proxy.model import Exchange, Record
from proxy.money.landing import is_ticket
from proxy.ports import Sink
from proxy.verdict import Alert, Balance, Claim, Grant, Hold, Receipt, Terminal, public_amount, public_name

STORM_NS = 60_000_000_000
"""Within this time refusals of one kind are told once."""
MOST_STORMS = 1_000
_VERBS: Mapping[str, str] = {
    "deny": "refused", "message": "refused", "cut": "cut", "land": "last step",
    "would_land": "would give a last step", "hold": "waits for an operator (looptap allow --list)",
}  # fmt: skip
"""What a line begins with, by what was done; all else would have been refused."""


@dataclass(slots=True)
class _Storm:
    """Refusals of one kind, since they were last told."""

    kind: str
    why: Terminal
    told_ns: int
    since: int = 0

    def is_told(self, now_ns: int) -> bool:
        """Whether that was just now. A clock that was put back does not hold it up."""
        return 0 <= now_ns - self.told_ns < STORM_NS


class Passbook:
    """One per purse."""

    def __init__(self, sink: Sink, warn: Callable[[str], None]) -> None:
        self._sink = sink
        self._warn = warn
        self._storms: dict[tuple[str, ...], _Storm] = {}

    def reserved(self, exchange: Exchange, opened: Opened, grant: Grant) -> None:
        """This much is held for a request."""
        data = {
            "grant": grant.id,
            "exchange": exchange.id,
            "holds": [_of_hold(h) for h in grant.holds if not is_ticket(h.claim)],
        }
        self._sink.put(_record("budget/reserve", time.time_ns(), opened, data))

    def settled(
        self,
        exchange: Exchange,
        opened: Opened,
        grant: Grant,
        amounts: Sequence[int | None],
        receipt: Receipt,
    ) -> None:
        """This much it took."""
        charged = [
            {**_of_hold(hold), "charged": _public(hold.claim, hold.amount if actual is None else actual),
             "quality": "assumed" if actual is None else "known"}
            for hold, actual in zip(grant.holds, amounts, strict=True)
            if not is_ticket(hold.claim)
        ]  # fmt: skip
        data: dict[str, Any] = {"grant": grant.id, "exchange": exchange.id, "holds": charged}
        data.update(applied=receipt.applied, late=receipt.late, queued=receipt.queued)
        self._sink.put(_record("budget/settle", time.time_ns(), opened, data))
        self.alerted(receipt.alerts, exchange, opened)
        for balance in receipt.overruns:
            self._overran(balance, exchange, opened)

    def refused(self, exchange: Exchange, opened: Opened | None, why: Terminal, kind: str) -> None:
        """One log line and one event per scope and minute; a storm of refusals is only counted.

        ``opened``: None for a request that was not read again, since it repeats a refused one.
        """
        if self._reached(exchange, opened, why, kind) and opened is not None:
            self.intervened(exchange, opened, kind, {"policy": why.policy, "code": why.code, **why.fields})

    def landed(self, exchange: Exchange, opened: Opened, why: Terminal) -> None:
        """A request goes out as its turn's last step. What was done to it is told where that was done."""
        self._reached(exchange, opened, why, "land")

    def _reached(self, exchange: Exchange, opened: Opened | None, why: Terminal, kind: str) -> bool:
        """A limit was reached; whether that is more than counted."""
        scope = str(why.fields.get("budget") or why.fields.get("stopped") or why.code)
        key = (kind, why.code, scope, str(why.fields.get("scope", "")))
        now_ns = time.time_ns()
        storm = self._storms.get(key)
        if storm is not None and storm.is_told(now_ns):
            storm.since += 1
            storm.why = why
            return False
        if len(self._storms) > MOST_STORMS:
            self.tell_rest(now_ns + STORM_NS)
        self._storms[key] = _Storm(kind, why, now_ns)
        exchange_of = {"exchange": exchange.id, "number": exchange.number} if opened is not None else {}
        self._exhausted(kind, why, now_ns, storm.since if storm is not None else 0, opened, exchange_of)
        return True

    def held(self, exchange: Exchange, opened: Opened, why: Terminal) -> None:
        """It waits for an operator; the intervention is told where it is decided."""
        self._reached(exchange, opened, why, "hold")

    def tell_rest(self, now_ns: int) -> None:
        """Tell of the refusals that were only counted, where nothing came after them for a minute."""
        for key, storm in list(self._storms.items()):
            if not storm.is_told(now_ns):
                del self._storms[key]
                if storm.since:
                    self._exhausted(storm.kind, storm.why, min(now_ns, time.time_ns()), storm.since)

    def _exhausted(
        self,
        kind: str,
        why: Terminal,
        now_ns: int,
        more: int,
        opened: Opened | None = None,
        exchange: Mapping[str, Any] | None = None,
    ) -> None:
        """``more``: refusals of this kind since the last one that was told."""
        verb = _VERBS.get(kind, "would refuse")
        counted = f" ({more} more since the last line)" if more else ""
        self._warn(f"{verb}: {why.message.removeprefix('Looptap: ')}{counted}")
        if kind == "hold" and "budget" not in why.fields:
            return  # a policy's, of which the intervention tells
        data: dict[str, Any] = {**why.fields, "action": kind, **(exchange or {})}
        if more:
            data["more"] = more
        self._sink.put(_record("budget/exhausted", now_ns, opened, data))

    def intervened(self, exchange: Exchange, opened: Opened, kind: str, more: Mapping[str, Any]) -> None:
        """Something was done to a request, or would have been."""
        data = {
            "policy": "budgets", "kind": kind, "exchange": exchange.id, "number": exchange.number, **more,
        }  # fmt: skip
        self._sink.put(_record("intervention", time.time_ns(), opened, data))

    def alerted(self, alerts: Sequence[Alert], exchange: Exchange | None, opened: Opened | None) -> None:
        """Shares of limits are used up."""
        for alert in alerts:
            data = {"share": alert.share / 10_000, **_of_balance(alert.balance)}
            if exchange is not None:
                data["exchange"] = exchange.id
            self._sink.put(_record("budget/alert", time.time_ns(), opened, data))
            balance = alert.balance
            used = public_amount(balance.dimension, balance.used)
            limit = public_amount(balance.dimension, balance.limit)
            self._warn(
                f"budget {balance.name} of {balance.scope} {public_name(balance.subject)} has reached "
                f"{alert.share / 100:g} %: {used} of {limit} {balance.dimension}"
            )

    def _overran(self, balance: Balance, exchange: Exchange, opened: Opened) -> None:
        data = {
            "policy": "budgets", "kind": "overrun", "severity": "violation",
            "evidence": _of_balance(balance), "exchange": exchange.id, "number": exchange.number,
        }  # fmt: skip
        self._sink.put(_record("finding", time.time_ns(), opened, data))


def _record(kind: str, now_ns: int, opened: Opened | None, data: Mapping[str, Any]) -> Record:
    placement = opened.placement if opened is not None else None
    if placement is None:
        return Record(now_ns, kind, data=data)
    return Record(now_ns, kind, placement.session, placement.thread, placement.turn, placement.step, data)


def _public(claim: Claim, amount: int) -> int | float | str:
    return public_amount(claim.dimension, amount)


def _of_hold(hold: Hold) -> dict[str, Any]:
    claim = hold.claim
    return {
        "budget": claim.budget, "scope": claim.scope, "subject": claim.subject,
        "dimension": claim.dimension, "held": _public(claim, hold.amount),
    }  # fmt: skip


def _of_balance(balance: Balance) -> dict[str, Any]:
    public = balance.public()
    return {"budget": public.pop("name"), **public}
