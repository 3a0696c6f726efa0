"""A process that holds budget, for the tests that need several (or kill one).

    python -m tests.stores.ledger.holder STORE COUNT AMOUNT LIMIT TTL_S

STORE is a path (SQLite) or a redis URL. Reserves COUNT times at once, prints how many were admitted,
and waits to be ended or told to settle (a line on its standard input).
"""

import asyncio
import sys
import time
from pathlib import Path

from proxy.ports import Ledger
from proxy.stores.ledger_redis import RedisLedger
from proxy.stores.ledger_sqlite import SqliteLedger
from tests.stores.ledger.kit import money, usd


async def main(store: str, count: int, amount: str, limit: str, ttl_s: int) -> None:
    ledger: Ledger
    if "://" in store:
        ledger = RedisLedger(store, patience_s=0)
        assert await ledger.ready()
    else:
        ledger = SqliteLedger(Path(store))
    claim = money(amount, limit, window="total")
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    grants = await asyncio.gather(
        *(ledger.reserve([claim], ttl_s=ttl_s, now_ns=time.time_ns()) for _ in range(count))
    )
    admitted = [grant for grant in grants if grant.refusal is None]
    print(len(admitted), flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    for grant in admitted:
        await ledger.settle(grant, {"spend_usd": usd(amount)}, now_ns=time.time_ns())
    await ledger.close()


if __name__ == "__main__":
    _, store, count, amount, limit, ttl = sys.argv
    asyncio.run(main(store, int(count), amount, limit, int(ttl)))
