"""Budget drawn ahead: fewer questions, the same caps."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from proxy.ports import LedgerAway
from proxy.stores.ledger_lease import LeasedLedger
from proxy.stores.ledger_memory import MemoryLedger
from proxy.stores.ledger_redis import RedisLedger
from proxy.verdict import Claim, Grant, Receipt, Spend
from tests.stores.ledger.kit import NOON, SECOND, TTL_S, RedisServer, Till, claim, money, usd, wait_for


class Counting(MemoryLedger):
    """A ledger that counts its questions and can go away."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0
        self.away = False

    async def reserve(self, claims: Sequence[Claim], **how: Any) -> Grant:
        self.asked += 1
        if self.away:
            raise LedgerAway("gone")
        return await super().reserve(claims, **how)

    async def settle(self, grant: Grant, actual: Spend, *, now_ns: int) -> Receipt:
        self.asked += 1
        return await super().settle(grant, actual, now_ns=now_ns)


class House:
    """A ledger below, and an instance or two on it."""

    def __init__(self, lease: str = "1") -> None:
        self.below = Counting()
        self.time_ns = 0
        self.tills = [
            Till(LeasedLedger(self.below, usd(lease), monotonic_ns=lambda: self.time_ns)) for _ in range(2)
        ]
        self.base = Till(self.below)

    def wait(self, seconds: float) -> None:
        self.time_ns += int(seconds * SECOND)
        for till in (*self.tills, self.base):
            till.now += int(seconds * SECOND)


def request(turn: str = "t", cost: str = "0.1", limit: str = "50") -> list[Claim]:
    return [
        money(cost, "20", scope="turn", subject=turn, window="life"),
        claim(1, 1000, scope="turn", subject=turn, window="life"),
        money(cost, limit, budget="org", scope="org", subject="o"),
    ]


async def test_a_lease_serves_the_requests_after_the_first_without_a_question() -> None:
    house = House()
    till, _ = house.tills
    for _ in range(50):
        grant = await till.reserve(*request())
        assert (await till.settle(grant, {"spend_usd": usd("0.01"), "steps": 1})).applied
        assert not (await till.settle(grant, {"spend_usd": usd("0.01"), "steps": 1})).applied
    assert house.below.asked < 20
    house.wait(20)
    await till.sweep()
    for balance in await house.base.balances():
        expected = 50 if balance.dimension == "steps" else usd("0.50")
        assert (balance.used, balance.reserved) == (expected, 0)


async def test_another_turn_asks_only_for_what_is_its_own() -> None:
    house = House()
    till, _ = house.tills
    grants = [await till.reserve(*request(turn=str(number))) for number in range(5)]
    org = await house.base.balance(name="org")
    assert org.reserved == usd("1.10")  # five requests live on one lease of the organisation's
    for grant in grants:
        await till.release(grant)
    house.wait(20)
    await till.sweep()
    assert all(one.reserved == one.used == 0 for one in await house.base.balances())


async def test_the_sum_of_leases_never_exceeds_the_cap() -> None:
    house = House(lease="2")
    mine = money("0.10", "5.00", budget="org", scope="org", subject="o")
    grants = await asyncio.gather(*(till.reserve(mine) for _ in range(200) for till in house.tills))
    admitted = sum(grant.refusal is None for grant in grants)
    assert (await house.base.balance()).reserved <= usd("5.00")
    assert 40 <= admitted <= 50
    refusal = next(grant.refusal for grant in grants if grant.refusal is not None)
    assert refusal.claim == mine
    assert refusal.balance is not None
    assert refusal.balance.limit == usd("5.00")


async def test_a_single_instance_can_use_all_of_its_budget() -> None:
    house = House()
    till, _ = house.tills
    mine = money("0.10", "5.00", budget="org", scope="org", subject="o")
    grants = [await till.reserve(mine) for _ in range(60)]
    assert sum(grant.refusal is None for grant in grants) == 50


async def test_a_lease_goes_on_while_the_ledger_is_away_and_no_further() -> None:
    house = House()
    till, _ = house.tills
    first = await till.reserve(*request())
    house.below.away = True
    grants = [first]
    grants += [await till.reserve(*request()) for _ in range(10)]
    with pytest.raises(LedgerAway):
        await till.reserve(*request())
    house.below.away = False
    for grant in grants:
        await till.settle(grant, {"spend_usd": usd("0.02"), "steps": 1})
    house.wait(20)
    await till.sweep()
    assert (await house.base.balance(name="org")).used == usd("0.22")


