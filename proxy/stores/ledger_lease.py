"""Budget drawn ahead: an instance holds more than a request needs, and later requests live on it.

A lease is an ordinary grant of the ledger below, larger than its first request, so leases cannot
exceed a cap together, and end with their holder like every reservation (then the whole of it is
charged as held). Requests that it covers cost no round trip and go on while the ledger is away.

The price, for whoever sets ``ledger.lease``: what is drawn ahead counts as reserved; ``used`` and
alerts follow when a lease is closed (after ``AGE_S``, when it is empty, or with its window); a
stop reaches other instances within ``STOPS_S``. Near a cap an instance may be refused what
another has drawn, at most a tenth of the limit each.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from proxy.ports import Ledger, LedgerAway
from proxy.stores.ledger import SECOND_NS, actual_amounts, counter_key, new_id
from proxy.stores.windows import Windows
from proxy.verdict import Alert, Balance, Claim, Grant, Hold, Receipt, Refusal, Spend, VirtualKey

AGE_S = 15
"""A lease serves new requests no longer."""
STOPS_S = 1
DRAWN_SHARE = 10
"""At most the limit's tenth is drawn beyond what a request needs."""


@dataclass(slots=True)
class Lease:
    """A grant of the ledger below, and what became of it."""

    grant: Grant
    left: list[int]
    spent: list[int]
    born_ns: int
    """Monotonic."""
    ttl_ns: int
    owed: int = 0
    """Requests that draw from it and are not settled."""
    serving: set[str] = field(default_factory=set)
    """Counters that new requests draw from it."""

    def rests(self) -> bool:
        """Nobody draws from it, nobody owes it a settlement."""
        return not self.serving and not self.owed


Slot = tuple[Lease, int]
"""A lease, and the place of a hold in it."""


