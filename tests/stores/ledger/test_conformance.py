"""One suite for every ledger: memory, SQLite and (marked ``real``) Redis."""

import asyncio
from dataclasses import replace
from datetime import datetime
from zoneinfo import ZoneInfo

import pytest

from proxy.ports import Ledger
from proxy.verdict import Claim, VirtualKey
from tests.stores.ledger.kit import DAY, HOUR, MINUTE, NOON, SECOND, Till, claim, money, usd

BERLIN = ZoneInfo("Europe/Berlin")


def berlin(*when: int) -> int:
    return int(datetime(*when, tzinfo=BERLIN).timestamp()) * SECOND


# -- holding


async def test_a_hold_counts_until_it_is_settled_and_then_what_it_cost(till: Till) -> None:
    grant = await till.reserve(money("0.30", "1.00"))
    held = await till.balance()
    assert (held.used, held.reserved, held.limit) == (0, usd("0.30"), usd("1.00"))
    receipt = await till.settle(grant, {"spend_usd": usd("0.012345678")})
    settled = await till.balance()
    assert receipt.applied
    assert not receipt.late
    assert not receipt.overruns
    assert (settled.used, settled.reserved, settled.assumed) == (12_345_678, 0, 0)


async def test_a_claim_fits_exactly_up_to_the_limit(till: Till) -> None:
    assert (await till.reserve(claim(10, 10))).refusal is None
    refused = (await till.reserve(claim(1, 10))).refusal
    assert refused is not None
    assert refused.available == 0
    assert (await till.reserve(claim(0, 10))).refusal is None  # asks for nothing, and nothing is overdrawn


async def test_BUD_19_a_refusal_names_the_claim_that_did_not_fit(till: Till) -> None:
    first = await till.reserve(money("3", "5", budget="day", subject="ci"))
    await till.settle(first, {"spend_usd": usd("2")})
    await till.reserve(money("1.5", "5", budget="day", subject="ci"))
    wanted = money("2", "5", budget="day", subject="ci")
    refusal = (await till.reserve(claim(1, 100), wanted)).refusal
    assert refusal is not None
    assert refusal.claim == wanted
    assert refusal.stopped is None
    told = refusal.balance
    assert told is not None
    assert (told.name, told.scope, told.subject, told.dimension) == ("day", "key", "ci", "spend_usd")
    assert (told.limit, told.used, told.reserved) == (usd("5"), usd("2"), usd("1.5"))
    assert told.resets_at_ns == berlin(2026, 3, 12)
    assert refusal.available == usd("1.5")


async def test_all_claims_are_held_or_none(till: Till) -> None:
    claims = [claim(1, 10, budget=name) for name in "abc"] + [claim(11, 10, budget="d")]
    grant = await till.reserve(*claims)
    assert grant.refusal is not None
    assert grant.refusal.claim == claims[3]
    assert grant.holds == ()
    assert all(one.reserved == one.used == 0 for one in await till.balances())


async def test_two_claims_of_one_request_on_one_counter_add_up(till: Till) -> None:
    refused = await till.reserve(claim(6), claim(5))
    assert refused.refusal is not None
    assert refused.refusal.balance is not None
    assert refused.refusal.balance.reserved == 0
    grant = await till.reserve(claim(6), claim(4))
    assert [hold.amount for hold in grant.holds] == [6, 4]
    assert (await till.balance()).reserved == 10
    await till.settle(grant, [1, 2])
    assert (await till.balance()).used == 3


@pytest.mark.parametrize("scope", ["step", "turn", "thread", "session", "key", "org", "model", "label:team"])
async def test_subjects_and_scopes_are_counted_apart(till: Till, scope: str) -> None:
    mine = claim(10, 10, scope=scope, subject="a", window="life")
    assert (await till.reserve(mine)).refusal is None
    assert (await till.reserve(mine)).refusal is not None
    for other in (replace(mine, subject="b"), replace(mine, scope="team"), replace(mine, budget="c")):
        assert (await till.reserve(other)).refusal is None
    for dimension in ("calls:Bash", "calls:Read", "total_tokens"):
        assert (await till.reserve(replace(mine, dimension=dimension))).refusal is None