async def test_a_refusal_below_gives_back_what_was_drawn_here() -> None:
    house = House()
    till, _ = house.tills
    await till.reserve(*request())
    poor = [*request(turn="poor")]
    poor[1] = replace(poor[1], limit=0)
    for _ in range(30):  # would empty the lease, if each kept its share of the organisation's
        assert (await till.reserve(*poor)).refusal is not None
    house.below.away = True
    assert (await till.reserve(*request())).refusal is None


async def test_a_lease_ends_with_its_window_and_its_age() -> None:
    house = House()
    till, _ = house.tills
    minute = money("0.1", "50", window="minute")
    await till.reserve(minute)
    asked = house.below.asked
    await till.reserve(minute)
    assert house.below.asked == asked
    till.now += 60 * SECOND
    await till.reserve(minute)
    assert house.below.asked == asked + 1
    house.time_ns += 16 * SECOND
    await till.reserve(minute)
    assert house.below.asked == asked + 2


async def test_a_dead_instance_s_lease_is_charged_as_held() -> None:
    house = House()
    await house.tills[0].reserve(money("0.1", "50"))
    held = (await house.base.balance()).reserved
    assert held == usd("1.10")
    house.wait(TTL_S + 1)
    after = await house.base.balance()
    assert (after.used, after.assumed, after.reserved) == (held, held, 0)


async def test_an_unknown_cost_and_an_overrun_are_charged_through_the_lease() -> None:
    house = House()
    till, _ = house.tills
    unknown, over = await till.reserve(money("0.1", "3")), await till.reserve(money("0.1", "3"))
    await till.settle(unknown, {})
    await till.settle(over, {"spend_usd": usd("4")})
    house.wait(20)
    await till.sweep()
    assert (await house.base.balance()).used == usd("4.1")
    assert (await till.reserve(money("0.1", "3"))).refusal is not None


async def test_a_topup_and_a_stop_are_seen_at_once_here_and_soon_elsewhere() -> None:
    house = House()
    here, there = house.tills
    mine = money("1", "1", scope="turn", subject="trn_1", window="life")
    await here.reserve(mine, names=("trn_1",))
    assert (await there.reserve(mine, names=("trn_1",))).refusal is not None
    await here.topup(mine, usd("1"))
    assert (await there.reserve(mine, names=("trn_1",))).refusal is None
    await here.ledger.stop("trn_1", now_ns=here.now)
    refusal = (await here.reserve(replace(mine, amount=0), names=("trn_1",))).refusal
    assert refusal is not None
    assert refusal.stopped == "trn_1"
    house.wait(1)
    assert (await there.reserve(replace(mine, amount=0), names=("trn_1",))).refusal is not None


async def test_claims_with_a_level_or_a_minimum_are_asked_as_they_are() -> None:
    house = House()
    till, _ = house.tills
    streak = claim(0, 3, dimension="tool_retries:Bash", level=2)
    await till.reserve(streak, money("0.1", "5"))
    assert (await till.reserve(replace(streak, level=4), money("0.1", "5"))).refusal is not None
    clamped = claim(80, 100, budget="c", dimension="output_tokens", minimum=10)
    assert [hold.amount for hold in (await till.reserve(clamped)).holds] == [80]
    assert [hold.amount for hold in (await till.reserve(clamped)).holds] == [20]


@pytest.fixture
async def shared() -> AsyncIterator[tuple[RedisServer, LeasedLedger]]:
    server = RedisServer()
    try:
        server.start()
        redis = RedisLedger(server.url, patience_s=0)
        assert await redis.ready()
        ledger = LeasedLedger(redis, usd("1"), now=redis.now)
        yield server, ledger
        await ledger.close()
    finally:
        server.close()


@pytest.mark.real
async def test_leases_on_redis_go_on_without_it(shared: tuple[RedisServer, LeasedLedger]) -> None:
    server, ledger = shared
    mine = money("0.10", "50", window="total")

    async def reserve() -> Grant:
        return await ledger.reserve([mine], ttl_s=900, now_ns=time.time_ns())

    grants = [await reserve()]
    server.kill()
    await wait_for(lambda: ledger.below.trouble, "it is noticed")  # type: ignore[attr-defined]
    grants += [await reserve() for _ in range(10)]
    with pytest.raises(LedgerAway):
        await reserve()
    server.start()
    await wait_for(lambda: not ledger.below.trouble, "it is back")  # type: ignore[attr-defined]
    for grant in grants:
        await ledger.settle(grant, {"spend_usd": usd("0.01")}, now_ns=time.time_ns())
    await ledger.close()
    after = RedisLedger(server.url, patience_s=0)
    assert await after.ready()
    (balance,) = await after.balances(now_ns=NOON)
    assert (balance.used, balance.reserved) == (usd("0.11"), 0)
    await after.close()
