"""The queue between traffic and memory: nearly free, bounded, honest about what it lost."""

import asyncio
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from proxy.model import CaptureEnd, CaptureStart, Record
from proxy.outbox import Limits, Outbox
from proxy.record import Entry, HeadsPut, Reader, RecordAway, RecordWriter
from tests.record.kit import end, event, start, xid


class Writer:
    """A writer that keeps what it gets, and can be told to be away, slow or broken."""

    def __init__(self) -> None:
        self.batches: list[list[Entry]] = []
        self.away: RecordAway | None = None
        self.broken: Exception | None = None
        self.gate = threading.Event()
        self.gate.set()
        self.offers = 0
        self.offered = threading.Event()
        self.tidied = threading.Event()
        self.closed = False

    def write(self, batch: Sequence[Entry]) -> None:
        if not batch and self.away is None:
            return  # it is only asked whether it could
        self.offers += 1
        self.offered.set()
        assert self.gate.wait(30)
        if self.away is not None:
            raise self.away
        if self.broken is not None:
            error, self.broken = self.broken, None
            raise error
        self.batches.append(list(batch))

    def tidy(self) -> bool:
        self.tidied.set()
        return False

    def close(self) -> None:
        self.closed = True

    @property
    def entries(self) -> list[Entry]:
        """Everything written."""
        return [entry for batch in self.batches for entry in batch]


def written(outbox: Outbox) -> None:
    """Wait until all that was taken is written."""
    outbox.barrier().result(20)


def test_what_is_put_is_written_in_order_by_another_thread() -> None:
    writer = Writer()
    outbox = Outbox(writer)
    outbox.start()
    sent: list[Entry] = []
    for n in range(100):
        sent += [event("item", n), start(n, b"body"), end(n)]
        outbox.put(event("item", n))
        outbox.capture(start(n, b"body"))
        outbox.capture(end(n))
    outbox.heads([{"id": "thr_a", "keys": []}])
    written(outbox)
    assert writer.entries == [*sent, HeadsPut([{"id": "thr_a", "keys": []}])]
    assert outbox.close()
    assert writer.closed
    readings = outbox.readings()
    assert (readings.queued, readings.queued_bytes, readings.written, readings.lag_s) == (0, 0, 301, 0.0)


def test_putting_is_nearly_free() -> None:
    outbox = Outbox(Writer())
    record, capture = event("item"), start(1, b"body")
    best = float("inf")
    for _ in range(5):
        began = time.thread_time()
        for _ in range(2_000):
            outbox.put(record)
            outbox.capture(capture)
        best = min(best, (time.thread_time() - began) / 4_000)
    assert best < 3e-6


def test_PERF_05_a_slow_record_keeps_the_queue_bounded_bodies_go_first() -> None:
    writer = Writer()
    writer.gate.clear()
    outbox = Outbox(writer, limits=Limits(body_bytes=10_000), clock=lambda: 77)
    outbox.start()
    outbox.put(event("turn/start"))
    outbox.barrier()
    assert writer.offered.wait(20)
    for n in range(50):
        outbox.put(event("item", n))
        outbox.capture(start(n, b"x" * 1_000))
        outbox.capture(end(n, b"y" * 1_000))
    readings = outbox.readings()
    assert readings.queued_bytes == 10_000
    assert (readings.dropped_bodies, readings.dropped_events) == (90, 0)
    assert readings.queued == 151
    assert readings.lag_s > 0
    writer.gate.set()
    written(outbox)
    kept = [e for e in writer.entries if isinstance(e, CaptureStart | CaptureEnd)]
    assert len(kept) == 100
    assert sum(e.body is not None for e in kept) == 10
    gaps = [e for e in writer.entries if isinstance(e, Record) and e.type == "gap"]
    assert [(gap.time_ns, gap.data) for gap in gaps] == [
        (77, {"lost_bodies": 90, "lost_events": 0, "why": "queue full"})
    ]
    outbox.capture(start(99, b"room again"))
    written(outbox)
    assert writer.entries[-1] == start(99, b"room again")
    assert outbox.close()


