"""A purse without a server: real core, real budgets, the model ledger, and no socket.

Lets a test read as requests and what became of them. ``House.ask`` is one exchange as the live shell
takes it: asked for again, read, held or refused.
"""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any

from policies.budgets import Budget, Budgets
from proxy.chain import Chain
from proxy.config import Settings
from proxy.core import Opened
from proxy.dialects import speaker
from proxy.model import Exchange, Head, Identity, Record, Upstream
from proxy.money.purse import Posture, Purse
from proxy.money.treasury import budgets_of, counter_of
from proxy.pricing import Pricing
from proxy.replay import Replay
from proxy.stores.ledger_memory import MemoryLedger
from proxy.verdict import Balance, Claim, Reply, to_nano

UPSTREAMS = {
    "anthropic": Upstream("anthropic", "http://127.0.0.1:9", "anthropic"),
    "openai": Upstream("openai", "http://127.0.0.1:9/v1", "openai"),
    "gemini": Upstream("gemini", "http://127.0.0.1:9", "gemini"),
}


def budgets(*told: Mapping[str, Any] | Budget) -> Budgets:
    """Budgets as a configuration writes them, or in whole units."""
    written = budgets_of(Settings.model_validate({"budgets": [b for b in told if not isinstance(b, Budget)]}))
    return Budgets([*written.by_name.values(), *(one for one in told if isinstance(one, Budget))])


class House:
    """One process, as far as it thinks and holds."""

    def __init__(
        self,
        *told: Mapping[str, Any] | Budget,
        posture: Posture | None = None,
        upstreams: Mapping[str, Upstream] = UPSTREAMS,
        chain: Chain | None = None,
    ) -> None:
        self.upstreams = upstreams
        self.records: list[Record] = []
        self.lines: list[str] = []
        self.opened = 0
        """Requests that took the whole way."""
        prices = Pricing()
        self.replay = Replay(prices=prices, chain=chain, on_record=self.records.append)
        self.core = self.replay.core
        self.core.reserves = True
        self.ledger = MemoryLedger()
        self.purse = Purse(
            self.ledger, budgets(*told), prices, self.core.sink, speaker, self.core.tracker.remember,
            posture or Posture(), self.lines.append, self.core.glance,
        )  # fmt: skip
        self._number = 0

    def exchange(self, target: str, *, identity: Identity | None = None, ahead_ns: int = 0) -> Exchange:
        """A request that arrives now, or is said to come later."""
        name, _, path = target.strip("/").partition("/")
        self._number += 1
        path = "/" + path
        upstream = self.upstreams[name]
        head = Head("POST", path, ((b"content-type", b"application/json"),))
        inner = path.removeprefix("/v1") if name == "openai" else path
        return Exchange(
            f"exc_{self._number:020}", self._number, head, upstream, inner.partition("?")[0],
            time.time_ns() + ahead_ns, identity or Identity(),
        )  # fmt: skip

    async def ask(self, target: str, body: bytes | Mapping[str, Any], **more: Any) -> "Opened | Reply":
        """One request: what was opened for it, or the answer that it got without."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        exchange = self.exchange(target, **more)
        again = await self.purse.again(exchange, data)
        if again is not None:
            return again
        self.opened += 1
        opened = self.core.open(exchange, data, exchange.arrived_ns)
        await self.purse.admit(exchange, opened)
        if opened.refusal is not None:
            opened.close("refused", exchange.arrived_ns)
        return opened

    def _counter(self, told: Mapping[str, Any]) -> Claim:
        (budget,) = budgets(told).by_name.values()
        (dimension,) = budget.limits
        return counter_of(budget, dimension, "unnamed")

    async def spend(self, told: Mapping[str, Any], usd: str) -> None:
        """Somebody else has spent so much of a budget of the key."""
        await self.purse.drain()
        amount = to_nano(Decimal(usd))
        claim = replace(self._counter(told), amount=amount)
        grant = await self.ledger.reserve([claim], ttl_s=9, now_ns=time.time_ns())
        await self.ledger.settle(grant, [amount], now_ns=time.time_ns())

    async def topup(self, told: Mapping[str, Any], whole: int) -> None:
        """More of a budget of the key: USD or steps."""
        claim = self._counter(told)
        add = to_nano(Decimal(whole)) if claim.dimension == "spend_usd" else whole
        await self.ledger.topup(claim, add, now_ns=time.time_ns())

    async def balances(self) -> Sequence[Balance]:
        """All counters, once what is under way is settled."""
        await self.purse.drain()
        return await self.ledger.balances(now_ns=time.time_ns())

    def told(self, kind: str) -> list[Mapping[str, Any]]:
        """What was recorded of one kind."""
        return [one.data for one in self.records if one.type == kind]
