"""Any sequence of operations leaves every ledger where it leaves the memory model.

The model shares its rules with SQLite, not with Redis; what no rule may break is checked beside:
never more held and used than allowed by a granted claim, nothing negative, idle is empty.
"""

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar, TypeVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from proxy.ports import Ledger
from proxy.stores.ledger_memory import MemoryLedger
from proxy.stores.ledger_redis import RedisLedger
from proxy.stores.ledger_sqlite import SqliteLedger
from proxy.verdict import Alert, Claim, Grant
from tests.stores.ledger.kit import DAY, HOUR, MINUTE, NOON, SECOND, RedisServer

Result = TypeVar("Result")
NAMES = ("trn_1", "key:k")

BIG = 4 * 10**18
claims = st.builds(
    Claim,
    budget=st.just("a"),
    scope=st.just("key"),
    subject=st.sampled_from(["k", "l"]),
    dimension=st.just("steps"),
    window=st.sampled_from(["life", "minute", "day", "day", "day"]),
    amount=st.integers(0, 8),
    limit=st.sampled_from([10, 20, 20]),
    hard=st.sampled_from([None, None, 15]),
    minimum=st.one_of(st.none(), st.integers(0, 5)),
    spare=st.sampled_from([0, 0, 0, 1, 4]),
    level=st.sampled_from([None] * 8 + [0, 7, 12]),
    alert_at=st.sampled_from([(), (8_000,), (3_333, 8_000, 10_000), (10_000, 20_000)]),
)
big_claims = st.builds(
    Claim,
    budget=st.just("big"),
    scope=st.just("org"),
    subject=st.just("o"),
    dimension=st.just("spend_usd"),
    window=st.sampled_from(["hour", "week", "month"]),
    amount=st.integers(0, 2 * 10**18),
    limit=st.sampled_from([10**9 - 1, 10**9, 2**53 + 1, BIG // 2 + 1, BIG]),
    alert_at=st.sampled_from([(3_333, 8_000, 10_000), (10_000, 20_000)]),
)
spent = st.one_of(st.none(), st.integers(0, 6), st.integers(0, 12))
big_spent = st.one_of(st.none(), st.integers(0, 10**18))


def told(alerts: tuple[Alert, ...]) -> list[tuple[int, str]]:
    return sorted((alert.share, repr(alert.balance)) for alert in alerts)


class LedgerMachine(RuleBasedStateMachine):
    """Drives a ledger and the model side by side."""

    server: ClassVar[RedisServer | None] = None
    kind: ClassVar[str] = "sqlite"

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.directory = TemporaryDirectory()
        self.now = NOON
        self.model: Ledger = MemoryLedger("Europe/Berlin")
        self.grants: list[tuple[Grant, Grant]] = []
        self.tested: Ledger = self.wait(self.open())

    async def open(self) -> Ledger:
        if self.kind == "sqlite":
            return SqliteLedger(Path(self.directory.name), "Europe/Berlin")
        assert self.server is not None
        self.server.command("FLUSHALL")
        return RedisLedger(self.server.url, "Europe/Berlin", server_time=False, patience_s=0)

    def wait(self, work: Coroutine[Any, Any, Result]) -> Result:
        return self.loop.run_until_complete(work)

    def teardown(self) -> None:
        self.wait(self.tested.close())
        self.loop.close()
        self.directory.cleanup()

    @initialize()
    def begin(self) -> None:
        self.now = NOON

    @rule(
        wanted=st.lists(claims | claims | big_claims, max_size=4),
        ttl_s=st.sampled_from([1, 60, 600, 7200]),
        names=st.sampled_from([(), NAMES]),
    )
    def reserve(self, wanted: list[Claim], ttl_s: int, names: tuple[str, ...]) -> None:
        ours, theirs = (
            self.wait(ledger.reserve(wanted, ttl_s=ttl_s, now_ns=self.now, names=names))
            for ledger in (self.tested, self.model)
        )
        assert ours.holds == theirs.holds
        assert ours.refusal == theirs.refusal
        assert told(ours.alerts) == told(theirs.alerts)
        for hold in ours.holds:
            allowed = hold.claim.limit if hold.claim.hard is None else hold.claim.hard
            topped = BIG * 2  # what topups may have added is checked by the model
            assert 0 <= hold.amount <= min(hold.claim.amount, allowed + topped)
        self.grants.append((ours, theirs))

    @rule(data=st.data())
    def settle(self, data: st.DataObject) -> None:
        if not self.grants:
            return
        ours, theirs = data.draw(st.sampled_from(self.grants[-6:]))
        actual = [data.draw(spent if hold.claim.budget == "a" else big_spent) for hold in ours.holds]
        mine = self.wait(self.tested.settle(ours, actual, now_ns=self.now))
        other = self.wait(self.model.settle(theirs, actual, now_ns=self.now))
        assert (mine.applied, mine.late, mine.queued) == (other.applied, other.late, False)
        assert mine.overruns == other.overruns
        assert told(mine.alerts) == told(other.alerts)

    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        if not self.grants:
            return
        ours, theirs = data.draw(st.sampled_from(self.grants[-6:]))
        mine = self.wait(self.tested.release(ours, now_ns=self.now))
        other = self.wait(self.model.release(theirs, now_ns=self.now))
        assert (mine.applied, mine.late) == (other.applied, other.late)

    @rule(ttl_s=st.sampled_from([1, 600]))
    def renew(self, ttl_s: int) -> None:
        held = [pair for pair in self.grants[-4:] if pair[0].refusal is None]
        self.wait(self.tested.renew([ours for ours, _ in held], ttl_s=ttl_s, now_ns=self.now))
        self.wait(self.model.renew([theirs for _, theirs in held], ttl_s=ttl_s, now_ns=self.now))

    @rule(claim=claims | big_claims, actual=spent)
    def charge_unheld(self, claim: Claim, actual: int | None) -> None:
        for ledger in (self.tested, self.model):
            grant = ledger.unheld([claim], now_ns=self.now)
            assert self.wait(ledger.settle(grant, [actual], now_ns=self.now)).applied
            assert not self.wait(ledger.settle(grant, [actual], now_ns=self.now)).applied

    @rule(claim=claims | big_claims, add=st.integers(0, 5) | st.integers(0, 10**18))
    def topup(self, claim: Claim, add: int) -> None:
        ours, theirs = (
            self.wait(ledger.topup(claim, add, now_ns=self.now)) for ledger in (self.tested, self.model)
        )
        assert ours == theirs

    @rule(name=st.sampled_from(NAMES), go_on=st.booleans())
    def stop(self, name: str, go_on: bool) -> None:
        for ledger in (self.tested, self.model):
            self.wait(ledger.resume(name, now_ns=self.now) if go_on else ledger.stop(name, now_ns=self.now))
        assert self.wait(self.tested.stops()) == self.wait(self.model.stops())

    @rule(by=st.sampled_from([1, SECOND, MINUTE, 59 * MINUTE, HOUR, 5 * HOUR, DAY, -MINUTE, -HOUR, -DAY]))
    def pass_time(self, by: int) -> None:
        self.now += by

    @rule()
    def sweep(self) -> None:
        ours = self.wait(self.tested.sweep(now_ns=self.now))
        assert told(tuple(ours)) == told(tuple(self.wait(self.model.sweep(now_ns=self.now))))

    @invariant()
    def both_say_the_same(self) -> None:
        ours = self.wait(self.tested.balances(now_ns=self.now))
        assert ours == self.wait(self.model.balances(now_ns=self.now))
        assert all(one.reserved >= 0 and one.used >= 0 for one in ours)


def run(kind: str, server: RedisServer | None, examples: int) -> None:
    machine = type("Machine", (LedgerMachine,), {"kind": kind, "server": server})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=40,
            deadline=None,
            derandomize=True,
            database=None,
            phases=[Phase.generate],  # a failure is told at once; shrinking would take minutes
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_sqlite_goes_where_the_model_goes() -> None:
    run("sqlite", None, 40)


@pytest.mark.real
def test_redis_goes_where_the_model_goes(redis_server: RedisServer) -> None:
    run("redis", redis_server, 150)
