"""A ledger in dictionaries: for tests, for runs that keep nothing, and as the model of the others."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from proxy.stores.ledger import (
    PASSING,
    SECOND_NS,
    Book,
    Counter,
    Reservation,
    actual_amounts,
    new_id,
    unheld,
)
from proxy.stores.windows import Windows
from proxy.verdict import Alert, Balance, Claim, Grant, Receipt, Spend, VirtualKey


class MemoryShelf:
    """A book's lines in dictionaries."""

    def __init__(self) -> None:
        self.stops: dict[str, int] = {}
        self._counters: dict[str, Counter] = {}
        self._reservations: dict[str, Reservation] = {}
        self._open: dict[str, Reservation] = {}

    def counter(self, key: str) -> Counter | None:
        return self._counters.get(key)

    def put_counter(self, counter: Counter) -> None:
        self._counters[counter.key] = counter

    def reservation(self, grant_id: str) -> Reservation | None:
        return self._reservations.get(grant_id)

    def put_reservation(self, reservation: Reservation) -> None:
        self._reservations[reservation.id] = reservation
        if reservation.state == "open":
            self._open[reservation.id] = reservation
        else:
            self._open.pop(reservation.id, None)

    def due(self, now_ns: int, most: int) -> Sequence[Reservation]:
        over = [one for one in self._open.values() if one.expires_ns <= now_ns]
        return sorted(over, key=lambda one: (one.expires_ns, one.id))[:most]

    def stopped(self, names: Sequence[str]) -> str | None:
        return next((name for name in names if name in self.stops), None)

    def counters(self, lasting: bool = False) -> Sequence[Counter]:
        return [one for one in self._counters.values() if not lasting or one.scope not in PASSING]

    def forget(self, now_ns: int) -> None:
        for counter in self.counters():
            forget_ns = counter.forget_ns
            if not counter.held and forget_ns is not None and forget_ns <= now_ns:
                del self._counters[counter.key]
        for one in list(self._reservations.values()):
            if one.forget_ns is not None and one.forget_ns <= now_ns:
                del self._reservations[one.id]


class MemoryLedger:
    """A ledger that dies with the process."""

    def __init__(self, zone: str = "UTC") -> None:
        self._windows = Windows(zone)
        self._shelf = MemoryShelf()
        self._book = Book(self._shelf, self._windows)
        self._keys: dict[str, VirtualKey] = {}

    async def reserve(
        self, claims: Sequence[Claim], *, ttl_s: int, now_ns: int, names: Sequence[str] = ()
    ) -> Grant:
        return self._book.reserve(new_id(), claims, names, ttl_s * SECOND_NS, now_ns)

    def unheld(self, claims: Sequence[Claim], *, now_ns: int) -> Grant:
        return unheld(claims, self._windows, now_ns)

    async def settle(self, grant: Grant, actual: Spend, *, now_ns: int) -> Receipt:
        return self._book.settle(grant, actual_amounts(grant, actual), now_ns)

    async def release(self, grant: Grant, *, now_ns: int) -> Receipt:
        return self._book.release(grant.id, now_ns)

    async def renew(self, grants: Sequence[Grant], *, ttl_s: int, now_ns: int) -> None:
        self._book.renew([grant.id for grant in grants], ttl_s * SECOND_NS, now_ns)

    async def topup(self, claim: Claim, add: int, *, now_ns: int) -> Balance:
        return self._book.topup(claim, add, now_ns)

    async def stop(self, name: str, *, now_ns: int) -> None:
        self._shelf.stops.setdefault(name, now_ns)

    async def resume(self, name: str, *, now_ns: int) -> bool:
        return self._shelf.stops.pop(name, None) is not None

    async def stops(self) -> Mapping[str, int]:
        return dict(self._shelf.stops)

    async def balances(self, *, now_ns: int, lasting: bool = False) -> Sequence[Balance]:
        return self._book.balances(now_ns, lasting)

    async def sweep(self, *, now_ns: int) -> Sequence[Alert]:
        return self._book.sweep(now_ns)

    async def create_key(self, key: VirtualKey) -> bool:
        if any(one.name == key.name or one.sha256 == key.sha256 for one in self._keys.values()):
            return False
        self._keys[key.name] = key
        return True

    async def keys(self) -> Sequence[VirtualKey]:
        return sorted(self._keys.values(), key=lambda key: key.name)

    async def revoke_key(self, name: str, *, now_ns: int) -> bool:
        key = self._keys.get(name)
        if key is None or key.revoked_ns is not None:
            return False
        self._keys[name] = replace(key, revoked_ns=now_ns)
        return True

    async def close(self) -> None:
        """Nothing to let go."""
