"""Thread heads in a dictionary: for tests, for runs that record nothing, and as the model of the others.

Bounded; the heads that rested longest leave first.
"""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

MAX_HEADS = 20_000
NEWEST = 2_000


class MemoryThreads:
    """A thread store that dies with the process."""

    def __init__(self, max_heads: int = MAX_HEADS) -> None:
        self._max_heads = max_heads
        self._heads: OrderedDict[str, Mapping[str, Any]] = OrderedDict()
        self._index: dict[bytes, dict[str, None]] = {}

    async def pull(self, keys: Sequence[bytes]) -> Sequence[Mapping[str, Any]]:
        """Heads that any key names, newest first; the newest ones without keys."""
        if not keys:
            return list(reversed(self._heads.values()))[:NEWEST]
        wanted = {thread for key in keys for thread in self._index.get(bytes(key), ())}
        return [self._heads[thread] for thread in reversed(self._heads) if thread in wanted][:NEWEST]

    async def push(self, heads: Sequence[Mapping[str, Any]]) -> None:
        """Store heads; each replaces the older one of its thread."""
        for head in heads:
            thread = str(head["id"])
            self._drop(thread)
            self._heads[thread] = head
            for key in head.get("keys", ()):
                self._index.setdefault(_key(key), {})[thread] = None
        while len(self._heads) > self._max_heads:
            self._drop(next(iter(self._heads)))

    def _drop(self, thread: str) -> None:
        old = self._heads.pop(thread, None)
        for key in old.get("keys", ()) if old is not None else ():
            named = self._index.get(_key(key), {})
            named.pop(thread, None)
            if not named:
                self._index.pop(_key(key), None)


def _key(key: bytes | str) -> bytes:
    return bytes.fromhex(key) if isinstance(key, str) else bytes(key)