def test_events_are_dropped_last_counted_and_told() -> None:
    writer = Writer()
    writer.gate.clear()
    outbox = Outbox(writer, limits=Limits(entries=20))
    outbox.start()
    outbox.put(event("turn/start"))
    outbox.barrier()
    assert writer.offered.wait(20)
    for n in range(30):
        outbox.put(event("item", n))
    outbox.capture(start(1, b"no room for this"))
    assert outbox.readings().queued == 20
    assert outbox.readings().queued_bytes == 0
    assert outbox.readings().dropped_events == 12
    writer.gate.set()
    written(outbox)
    (gap,) = [e for e in writer.entries if isinstance(e, Record) and e.type == "gap"]
    assert gap.data["lost_events"] == 12
    assert outbox.close()


def test_PERF_08_a_record_that_is_away_warns_once_tries_again_and_loses_nothing_that_fits() -> None:
    writer, said = Writer(), []
    writer.away = RecordAway("full", "the disk is full")
    outbox = Outbox(writer, warn=said.append, batch_s=0.001)
    outbox.start()
    outbox.put(event("turn/start"))
    for _ in range(2):
        writer.offered.clear()
        assert writer.offered.wait(20)
    outbox.put(event("turn/end"))
    waiting = outbox.barrier()
    assert outbox.readings().away == "the disk is full"
    assert outbox.readings().write_errors["full"] >= 1
    assert not waiting.done()
    writer.away = None
    waiting.result(20)
    assert [e.type for e in writer.entries if isinstance(e, Record)] == ["turn/start", "turn/end"]
    assert outbox.readings().away is None
    assert outbox.close()
    assert len(said) == 2
    assert "disk is full" in said[0]
    assert "again" in said[1]


def test_PERF_08_whether_it_can_be_written_is_known_from_the_start_and_without_traffic() -> None:
    writer, said = Writer(), []
    writer.away = RecordAway("readonly", "it may not be written")
    outbox = Outbox(writer, warn=said.append, batch_s=0.001)
    outbox.start().result(20)
    assert outbox.readings().away == "it may not be written"
    writer.away = None
    for _ in range(4_000):
        if outbox.readings().away is None:
            break
        threading.Event().wait(0.005)
    assert [line.partition(":")[0] for line in said] == [
        "the record cannot be written", "the record can be written again",
    ]  # fmt: skip
    assert outbox.close()
    assert Outbox(None).start().done()


def test_a_batch_that_cannot_be_encoded_is_dropped_and_the_rest_goes_on() -> None:
    writer, said = Writer(), []
    writer.broken = ValueError("secret content")
    outbox = Outbox(writer, warn=said.append)
    outbox.start()
    outbox.put(event("item", 1))
    written(outbox)
    outbox.put(event("item", 2))
    written(outbox)
    assert outbox.readings().write_errors == {"ValueError": 1}
    assert outbox.readings().dropped_events == 1
    (gap,) = [e for e in writer.entries if isinstance(e, Record) and e.type == "gap"]
    assert gap.data["lost_events"] == 1
    assert event("item", 2) in writer.entries
    assert len(said) == 1
    assert "secret" not in said[0]
    assert outbox.close()


def test_upkeep_runs_between_batches() -> None:
    writer = Writer()
    outbox = Outbox(writer, batch_s=0.001)
    outbox.start()
    outbox.put(event("item"))
    assert writer.tidied.wait(20)
    assert outbox.close()


def test_closing_flushes_or_says_that_it_could_not(tmp_path: Path) -> None:
    outbox = Outbox(RecordWriter(tmp_path))
    outbox.start()
    for n in range(3_000):
        outbox.capture(start(n, b"%d" % n))
        outbox.capture(end(n))
    assert outbox.close(30)
    with Reader(tmp_path) as reader:
        assert len(list(reader.exchanges())) == 3_000
        assert reader.request_body(xid(2_999)) == b"2999"

    writer = Writer()
    writer.away = RecordAway("full", "the disk is full")
    outbox = Outbox(writer)
    outbox.start()
    outbox.put(event("item"))
    waiting = outbox.barrier()
    assert not outbox.close(0.05)
    assert writer.closed
    with pytest.raises(RecordAway):
        waiting.result(5)


def test_without_a_record_nothing_piles_up() -> None:
    outbox = Outbox(None)
    outbox.start()
    outbox.put(event("item"))
    outbox.capture(start(1, b"body"))
    outbox.heads([{"id": "thr_a"}])
    outbox.barrier().result(1)
    assert outbox.readings().queued == 0
    assert outbox.close()