async def test_odd_subjects_do_not_mix(till: Till) -> None:
    odd = ["a\x1fb", "a", "a b", "", "ü€😀", '"', "a:b|c", "x" * 64]
    for subject in odd:
        assert (await till.reserve(claim(10, 10, subject=subject))).refusal is None
    assert len(await till.balances()) == len(odd)


async def test_money_is_exact_to_the_nano_dollar_beyond_what_doubles_hold(till: Till) -> None:
    limit = 4_000_000_000 * usd("1")
    big = claim(limit - 3, limit, dimension="spend_usd", window="total")
    first = await till.reserve(big)
    assert (await till.reserve(replace(big, amount=4))).refusal is not None
    second = await till.reserve(replace(big, amount=3))
    assert second.refusal is None
    await till.settle(first, {"spend_usd": limit - 7})
    await till.settle(second, {"spend_usd": 1})
    assert (await till.balance()).used == limit - 6
    refusal = (await till.reserve(replace(big, amount=7))).refusal
    assert refusal is not None
    assert refusal.available == 6


async def test_BUD_09_nothing_is_refused_without_a_claim(till: Till) -> None:
    for _ in range(20):
        grant = await till.reserve()
        assert grant.refusal is None
        assert not (await till.settle(grant, {"spend_usd": usd("76")})).applied
    assert await till.balances() == []


# -- clamping


async def test_a_claim_with_a_minimum_takes_what_is_left(till: Till) -> None:
    wanted = claim(8, 10, minimum=3, dimension="output_tokens")
    assert (await till.reserve(wanted)).holds[0].amount == 8
    assert (await till.reserve(replace(wanted, minimum=2))).holds[0].amount == 2
    refusal = (await till.reserve(replace(wanted, minimum=1))).refusal
    assert refusal is not None
    assert refusal.available == 0


async def test_a_minimum_above_what_is_left_is_refused_and_told(till: Till) -> None:
    await till.reserve(claim(7))
    refusal = (await till.reserve(claim(8, minimum=4))).refusal
    assert refusal is not None
    assert refusal.available == 3


async def test_what_a_claim_wants_left_free_is_not_held_and_refuses_where_it_is_not_there(till: Till) -> None:
    wanted = claim(4, 10, spare=4)
    assert (await till.reserve(wanted)).holds[0].amount == 4
    assert (await till.balance()).reserved == 4
    refusal = (await till.reserve(wanted)).refusal
    assert refusal is not None
    assert refusal.available == 6
    assert (await till.reserve(replace(wanted, spare=2))).refusal is None
    level = claim(0, 10, dimension="wall_clock", level=7, spare=3)
    assert (await till.reserve(level)).refusal is None
    assert (await till.reserve(replace(level, level=8))).refusal is not None


async def test_a_hard_limit_beyond_the_limit_refuses_only_there(till: Till) -> None:
    soft = claim(15, 10, hard=20)
    assert (await till.reserve(soft)).refusal is None
    refusal = (await till.reserve(replace(soft, amount=6))).refusal
    assert refusal is not None
    assert refusal.balance is not None
    assert (refusal.balance.limit, refusal.balance.hard, refusal.available) == (10, 20, 5)


async def test_a_level_replaces_what_was_counted(till: Till) -> None:
    streak = claim(0, 3, dimension="tool_retries:Bash", scope="turn", window="life")
    for level, fits in ((1, True), (3, True), (0, True), (4, False), (2, True)):
        assert ((await till.reserve(replace(streak, level=level))).refusal is None) == fits
    assert (await till.balance()).used == 2


# -- settling


async def test_settling_twice_is_settling_once(till: Till) -> None:
    grant = await till.reserve(claim(5))
    assert (await till.settle(grant, {"steps": 4})).applied
    for again in (4, 0, 9):
        assert not (await till.settle(grant, {"steps": again})).applied
    assert not (await till.release(grant)).applied
    assert ((await till.balance()).used, (await till.balance()).reserved) == (4, 0)


