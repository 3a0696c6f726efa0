"""Which store a setting names: the ledger, and the thread index that instances share.

All stores of a kind pass the same conformance suite. What is where: thread heads are kept by ``memory``,
``sqlite`` (an instance's own, in its record's file) and ``threads_redis``. ``ledger`` states the rules of
every ledger, ``windows`` when its counters begin anew; ``ledger_memory``, ``ledger_sqlite`` (in
``ledger_file``) and ``ledger_redis`` keep it. The last one talks by ``ledger_link`` over ``resp``, and holds
what this instance has charged in ``ledger_totals``; ``ledger_lease`` draws ahead from it.
"""

from pathlib import Path

from proxy.ports import Ledger
from proxy.stores.ledger_lease import LeasedLedger
from proxy.stores.ledger_memory import MemoryLedger
from proxy.stores.ledger_redis import RedisLedger
from proxy.stores.ledger_sqlite import SqliteLedger
from proxy.stores.threads_redis import RedisThreads


def shared_threads(url: str | None, ttl_s: int) -> RedisThreads | None:
    """The thread index beside the ledger that instances share; None where the ledger is embedded."""
    return None if url is None or url == "memory:" else RedisThreads(url, ttl_s=max(60, ttl_s))


def open_ledger(url: str | None, data_dir: Path, zone: str = "UTC", lease: int | None = None) -> Ledger:
    """The ledger that ``ledger.url`` names: shared by ``redis://…``, else embedded in the data directory.

    ``memory:`` keeps it for this process only; ``lease``: nano-dollars to draw ahead of a shared one.
    """
    if url is None:
        return SqliteLedger(data_dir, zone)
    if url == "memory:":
        return MemoryLedger(zone)
    shared = RedisLedger(url, zone)
    return shared if lease is None else LeasedLedger(shared, lease, zone, now=shared.now)
