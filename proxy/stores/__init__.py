"""Where thread heads outlive the process: one table of URL schemes, one function that opens.

A store is named by a path or URL: ``memory:`` keeps heads for this process only, a path (or
``sqlite:PATH``) keeps them in the record's file. Every store passes the same conformance suite.
"""

from collections.abc import Callable
from pathlib import Path

from proxy.outbox import Outbox
from proxy.ports import ThreadStore
from proxy.stores.memory import MemoryThreads
from proxy.stores.sqlite import SqliteThreads


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


def _memory(rest: str, outbox: Outbox) -> ThreadStore:
    return MemoryThreads()


def _sqlite(rest: str, outbox: Outbox) -> ThreadStore:
    path = rest[2:] if rest.startswith("//") else rest
    return SqliteThreads(Path(path).expanduser(), outbox)


_OPENERS: dict[str, Callable[[str, Outbox], ThreadStore]] = {"memory": _memory, "sqlite": _sqlite}
