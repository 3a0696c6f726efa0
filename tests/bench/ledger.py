"""What holding a budget costs: one reserve and one settle of four claims, for each ledger.

    python -m tests.bench.ledger [--rounds 5000] [--at-once 32]

``loop`` is CPU of the event loop's thread, which relays traffic meanwhile; ``process`` is CPU of
all threads; ``wall`` is how long one caller waits when it is alone. Redis needs redis-server.
"""

import argparse
import asyncio
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import uvloop

from proxy.ports import Ledger
from proxy.stores.ledger_lease import LeasedLedger
from proxy.stores.ledger_memory import MemoryLedger
from proxy.stores.ledger_redis import RedisLedger
from proxy.stores.ledger_sqlite import SqliteLedger
from proxy.verdict import Claim
from tests.stores.ledger.kit import RedisServer, claim, money, usd

CLAIMS: list[Claim] = [
    money("0.05", "1000000", scope="turn", subject="trn_1", window="life"),
    claim(1, 10**9, scope="turn", subject="trn_1", window="life"),
    money("0.05", "1000000", budget="team", scope="team", subject="search", window="day"),
    money("0.05", "1000000", budget="org", scope="org", subject="acme", window="month"),
]
ACTUAL = {"spend_usd": usd("0.0123"), "steps": 1}


async def one(ledger: Ledger) -> None:
    now_ns = time.time_ns()
    grant = await ledger.reserve(CLAIMS, ttl_s=900, now_ns=now_ns, names=("trn_1", "thr_1", "key:k"))
    assert grant.refusal is None
    await ledger.settle(grant, ACTUAL, now_ns=now_ns)


async def many(ledger: Ledger, rounds: int) -> None:
    for _ in range(rounds):
        await one(ledger)


async def measure(open_one: Callable[[], Ledger], rounds: int, at_once: int) -> str:
    ledger = open_one()
    await many(ledger, 200)
    wall, thread = time.perf_counter(), time.thread_time()
    await many(ledger, rounds)
    alone = (time.perf_counter() - wall) / rounds * 1e6
    alone_loop = (time.thread_time() - thread) / rounds * 1e6
    total, thread, wall = time.process_time(), time.thread_time(), time.perf_counter()
    await asyncio.gather(*(many(ledger, rounds // at_once) for _ in range(at_once)))
    done = rounds // at_once * at_once
    loop = (time.thread_time() - thread) / done * 1e6
    process = (time.process_time() - total) / done * 1e6
    each = (time.perf_counter() - wall) / done
    await ledger.close()
    return (
        f"alone: loop {alone_loop:6.1f} us, wall {alone:7.1f} us   "
        f"{at_once} at once: loop {loop:6.1f} us, process {process:6.1f} us, {1 / each:7.0f}/s"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5000)
    parser.add_argument("--at-once", type=int, default=32)
    options = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="looptap-bench-"))
    ledgers: dict[str, Callable[[], Ledger]] = {
        "memory": MemoryLedger,
        "sqlite": lambda: SqliteLedger(directory),
        "lease on sqlite": lambda: LeasedLedger(SqliteLedger(directory), usd("50")),
    }
    server = RedisServer() if shutil.which("redis-server") else None
    if server is None:
        print("no redis-server here: the shared ledger is left out", file=sys.stderr)
    else:
        server.start()
        url = server.url
        ledgers["redis"] = lambda: RedisLedger(url, patience_s=0)
        ledgers["lease on redis"] = lambda: LeasedLedger(RedisLedger(url, patience_s=0), usd("50"))
    try:
        for name, open_one in ledgers.items():
            print(f"{name:16} {uvloop.run(measure(open_one, options.rounds, options.at_once))}", flush=True)
    finally:
        shutil.rmtree(directory)
        if server is not None:
            server.close()


if __name__ == "__main__":
    main()
