"""Budgets, stops and keys of a running proxy: built from the settings, kept up to date beside the traffic.

Opens the ledger, hands the budgets of the configuration to the purse, and notices what the acting
commands (``stop``, ``topup``, ``keys``) wrote.

The one invariant: while there is nothing to hold, to stop or to recognise, the shell asks nobody.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from policies.budgets import SHARES, Budget, Budgets
from proxy.config import COUNTED_LIMITS, BudgetSettings, HoldUsd, Settings
from proxy.core import Core
from proxy.dialects import speaker
from proxy.exchange import Shell
from proxy.model import Head, Identity
from proxy.money.keyring import Keyring
from proxy.money.lobby import unheard
from proxy.money.passbook import STORM_NS
from proxy.money.purse import Posture, Purse
from proxy.money.standing import Standing
from proxy.ports import Ledger, LedgerAway, Reading
from proxy.pricing import Pricing
from proxy.stores import open_ledger
from proxy.stores.ledger_lease import LeasedLedger
from proxy.stores.ledger_redis import RedisLedger
from proxy.stores.ledger_sqlite import FILE
from proxy.verdict import Claim, to_nano

SHARED_LOOK_S = 1.0
"""How often a shared ledger is asked for stops and keys; a file tells by its own times."""
_BEAT_S = 5.0
_COUNT_EVERY_S = 1.0
_SHARED_COUNT_EVERY_S = 10.0
_ASKED_S = 120.0
"""After this time without a question the budgets are no longer counted for figures."""
_COUNT_REST = 20
"""Listing all counters holds up the ledger, so it then rests this many times as long as the listing took."""
_NS_PER_MS = 1_000_000


def ledger_of(settings: Settings) -> Ledger:
    """The ledger that the settings name."""
    named = settings.ledger
    return open_ledger(
        named.url.reveal() if named.url is not None else None,
        Path(settings.store.path),
        settings.time_zone,
        to_nano(named.lease) if named.lease is not None else None,
    )


def _shared(ledger: Ledger) -> RedisLedger | None:
    """What of a ledger has to be reached first."""
    below = ledger.below if isinstance(ledger, LeasedLedger) else ledger
    return below if isinstance(below, RedisLedger) else None


def budgets_of(settings: Settings) -> Budgets:
    """The configured budgets in whole units."""
    return Budgets([_budget(one) for one in settings.budgets])


def standing_of(settings: Settings, so_far: object = None) -> Standing | None:
    """What tells policies where the budgets stand; ``so_far`` keeps its counters over a reload."""
    if not settings.budgets:
        return None
    rules = budgets_of(settings)
    if not isinstance(so_far, Standing):
        return Standing(rules, settings.time_zone)
    so_far.rules = rules
    return so_far


def _budget(one: BudgetSettings) -> Budget:
    limits = one.limits
    whole: dict[str, int] = {
        name: value for name in COUNTED_LIMITS if (value := getattr(limits, name)) is not None
    }
    if limits.spend_usd is not None:
        whole["spend_usd"] = to_nano(limits.spend_usd)
    if limits.wall_clock is not None:
        whole["wall_clock"] = max(1, limits.wall_clock.ns // _NS_PER_MS)
    on = one.on_exhausted
    assert on in ("deny", "message", "cut", "land", "hold", "warn", "observe")  # so the checks
    return Budget(
        name=one.name,
        scope=one.scope,
        window=one.window or "life",
        limits=whole,
        calls=dict(limits.calls),
        hard_at=int(one.hard_at * SHARES),
        alert_at=tuple(int(share * SHARES) for share in one.alert_at),
        on_exhausted=on,
        clamp=one.clamp,
        upstreams=one.match.upstream,
        models=one.match.model,
        keys=one.match.key,
    )


def counter_of(budget: Budget, dimension: str, subject: str) -> Claim:
    """The claim that names a budget's counter, for a top-up. Raises KeyError for a limit it lacks."""
    kind, _, tool = dimension.partition(":")
    limit = budget.calls[tool] if kind == "calls" else budget.limits[kind]
    window = "minute" if kind == "requests_per_minute" else budget.window
    return Claim(
        budget.name, budget.scope, subject, dimension, window, 0, limit,
        hard=limit * budget.hard_at // SHARES, alert_at=budget.alert_at,
    )  # fmt: skip


