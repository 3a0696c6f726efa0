"""The ledger of several instances: counters in Redis, one script per operation, server time.

An operation is one round trip and atomic. While the server is away, or waits for its instances
after a restart, ``reserve`` raises LedgerAway at once; a settlement then counts from the moment it
is told, is part of this instance's totals, and reaches the server with them when it is back
(ledger_totals.py, join.lua). The caps survive a restart of the server; what a failover to a
replica can lose is what the replica had not received.
"""

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from proxy.ports import LedgerAway
from proxy.stores.ledger import actual_amounts, balance_order, holds_for, new_id, unheld
from proxy.stores.ledger_link import GRACE_S, PATIENCE_S, Answer, Link
from proxy.stores.ledger_totals import Totals, WireClaim, wire_claim
from proxy.stores.resp import SILENCE_S
from proxy.stores.windows import Windows
from proxy.verdict import (
    Alert,
    Balance,
    Claim,
    Grant,
    Hold,
    Receipt,
    Refusal,
    Spend,
    VirtualKey,
)

GUESSES = 5
"""Tries to name the windows that the server's time lies in."""


class RedisLedger:
    """A ledger that several instances share."""

    def __init__(
        self,
        url: str,
        zone: str = "UTC",
        *,
        name: str = "ledger",
        server_time: bool = True,
        silence_s: float = SILENCE_S,
        grace_s: float = GRACE_S,
        patience_s: float = PATIENCE_S,
    ) -> None:
        """``server_time=False`` lets the callers' ``now_ns`` count: for tests that move the clock."""
        self._windows = Windows(zone)
        self._totals = Totals()
        self._alerts: list[Alert] = []
        """Told by answers that nobody waited for; the next operation brings them."""
        self._later: deque[tuple[str, dict[str, Any]]] = deque()
        """Settlements of grants that are not ours, to be told when the server is back."""
        self._server_time = server_time
        self._link = Link(
            url,
            self._totals,
            name=name,
            silence_s=silence_s,
            grace_s=grace_s,
            patience_s=patience_s,
            heard=self._heard,
        )

    async def ready(self, timeout_s: float = GRACE_S) -> bool:
        """Connect and wait until something can be held."""
        return await self._link.ready(timeout_s)

    @property
    def trouble(self) -> str | None:
        """Why nothing can be held, or None."""
        return self._link.trouble

    # -- the port

    async def reserve(
        self, claims: Sequence[Claim], *, ttl_s: int, now_ns: int, names: Sequence[str] = ()
    ) -> Grant:
        grant_id = new_id()
        fields = {"id": grant_id, "ttl": ttl_s * 1_000_000, "names": list(names)}
        try:
            holds, wire, answer = await self._windowed("reserve", claims, fields, now_ns)
        except asyncio.CancelledError:
            # Nobody will settle what may be held: give it back behind it.
            self._link.send("release", {"id": grant_id})
            raise
        alerts = self._alerts_of(answer)
        if "stopped" in answer:
            return Grant(grant_id, refusal=Refusal(stopped=answer["stopped"]), alerts=alerts)
        if "refused" in answer:
            refusal = Refusal(claims[answer["refused"] - 1], _balance(answer["told"]))
            return Grant(grant_id, refusal=refusal, alerts=alerts)
        taken = tuple(
            Hold(hold.claim, int(amount), hold.key, hold.starts_ns, hold.ends_ns)
            for hold, amount in zip(holds, answer["taken"] or (), strict=True)
        )
        grant = Grant(grant_id, taken, None, int(answer["expires"]) * 1000, alerts)
        if taken:
            self._totals.granted(grant, wire, int(answer["expires"]), self.now(now_ns))
            self._totals.saw(taken, answer["seen"])
        return grant

    def unheld(self, claims: Sequence[Claim], *, now_ns: int) -> Grant:
        now_ns = self.now(now_ns)
        grant = unheld(claims, self._windows, now_ns)
        wire = [wire_claim(hold.claim, hold) for hold in grant.holds]
        self._totals.granted(grant, wire, grant.expires_ns // 1000, now_ns)
        return grant

    async def settle(self, grant: Grant, actual: Spend, *, now_ns: int) -> Receipt:
        amounts = actual_amounts(grant, actual)
        await self._clear_the_way()
        if grant.refusal is not None or not grant.holds or self._totals.was_closed(grant.id):
            return Receipt(grant.id, applied=False, alerts=self._alerts_of({}))
        mine = self._totals.close(grant.id)
        if mine:
            self._totals.charge(grant, amounts)
        fields = {
            "id": grant.id,
            "claims": [wire_claim(hold.claim, hold) for hold in grant.holds],
            "held": [str(hold.amount) for hold in grant.holds],
            "actual": [False if amount is None else str(amount) for amount in amounts],
            "expires": grant.expires_ns // 1000,
            "mine": mine,
        }
        answer = await self._told("settle", fields, now_ns, mine)
        if answer is None:
            return Receipt(grant.id, applied=False, queued=True, alerts=self._alerts_of({}))
        if not answer["applied"]:
            if mine:
                self._totals.charge(grant, amounts, -1)
            return Receipt(grant.id, applied=False, alerts=self._alerts_of(answer))
        self._totals.saw(grant.holds, answer["seen"] or ())
        overruns = tuple(_balance(told) for told in answer["overruns"] or ())
        return Receipt(
            grant.id,
            applied=True,
            late=bool(answer["late"]),
            alerts=self._alerts_of(answer),
            overruns=overruns,
        )

    async def release(self, grant: Grant, *, now_ns: int) -> Receipt:
        await self._clear_the_way()
        if grant.refusal is not None or not grant.holds or self._totals.was_closed(grant.id):
            return Receipt(grant.id, applied=False, alerts=self._alerts_of({}))
        mine = self._totals.close(grant.id)
        answer = await self._told("release", {"id": grant.id}, now_ns, mine)
        if answer is None:
            return Receipt(grant.id, applied=False, queued=True, alerts=self._alerts_of({}))
        return Receipt(
            grant.id,
            applied=bool(answer["applied"]),
            late=bool(answer.get("late")),
            alerts=self._alerts_of(answer),
        )

    async def renew(self, grants: Sequence[Grant], *, ttl_s: int, now_ns: int) -> None:
        ids = [grant.id for grant in grants]
        answer = await self._call("renew", {"ids": ids, "ttl": ttl_s * 1_000_000}, now_ns)
        self._totals.renewed(ids, int(answer["expires"]))
        self._heard(answer)

    async def topup(self, claim: Claim, add: int, *, now_ns: int) -> Balance:
        _, _, answer = await self._windowed("topup", [claim], {"add": str(add)}, now_ns)
        return _balance(answer["told"])

    async def stop(self, name: str, *, now_ns: int) -> None:
        await self._desk("stop", now_ns, name=name, value=str(now_ns))

    async def resume(self, name: str, *, now_ns: int) -> bool:
        return bool((await self._desk("resume", now_ns, name=name))["done"])

    async def stops(self) -> Mapping[str, int]:
        found = _pairs(await self._desk("stops", None))
        return {name: int(found[name]) for name in sorted(found)}

    async def balances(self, *, now_ns: int, lasting: bool = False) -> Sequence[Balance]:
        answer = await self._call("balances", {"lasting": lasting}, now_ns)
        self._heard(answer)
        return sorted((_balance(told) for told in answer["balances"] or ()), key=balance_order)

    async def sweep(self, *, now_ns: int) -> Sequence[Alert]:
        alerts: list[Alert] = []
        more = True
        while more:
            answer = await self._call("sweep", {}, now_ns)
            alerts += self._alerts_of(answer)
            more = bool(answer["more"])
        return alerts

    async def create_key(self, key: VirtualKey) -> bool:
        value = orjson.dumps(
            {
                "hash": key.sha256,
                "team": key.team,
                "labels": orjson.dumps(dict(key.labels)).decode(),
                "created": str(key.created_ns),
                "revoked": "" if key.revoked_ns is None else str(key.revoked_ns),
            }
        ).decode()
        answer = await self._desk("create", None, name=key.name, hash=key.sha256, value=value)
        return bool(answer["done"])

    async def keys(self) -> Sequence[VirtualKey]:
        found = _pairs(await self._desk("keys", None))
        return [_key(name, orjson.loads(found[name])) for name in sorted(found)]

    async def revoke_key(self, name: str, *, now_ns: int) -> bool:
        return bool((await self._desk("revoke", now_ns, name=name, value=str(now_ns)))["done"])

    async def close(self) -> None:
        """Leave the ledger. What is still held ends with its time."""
        await self._link.close()

    # -- calls

    async def _windowed(
        self, script: str, claims: Sequence[Claim], fields: Mapping[str, Any], now_ns: int
    ) -> tuple[tuple[Hold, ...], list[WireClaim], Answer]:
        """A call whose claims must name the windows of the server's time: guess, and guess again."""
        await self._link.tried()
        guess_ns = self.now(now_ns)
        for _ in range(GUESSES):
            holds = holds_for(claims, self._windows, guess_ns)
            wire = [wire_claim(hold.claim, hold) for hold in holds]
            answer = await self._call(script, {**fields, "claims": wire}, now_ns)
            if answer["state"] != "clock":
                return holds, wire, answer
            guess_ns = int(answer["now"]) * 1000
        raise LedgerAway("the ledger's server changes its clock faster than it can be read")

    async def _told(self, script: str, fields: dict[str, Any], now_ns: int, mine: bool) -> Answer | None:
        """Tell the server how a grant ended; None: it will learn it when it is back.

        The request is written before anything is awaited: had the instance joined in between, its
        totals would have told the same already.
        """
        try:
            return await self._call(script, fields, now_ns)
        except LedgerAway:
            if not mine:
                self._later.append((script, fields))
            return None

    async def _clear_the_way(self) -> None:
        """Be connected, if that is possible, with nothing older left to tell."""
        await self._link.tried()
        while self._later:
            script, fields = self._later[0]
            try:
                answer = await self._call(script, fields, None)
            except LedgerAway:
                return
            self._heard(answer)
            if self._later and self._later[0][1] is fields:
                self._later.popleft()

    async def _desk(self, verb: str, now_ns: int | None, **words: str) -> Answer:
        return await self._call("desk", {"verb": verb, **words}, now_ns)

    async def _call(self, script: str, fields: Mapping[str, Any], now_ns: int | None) -> Answer:
        if not self._server_time and now_ns:
            self._link.now_us = now_ns // 1000
        return await self._link.call(script, fields)

    def now(self, now_ns: int) -> int:
        """The server's time as far as it is known, else the caller's."""
        return (self._link.server_ns() or now_ns) if self._server_time else now_ns

    # -- answers

    def _heard(self, answer: Answer) -> None:
        self._alerts += _alerts(answer)

    def _alerts_of(self, answer: Answer) -> tuple[Alert, ...]:
        alerts = (*self._alerts, *_alerts(answer))
        self._alerts.clear()
        return alerts


def _alerts(answer: Answer) -> list[Alert]:
    return [Alert(int(share), _balance(told)) for share, told in answer.get("alerts") or ()]


def _balance(told: Sequence[str]) -> Balance:
    meta, limit, hard, used, held, assumed, ends = told
    budget, scope, subject, dimension, window = orjson.loads(meta)
    return Balance(
        budget,
        scope,
        subject,
        window,
        dimension,
        int(limit),
        int(hard),
        int(used),
        int(held),
        int(assumed),
        int(ends) * 1000 if ends else None,
    )


def _pairs(answer: Answer) -> dict[str, str]:
    flat = answer["pairs"] or ()
    return dict(zip(flat[::2], flat[1::2], strict=True))


def _key(name: str, fields: Mapping[str, str]) -> VirtualKey:
    revoked = fields["revoked"]
    labels = orjson.loads(fields["labels"])
    created_ns = int(fields["created"])
    return VirtualKey(
        name, fields["hash"], fields["team"], created_ns, labels, int(revoked) if revoked else None
    )
