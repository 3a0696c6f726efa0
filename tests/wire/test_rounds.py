"""Pieces of thinking and chunks take turns, and pieces keep their order."""

import asyncio
import contextlib
import socket
import time
from collections.abc import Callable, Iterator

import pytest

from proxy.exchange import JOIN_BELOW, LiveExchange
from proxy.model import EndKind, Exchange, Head, Identity, Upstream
from proxy.wire.guard import Faults, Watch
from proxy.wire.rounds import Rounds
from proxy.wire.timing import Timings
from tests.wire.raw_upstream import (
    Proxy,
    RawUpstream,
    Recorded,
    RecordingThinker,
    eventually,
    request,
)


def rounds() -> Rounds:
    made = Rounds()
    made.loop = asyncio.get_running_loop()
    return made


def busy(seconds: float) -> None:
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        pass


class Carried:
    """Notes what becomes of its chunks, in a list that all share."""

    def __init__(self, log: list[str]) -> None:
        self.log = log

    def pass_on(self, data: bytes) -> None:
        self.log.append(f"out {data.decode()}")

    def heed(self, data: bytes) -> None:
        self.log.append(f"heed {data.decode()}")


@pytest.fixture
async def one_look(monkeypatch: pytest.MonkeyPatch) -> Rounds:
    """Rounds whose loop looks at its sockets once, and a first chunk of that look has left."""
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: 7.0)
    ours = rounds()
    ours.along(Carried([]), b"")
    return ours


async def test_a_lone_chunk_leaves_at_once() -> None:
    ours, log = rounds(), list[str]()
    ours.along(Carried(log), b"a")
    assert log == ["out a", "heed a"]


async def test_chunks_of_one_look_leave_together_and_are_thought_about_behind_that(one_look: Rounds) -> None:
    log = list[str]()
    for name in (b"a", b"b"):
        one_look.along(Carried(log), name)
    assert log == []
    await asyncio.sleep(0)
    assert log == ["out a", "out b", "heed a", "heed b"]


async def test_no_piece_is_done_while_a_chunk_waits(one_look: Rounds) -> None:
    log = list[str]()
    one_look.along(Carried(log), b"a")
    one_look.do(lambda: log.append("first"))
    one_look.along(Carried(log), b"b")
    one_look.do(lambda: log.append("second"))
    one_look.along(Carried(log), b"c")
    one_look.finish()
    assert log == ["out a", "heed a", "first", "out b", "out c", "heed b", "heed c", "second"]


async def test_a_chunk_waits_for_some_others_only(one_look: Rounds) -> None:
    log = list[str]()
    for at in range(100):
        one_look.along(Carried(log), str(at).encode())
    assert len(log) == 2 * 96
    one_look.send()
    assert [entry for entry in log if entry.startswith("out")] == [f"out {at}" for at in range(100)]


async def test_a_lone_piece_is_done_at_once_and_without_a_wait() -> None:
    ours, done = rounds(), list[int]()
    ours.do(lambda: done.append(1))
    assert done == [1]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    waited = ours.through(lambda: done.append(2))
    with pytest.raises(StopIteration):
        waited.send(None)
    assert done == [1, 2]


async def test_pieces_are_done_in_the_order_they_came() -> None:
    ours, done = rounds(), list[int]()

    async def one(number: int) -> int:
        return await ours.through(lambda: done.append(number) or number)

    tasks = []
    for number in range(0, 40, 2):
        tasks.append(asyncio.create_task(one(number)))
        await asyncio.sleep(0)
        ours.do(lambda number=number: done.append(number + 1))  # type: ignore[misc]
    assert await asyncio.gather(*tasks) == list(range(0, 40, 2))
    async with asyncio.timeout(10):
        while len(done) < 40:
            await asyncio.sleep(0)
    assert done == list(range(40))


async def test_sockets_are_looked_at_between_long_pieces() -> None:
    ours, seen = rounds(), list[str]()
    left, right = socket.socketpair()
    for end in (left, right):
        end.setblocking(False)
    loop = asyncio.get_running_loop()
    loop.add_reader(right, lambda: seen.append(f"chunk {right.recv(1)!r}"))

    def piece(number: int) -> None:
        seen.append(f"piece {number}")
        left.send(b"%d" % number)
        busy(0.01)

    with contextlib.closing(left), contextlib.closing(right):
        for number in range(4):
            ours.do(lambda number=number: piece(number))  # type: ignore[misc]
        async with asyncio.timeout(10):
            while len(seen) < 8:
                await asyncio.sleep(0.001)
        loop.remove_reader(right)
    for number in range(2, 4):  # a loop may have one piece ahead of the sockets, never two
        assert seen.index(f"chunk {b'%d' % (number - 2)!r}") < seen.index(f"piece {number}")