async def test_many_settlements_of_one_grant_at_once_count_once(till: Till) -> None:
    grant = await till.reserve(claim(5))
    receipts = await asyncio.gather(*(till.settle(grant, {"steps": 4}) for _ in range(50)))
    assert sum(receipt.applied for receipt in receipts) == 1
    assert (await till.balance()).used == 4


async def test_a_release_gives_everything_back_once(till: Till) -> None:
    grant = await till.reserve(claim(10))
    assert (await till.release(grant)).applied
    assert not (await till.release(grant)).applied
    assert not (await till.settle(grant, {"steps": 3})).applied
    assert ((await till.balance()).used, (await till.balance()).reserved) == (0, 0)


async def test_settling_more_than_was_held_is_booked_as_overrun(till: Till) -> None:
    grant = await till.reserve(claim(5), claim(5, 100, budget="wide"))
    receipt = await till.settle(grant, {"steps": 12})
    assert [(over.name, over.used, over.hard) for over in receipt.overruns] == [("b", 12, 10)]
    assert (await till.balance(name="wide")).used == 12
    refusal = (await till.reserve(claim(0))).refusal
    assert refusal is not None
    assert refusal.available == 0


async def test_what_is_not_known_is_charged_as_held_and_marked(till: Till) -> None:
    grant = await till.reserve(claim(5), money("2", "10"))
    await till.settle(grant, {"steps": 1})
    spent = await till.balance(dimension="spend_usd")
    assert (spent.used, spent.assumed, spent.reserved) == (usd("2"), usd("2"), 0)
    assert (await till.balance(dimension="steps")).assumed == 0


async def test_BUD_05_a_request_let_through_without_a_hold_is_charged_once(till: Till) -> None:
    grant = till.ledger.unheld([money("2", "10", window="week")], now_ns=till.now)
    assert (await till.settle(grant, {"spend_usd": usd("1.5")})).applied
    assert not (await till.settle(grant, {"spend_usd": usd("1.5")})).applied
    assert ((await till.balance()).used, (await till.balance()).window) == (usd("1.5"), "week")


async def test_as_many_amounts_as_holds_are_needed(till: Till) -> None:
    grant = await till.reserve(claim(5), money("1", "2"))
    with pytest.raises(ValueError, match="1 amounts for the 2 holds"):
        await till.settle(grant, [1])
    assert (await till.settle(grant, [1, None])).applied


# -- leases


async def test_a_reservation_ends_with_its_time_and_is_charged_as_held(till: Till) -> None:
    await till.reserve(claim(6), ttl_s=60)
    till.now += MINUTE - 1
    assert (await till.reserve(claim(5))).refusal is not None
    till.now += 1
    refusal = (await till.reserve(claim(5))).refusal  # any later operation notices
    assert refusal is not None
    assert refusal.balance is not None
    assert (refusal.balance.used, refusal.balance.reserved, refusal.balance.assumed) == (6, 0, 6)


async def test_a_sweep_ends_everything_that_is_due(till: Till) -> None:
    for number in range(450):
        await till.reserve(claim(1, 1000, subject=str(number % 3)), ttl_s=1 + number % 7)
    till.now += 8 * SECOND
    await till.sweep()
    assert [(one.used, one.reserved, one.assumed) for one in await till.balances()] == [(150, 0, 150)] * 3


async def test_a_late_settlement_corrects_the_assumption(till: Till) -> None:
    grant = await till.reserve(claim(6), ttl_s=60)
    till.now += 2 * MINUTE
    receipt = await till.settle(grant, {"steps": 2})
    assert receipt.applied
    assert receipt.late
    after = await till.balance()
    assert (after.used, after.reserved, after.assumed) == (2, 0, 0)
    assert not (await till.settle(grant, {"steps": 2})).applied


async def test_a_late_release_takes_the_assumption_back(till: Till) -> None:
    grant = await till.reserve(claim(6), ttl_s=60)
    till.now += 2 * MINUTE
    await till.sweep()
    assert (await till.balance()).used == 6
    assert (await till.release(grant)).late
    assert ((await till.balance()).used, (await till.balance()).assumed) == (0, 0)


