"""What an operator may order while the proxy runs or not: stop, go on, more budget, keys, counters.

Everything here writes the ledger's store, so that every instance obeys at its next request. Used by
the acting commands and by the admin port.

The one invariant: an order that names nothing known is refused in words that say what there is.
"""

import asyncio
import re
import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from decimal import Decimal
from pathlib import Path
from typing import Any

from policies.budgets import LANDING, Budget
from proxy.config import BUILT_IN, Duration, Settings
from proxy.model import rfc3339
from proxy.money.forecast import lasting
from proxy.money.keyring import new_key
from proxy.money.landing import is_ticket
from proxy.money.lobby import YES
from proxy.money.treasury import budgets_of, counter_of
from proxy.ports import Ledger, LedgerAway
from proxy.record import Ambiguous, NotRecorded, Reader, RecordMissing
from proxy.stores.ledger import PASSING
from proxy.verdict import Balance, Claim, VirtualKey, to_nano
from proxy.wire.routes import MAX_LABEL_CHARS

UNNAMED = "unnamed"
_WHOLE_EXCHANGE = re.compile(r"exc_[0-9a-f]{20}")
_WHOLE_ID = re.compile(r"(?:ses|thr|trn)_[0-9a-z]{20}")
_BEGUN_ID = re.compile(r"(?:ses|thr|trn|stp|exc)_[0-9a-z]*")
_USD = re.compile(r"\$?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


class OrderRefused(ValueError):
    """The order cannot be carried out; the message says what would be."""


class NothingCalled(OrderRefused, LookupError):
    """The order names what is not there."""


class Operator:
    """Orders on one ledger, under one configuration."""

    def __init__(
        self,
        settings: Settings,
        ledger: Ledger,
        note: Callable[[str], None] = lambda text: None,
        waiting: Callable[[], Sequence[Mapping[str, Any]]] = lambda: (),
    ) -> None:
        """``note`` is told what is odd about an order that is carried out all the same; ``waiting`` is what
        waits for an operator here."""
        self.waiting = waiting
        self._settings = settings
        self._note = note
        self._ledger = ledger
        self._budgets = budgets_of(settings).by_name

    async def budgets(self) -> list[dict[str, Any]]:
        """Every live counter."""
        return [balance.public() for balance in await self.balances()]

    async def balances(self, of: str | None = None) -> Sequence[Balance]:
        """The same as values. ``of`` is a budget that somebody names: one that there can be."""
        found = await self._ledger.balances(now_ns=time.time_ns())
        if of is not None and self._budgets and of not in {*self._budgets, *(one.name for one in found)}:
            raise self._no_budget(of)
        return [one for one in found if not is_ticket(one)]

    async def forecast(self, turn: Mapping[str, Any]) -> list[dict[str, Any]]:
        """How many more steps the budgets of a turn last. Nothing where the ledger is away."""
        with suppress(LedgerAway):
            return lasting(turn, await self._ledger.balances(now_ns=time.time_ns()))
        return []

    # -- stop

    async def stop(self, name: str, *, lift: bool = False) -> str:
        """Refuse every later request of a turn, thread, session or key, or no more; its whole name."""
        if lift and name in await self._ledger.stops():
            whole = name
        else:
            whole = await self._whole(name)
        now_ns = time.time_ns()
        if not lift:
            await self._ledger.stop(whole, now_ns=now_ns)
        elif not await self._ledger.resume(whole, now_ns=now_ns):
            raise NothingCalled(f"{whole} is not stopped")
        return whole

    async def stopped(self) -> list[dict[str, Any]]:
        """All that is stopped and can be let go on, by name; what became of revoked keys is no stop."""
        revoked = {f"key:{key.name}" for key in await self._ledger.keys() if key.revoked_ns is not None}
        stops = await self._ledger.stops()
        return [
            {"id": name, "stopped_at": rfc3339(stops[name])}
            for name in sorted(stops)
            if name not in revoked and not name.startswith(YES)
        ]

    async def _whole(self, name: str) -> str:
        if _WHOLE_ID.fullmatch(name):
            return name
        if _BEGUN_ID.fullmatch(name):
            return await asyncio.to_thread(_recorded, Path(self._settings.store.path), name)
        known = await self._configured("key")
        if name in known:
            return name
        raise NothingCalled(
            f"nothing is called {name!r}: name a turn, thread or session by its id, or a key "
            f"({', '.join(sorted(known))})"
        )

    # -- yes

    async def allow(self, name: str) -> dict[str, Any]:
        """Say yes to one request that waits, by its id or by that of its turn or step, or their beginning.

        Answers what waits and, where that is for a budget, what the yes adds to the limit.
        """
        known = self.waiting()
        found = [one for one in known if _called(one, name)]
        if not found and _WHOLE_EXCHANGE.fullmatch(name) and self._settings.ledger.url is not None:
            found = [{"id": name}]  # it may wait at another instance
        if not found:
            ids = ", ".join(str(one["id"]) for one in known[:5])
            raise NothingCalled(f"nothing that waits is called {name!r}: {ids or 'nothing waits here'}")
        if len(found) > 1:
            ids = ", ".join(str(one["id"]) for one in found[:5])
            raise OrderRefused(f"{len(found)} requests of {name} wait; name one: {ids}")
        whole = str(found[0]["id"])
        await self._ledger.stop(YES + whole, now_ns=time.time_ns())
        facts = found[0].get("facts") or {}
        more = {key: facts[key] for key in ("budget", "scope", "subject", "dimension") if key in facts}
        raises = {**more, "adds": found[0]["adds"]} if "adds" in found[0] else {}
        return {"id": whole, "allowed": True, **raises}

    # -- top-up

    async def topup(
        self, name: str, add: str, *, subject: str | None = None, dimension: str | None = None
    ) -> dict[str, Any]:
        """Raise a limit in its current window; the counter afterwards, and a ``note`` of what is odd."""
        odd: list[str] = []
        told = Operator(self._settings, self._ledger, odd.append)
        counter = (await told.raised(name, add, subject=subject, dimension=dimension)).public()
        return {**counter, "note": "; ".join(odd)} if odd else counter

    async def raised(
        self, name: str, add: str, *, subject: str | None = None, dimension: str | None = None
    ) -> Balance:
        """The counter as a value; what is odd goes to ``note``."""
        budget = self._budgets.get(name)
        if budget is None and "/" in name:
            policy = name.rpartition("/")[0]
            raise OrderRefused(
                f"{name!r} is counted for a policy: its limit is an option of policies.{policy}"
            )
        if budget is None:
            raise self._no_budget(name)
        chosen = _dimension(budget, dimension)
        others = [] if dimension is not None else [one for one in _limited(budget) if one != chosen]
        try:
            amount = _amount(chosen, add)
        except OrderRefused as error:
            more = f"; budget {name!r} also limits {', '.join(others)}: --dimension" if others else ""
            raise OrderRefused(f"{error}{more}") from None
        if others:
            self._note(f"{chosen} is raised; for {' or '.join(others)} say --dimension")
        whose = await self._subject(budget, chosen, subject)
        claim = counter_of(budget, chosen, whose)
        raised = await self._ledger.topup(claim, amount, now_ns=time.time_ns())
        if budget.lands:
            await self._give_another(budget, whose)
        return raised

    async def _give_another(self, budget: Budget, subject: str) -> None:
        """With more budget a turn that has had its last step gets another, when that is used up, too."""
        now_ns = time.time_ns()
        for one in await self._ledger.balances(now_ns=now_ns):
            if (one.name, one.dimension) == (budget.name, f"{LANDING}:{subject}") and not one.left:
                claim = Claim(one.name, one.scope, one.subject, one.dimension, one.window, 0, 1)
                await self._ledger.topup(claim, 1, now_ns=now_ns)

    def _no_budget(self, name: str) -> NothingCalled:
        known = (
            f"configured are {', '.join(sorted(self._budgets))}"
            if self._budgets
            else "none is configured here; name the proxy's own file with --config"
        )
        return NothingCalled(f"no budget is called {name!r}: {known}")

    async def _subject(self, budget: Budget, dimension: str, given: str | None) -> str:
        """Whose counter: as named, by the beginning of an id, or the only one that there is."""
        balances = await self._ledger.balances(now_ns=time.time_ns())
        live = [one.subject for one in balances if (one.name, one.dimension) == (budget.name, dimension)]
        if given is not None:
            seen = {one.subject for one in balances if one.scope == budget.scope}
            whole = given if given in seen else await self._named(budget.scope, given, live)
            if whole not in live:
                self._note(
                    f"budget {budget.name!r} has counted no request of {budget.scope} {whole!r} in this "
                    "window: the limit is raised all the same, for when one comes"
                )
            return whole
        if len(live) == 1:
            return live[0]
        if not live:
            raise OrderRefused(
                f"budget {budget.name!r} has no counter yet; name its {budget.scope} with --subject"
            )
        raise OrderRefused(
            f"budget {budget.name!r} has {len(live)} counters; name one with --subject: {', '.join(live[:5])}"
        )

    async def _named(self, scope: str, given: str, live: Sequence[str]) -> str:
        """A subject that the ledger does not show by this name: begun, recorded, configured, or to come."""
        begun = sorted({one for one in live if one.startswith(given)})
        if begun and _BEGUN_ID.fullmatch(given):
            if len(begun) == 1:
                return begun[0]
            raise OrderRefused(f"{given} is the beginning of several: {', '.join(begun[:5])}")
        if scope in PASSING:
            return await asyncio.to_thread(_of_scope, Path(self._settings.store.path), scope, given)
        if scope == "model" or scope.startswith("label:"):
            if scope != "model" and (len(given) > MAX_LABEL_CHARS or not given.isprintable()):
                raise OrderRefused(
                    f"{given!r} can be no label: at most {MAX_LABEL_CHARS} printable characters"
                )
            return given
        known = await self._configured(scope)
        if given in known:
            return given
        raise NothingCalled(f"no {scope} is called {given!r}: {', '.join(sorted(known))}")

    async def _configured(self, scope: str) -> set[str]:
        """Every key, team, org or upstream that there can be."""
        settings, keys = self._settings, await self._ledger.keys()
        match scope:
            case "key":
                return {UNNAMED, *(key.name for key in settings.keys), *(key.name for key in keys)}
            case "team":
                return {"default", *settings.teams, *(key.team for key in keys)}
            case "org":
                return {"default", *(team.org for team in settings.teams.values())}
            case _:
                return {*BUILT_IN, *settings.upstreams}

    # -- keys

    async def create_key(self, name: str, team: str, labels: Mapping[str, str]) -> str:
        """Make a key; the only time that it is shown."""
        if not _NAME.fullmatch(name):
            raise OrderRefused(f"{name!r} is no name: letters, digits, _ . and -, at most 64 characters")
        if team != "default" and team not in self._settings.teams:
            raise OrderRefused(
                f"no team is called {team!r}: add `teams: {{{team}: {{}}}}` to the configuration"
            )
        if name == UNNAMED or name in {key.name for key in self._settings.keys}:
            raise OrderRefused(f"the name {name!r} is taken")
        key, digest = new_key()
        made = VirtualKey(name, digest, team, time.time_ns(), dict(labels))
        if not await self._ledger.create_key(made):
            raise OrderRefused(f"the name {name!r} is taken; a revoked key keeps its name")
        return key

    async def keys(self) -> list[dict[str, Any]]:
        """All keys, revoked ones too."""
        stops = await self._ledger.stops()
        return [_of_key(key, stops) for key in await self._ledger.keys()]

    async def revoke_key(self, name: str) -> None:
        """End a key at once."""
        now_ns = time.time_ns()
        if not await self._ledger.revoke_key(name, now_ns=now_ns):
            known = [key.name for key in await self._ledger.keys() if key.revoked_ns is None]
            raise OrderRefused(f"no key is called {name!r}: {', '.join(known) or 'there is none'}")
        await self._ledger.stop(f"key:{name}", now_ns=now_ns)


def _called(wait: Mapping[str, Any], name: str) -> bool:
    """Whether a wait is meant by an id, or the beginning of one."""
    ids = [str(wait.get(key) or "") for key in ("id", "turn", "step")]
    return len(name) > len("exc_") and any(one.startswith(name) for one in ids)


def _recorded(data_dir: Path, name: str) -> str:
    """The whole id that begins so; of a step or exchange, its turn."""
    with suppress(RecordMissing, sqlite3.Error), Reader(data_dir) as reader:
        try:
            found = reader.resolve(name)
        except (NotRecorded, Ambiguous) as error:
            raise NothingCalled(str(error)) from None
        if found.kind == "exchange":
            turn = reader.exchange(found.id).turn
            if turn is None:
                raise OrderRefused(f"{name} is no model call")
            return turn
        return found.id if found.kind != "step" else reader.parents(found.id)[0]
    raise NothingCalled(f"{name} is not recorded here; give the whole id")


def _of_scope(data_dir: Path, scope: str, name: str) -> str:
    """The whole id of a recorded step, turn, thread or session that begins so."""
    with suppress(RecordMissing, NotRecorded, sqlite3.Error), Reader(data_dir) as reader:
        if _BEGUN_ID.fullmatch(name):
            try:
                found = reader.resolve(name)
            except Ambiguous as error:
                raise OrderRefused(str(error)) from None
            if found.kind == scope:
                return found.id
            raise NothingCalled(f"{found.id} is a {found.kind}; this budget counts by {scope}")
    raise NothingCalled(f"no {scope} is called {name!r}: none of that id was counted or is recorded here")


def _limited(budget: Budget) -> list[str]:
    return [*budget.limits, *(f"calls:{tool}" for tool in budget.calls)]


def _dimension(budget: Budget, given: str | None) -> str:
    known = _limited(budget)
    if given is not None:
        kind = given.partition(":")[0]
        if given in known or (kind == "tool_retries" and kind in budget.limits and kind != given):
            return given
        raise OrderRefused(f"budget {budget.name!r} does not limit {given}: {', '.join(known)}")
    if "spend_usd" in known:
        return "spend_usd"
    if len(known) == 1 and known[0] != "tool_retries":
        return known[0]
    raise OrderRefused(f"budget {budget.name!r} limits {', '.join(known)}; say which with --dimension")


def _amount(dimension: str, text: str) -> int:
    if dimension == "spend_usd":
        if _USD.fullmatch(text) is None:
            raise OrderRefused(f"{text!r} is no amount in USD")
        usd = Decimal(text.removeprefix("$"))
        if not Decimal(10) ** -9 <= usd < Decimal(10) ** 9:
            raise OrderRefused(f"{text} USD is no sensible amount: add more than 0, and less than a billion")
        return to_nano(usd)
    if dimension == "wall_clock":
        try:
            return max(1, Duration.parse(text).ns // 1_000_000)
        except ValueError:
            raise OrderRefused(f"{text!r} is no duration: 30s, 5m, 2h, 1d") from None
    if not text.isascii() or not text.isdigit() or len(text) > 15 or int(text) == 0:
        raise OrderRefused(f"{text!r} is no whole number of {dimension}")
    return int(text)


def _of_key(key: VirtualKey, stops: Mapping[str, int]) -> dict[str, Any]:
    told: dict[str, Any] = {
        "name": key.name,
        "team": key.team,
        "labels": dict(key.labels),
        "created_at": rfc3339(key.created_ns),
    }
    if key.revoked_ns is not None:
        told["revoked_at"] = rfc3339(key.revoked_ns)
    elif key.name in stops:
        told["stopped_at"] = rfc3339(stops[key.name])
    return told
