"""Thread heads in a dictionary: the model that the other stores are held against.

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

    async def pull(
        self, keys: Sequence[bytes], known: Mapping[str, int] | None = None
    ) -> Sequence[Mapping[str, Any]]:
        """Heads that any key names, newest first; the newest ones without keys."""
        wanted = {thread for key in keys for thread in self._index.get(bytes(key), ())}
        found = [self._heads[thread] for thread in reversed(self._heads) if not keys or thread in wanted]
        had = known or {}
        return [head for head in found if head["rev"] > had.get(str(head["id"]), -1)][:NEWEST]

    async def push(self, heads: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
        """Store heads; each replaces the older one of its thread. Answers those that stand in the way."""
        newer = []
        for head in heads:
            thread, rev = str(head["id"]), int(head.get("rev", 0))
            there = self._heads.get(thread)
            if there is not None and there["rev"] > rev:
                newer.append(there)
                continue
            self._drop(thread)
            self._heads[thread] = {**head, "rev": rev + 1}
            for key in head.get("keys", ()):
                self._index.setdefault(_key(key), {})[thread] = None
        while len(self._heads) > self._max_heads:
            self._drop(next(iter(self._heads)))
        return newer

    def _drop(self, thread: str) -> None:
        old = self._heads.pop(thread, None)
        for key in old.get("keys", ()) if old is not None else ():
            named = self._index.get(_key(key), {})
            named.pop(thread, None)
            if not named:
                self._index.pop(_key(key), None)


def _key(key: bytes | str) -> bytes:
    return bytes.fromhex(key) if isinstance(key, str) else bytes(key)