async def test_a_late_settlement_that_knows_nothing_leaves_the_assumption(till: Till) -> None:
    grant = await till.reserve(claim(6), ttl_s=60)
    till.now += 2 * MINUTE
    await till.settle(grant, {})
    assert ((await till.balance()).used, (await till.balance()).assumed) == (6, 6)


async def test_renewing_keeps_a_reservation_alive_but_raises_no_dead(till: Till) -> None:
    alive, dead = await till.reserve(claim(2), ttl_s=60), await till.reserve(claim(3), ttl_s=30)
    till.now += 45 * SECOND
    await till.ledger.renew([alive, dead], ttl_s=60, now_ns=till.now)
    till.now += 45 * SECOND
    assert ((await till.balance()).reserved, (await till.balance()).used) == (2, 3)
    till.now += 15 * SECOND
    assert ((await till.balance()).reserved, (await till.balance()).used) == (0, 5)


# -- windows


@pytest.mark.parametrize(
    ("window", "ends"),
    [
        ("minute", NOON + MINUTE),
        ("hour", NOON + HOUR),
        ("day", berlin(2026, 3, 12)),
        ("week", berlin(2026, 3, 16)),
        ("month", berlin(2026, 4, 1)),
        ("life", None),
        ("total", None),
    ],
)
async def test_a_window_ends_and_another_begins_empty(till: Till, window: str, ends: int | None) -> None:
    mine = claim(10, 10, window=window)
    refusal = (await till.reserve(mine)).refusal or (await till.reserve(mine)).refusal
    assert refusal is not None
    assert refusal.balance is not None
    assert refusal.balance.resets_at_ns == ends
    till.now = (ends or NOON + 400 * DAY) - 1
    assert (await till.reserve(mine, ttl_s=1)).refusal is not None
    till.now += 1
    assert ((await till.reserve(mine)).refusal is None) == (ends is not None)


async def test_a_hold_settles_into_the_window_in_which_it_was_taken(till: Till) -> None:
    till.now = berlin(2026, 3, 12) - SECOND
    grant = await till.reserve(claim(6))
    till.now += 2 * SECOND
    later = await till.reserve(claim(10))  # the new day is empty, whatever is still open from the old one
    assert later.refusal is None
    await till.settle(grant, {"steps": 5})
    today = await till.balance(resets_at_ns=berlin(2026, 3, 13))
    assert (today.used, today.reserved) == (0, 10)
    till.now -= 2 * SECOND
    assert (await till.balance(resets_at_ns=berlin(2026, 3, 12))).used == 5


async def test_clock_jumps_lose_nothing(till: Till) -> None:
    open_grant = await till.reserve(claim(3))
    settled = await till.reserve(claim(4))
    await till.settle(settled, {"steps": 4})
    for jump in (5 * DAY, -9 * DAY, 30 * DAY, -26 * DAY):
        till.now += jump
        await till.sweep()
        assert (await till.reserve(claim(10))).refusal is None or till.now == NOON
    assert till.now == NOON
    await till.settle(open_grant, {"steps": 2})
    assert (await till.balance(resets_at_ns=berlin(2026, 3, 12))).used == 6


async def test_counters_are_forgotten_long_after_their_window(till: Till) -> None:
    await till.settle(await till.reserve(claim(5)), {"steps": 5})
    await till.settle(await till.reserve(claim(5, window="total")), {"steps": 5})
    till.now += 40 * DAY
    await till.sweep()
    till.now -= 40 * DAY
    assert [one.window for one in await till.balances()] == ["total"]


async def test_the_days_of_a_clock_change_have_their_own_length(till: Till) -> None:
    till.now = berlin(2026, 3, 29, 1)  # clocks go forward at two
    refusal = (await till.reserve(claim(11))).refusal
    assert refusal is not None
    assert refusal.balance is not None
    assert refusal.balance.resets_at_ns == berlin(2026, 3, 30) == berlin(2026, 3, 29) + 23 * HOUR


# -- operators


