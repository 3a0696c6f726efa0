"""One suite for every thread store: heads by key, newest first, each thread once."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from proxy.outbox import Outbox
from proxy.ports import ThreadStore
from proxy.record import RecordWriter
from proxy.stores import StoreUnknown, open_threads
from proxy.stores.memory import MemoryThreads
from proxy.stores.sqlite import SqliteThreads


def head(n: int, *keys: bytes, **more: Any) -> dict[str, Any]:
    """A head as the tracker makes them."""
    names = sorted(key.hex() for key in keys)
    return {"version": 1, "id": f"thr_{n}", "keys": names, "last_ns": 1_000 + n, **more}


class Kit:
    """A store, and how to wait for what was pushed."""

    def __init__(self, store: ThreadStore) -> None:
        self.store = store

    async def push(self, *heads: dict[str, Any]) -> None:
        """Push and wait until a pull must see it."""
        await self.store.push(heads)
        if isinstance(self.store, SqliteThreads):
            await self.store.settled()

    async def pull(self, *keys: bytes) -> list[dict[str, Any]]:
        """Heads as plain dictionaries."""
        return [dict(found) for found in await self.store.pull(keys)]


@pytest.fixture(params=["memory:", "sqlite"])
async def kit(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Kit]:
    """Every store in turn."""
    outbox = Outbox(RecordWriter(tmp_path))
    outbox.start()
    yield Kit(open_threads(request.param if request.param == "memory:" else str(tmp_path), outbox))
    assert outbox.close()


async def test_an_empty_store_has_no_heads(kit: Kit) -> None:
    assert await kit.pull() == []
    assert await kit.pull(b"k") == []


async def test_any_key_finds_a_head(kit: Kit) -> None:
    one, two = head(1, b"a", b"b"), head(2, b"b", b"c", nested={"calls": [{"id": None, "n": 1 << 40}]})
    await kit.push(one, two)
    assert await kit.pull(b"a") == [one]
    assert await kit.pull(b"c") == [two]
    assert await kit.pull(b"b") == [two, one]
    assert await kit.pull(b"a", b"c", b"nowhere") == [two, one]
    assert await kit.pull(b"nowhere") == []


async def test_a_newer_head_replaces_the_older_with_its_keys(kit: Kit) -> None:
    await kit.push(head(1, b"old", b"both"))
    newer = head(1, b"both", b"new", steps=[1, 2])
    await kit.push(newer)
    assert await kit.pull(b"old") == []
    assert await kit.pull(b"both") == [newer]
    assert await kit.pull(b"new") == [newer]
    assert await kit.pull() == [newer]


async def test_of_several_heads_of_a_thread_in_one_push_the_last_counts(kit: Kit) -> None:
    await kit.push(head(1, b"a", say=1), head(1, b"b", say=2))
    assert await kit.pull() == [head(1, b"b", say=2)]
    assert await kit.pull(b"a") == []


async def test_a_start_gets_the_newest_heads_first(kit: Kit) -> None:
    await kit.push(*(head(n, b"%d" % n) for n in range(50)))
    assert [found["id"] for found in await kit.pull()] == [f"thr_{n}" for n in reversed(range(50))]


async def test_many_keys_and_large_heads(kit: Kit) -> None:
    large = head(7, *(b"%d" % n for n in range(40)), text="words " * 20_000)
    await kit.push(large)
    assert await kit.pull(*(b"%d" % n for n in range(1_500))) == [large]


async def test_heads_survive_the_process(tmp_path: Path) -> None:
    outbox = Outbox(RecordWriter(tmp_path))
    outbox.start()
    store = SqliteThreads(tmp_path, outbox)
    await store.push([head(1, b"a")])
    assert outbox.close()
    again = SqliteThreads(tmp_path, Outbox(None))
    assert list(await again.pull([b"a"])) == [head(1, b"a")]


async def test_a_store_that_cannot_be_read_has_no_past(tmp_path: Path) -> None:
    (tmp_path / "record.db").write_bytes(b"no database" * 1_000)
    store = SqliteThreads(tmp_path, Outbox(None))
    assert list(await store.pull([b"a"])) == []
    assert store.failures == 1


async def test_memory_is_bounded() -> None:
    store = MemoryThreads(max_heads=3)
    await store.push([head(n, b"shared", b"%d" % n) for n in range(10)])
    assert [found["id"] for found in await store.pull([])] == ["thr_9", "thr_8", "thr_7"]
    assert list(await store.pull([b"1"])) == []
    assert len(await store.pull([b"shared"])) == 3


def test_stores_are_named_by_path_or_scheme(tmp_path: Path) -> None:
    outbox = Outbox(None)
    assert isinstance(open_threads("memory:", outbox), MemoryThreads)
    for url in (str(tmp_path), f"sqlite:{tmp_path}", f"sqlite://{tmp_path}", "~/looptap", "relative"):
        assert isinstance(open_threads(url, outbox), SqliteThreads)
    with pytest.raises(StoreUnknown, match="carrier-pigeon"):
        open_threads("carrier-pigeon:coop", outbox)
