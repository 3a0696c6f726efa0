"""The ledger's rules, in one place: what is counted where, what a reservation is, how it ends.

No clock, no lock, no storage of its own: a ``Book`` applies the rules to whatever shelf holds the
counters. Memory and SQLite bring a shelf each; Redis says the same in Lua, and is tested against
this. One operation runs at a time and is atomic.

A counter belongs to one budget, scope, subject, dimension and window. ``used`` is what was
charged, ``held`` what open reservations may still cost; a claim fits when all three together stay
within the hard limit, less what it wants to be left free. A reservation ends in one of these ways, and
every way only once:

    open ──settle──▶ settled     held -= hold    used += actual
      │──release───▶ settled     held -= hold
      └──its time──▶ expired     held -= hold    used += hold      assumed += hold
    expired ─settle▶ settled     used += actual - hold             assumed -= hold

A settlement of a grant that nobody knows (let through while the ledger was away, or lost with it)
is charged too, since the provider bills it all the same.
"""

from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from os import urandom
from typing import Literal, Protocol

from proxy.stores.windows import ENDLESS, Windows
from proxy.verdict import Alert, Balance, Claim, Grant, Hold, Receipt, Refusal, Spend

SECOND_NS = 1_000_000_000
DAY_NS = 86_400 * SECOND_NS
KEEP_SETTLED_NS = DAY_NS
"""How long after its time a second settlement of a grant is recognised; later ones are ignored."""
UNHELD_NS = 7 * DAY_NS
"""How long a charge without a hold may wait for the ledger to come back."""
KEEP_COUNTER_NS = 35 * DAY_NS
"""Counters outlive their window, so that late settlements land and a clock may jump back."""
KEEP_MINUTES_NS = 2 * DAY_NS
LIVE_NS = DAY_NS
"""A life-long counter is listed for this long after its subject was last seen."""
PASSING = ("step", "turn", "thread", "session")
"""Scopes whose subjects are many and end by themselves."""
MAX_AMOUNT = 4 * 10**18
"""Limits above are cut to this: four billion dollars."""
EXPIRE_AT_ONCE = 200
"""Reservations that one operation ends at most, so that none takes long."""

_JOINT = "\x1f"


