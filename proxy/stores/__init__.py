"""Which store a setting names: thread heads that outlive the process or are shared, and the ledger.

A thread store is named by a path or URL: ``memory:`` keeps heads for this process only, a path (or
``sqlite:PATH``) keeps them in the record's file. Every store passes the same conformance suite.
"""

from collections.abc import Callable
from pathlib import Path

from proxy.outbox import Outbox
from proxy.ports import Ledger, ThreadStore
from proxy.stores.ledger_lease import LeasedLedger
from proxy.stores.ledger_memory import MemoryLedger
from proxy.stores.ledger_redis import RedisLedger
from proxy.stores.ledger_sqlite import SqliteLedger
from proxy.stores.memory import MemoryThreads
from proxy.stores.sqlite import SqliteThreads
from proxy.stores.threads_redis import RedisThreads


class StoreUnknown(ValueError):
    """No store goes by this URL; the message names those that do."""


def open_threads(url: str, outbox: Outbox) -> ThreadStore:
    """The thread store that a URL or path names. What is written goes through the outbox."""
    scheme, colon, rest = url.partition(":")
    if not colon or "/" in scheme or len(scheme) == 1:  # a plain path, also one with a drive letter
        scheme, rest = "sqlite", url
    opener = _OPENERS.get(scheme)
    if opener is None:
        raise StoreUnknown(
            f"store {url!r}: unknown scheme {scheme!r}, use a path or one of {', '.join(_OPENERS)}"
        )
    return opener(rest, outbox)


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


def _memory(rest: str, outbox: Outbox) -> ThreadStore:
    return MemoryThreads()


def _sqlite(rest: str, outbox: Outbox) -> ThreadStore:
    path = rest[2:] if rest.startswith("//") else rest
    return SqliteThreads(Path(path).expanduser(), outbox)


_OPENERS: dict[str, Callable[[str, Outbox], ThreadStore]] = {"memory": _memory, "sqlite": _sqlite}