class LeasedLedger:
    """A ledger that asks the one below less often."""

    def __init__(
        self,
        below: Ledger,
        amount: int,
        zone: str = "UTC",
        *,
        now: Callable[[int], int] = lambda now_ns: now_ns,
        monotonic_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """``amount``: nano-dollars to draw. ``now`` turns a caller's time into the ledger's."""
        self.below = below
        self._amount = amount
        self._windows = Windows(zone)
        self.now = now
        self._monotonic_ns = monotonic_ns
        self._serving: dict[str, Slot] = {}
        """By counter key."""
        self._children: dict[str, list[Slot]] = {}
        """Where the holds of a grant were drawn from, by its id."""
        self._leases: dict[str, Lease] = {}
        self._stops: Mapping[str, int] = {}
        self._stops_ns: int | None = None

    # -- the port

    async def reserve(
        self, claims: Sequence[Claim], *, ttl_s: int, now_ns: int, names: Sequence[str] = ()
    ) -> Grant:
        if names:
            await self._look_at_stops()
            stopped = next((name for name in names if name in self._stops), None)
            if stopped is not None:
                return Grant(new_id(), refusal=Refusal(stopped=stopped))
        keys = self._keys(claims, now_ns)
        slots = [self._draw(claim, key) for claim, key in zip(claims, keys, strict=True)]
        missing = [claim for claim, slot in zip(claims, slots, strict=True) if slot is None]
        if not missing and claims:
            return self._child(claims, [slot for slot in slots if slot], now_ns + ttl_s * SECOND_NS)
        wanted = self._boosted(missing, claims)
        try:
            taken = await self.below.reserve(wanted, ttl_s=ttl_s, now_ns=now_ns, names=names)
        except BaseException:
            self._undraw(claims, slots)
            raise
        if not taken.holds:
            self._undraw(claims, slots)
            return _refused(taken, claims)
        filled = self._open(taken, claims, slots, ttl_s)
        return self._child(claims, filled, now_ns + ttl_s * SECOND_NS, taken.alerts)

    def unheld(self, claims: Sequence[Claim], *, now_ns: int) -> Grant:
        return self.below.unheld(claims, now_ns=now_ns)

    async def settle(self, grant: Grant, actual: Spend, *, now_ns: int) -> Receipt:
        if grant.lease is None:
            return await self.below.settle(grant, actual, now_ns=now_ns)
        return await self._return(grant, actual_amounts(grant, actual), now_ns)

    async def release(self, grant: Grant, *, now_ns: int) -> Receipt:
        if grant.lease is None:
            return await self.below.release(grant, now_ns=now_ns)
        return await self._return(grant, [0] * len(grant.holds), now_ns)

    async def renew(self, grants: Sequence[Grant], *, ttl_s: int, now_ns: int) -> None:
        slots = [slot for grant in grants for slot in self._children.get(grant.id, ())]
        below = {lease.grant.id: lease.grant for lease, _ in slots}
        below |= {grant.id: grant for grant in grants if grant.lease is None}
        await self.below.renew(list(below.values()), ttl_s=ttl_s, now_ns=now_ns)

    async def topup(self, claim: Claim, add: int, *, now_ns: int) -> Balance:
        return await self.below.topup(claim, add, now_ns=now_ns)

    async def stop(self, name: str, *, now_ns: int) -> None:
        await self.below.stop(name, now_ns=now_ns)
        self._stops_ns = None

    async def resume(self, name: str, *, now_ns: int) -> bool:
        self._stops_ns = None
        return await self.below.resume(name, now_ns=now_ns)

    async def stops(self) -> Mapping[str, int]:
        return await self.below.stops()

    async def balances(self, *, now_ns: int, lasting: bool = False) -> Sequence[Balance]:
        return await self.below.balances(now_ns=now_ns, lasting=lasting)

    async def sweep(self, *, now_ns: int) -> Sequence[Alert]:
        """Close leases that are old, and sweep below."""
        alerts: list[Alert] = []
        for lease in list(self._leases.values()):
            if self._is_old(lease):
                self._retire(lease)
            if lease.rests() and lease.grant.id in self._leases:
                alerts += (await self._finish(lease, now_ns)).alerts
        return [*alerts, *(await self.below.sweep(now_ns=now_ns))]

    async def create_key(self, key: VirtualKey) -> bool:
        return await self.below.create_key(key)

    async def keys(self) -> Sequence[VirtualKey]:
        return await self.below.keys()

    async def revoke_key(self, name: str, *, now_ns: int) -> bool:
        return await self.below.revoke_key(name, now_ns=now_ns)

    async def close(self) -> None:
        """Give back what was drawn and not used."""
        for lease in list(self._leases.values()):
            self._retire(lease)
            if lease.rests():
                await self._finish(lease, time.time_ns())
        await self.below.close()

    # -- leases

    def _keys(self, claims: Sequence[Claim], now_ns: int) -> list[str]:
        at_ns = self.now(now_ns)
        windows = self._windows
        return [counter_key(claim, windows.at(claim.window, at_ns).starts_ns) for claim in claims]

    def _draw(self, claim: Claim, key: str) -> Slot | None:
        """Take a claim from what is held already; None where that does not cover it."""
        slot = self._serving.get(key)
        if slot is None or claim.level is not None or claim.spare:
            return None
        lease, place = slot
        if lease.left[place] < claim.amount or self._is_old(lease):
            return None
        lease.left[place] -= claim.amount
        lease.owed += 1
        return slot

    def _undraw(self, claims: Sequence[Claim], slots: Sequence[Slot | None]) -> None:
        for claim, slot in zip(claims, slots, strict=True):
            if slot is not None:
                lease, place = slot
                lease.left[place] += claim.amount
                lease.owed -= 1

    def _boosted(self, missing: Sequence[Claim], claims: Sequence[Claim]) -> list[Claim]:
        """Claims with what is drawn ahead; each is still content with its own amount."""
        money = max((claim.amount for claim in claims if claim.dimension == "spend_usd"), default=0)
        requests = self._amount // money if money else 0
        boosted = []
        for claim in missing:
            hard = claim.limit if claim.hard is None else claim.hard
            extra = min(claim.amount * requests, hard // DRAWN_SHARE)
            if extra <= 0 or claim.level is not None or claim.minimum is not None or claim.spare:
                boosted.append(claim)
            else:
                boosted.append(replace(claim, amount=claim.amount + extra, minimum=claim.amount))
        return boosted

    def _open(
        self, taken: Grant, claims: Sequence[Claim], slots: Sequence[Slot | None], ttl_s: int
    ) -> list[Slot]:
        """A new lease for what was not covered; it serves those that come after, too."""
        size = len(taken.holds)
        lease = Lease(taken, [0] * size, [0] * size, self._monotonic_ns(), ttl_s * SECOND_NS)
        self._leases[taken.id] = lease
        filled: list[Slot] = []
        place = 0
        for claim, slot in zip(claims, slots, strict=True):
            if slot is not None:
                filled.append(slot)
                continue
            hold = taken.holds[place]
            lease.left[place] = hold.amount - min(claim.amount, hold.amount)
            if lease.left[place]:
                self._serve(hold.key, (lease, place))
            lease.owed += 1
            filled.append((lease, place))
            place += 1
        return filled

    def _serve(self, key: str, slot: Slot) -> None:
        before = self._serving.get(key)
        if before is not None:
            before[0].serving.discard(key)
        self._serving[key] = slot
        slot[0].serving.add(key)

    def _child(
        self, claims: Sequence[Claim], slots: list[Slot], expires_ns: int, alerts: tuple[Alert, ...] = ()
    ) -> Grant:
        """The grant of one request."""
        holds = []
        for claim, (lease, place) in zip(claims, slots, strict=True):
            hold = lease.grant.holds[place]
            amount = min(claim.amount, hold.amount)  # less, where the claim has a minimum
            holds.append(Hold(claim, amount, hold.key, hold.starts_ns, hold.ends_ns))
        grant = Grant(new_id(), tuple(holds), None, expires_ns, alerts, slots[0][0].grant.id)
        self._children[grant.id] = slots
        return grant

    async def _return(self, grant: Grant, amounts: Sequence[int | None], now_ns: int) -> Receipt:
        """A request on a lease is over."""
        slots = self._children.pop(grant.id, None)
        if slots is None:
            return Receipt(grant.id, applied=False)
        for (lease, place), hold, actual in zip(slots, grant.holds, amounts, strict=True):
            charge = hold.amount if actual is None else actual
            lease.spent[place] += charge
            lease.left[place] += hold.amount - charge
            lease.owed -= 1
        overruns: list[Balance] = []
        alerts: list[Alert] = []
        for lease in {id(lease): lease for lease, _ in slots}.values():
            if lease.rests() and lease.grant.id in self._leases:
                receipt = await self._finish(lease, now_ns)
                overruns += receipt.overruns
                alerts += receipt.alerts
        return Receipt(grant.id, applied=True, alerts=tuple(alerts), overruns=tuple(overruns))

    def _is_old(self, lease: Lease) -> bool:
        age_ns = self._monotonic_ns() - lease.born_ns
        return age_ns > min(AGE_S * SECOND_NS, lease.ttl_ns // 2)

    def _retire(self, lease: Lease) -> None:
        """Nobody draws from it any more."""
        for key in lease.serving:
            self._serving.pop(key, None)
        lease.serving.clear()

    async def _finish(self, lease: Lease, now_ns: int) -> Receipt:
        """Tell the ledger below what a lease really cost."""
        self._leases.pop(lease.grant.id, None)
        return await self.below.settle(lease.grant, lease.spent, now_ns=now_ns)

    async def _look_at_stops(self) -> None:
        now_ns = self._monotonic_ns()
        if self._stops_ns is not None and now_ns - self._stops_ns < STOPS_S * SECOND_NS:
            return
        self._stops_ns = now_ns
        try:
            self._stops = await self.below.stops()
        except LedgerAway:
            return  # what was stopped before stays so


def _refused(taken: Grant, claims: Sequence[Claim]) -> Grant:
    """A refusal in the words of the request: its own claim, not the one with what was to be drawn ahead."""
    refusal = taken.refusal
    if refusal is None or refusal.claim is None:
        return taken
    named = refusal.claim
    for claim in claims:
        if claim == replace(named, amount=claim.amount, minimum=claim.minimum):
            return replace(taken, refusal=replace(refusal, claim=claim))
    return taken
