"""What only the embedded ledger has: a file, its rights, and a disk that may fail."""

import asyncio
import sqlite3
import stat
from pathlib import Path

import pytest

from proxy.ports import LedgerAway
from proxy.stores import open_ledger
from proxy.stores.ledger_memory import MemoryLedger
from proxy.stores.ledger_redis import RedisLedger
from proxy.stores.ledger_sqlite import SqliteLedger
from tests.stores.ledger.kit import Till, claim, wait_for


async def test_what_was_counted_outlives_the_process(tmp_path: Path) -> None:
    first = Till(SqliteLedger(tmp_path))
    open_grant = await first.reserve(claim(3))
    await first.settle(await first.reserve(claim(2)), {"steps": 2})
    await first.ledger.close()
    second = Till(SqliteLedger(tmp_path))
    assert ((await second.balance()).used, (await second.balance()).reserved) == (2, 3)
    assert (await second.settle(open_grant, {"steps": 1})).applied
    assert (await second.balance()).used == 3
    await second.ledger.close()


async def test_two_ledgers_on_one_file_see_each_other(tmp_path: Path) -> None:
    one, two = Till(SqliteLedger(tmp_path)), Till(SqliteLedger(tmp_path))
    for _ in range(5):
        for till in (one, two):
            assert (await till.reserve(claim(1))).refusal is None
    assert (await one.reserve(claim(1))).refusal is not None
    await two.topup(claim(1), 1)
    await two.ledger.stop("trn_1", now_ns=1)
    assert (await one.reserve(claim(1), names=("trn_1",))).refusal is not None
    assert (await one.reserve(claim(1))).refusal is None
    await one.ledger.close()
    await two.ledger.close()


async def test_the_file_is_its_owners_alone(tmp_path: Path) -> None:
    till = Till(SqliteLedger(tmp_path / "new" / "place"))
    await till.reserve(claim(1))
    for path in (tmp_path / "new" / "place").iterdir():
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path
    await till.ledger.close()


async def test_a_place_that_cannot_be_written_is_away_and_settlements_wait_for_it(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("a file where a directory should be")
    ledger = SqliteLedger(tmp_path / "data")
    till = Till(ledger)
    with pytest.raises(LedgerAway, match=r"file fails: .*data: .*; name another directory"):
        await till.reserve(claim(1))
    assert ledger.trouble is not None
    for _ in range(3):
        grant = ledger.unheld([claim(1)], now_ns=till.now)
        assert (await till.settle(grant, {"steps": 2})).queued
    (tmp_path / "data").unlink()

    async def landed() -> bool:
        try:
            return (await till.balance()).used == 6
        except LedgerAway:
            return False

    await wait_for(landed, "the settlements land")
    assert ledger.trouble is None
    await ledger.close()


async def test_a_file_locked_by_another_process_delays_and_loses_nothing(tmp_path: Path) -> None:
    till = Till(SqliteLedger(tmp_path))
    grant = await till.reserve(claim(4))
    other = sqlite3.connect(tmp_path / "ledger.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    settling = asyncio.ensure_future(till.settle(grant, {"steps": 3}))
    await asyncio.sleep(0.05)
    assert not settling.done()
    other.execute("ROLLBACK")
    other.close()
    assert (await settling).applied
    assert (await till.balance()).used == 3
    await till.ledger.close()


async def test_a_newer_file_is_left_alone(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "ledger.db") as newer:
        newer.execute("PRAGMA user_version = 99")
    newer.close()
    till = Till(SqliteLedger(tmp_path))
    with pytest.raises(LedgerAway, match="newer Looptap"):
        await till.reserve(claim(1))
    await till.ledger.close()


async def test_a_claim_that_makes_no_sense_is_its_callers_error_alone(tmp_path: Path) -> None:
    till = Till(SqliteLedger(tmp_path))
    wrong = claim(1, window="fortnight")
    asked = [till.reserve(wrong if number == 5 else claim(1)) for number in range(10)]
    answers = await asyncio.gather(*asked, return_exceptions=True)
    assert [isinstance(answer, ValueError) for answer in answers] == [number == 5 for number in range(10)]
    assert (await till.balance()).reserved == 9
    await till.ledger.close()


async def test_a_closed_ledger_says_so(tmp_path: Path) -> None:
    till = Till(SqliteLedger(tmp_path))
    await till.reserve(claim(1))
    await till.ledger.close()
    with pytest.raises(LedgerAway, match="closed"):
        await till.reserve(claim(1))


async def test_a_setting_names_a_ledger(tmp_path: Path) -> None:
    opened = [open_ledger(url, tmp_path) for url in (None, "memory:", "redis://127.0.0.1:1")]
    assert [type(one) for one in opened] == [SqliteLedger, MemoryLedger, RedisLedger]
    with pytest.raises(LedgerAway, match=r"127\.0\.0\.1:1"):
        await Till(opened[2]).reserve(claim(1))
    for one in opened:
        await one.close()