async def test_short_pieces_share_a_round() -> None:
    ours, at = rounds(), list[int]()
    passed = 0

    def count() -> None:
        nonlocal passed
        passed += 1
        asyncio.get_running_loop().call_soon(count)

    count()
    for _ in range(50):
        ours.do(lambda: at.append(passed))
    async with asyncio.timeout(10):
        while len(at) < 50:
            await asyncio.sleep(0)
    assert len(set(at)) < 25


async def test_catching_up_waits_for_what_waits_now_and_for_nothing_else() -> None:
    ours, done = rounds(), list[int]()
    with pytest.raises(StopIteration):
        ours.caught_up().send(None)
    for number in range(3):
        ours.do(lambda number=number: done.append(number))  # type: ignore[misc]
    caught_up = asyncio.create_task(ours.caught_up())
    await asyncio.sleep(0)
    ours.do(lambda: done.append(caught_up.done()))
    await caught_up
    assert done[:3] == [0, 1, 2]


async def test_a_turn_is_had_though_nobody_waits_and_a_fault_belongs_to_who_does() -> None:
    ours, done = rounds(), list[str]()
    gone = asyncio.create_task(ours.through(lambda: done.append("gone")))
    failing = asyncio.create_task(ours.through(lambda: 1 // 0))
    last = asyncio.create_task(ours.through(lambda: done.append("last")))
    ours.do(lambda: None)
    ours.do(lambda: gone.cancel() and None)
    with pytest.raises(ZeroDivisionError):
        await failing
    await last
    assert done == ["gone", "last"]
    assert gone.cancelled()


def test_ends_keep_their_order_and_their_times_and_a_request_its_arrival() -> None:
    class Crowded(Rounds):
        def do(self, piece: Callable[[], None]) -> None:
            self._waiting.append(piece)

    told: list[tuple[str, str, int]] = []

    class Told(Recorded):
        def close(self, end: EndKind, now_ns: int) -> None:
            told.append((self.exchange.id, end, now_ns))

    class Thinker(RecordingThinker):
        def open(self, exchange: Exchange, body: bytes, now_ns: int) -> Recorded:
            told.append((exchange.id, "placed", now_ns))
            return Told(exchange, body, self)

    crowded, faults, watches = Crowded(), Faults(lambda where, error: None), []
    upstream = Upstream("anthropic", "http://127.0.0.1:9", "anthropic")
    for number in range(2):
        watch = Watch(Thinker(), faults, Timings(), crowded)
        watch.on_cut = lambda: None
        exchange = Exchange(f"{number}", number, Head("POST", "/", ()), upstream, "/", number + 1, Identity())
        assert watch.open(exchange, b"{}") is not None
        watches.append(watch)
    watches[1].close("complete")
    watches[0].close("client_gone")
    watches[0].close("complete")
    after_ns = time.time_ns()
    assert told == [("0", "placed", 1), ("1", "placed", 2)]
    crowded.finish()
    assert [one[:2] for one in told[2:]] == [("1", "complete"), ("0", "client_gone")]
    assert 0 < told[2][2] <= told[3][2] <= after_ns


@pytest.mark.parametrize("size", [2, JOIN_BELOW])
def test_a_request_whose_client_leaves_before_its_turn_was_asked_all_the_same(
    proxy: Proxy, upstream: RawUpstream, size: int
) -> None:
    crowded = proxy.server.shell.pulse.rounds = Rounds()
    crowded.loop = proxy.loop
    crowded._running = True  # no round comes
    client = proxy.connect()
    with contextlib.closing(client.sock):
        client.send(request("/anthropic/v1/messages", b"1" * size))
        assert eventually(lambda: len(crowded._waiting) == 1)
    assert eventually(lambda: len(crowded._waiting) == 3)
    proxy.loop.call_soon_threadsafe(crowded.finish)
    assert eventually(lambda: proxy.server.counters.open_exchanges == 0)
    assert [exchange.ends for exchange in proxy.thinker.exchanges] == [["client_gone"]]
    assert (proxy.server.shell.opened, upstream.seen) == (1, [])


async def test_a_request_that_is_being_read_is_read_to_its_end_though_its_client_leaves() -> None:
    read: list[int] = []

    def slices() -> Iterator[None]:
        for number in range(4):
            read.append(number)
            yield

    reading = asyncio.create_task(LiveExchange._read_on(slices()))
    await asyncio.sleep(0)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert read == [0, 1, 2, 3]
