"""Several processes on one ledger, and one that dies while it holds."""

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from proxy.ports import Ledger
from proxy.stores.ledger_redis import RedisLedger
from proxy.stores.ledger_sqlite import SqliteLedger
from proxy.verdict import Balance
from tests.stores.ledger.kit import RedisServer, environment, usd, wait_for

STORES = ["sqlite", pytest.param("redis", marks=pytest.mark.real)]


class Holder:
    """A process that holds."""

    def __init__(self, store: str, count: int, amount: str, limit: str, ttl_s: int = 900) -> None:
        words = [store, str(count), amount, limit, str(ttl_s)]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.stores.ledger.holder", *words],
            cwd=Path(__file__).parents[3],
            env=environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.line() == "ready"

    def line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def go(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def end(self) -> int:
        code = self._process.wait(30)
        self.close()
        return code

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(10)
        self.close()

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait(10)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None and not pipe.closed:
                pipe.close()


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield str(tmp_path)
        return
    server: RedisServer = request.getfixturevalue("redis_server")
    server.command("FLUSHALL")
    yield server.url


def opened(store: str) -> Ledger:
    return RedisLedger(store, patience_s=0) if "://" in store else SqliteLedger(Path(store))


async def the_balance(ledger: Ledger) -> Balance:
    (balance,) = await ledger.balances(now_ns=time.time_ns())
    return balance


async def test_BUD_10_three_processes_admit_what_one_would(store: str) -> None:
    holders = [Holder(store, 20, "0.30", "3.00") for _ in range(3)]
    for holder in holders:
        holder.go()
    assert sum(int(holder.line()) for holder in holders) == 10
    ledger = opened(store)
    held = await the_balance(ledger)
    assert (held.reserved, held.used) == (usd("3.00"), 0)
    for holder in holders:
        holder.go()
    assert [holder.end() for holder in holders] == [0, 0, 0]
    settled = await the_balance(ledger)
    assert (settled.reserved, settled.used, settled.assumed) == (0, usd("3.00"), 0)
    await ledger.close()


async def test_BUD_02_what_a_killed_process_held_ends_and_is_charged_as_assumed(store: str) -> None:
    holder = Holder(store, 20, "0.10", "5.00", ttl_s=2)
    holder.go()
    assert holder.line() == "20"
    holder.kill()
    ledger = opened(store)
    assert (await the_balance(ledger)).reserved == usd("2.00")

    async def ended() -> bool:
        return (await the_balance(ledger)).reserved == 0

    await wait_for(ended, "the reservations of the dead process end")
    after = await the_balance(ledger)
    assert (after.used, after.assumed) == (usd("2.00"), usd("2.00"))
    await ledger.close()
