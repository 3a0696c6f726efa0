"""One suite for every thread store: heads by key, newest first, each thread once.

And one more for those that several instances share: compare-and-set, who is at work, what is away.
"""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from proxy.outbox import Outbox
from proxy.ports import ThreadsAway, ThreadStore
from proxy.record import RecordWriter
from proxy.stores.memory import MemoryThreads
from proxy.stores.sqlite import SqliteThreads
from proxy.stores.threads_redis import RedisThreads
from tests.stores.ledger.kit import RedisServer


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
        assert list(await self.store.push(heads)) == []
        if isinstance(self.store, SqliteThreads):
            await self.store.settled()

    async def pull(self, *keys: bytes) -> list[dict[str, Any]]:
        """Heads as they were pushed."""
        return [plain(found) for found in await self.store.pull(keys)]


def plain(found: Any) -> dict[str, Any]:
    """A head less what its store adds."""
    return {key: value for key, value in found.items() if key not in ("rev", "alive")}


REDIS = pytest.param("redis", marks=pytest.mark.real)


@pytest.fixture(params=["memory", "sqlite", REDIS])
async def kit(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Kit]:
    """Every store in turn."""
    if request.param == "redis":
        server: RedisServer = request.getfixturevalue("redis_server")
        server.command("FLUSHALL")
        shared = RedisThreads(server.url, wait_s=5)
        yield Kit(shared)
        await shared.close()
        return
    outbox = Outbox(RecordWriter(tmp_path))
    outbox.start()
    yield Kit(MemoryThreads() if request.param == "memory" else SqliteThreads(tmp_path, outbox))
    assert outbox.close()


@pytest.fixture(params=["memory", REDIS])
async def shared(request: pytest.FixtureRequest) -> AsyncIterator[ThreadStore]:
    """Every store that several instances may write to."""
    if request.param == "memory":
        yield MemoryThreads()
        return
    server: RedisServer = request.getfixturevalue("redis_server")
    server.command("FLUSHALL")
    store = RedisThreads(server.url, wait_s=5)
    yield store
    await store.close()


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
    await kit.push({**newer, "rev": 1})
    assert await kit.pull(b"old") == []
    assert await kit.pull(b"both") == [newer]
    assert await kit.pull(b"new") == [newer]
    assert await kit.pull() == [newer]


async def test_of_several_heads_of_a_thread_in_one_push_the_last_counts(kit: Kit) -> None:
    await kit.push(head(1, b"a", say=1), head(1, b"b", say=2, rev=1))
    assert await kit.pull() == [head(1, b"b", say=2)]
    assert await kit.pull(b"a") == []


async def test_a_start_gets_the_newest_heads_first(kit: Kit) -> None:
    await kit.push(*(head(n, b"%d" % n) for n in range(50)))
    assert [found["id"] for found in await kit.pull()] == [f"thr_{n}" for n in reversed(range(50))]


async def test_many_keys_and_large_heads(kit: Kit) -> None:
    large = head(7, *(b"%d" % n for n in range(40)), text="words " * 20_000)
    await kit.push(large)
    assert await kit.pull(*(b"%d" % n for n in range(1_500))) == [large]


async def test_what_the_caller_knows_is_left_out(kit: Kit) -> None:
    await kit.push(head(1, b"a"), head(2, b"a"))
    (two, one) = await kit.store.pull([b"a"])
    known = {"thr_1": int(one.get("rev", 0)), "thr_2": int(two.get("rev", 0)) - 1}
    assert [plain(found) for found in await kit.store.pull([b"a"], known)] == [head(2, b"a")]


async def test_a_head_made_from_an_older_one_is_refused_and_shown_the_newer(shared: ThreadStore) -> None:
    assert list(await shared.push([head(1, b"a", say="first")])) == []
    assert list(await shared.push([head(1, b"b", say="mine", rev=1)])) == []
    (there,) = await shared.push([head(1, b"c", say="late", rev=1)])
    assert (there["say"], there["rev"]) == ("mine", 2)
    assert [found["say"] for found in await shared.pull([b"b"])] == ["mine"]
    assert list(await shared.pull([b"c"])) == []
    assert list(await shared.push([head(1, b"c", say="again", rev=2)])) == []
    assert [(found["say"], found["rev"]) for found in await shared.pull([b"c"])] == [("again", 3)]


async def test_a_store_that_lost_its_heads_takes_those_it_is_given(shared: ThreadStore) -> None:
    assert list(await shared.push([head(1, b"a", rev=41)])) == []
    assert [found["rev"] for found in await shared.pull([b"a"], {"thr_1": 41})] == [42]


@pytest.mark.real
async def test_who_is_at_work_is_alive_until_its_connection_ends(redis_server: RedisServer) -> None:
    redis_server.command("FLUSHALL")
    one, two = RedisThreads(redis_server.url, wait_s=5), RedisThreads(redis_server.url, wait_s=5)
    await one.push([head(1, b"a", under_way=True), head(2, b"a")])
    assert [found["alive"] for found in await two.pull([b"a"])] == [False, True]
    known = {"thr_1": 1, "thr_2": 1}
    assert list(await two.pull([b"a"], known)) == []
    await one.close()
    assert [(found["id"], found["alive"]) for found in await two.pull([b"a"], known)] == [("thr_1", False)]
    await two.close()


@pytest.mark.real
async def test_the_index_is_bounded_by_number(redis_server: RedisServer) -> None:
    redis_server.command("FLUSHALL")
    store = RedisThreads(redis_server.url, max_heads=20, wait_s=5)
    await store.push([head(n, b"shared", b"%d" % n) for n in range(60)])
    assert len(await store.pull([])) <= 20
    assert list(await store.pull([b"1"])) == []
    assert [plain(found) for found in await store.pull([b"59"])] == [head(59, b"shared", b"59")]
    await store.close()


@pytest.mark.real
async def test_while_the_server_is_away_it_says_so_and_then_goes_on() -> None:
    server = RedisServer()
    server.start()
    store = RedisThreads(server.url, wait_s=5)
    try:
        await store.push([head(1, b"a")])
        server.kill()
        with pytest.raises(ThreadsAway, match="away"):
            await store.pull([b"a"])
        server.start()
        async with asyncio.timeout(20):
            while True:
                try:
                    await store.push([head(1, b"a", rev=1)])
                    break
                except ThreadsAway:
                    await asyncio.sleep(0.01)
        assert [found["rev"] for found in await store.pull([b"a"])] == [2]
    finally:
        await store.close()
        server.close()


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
    told: list[str] = []
    store = SqliteThreads(tmp_path, Outbox(None), told.append)
    assert [list(await store.pull([b"a"])) for _ in range(2)] == [[], []]
    assert ["record.db: it is damaged" in line for line in told] == [True]


async def test_memory_is_bounded() -> None:
    store = MemoryThreads(max_heads=3)
    await store.push([head(n, b"shared", b"%d" % n) for n in range(10)])
    assert [found["id"] for found in await store.pull([])] == ["thr_9", "thr_8", "thr_7"]
    assert list(await store.pull([b"1"])) == []
    assert len(await store.pull([b"shared"])) == 3
