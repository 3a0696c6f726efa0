"""What leaves the record, in what order and slices, and what it must not break."""

import os
import sqlite3
import time
from pathlib import Path

import pytest

from proxy.record import HeadsPut, Keep, Reader, RecordWriter
from proxy.record.retention import evict
from proxy.record.schema import FILE, open_writer
from tests.record.kit import DAY, SECOND, Growth, T, disk_bytes, end, event, start, whole_turn, xid


class Clock:
    """A clock that stands where it is put."""

    def __init__(self, now_ns: int) -> None:
        self.now_ns = now_ns

    def __call__(self) -> int:
        return self.now_ns


def tidy_all(writer: RecordWriter, most: int = 2_000) -> int:
    """Slices until nothing is left to do."""
    for slices in range(most):
        if not writer.tidy():
            return slices
    raise AssertionError("retention never ends")


def test_turns_older_than_keep_leave_with_everything_of_theirs(tmp_path: Path) -> None:
    clock = Clock(T + 40 * DAY)
    writer = RecordWriter(tmp_path, keep=Keep(age_ns=30 * DAY), clock=clock)
    writer.write(whole_turn(1, at=T))
    writer.write(whole_turn(2, at=T + 20 * DAY))
    writer.write(
        [event("gap", session=None, thread=None, turn=None), HeadsPut([{"id": "thr_old", "last_ns": T}])]
    )
    writer.write([start(7, b"loose", session=None, thread=None, turn=None, step=None), end(7)])
    tidy_all(writer)
    writer.close()
    with Reader(tmp_path) as reader:
        assert [turn["id"] for turn in reader.turns()] == ["trn_2"]
        assert [session["id"] for session in reader.sessions()] == ["ses_2"]
        assert {record.session for _, record in reader.events()} == {"ses_2"}
        assert [e.number for e in reader.exchanges()] == [2_000, 2_001]
        assert reader.heads() == []
        assert list(reader.check()) == []
    with sqlite3.connect(tmp_path / FILE) as connection:
        assert connection.execute("SELECT count(*) FROM bodies").fetchone() == (4,)
        names = {name for (name,) in connection.execute("SELECT id FROM names")}
    connection.close()
    assert names == {"ses_2", "thr_ses_2", "trn_2", "stp_2000", "stp_2001"}


def test_open_turns_stay_unless_silent_for_a_day(tmp_path: Path) -> None:
    clock = Clock(T + 2 * 3_600 * SECOND)
    writer = RecordWriter(tmp_path, keep=Keep(age_ns=3_600 * SECOND, max_bytes=1), clock=clock)
    writer.write(whole_turn(1, at=T, cause=None))
    tidy_all(writer)
    with Reader(tmp_path) as reader:
        assert [turn["id"] for turn in reader.turns()] == ["trn_1"]
        clock.now_ns = T + 2 * DAY
        tidy_all(writer)
        assert reader.turns() == []
    writer.close()


def test_size_takes_the_oldest_turns_first_and_gives_the_space_back(tmp_path: Path) -> None:
    clock = Clock(T + DAY)
    limit = 2 << 20
    writer = RecordWriter(tmp_path, keep=Keep(max_bytes=limit), clock=clock)
    for n in range(1, 81):
        writer.write(whole_turn(n, body=os.urandom(30_000)))
        if n % 20 == 0:
            clock.now_ns += 3_600 * SECOND
            tidy_all(writer)
    writer.close()
    assert disk_bytes(tmp_path) < limit + (3 << 20)
    with Reader(tmp_path) as reader:
        kept = [int(turn["id"].removeprefix("trn_")) for turn in reader.turns(100)]
        assert kept == list(range(80, 80 - len(kept), -1))
        assert 50 <= len(kept) <= 65
        assert list(reader.check()) == []


def test_newer_turns_of_a_thread_survive_the_older_ones_they_build_on(tmp_path: Path) -> None:
    clock = Clock(T + 40 * DAY)
    writer = RecordWriter(tmp_path, keep=Keep(age_ns=30 * DAY), clock=clock)
    growth = Growth(seed=1, block=2_000, alphabet=b"0123456789abcdef")
    sent = [growth.step() for _ in range(30)]
    for turn in range(3):
        ids = {"turn": f"trn_{turn}"}
        at = (0, 5, 20)[turn] * DAY
        writer.write([
            event("turn/start", at, **ids),
            *(entry for n in range(turn * 10, turn * 10 + 10)
              for entry in (start(n, sent[n], time_ns=T + at + n, **ids), end(n))),
            event("turn/end", at + 100, cause="completed", **ids),
        ])  # fmt: skip
    tidy_all(writer)
    next_body = growth.step()
    writer.write([start(50, next_body, turn="trn_2", time_ns=T + 30 * DAY)])
    writer.close()
    with Reader(tmp_path) as reader:
        assert [e.number for e in reader.exchanges(thread="thr_a")] == [*range(20, 30), 50]
        for n in range(20, 30):
            assert reader.request_body(xid(n)) == sent[n]
        assert reader.request_body(xid(50)) == next_body
        assert list(reader.check()) == []


def test_a_slice_is_short_however_much_there_is_to_do(tmp_path: Path) -> None:
    writer = RecordWriter(tmp_path)
    for n in range(1, 200):
        writer.write(whole_turn(n, steps=20, body=os.urandom(5_000)))
    writer.close()
    connection = open_writer(tmp_path, print)
    took = []
    for _ in range(2_000):
        began = time.thread_time()
        done = evict(connection, Keep(age_ns=1), T + 40 * DAY, budget_s=0.01)
        took.append(time.thread_time() - began)
        if not done.more:
            break
    assert not done.more
    assert len(took) > 3
    assert sorted(took)[len(took) // 2] < 0.05
    assert connection.execute("SELECT count(*) FROM exchanges").fetchone() == (0,)
    connection.close()


def test_retention_rests_when_there_is_nothing_to_do(tmp_path: Path) -> None:
    clock = Clock(T)
    writer = RecordWriter(tmp_path, keep=Keep(age_ns=DAY), clock=clock)
    writer.write(whole_turn(1, at=T))
    assert tidy_all(writer) == 0
    clock.now_ns = T + 40 * SECOND
    writer._keep = Keep(age_ns=1)
    clock.now_ns = T + 10 * SECOND
    assert writer.tidy() is False
    with Reader(tmp_path) as reader:
        assert len(reader.turns()) == 1
        clock.now_ns = T + 60 * SECOND
        tidy_all(writer)
        assert reader.turns() == []
    writer.close()


@pytest.mark.parametrize("late", ["answer", "event"])
def test_what_comes_after_its_turn_has_left_does_no_harm(tmp_path: Path, late: str) -> None:
    clock = Clock(T + 2 * DAY)
    writer = RecordWriter(tmp_path, keep=Keep(age_ns=DAY), clock=clock)
    writer.write([event("turn/start"), start(1, b"body"), event("turn/end", cause="completed")])
    tidy_all(writer)
    if late == "answer":
        writer.write([end(1)])
        assert writer.lost_answers == 1
    else:
        writer.write([event("turn/resume"), start(2, b"again"), end(2)])
    writer.close()
    with Reader(tmp_path) as reader:
        assert list(reader.check()) == []
        assert len(reader.turns()) == (late == "event")