def posture_of(settings: Settings) -> Posture:
    """What the settings say about holding."""
    choice = settings.unmodelled
    return Posture(
        enforce=settings.mode == "enforce",
        away_open=settings.ledger.away == "open",
        ttl_s=max(1, int(settings.ledger.ttl.seconds)),
        unmodelled=to_nano(choice.hold_usd) if isinstance(choice, HoldUsd) else choice,
        patience=str(settings.hold_for),
        patience_s=settings.hold_for.seconds,
        waiting_bytes=int(settings.limits.max_buffered) // 2,
    )


class Treasury:
    """One per process; used from the event loop's thread."""

    def __init__(self, settings: Settings, core: Core, warn: Callable[[str], None]) -> None:
        self._settings = settings
        self._core = core
        self._warn = warn
        self._file = Path(settings.store.path) / FILE
        self.keyring = Keyring(settings)
        self.purse: Purse | None = None
        self._ledger: Ledger | None = None
        self._shared: RedisLedger | None = None
        self._stops: Mapping[str, int] = {}
        self._seen: tuple[int, ...] = ()
        self._looked_s = self._beaten_s = self._count_s = 0.0
        self._asked_s = time.monotonic()
        self._away = False

    def opened(self) -> Ledger:
        """The ledger, for an order; opened where there was no reason to have one before."""
        if self._ledger is None:
            self._open()
        assert self._ledger is not None
        return self._ledger

    @property
    def identify(self) -> Callable[[Head], Identity]:
        """Who pays. Keys of ours are looked for only where any were handed out."""
        return self.keyring if self.keyring.has_virtual else self.keyring.payers

    @property
    def _holds(self) -> bool:
        """Whether budgets or policies want anything held, or asked of an operator."""
        chain = self._core.chain
        return bool(self._settings.budgets) or chain.has_claims or chain.may_hold

    async def start(self, shell: Shell) -> None:
        """Take in what is stopped and which keys there are; hold what is to be held."""
        if self._holds or self._settings.ledger.url is not None:
            self._open()
        if self._shared is not None:
            await self._shared.ready()
        await self.look(shell, at_once=True)

    def reload(self, settings: Settings, prices: Pricing, shell: Shell) -> None:
        """Take over new budgets, keys, prices and policies (the core's); what is held stays held."""
        self._settings = settings
        self.keyring.reload(settings)
        if self.purse is not None:
            self.purse.rules = budgets_of(settings)
            self.purse.posture = posture_of(settings)
            self.purse.prices = prices
            self.purse.door.clear()
        self._looked_s, self._seen = 0.0, ()
        if self._ledger is None and self._holds:
            self._open()
        if self._ledger is not None:
            self._wire(shell)  # the very next request is held

    async def look(self, shell: Shell, *, at_once: bool = False) -> None:
        """Notice what a command may have written, and wire the shell to what there is now."""
        now_s = time.monotonic()
        if self._ledger is None:
            if not self._holds and not self._file.exists():
                return
            self._open()
        if at_once or self._changed(now_s):
            await self._take_in()
            if self.purse is not None:
                self.purse.lobby.heed(self._stops)
        self._wire(shell)
        if self.purse is not None and now_s - self._beaten_s > min(_BEAT_S, self.purse.posture.ttl_s / 5):
            self._beaten_s = now_s
            await self.purse.beat()
        if self.purse is not None:
            await self._count(now_s)

    def _changed(self, now_s: float) -> bool:
        if self._settings.ledger.url is not None:
            if now_s - self._looked_s < SHARED_LOOK_S:
                return False
            self._looked_s = now_s
            return True
        stamps = _stamps(self._file)
        changed = stamps != self._seen
        self._seen = stamps
        return changed

    async def _take_in(self) -> None:
        assert self._ledger is not None
        try:
            self._stops = await self._ledger.stops()
            for name in unheard(self._stops, time.time_ns()):
                await self._ledger.resume(name, now_ns=time.time_ns())
            self.keyring.take(await self._ledger.keys())
        except LedgerAway as error:
            if not self._away:
                self._warn(f"{error}; while it is away, requests under a budget are {self._while_away()}")
            self._away = True
            return
        self._away = False

    def _while_away(self) -> str:
        return "let through" if self._settings.ledger.away == "open" else "refused"

    def _open(self) -> None:
        self._ledger = ledger_of(self._settings)
        self._shared = _shared(self._ledger)
        core = self._core
        assert isinstance(core.prices, Pricing)
        self.purse = Purse(
            self._ledger,
            budgets_of(self._settings),
            core.prices,
            core.sink,
            speaker,
            core.tracker.remember,
            posture_of(self._settings),
            self._warn,
            core.glance,
        )

    def _wire(self, shell: Shell) -> None:
        wanted = bool(self._holds or self._stops or self.keyring.has_virtual)
        self._core.reserves = wanted
        shell.admit = self.purse.admit if wanted and self.purse is not None else None
        shell.again = self.purse.again if wanted and self.purse is not None else None
        if self.purse is not None:
            self.purse.keep = shell.keep
            self.purse.door.look = shell.look
            self.purse.door.caught_up = shell.pulse.rounds.caught_up
        shell.identify = self.identify
        shell.stand_in = self.keyring.stand_in if self.keyring.has_virtual else None

    def held(self) -> list[dict[str, Any]]:
        """What waits here for an operator."""
        return self.purse.lobby.listing() if self.purse is not None else []

    def leave(self) -> None:
        """We are about to go: whoever waits for an operator waits in vain."""
        if self.purse is not None:
            self.purse.lobby.close()

    async def close(self) -> None:
        """Settle what is under way and let go of the ledger."""
        if self.purse is not None:
            await self.purse.drain()
            self.purse.book.tell_rest(time.time_ns() + STORM_NS)
        if self._ledger is not None:
            await self._ledger.close()

    async def _count(self, now_s: float) -> None:
        """Bring the figures of the budgets up to date, where somebody reads them."""
        assert self.purse is not None
        if now_s < self._count_s or now_s - self._asked_s > _ASKED_S or not self._holds:
            return
        await self.purse.count()
        took_s = time.monotonic() - now_s
        least_s = _COUNT_EVERY_S if self._shared is None else _SHARED_COUNT_EVERY_S
        self._count_s = now_s + max(least_s, took_s * _COUNT_REST)

    @property
    def trouble(self) -> str | None:
        """Why nothing can be held at the moment, or None; also None where nothing is to be held."""
        if self._shared is not None:
            return self._shared.trouble
        away = self.purse is not None and self.purse.tally.away
        return "it does not answer" if away else None

    def readings(self) -> Iterable[Reading]:
        """Figures for ``/metrics``; none while there is nothing to hold."""
        self._asked_s = time.monotonic()
        if self.purse is None:
            return ()
        return (
            *self.purse.tally.readings(),
            *self.purse.lobby.readings(),
            Reading("ledger_away", "1 while nothing can be held.", [((), float(self.trouble is not None))]),
        )


def _stamps(path: Path) -> tuple[int, ...]:
    """When a ledger's file was last written to."""
    found = []
    for name in (path, path.with_name(path.name + "-wal")):
        try:
            told = name.stat()
        except OSError:
            continue
        found += [told.st_mtime_ns, told.st_size, told.st_ino]
    return tuple(found)