class Sender:
    """An exporter that keeps what it gets, or fails, or hangs."""

    name = "sender"

    def __init__(self, fails: int = 0) -> None:
        self.fails = fails
        self.got: list[Record] = []
        self.closed = False
        self.enough = asyncio.Event()
        self.gate: asyncio.Event | None = None

    async def export(self, records: Sequence[Record]) -> None:
        if self.gate is not None:
            await self.gate.wait()
        if self.fails:
            self.fails -= 1
            raise ConnectionError("collector is down: token=abc")
        self.got += records
        self.enough.set()

    async def close(self) -> None:
        self.closed = True


async def test_exporters_get_every_record_and_are_closed() -> None:
    one, other = Sender(), Sender()
    outbox = Outbox(None, [one, other])
    async with asyncio.TaskGroup() as group:
        group.create_task(outbox.export())
        await asyncio.sleep(0)
        for n in range(1_200):
            outbox.put(event("item", n))
        outbox.stop_exporting()
    assert one.got == other.got == [event("item", n) for n in range(1_200)]
    assert one.closed
    assert [lane.exported for lane in outbox.readings().exporters] == [1_200, 1_200]


async def test_a_failing_exporter_is_counted_told_once_and_hurts_nobody_else() -> None:
    bad, good, said = Sender(fails=2), Sender(), []
    outbox = Outbox(None, [bad, good], warn=said.append)
    async with asyncio.TaskGroup() as group:
        group.create_task(outbox.export())
        await asyncio.sleep(0)
        for n in range(1_536):
            outbox.put(event("item", n))
        outbox.stop_exporting()
    lane = outbox.readings().exporters[0]
    assert (lane.failures, lane.dropped, lane.exported) == (2, 1_024, 512)
    assert len(good.got) == 1_536
    assert len(said) == 1
    assert "token" not in said[0]


async def test_PERF_08_a_collector_that_hangs_fills_its_own_queue_only() -> None:
    stuck, good = Sender(), Sender()
    stuck.gate = asyncio.Event()
    outbox = Outbox(None, [stuck, good], limits=Limits(export_records=600))
    async with asyncio.TaskGroup() as group:
        group.create_task(outbox.export())
        await asyncio.sleep(0)
        for round_ in range(4):
            for n in range(550):
                outbox.put(event("item", round_ * 550 + n))
            good.enough.clear()
            async with asyncio.timeout(20):
                while len(good.got) < (round_ + 1) * 550:
                    good.enough.clear()
                    await good.enough.wait()
        lane = outbox.readings().exporters[0]
        assert lane.queued <= 600
        assert lane.dropped == 4 * 550 - 512 - 600
        assert len(good.got) == 2_200
        stuck.gate.set()
        outbox.stop_exporting()
    assert stuck.got[:512] == [event("item", n) for n in range(512)]


async def test_exporters_see_records_soon_without_a_stop() -> None:
    sender = Sender()
    outbox = Outbox(None, [sender])
    async with asyncio.TaskGroup() as group:
        group.create_task(outbox.export())
        for n in range(3):
            sender.enough.clear()
            outbox.put(event("item", n))
            async with asyncio.timeout(20):
                await sender.enough.wait()
        outbox.stop_exporting()
    assert sender.got == [event("item", n) for n in range(3)]


def test_the_writing_thread_rests_unless_much_is_queued_or_somebody_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = iter(range(1, 100))
    monkeypatch.setattr(
        "proxy.outbox.drain.time.thread_time", lambda: next(now)
    )  # a second of work at each look
    writer = Writer()
    outbox = Outbox(writer)
    drain = outbox._drain
    assert drain is not None
    rests: list[bool] = []
    monkeypatch.setattr(drain.hurry, "wait", lambda seconds: rests.append(not drain.hurry.is_set()))
    outbox.rest()
    assert rests == [True]
    for n in range(4_000):
        outbox.put(event("item", n))
    outbox.rest()
    assert rests == [True]
    outbox.start()
    written(outbox)
    outbox.rest()
    assert rests == [True, True]
    writer.gate.clear()
    outbox.barrier()
    outbox.rest()
    assert rests == [True, True, False]
    writer.gate.set()
    assert outbox.close()