def counter_key(claim: Claim, starts_ns: int) -> str:
    """The key of a claim's counter in the window that begins then."""
    subject = claim.subject
    if _JOINT in subject:
        subject = subject.replace(_JOINT, "%1F")
    return _JOINT.join(
        (
            claim.budget,
            claim.scope,
            subject,
            claim.dimension,
            claim.window,
            str(starts_ns // SECOND_NS),
        )
    )


def holds_for(claims: Iterable[Claim], windows: Windows, now_ns: int) -> tuple[Hold, ...]:
    """Holds of nothing yet: each claim with its counter at this moment."""
    holds = []
    for claim in claims:
        window = windows.at(claim.window, now_ns)
        holds.append(Hold(claim, 0, counter_key(claim, window.starts_ns), window.starts_ns, window.ends_ns))
    return tuple(holds)


def unheld(claims: Iterable[Claim], windows: Windows, now_ns: int) -> Grant:
    """A grant that holds nothing, to be charged by its settlement."""
    return Grant(new_id(), holds_for(claims, windows, now_ns), None, now_ns + UNHELD_NS)


def new_id() -> str:
    """A grant's id, made where it is asked for, so that an unanswered request can be named."""
    return "grt_" + urandom(10).hex()


def actual_amounts(grant: Grant, actual: Spend) -> list[int | None]:
    """What was really spent, hold by hold."""
    if isinstance(actual, Mapping):
        amounts = [actual.get(hold.claim.dimension) for hold in grant.holds]
    else:
        amounts = list(actual)
    if len(amounts) != len(grant.holds):
        raise ValueError(f"{len(amounts)} amounts for the {len(grant.holds)} holds of {grant.id}")
    return [None if amount is None else max(0, amount) for amount in amounts]


@dataclass(slots=True)
class Counter:
    """One line of the book. Changed only by its rules."""

    key: str
    budget: str
    scope: str
    subject: str
    dimension: str
    window: str
    starts_ns: int
    ends_ns: int | None
    limit: int = 0
    hard: int = 0
    alert_at: tuple[int, ...] = ()
    topup: int = 0
    used: int = 0
    held: int = 0
    assumed: int = 0
    alerted: int = 0
    """The highest share of the limit that was told."""
    touched_ns: int = 0

    @property
    def room(self) -> int:
        """What can still be held; negative when more was spent than allowed."""
        return self.hard + self.topup - self.used - self.held

    def heed(self, claim: Claim) -> None:
        """Take over what the configuration says now."""
        self.limit = min(claim.limit, MAX_AMOUNT)
        self.hard = self.limit if claim.hard is None else min(claim.hard, MAX_AMOUNT)
        self.alert_at = claim.alert_at

    def balance(self) -> Balance:
        """What the counter says, as a value."""
        return Balance(
            self.budget,
            self.scope,
            self.subject,
            self.window,
            self.dimension,
            self.limit + self.topup,
            self.hard + self.topup,
            self.used,
            self.held,
            self.assumed,
            self.ends_ns,
        )

    def crossed(self) -> list[Alert]:
        """Shares of the limit used up by now and not told yet; they count as told from here on."""
        alerts = []
        for share in self.alert_at:
            if share > self.alerted and self.used > 0 and self.used >= self.share_of_limit(share):
                self.alerted = share
                alerts.append(Alert(share, self.balance()))
        return alerts

    def share_of_limit(self, share: int) -> int:
        """A share of the limit in whole units, rounded down."""
        return (self.limit + self.topup) * share // 10_000

    def is_live(self, now_ns: int) -> bool:
        """Whether anybody can still be refused by it."""
        if self.held or self.window == "total":
            return True
        if self.ends_ns is not None:
            return now_ns < self.ends_ns
        return now_ns - self.touched_ns < LIVE_NS

    @property
    def forget_ns(self) -> int | None:
        """When nobody can ask for it any more, unless something is still held."""
        if self.window in ENDLESS:
            return None if self.window == "total" else self.touched_ns + KEEP_COUNTER_NS
        assert self.ends_ns is not None
        return self.ends_ns + (KEEP_MINUTES_NS if self.window == "minute" else KEEP_COUNTER_NS)


State = Literal["open", "expired", "settled"]


@dataclass(slots=True)
class Reservation:
    """A grant as the ledger remembers it."""

    id: str
    state: State
    expires_ns: int
    holds: tuple[tuple[str, int], ...]
    """Counter key and amount held, in the order of the claims."""
    closed_ns: int = 0

    @property
    def forget_ns(self) -> int | None:
        """When nobody can ask for it any more. An expired one may be put right while its counters live."""
        if self.state == "open":
            return None
        keep_ns = KEEP_COUNTER_NS if self.state == "expired" else KEEP_SETTLED_NS
        return max(self.closed_ns, self.expires_ns) + keep_ns


class Shelf(Protocol):
    """Where a book keeps its lines. What was handed out may be changed; ``put`` says that it was."""

    def counter(self, key: str) -> Counter | None: ...
    def put_counter(self, counter: Counter) -> None: ...
    def reservation(self, grant_id: str) -> Reservation | None: ...
    def put_reservation(self, reservation: Reservation) -> None: ...
    def due(self, now_ns: int, most: int) -> Sequence[Reservation]:
        """Open reservations whose time is over, oldest first."""
        ...

    def stopped(self, names: Sequence[str]) -> str | None:
        """The first of the names that is stopped."""
        ...

    def counters(self, lasting: bool = False) -> Sequence[Counter]:
        """All, or without those of steps, turns, threads and sessions (``PASSING``)."""
        ...

    def forget(self, now_ns: int) -> None:
        """Drop counters past ``forget_ns`` that hold nothing, and what was closed long ago."""
        ...


class Book:
    """The rules over a shelf."""

    def __init__(self, shelf: Shelf, windows: Windows) -> None:
        self.untold: list[Alert] = []
        """Alerts of operations whose answer has no place for them; the next that has one brings them."""
        self._shelf = shelf
        self._windows = windows

    def reserve(
        self, grant_id: str, claims: Sequence[Claim], names: Sequence[str], ttl_ns: int, now_ns: int
    ) -> Grant:
        """Hold all claims or none."""
        self._expire(now_ns)
        stopped = self._shelf.stopped(names) if names else None
        if stopped is not None:
            return Grant(grant_id, refusal=Refusal(stopped=stopped), alerts=self._told())
        drafts: dict[str, Counter] = {}
        holds: list[Hold] = []
        for claim in claims:
            draft = self._draft(claim, drafts, now_ns)
            take = _fitting(claim, draft.room)
            if take is None:
                balance = self._before(draft.key, draft, holds)
                return Grant(grant_id, refusal=Refusal(claim, balance), alerts=self._told())
            draft.held += take
            holds.append(Hold(claim, take, draft.key, draft.starts_ns, draft.ends_ns))
        for draft in drafts.values():
            self.untold += draft.crossed()
            draft.touched_ns = now_ns
            self._shelf.put_counter(draft)
        expires_ns = now_ns + ttl_ns
        if holds:
            kept = tuple([(hold.key, hold.amount) for hold in holds])
            self._shelf.put_reservation(Reservation(grant_id, "open", expires_ns, kept))
        return Grant(grant_id, tuple(holds), None, expires_ns, self._told())

    def settle(self, grant: Grant, amounts: Sequence[int | None], now_ns: int) -> Receipt:
        """Charge what it cost, once."""
        self._expire(now_ns)
        if grant.refusal is not None or not grant.holds:
            return Receipt(grant.id, applied=False, alerts=self._told())
        known = self._shelf.reservation(grant.id)
        if known is not None and known.state == "settled":
            return Receipt(grant.id, applied=False, alerts=self._told())
        if known is None and grant.expires_ns + KEEP_SETTLED_NS <= now_ns:
            return Receipt(grant.id, applied=False, alerts=self._told())
        state = known.state if known is not None else None
        overruns = []
        for index, (hold, actual) in enumerate(zip(grant.holds, amounts, strict=True)):
            held = known.holds[index][1] if known is not None else hold.amount
            counter = self._shelf.counter(hold.key)
            if counter is None:
                if known is not None:
                    continue  # long over: even its counter has been forgotten
                counter = _new(hold.claim, hold.key, hold.starts_ns, hold.ends_ns)
                counter.heed(hold.claim)
            charge = held if actual is None else actual
            if state == "open":
                counter.held -= held
            if state == "expired":
                counter.used += charge - held
                counter.assumed -= held
            else:
                counter.used += charge
            if actual is None:
                counter.assumed += charge
            if charge > held and counter.used > counter.hard + counter.topup:
                overruns.append(counter.balance())
            self.untold += counter.crossed()
            counter.touched_ns = now_ns
            self._shelf.put_counter(counter)
        kept = known.holds if known is not None else ()
        self._shelf.put_reservation(Reservation(grant.id, "settled", grant.expires_ns, kept, now_ns))
        return Receipt(
            grant.id,
            applied=True,
            late=state == "expired",
            alerts=self._told(),
            overruns=tuple(overruns),
        )

    def release(self, grant_id: str, now_ns: int) -> Receipt:
        """Give everything back, once."""
        self._expire(now_ns)
        known = self._shelf.reservation(grant_id)
        if known is None or known.state == "settled":
            return Receipt(grant_id, applied=False, alerts=self._told())
        for key, amount in known.holds:
            counter = self._shelf.counter(key)
            if counter is None:
                continue
            if known.state == "open":
                counter.held -= amount
            else:
                counter.used -= amount
                counter.assumed -= amount
            self._shelf.put_counter(counter)
        late = known.state == "expired"
        self._shelf.put_reservation(Reservation(grant_id, "settled", known.expires_ns, known.holds, now_ns))
        return Receipt(grant_id, applied=True, late=late, alerts=self._told())

    def renew(self, grant_ids: Sequence[str], ttl_ns: int, now_ns: int) -> None:
        """Give open reservations more time."""
        self._expire(now_ns)
        for grant_id in grant_ids:
            known = self._shelf.reservation(grant_id)
            if known is not None and known.state == "open":
                known.expires_ns = now_ns + ttl_ns
                self._shelf.put_reservation(known)

    def topup(self, claim: Claim, add: int, now_ns: int) -> Balance:
        """Raise a counter's limit."""
        counter = self._draft(claim, {}, now_ns)
        counter.topup = min(counter.topup + add, MAX_AMOUNT)
        counter.touched_ns = now_ns
        self._shelf.put_counter(counter)
        return counter.balance()

    def balances(self, now_ns: int, lasting: bool = False) -> list[Balance]:
        """Every live counter; ``lasting`` leaves out those of subjects that pass."""
        self._expire(now_ns)
        live = [counter.balance() for counter in self._shelf.counters(lasting) if counter.is_live(now_ns)]
        return sorted(live, key=balance_order)

    def sweep(self, now_ns: int) -> list[Alert]:
        """End what has expired, all of it, and forget what is over."""
        while self._shelf.due(now_ns, 1):
            self._expire(now_ns)
        self._shelf.forget(now_ns)
        return list(self._told())

    def _told(self) -> tuple[Alert, ...]:
        alerts = tuple(self.untold)
        self.untold.clear()
        return alerts

    def _expire(self, now_ns: int) -> None:
        """End reservations whose time is over: what is unknown is charged as held."""
        for reservation in self._shelf.due(now_ns, EXPIRE_AT_ONCE):
            for key, amount in reservation.holds:
                counter = self._shelf.counter(key)
                if counter is None:
                    continue
                counter.held -= amount
                counter.used += amount
                counter.assumed += amount
                self.untold += counter.crossed()
                self._shelf.put_counter(counter)
            reservation.state = "expired"
            reservation.closed_ns = now_ns
            self._shelf.put_reservation(reservation)

    def _draft(self, claim: Claim, drafts: dict[str, Counter], now_ns: int) -> Counter:
        """A copy of the claim's counter to try things on; kept only when all claims fit."""
        window = self._windows.at(claim.window, now_ns)
        key = counter_key(claim, window.starts_ns)
        draft = drafts.get(key)
        if draft is None:
            counter = self._shelf.counter(key)
            draft = copy(counter) if counter else _new(claim, key, window.starts_ns, window.ends_ns)
            drafts[key] = draft
        draft.heed(claim)
        if claim.level is not None:
            draft.used = claim.level
        return draft

    def _before(self, key: str, draft: Counter, holds: Sequence[Hold]) -> Balance:
        """A counter as it is without the holds that this very request tried to take."""
        draft.held -= sum(hold.amount for hold in holds if hold.key == key)
        return draft.balance()


def balance_order(balance: Balance) -> tuple[str, str, str, str, str, int]:
    """The order in which balances are listed."""
    return (
        balance.name,
        balance.scope,
        balance.subject,
        balance.window,
        balance.dimension,
        balance.resets_at_ns or 0,
    )


def _fitting(claim: Claim, room: int) -> int | None:
    """What of a claim can be held; None: too little."""
    if claim.amount + claim.spare <= room:
        return claim.amount
    if claim.minimum is not None and claim.minimum <= room:
        return min(claim.amount, room)
    return None


def _new(claim: Claim, key: str, starts_ns: int, ends_ns: int | None) -> Counter:
    subject = key.split(_JOINT)[2]
    return Counter(key, claim.budget, claim.scope, subject, claim.dimension, claim.window, starts_ns, ends_ns)