async def test_BUD_18_a_topup_lets_the_very_next_request_through(till: Till) -> None:
    mine = money("5", "5", scope="turn", subject="trn_1", window="life")
    await till.settle(await till.reserve(mine), {"spend_usd": usd("5")})
    ask = replace(mine, amount=usd("1.5"))
    assert (await till.reserve(ask)).refusal is not None
    assert (await till.topup(mine, usd("2"))).limit == usd("7")
    assert (await till.reserve(ask)).refusal is None
    after = await till.balance()
    assert (after.used, after.reserved, after.limit) == (usd("5"), usd("1.5"), usd("7"))
    assert (await till.reserve(ask)).refusal is not None


async def test_a_topup_is_for_one_subject_and_its_window(till: Till) -> None:
    await till.topup(claim(limit=10), 5)
    assert (await till.reserve(claim(15))).refusal is None
    assert (await till.reserve(claim(15, subject="other"))).refusal is not None
    till.now += DAY
    assert (await till.reserve(claim(15))).refusal is not None


async def test_what_is_stopped_is_refused_until_it_may_go_on(till: Till) -> None:
    await till.ledger.stop("trn_1", now_ns=till.now)
    assert await till.ledger.stops() == {"trn_1": till.now}
    refusal = (await till.reserve(claim(1), names=("key:k", "trn_1"))).refusal
    assert refusal is not None
    assert refusal.stopped == "trn_1"
    assert refusal.claim is None
    assert await till.balances() == []
    assert (await till.reserve(names=("trn_1",))).refusal is not None
    assert (await till.reserve(claim(1), names=("trn_2",))).refusal is None
    assert await till.ledger.resume("trn_1", now_ns=till.now)
    assert not await till.ledger.resume("trn_1", now_ns=till.now)
    assert (await till.reserve(claim(1), names=("trn_1",))).refusal is None


async def test_alerts_are_told_once_each(till: Till) -> None:
    mine = claim(10, 100, alert_at=(5_000, 8_000, 10_000))
    told = []
    for _ in range(10):
        grant = await till.reserve(mine)
        told.append([alert.share for alert in grant.alerts])
        receipt = await till.settle(grant, {"steps": 9})
        told.append([alert.share for alert in receipt.alerts])
    assert [shares for shares in told if shares] == [[5_000], [8_000]]
    receipt = await till.settle(await till.reserve(mine), {"steps": 30})
    assert [(alert.share, alert.balance.used) for alert in receipt.alerts] == [(10_000, 120)]
    till.now += DAY
    receipt = await till.settle(await till.reserve(replace(mine, amount=90)), {"steps": 85})
    assert [alert.share for alert in receipt.alerts] == [5_000, 8_000]


async def test_alerts_of_an_assumption_are_told_by_who_notices(till: Till) -> None:
    await till.reserve(claim(9, alert_at=(8_000,)), ttl_s=1)
    till.now += 2 * SECOND
    alerts = [*(await till.sweep()), *(await till.sweep())]
    assert [(alert.share, alert.balance.assumed) for alert in alerts] == [(8_000, 9)]


async def test_alerts_that_a_list_of_balances_brings_up_are_told_with_the_next_answer(till: Till) -> None:
    await till.reserve(claim(9, alert_at=(8_000,)), ttl_s=1)
    till.now += 2 * SECOND
    assert (await till.balance()).assumed == 9
    assert [alert.share for alert in (await till.reserve(claim(5, alert_at=(8_000,)))).alerts] == [8_000]
    assert (await till.reserve(claim(5, alert_at=(8_000,)))).alerts == ()


async def test_balances_list_every_live_counter_in_order(till: Till) -> None:
    claims = [
        claim(1, subject="b"), claim(2, subject="a"), claim(3, budget="a", window="month"),
        money("0.25", "1.50", scope="turn", subject="trn_1", window="life"),
    ]  # fmt: skip
    await till.settle(await till.reserve(*claims), [1, 2, None, usd("0.2")])
    listed = [(one.name, one.scope, one.subject, one.window, one.used) for one in await till.balances()]
    assert listed == [
        ("a", "key", "k", "month", 3), ("b", "key", "a", "day", 2), ("b", "key", "b", "day", 1),
        ("b", "turn", "trn_1", "life", usd("0.2")),
    ]  # fmt: skip
    assert (await till.balance(scope="turn")).public() == {
        "name": "b", "scope": "turn", "subject": "trn_1", "window": "life", "dimension": "spend_usd",
        "limit": "1.5", "used": "0.2", "reserved": "0", "resets_at": None,
    }  # fmt: skip
    assert (await till.balance(name="a")).public()["resets_at"] == "2026-03-31T22:00:00.000000Z"
    till.now += 2 * DAY
    assert [one.name for one in await till.balances()] == ["a"]


async def test_balances_that_last_leave_out_subjects_that_pass(till: Till) -> None:
    claims = [
        claim(1, subject="turn"), claim(1, scope="team", subject="t", window="total"),
        claim(1, scope="turn", subject="trn_1", window="life"), claim(1, scope="thread", subject="thr_1"),
        claim(1, scope="label:turn", subject="x"),
    ]  # fmt: skip
    await till.reserve(*claims)
    assert [one.subject for one in await till.balances(lasting=True)] == ["turn", "x", "t"]
    assert len(await till.balances()) == 5


# -- keys


async def test_keys_are_kept_by_hash_and_can_be_revoked(ledger: Ledger) -> None:
    first = VirtualKey("ci", "ab" * 32, "search", NOON, {"customer": "c7"})
    assert await ledger.create_key(first)
    assert not await ledger.create_key(replace(first, sha256="cd" * 32))
    assert not await ledger.create_key(replace(first, name="other"))
    assert await ledger.create_key(VirtualKey("app", "ef" * 32, "default", NOON + 1))
    assert [key.name for key in await ledger.keys()] == ["app", "ci"]
    assert await ledger.revoke_key("ci", now_ns=NOON + 5)
    assert not await ledger.revoke_key("ci", now_ns=NOON + 6)
    assert not await ledger.revoke_key("nobody", now_ns=NOON + 6)
    assert (await ledger.keys())[1] == replace(first, revoked_ns=NOON + 5)
    assert not await ledger.create_key(first)


# -- at once


async def test_BUD_01_a_thousand_requests_at_once_admit_exactly_what_fits(till: Till) -> None:
    mine = money("0.10", "5.00", scope="turn", subject="trn_1", window="life")
    grants = await asyncio.gather(*(till.reserve(mine, claim(1, 10_000)) for _ in range(1000)))
    admitted = [grant for grant in grants if grant.refusal is None]
    assert len(admitted) == 50
    assert (await till.balance(scope="turn")).reserved == usd("5.00")
    await asyncio.gather(*(till.settle(grant, {"spend_usd": usd("0.04"), "steps": 1}) for grant in admitted))
    after = await till.balance(scope="turn")
    assert (after.used, after.reserved) == (usd("2.00"), 0)
    assert (await till.balance(dimension="steps")).used == 50


async def test_BUD_02_idle_means_nothing_is_reserved(till: Till) -> None:
    claims: list[Claim] = [money("0.10", "100", budget=name) for name in "abc"]

    async def one(number: int) -> int:
        grant = await till.reserve(*claims)
        if number % 3 == 0:
            await till.release(grant)
            return 0
        cost = None if number % 3 == 1 else number
        await till.settle(grant, {"spend_usd": cost})
        return usd("0.10") if cost is None else cost

    spent = sum(await asyncio.gather(*(one(number) for number in range(300))))
    assert [(one.used, one.reserved) for one in await till.balances()] == [(spent, 0)] * 3


async def test_a_caller_that_gives_up_leaves_nothing_held(till: Till) -> None:
    tasks = [asyncio.ensure_future(till.reserve(claim(1, 1000))) for _ in range(40)]
    await asyncio.sleep(0)
    for task in tasks[::2]:
        task.cancel()
    grants = [
        one
        for one in await asyncio.gather(*tasks, return_exceptions=True)
        if not isinstance(one, BaseException)
    ]
    await asyncio.gather(*(till.release(grant) for grant in grants))
    assert [one.reserved for one in await till.balances()] == [0]
