"""What a crash, a full disk, a place without rights and a broken file may cost: observations, no more."""

import contextlib
import os
import random
import resource
import signal
import sqlite3
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from proxy.model import Record
from proxy.record import (
    BodyDamaged,
    NotRecorded,
    Reader,
    RecordAway,
    RecordDamaged,
    RecordMissing,
    RecordWriter,
    schema,
)
from proxy.record.schema import FILE, MIGRATIONS, open_reader, open_writer
from tests.record.kit import end, event, start, xid

ROOT = Path(__file__).parents[2]


@pytest.mark.real
def test_a_kill_at_any_moment_loses_only_what_was_not_yet_written(tmp_path: Path) -> None:
    random_ = random.Random(11)
    first = 0
    for _ in range(5):
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.record.crash_writer", str(tmp_path), str(first)],
            cwd=ROOT, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert process.stdout is not None
        last = -1
        for _ in range(random_.randrange(5, 150)):
            last = int(process.stdout.readline())
        process.send_signal(signal.SIGKILL)
        rest = process.stdout.read().split("\n")
        process.wait(10)
        last = max([last, *(int(line) for line in rest[:-1] if line)])
        process.stdout.close()
        with Reader(tmp_path) as reader:
            assert list(reader.check()) == []
            stored = list(reader.exchanges())
            assert xid(last) in {exchange.id for exchange in stored}
            for exchange in stored:
                assert reader.body(exchange.request_body) is not None
                if exchange.end is not None:
                    assert reader.body(exchange.response_body) == b"answer %d" % exchange.number
            seqs = [seq for seq, _ in reader.events()]
            assert seqs == sorted(set(seqs))
        with sqlite3.connect(tmp_path / FILE) as connection:
            dangling = "SELECT count(*) FROM bodies WHERE base NOT IN (SELECT no FROM bodies)"
            orphans = (
                "SELECT count(*) FROM bodies WHERE no NOT IN (SELECT request_body FROM exchanges WHERE "
                "request_body NOTNULL UNION SELECT response_body FROM exchanges WHERE response_body NOTNULL)"
            )
            assert connection.execute(dangling).fetchone() == (0,)
            assert connection.execute(orphans).fetchone() == (0,)
        connection.close()
        first = last + 1_000


def test_files_are_the_owners_alone_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        place = tmp_path / "deep" / "er"
        writer = RecordWriter(place)
        writer.write([event("turn/start")])
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in place.iterdir()}
    finally:
        os.umask(before)
    assert stat.S_IMODE(place.stat().st_mode) == 0o700
    assert modes == {FILE: 0o600, FILE + "-wal": 0o600, FILE + "-shm": 0o600}
    writer.close()
    (place / FILE).chmod(0o644)
    open_writer(place, print).close()
    assert stat.S_IMODE((place / FILE).stat().st_mode) == 0o600


def test_a_full_disk_refuses_the_batch_whole_and_the_next_try_writes_it(tmp_path: Path) -> None:
    writer = RecordWriter(tmp_path)
    writer.write([start(0, b"first" * 100), end(0)])
    size = (tmp_path / (FILE + "-wal")).stat().st_size
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    batch = [start(1, os.urandom(300_000)), end(1), event("turn/end", 1, cause="completed")]
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 20_000, before[1]))
    try:
        for _ in range(3):
            with pytest.raises(RecordAway) as caught:
                writer.write(batch)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert caught.value.kind in ("full", "io")
    with Reader(tmp_path) as reader:
        assert [e.id for e in reader.exchanges()] == [xid(0)]
    writer.write(batch)
    writer.close()
    with Reader(tmp_path) as reader:
        assert [e.id for e in reader.exchanges()] == [xid(0), xid(1)]
        assert list(reader.check()) == []


def test_an_answer_whose_request_is_on_disk_survives_a_failed_batch(tmp_path: Path) -> None:
    writer = RecordWriter(tmp_path)
    writer.write([start(0, b"first" * 100)])
    blocker = sqlite3.connect(tmp_path / FILE, isolation_level=None)
    blocker.execute("BEGIN IMMEDIATE")
    assert writer._connection is not None
    writer._connection.execute("PRAGMA busy_timeout=1")
    with pytest.raises(RecordAway) as caught:
        writer.write([end(0)])
    assert caught.value.kind == "busy"
    blocker.execute("ROLLBACK")
    blocker.close()
    writer.write([end(0)])
    writer.close()
    with Reader(tmp_path) as reader:
        assert reader.response_body(xid(0)) == b"ok"


def test_PERF_08_a_place_that_cannot_be_made_is_away_and_heals(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_bytes(b"not a directory")
    writer = RecordWriter(blocked / "data")
    for _ in range(2):
        with pytest.raises(RecordAway, match=r"cannot be opened \(.*data: Not a .*; name another directory"):
            writer.write([event("turn/start")])
    assert writer.tidy() is False
    blocked.unlink()
    writer.write([event("turn/start")])
    writer.close()
    with Reader(blocked / "data") as reader:
        assert [record.type for _, record in reader.events()] == ["turn/start"]


@pytest.mark.parametrize(
    "content", [b"this is no database at all" * 400, b"SQLite format 3\x00" + b"\x55" * 8_000]
)
def test_a_file_that_is_no_database_is_moved_aside_not_deleted(tmp_path: Path, content: bytes) -> None:
    (tmp_path / FILE).write_bytes(content)
    said: list[str] = []
    writer = RecordWriter(tmp_path, warn=said.append)
    writer.write([start(0, b"body")])
    writer.close()
    assert (tmp_path / (FILE + ".damaged-1")).read_bytes() == content
    assert len(said) == 1
    assert "damaged" in said[0]
    with Reader(tmp_path) as reader:
        assert reader.request_body(xid(0)) == b"body"


def test_a_file_that_breaks_while_it_is_written_is_replaced(tmp_path: Path) -> None:
    said: list[str] = []
    writer = RecordWriter(tmp_path, warn=said.append)
    for n in range(200):
        writer.write([start(n, os.urandom(3_000), thread=f"thr_{n}")])
    assert writer._connection is not None
    writer._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    writer._connection.execute("PRAGMA shrink_memory")
    path = tmp_path / FILE
    with path.open("r+b") as file:
        for page in range(2, path.stat().st_size // 4_096):
            file.seek(page * 4_096)
            file.write(b"\xff" * 4_096)
    kinds = []
    for n in range(300, 310):
        try:
            writer.write([start(n, b"body"), end(n)])
        except RecordAway as error:
            kinds.append(error.kind)
    writer.close()
    assert kinds in (["damaged"], ["damaged", "damaged"])
    assert (tmp_path / (FILE + ".damaged-1")).exists()
    assert len(said) == 1
    with Reader(tmp_path) as reader:
        assert list(reader.check()) == []
        assert reader.request_body(xid(309)) == b"body"


def test_a_file_taken_away_is_begun_anew(tmp_path: Path) -> None:
    writer = RecordWriter(tmp_path)
    writer.write([start(0, b"body" * 1_000)])
    for path in list(tmp_path.iterdir()):
        path.unlink()
    writer.write([start(1, b"body" * 1_001), end(1)])
    writer.close()
    with Reader(tmp_path) as reader:
        assert [e.id for e in reader.exchanges()] == [xid(1)]
        assert reader.request_body(xid(1)) == b"body" * 1_001
        assert list(reader.check()) == []


def test_a_newer_file_is_left_alone(tmp_path: Path) -> None:
    open_writer(tmp_path, print).close()
    with sqlite3.connect(tmp_path / FILE) as connection:
        connection.execute(f"PRAGMA user_version={len(MIGRATIONS) + 1}")
    connection.close()
    with pytest.raises(RecordAway, match="newer") as caught:
        RecordWriter(tmp_path).write([event("turn/start")])
    assert caught.value.kind == "newer"
    with pytest.raises(RecordMissing, match="newer"):
        Reader(tmp_path)


def test_migrations_are_named_and_applied_once(tmp_path: Path) -> None:
    open_writer(tmp_path, print).close()
    connection = open_writer(tmp_path, print)
    assert connection.execute("SELECT name FROM migrations").fetchall() == [(name,) for name, _ in MIGRATIONS]
    assert [name for name, _ in MIGRATIONS] == sorted(name for name, _ in MIGRATIONS)
    assert connection.execute("PRAGMA auto_vacuum").fetchone() == (2,)
    assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    connection.close()


def test_a_reader_makes_nothing_and_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(RecordMissing, match="looptap serve"):
        Reader(tmp_path / "nowhere")
    assert not (tmp_path / "nowhere").exists()
    (tmp_path / FILE).touch()
    with pytest.raises(RecordMissing, match="begun"):
        Reader(tmp_path)


@pytest.mark.parametrize("begins_well", [False, True])
def test_a_reader_of_a_damaged_file_is_told_so_in_words(tmp_path: Path, *, begins_well: bool) -> None:
    writer = RecordWriter(tmp_path, warn=print)
    writer.write([Record(n, "session/start", "ses_" + f"{n:020}") for n in range(1, 200)])
    writer.close()
    path = tmp_path / FILE
    kept = path.read_bytes()[: 4_096 * begins_well]
    path.write_bytes(kept + b"no page of a database at all " * 5_000)
    with (
        pytest.raises(RecordDamaged, match=r"is damaged \(.*\); `looptap serve`"),
        Reader(tmp_path) as reader,
    ):
        reader.sessions(10)


def test_a_reader_cannot_write(tmp_path: Path) -> None:
    writer = RecordWriter(tmp_path)
    writer.write([event("turn/start")])
    connection = open_reader(tmp_path)
    with pytest.raises(sqlite3.OperationalError, match="readonly"):
        connection.execute("DELETE FROM events")
    connection.close()
    writer.close()


def test_two_processes_may_write_one_record(tmp_path: Path) -> None:
    one, other = RecordWriter(tmp_path), RecordWriter(tmp_path)
    body = b"shared history " * 300
    for n in range(0, 40, 2):
        ids = {"thread": "thr_shared", "turn": "trn_shared", "session": "ses_shared"}
        body += b"more " * 20
        one.write([event("step/start", n, step=f"stp_{n}", **ids), start(n, body, **ids), end(n)])
        other.write(
            [event("step/start", n, step=f"stp_{n + 1}", **ids), start(n + 1, body, **ids), end(n + 1)]
        )
    one.close()
    other.close()
    with Reader(tmp_path) as reader:
        assert list(reader.check()) == []
        assert [seq for seq, _ in reader.events()] == list(range(1, 41))
        assert len(list(reader.exchanges(session="ses_shared"))) == 40
        assert [turn["steps"] for turn in reader.turns()] == [40]
        assert reader.request_body(xid(39)) == body


def test_a_base_that_another_process_evicted_is_not_built_upon(tmp_path: Path) -> None:
    one, other = RecordWriter(tmp_path), RecordWriter(tmp_path)
    body = b"history " * 500
    one.write([start(0, body)])
    other.write([event("turn/start")])
    assert other._connection is not None
    other._connection.execute("DELETE FROM bodies")
    one.write([start(1, body + b"more")])
    one.close()
    other.close()
    with Reader(tmp_path) as reader:
        assert reader.request_body(xid(1)) == body + b"more"
        with pytest.raises(BodyDamaged):
            reader.request_body(xid(0))
        with pytest.raises(NotRecorded):
            reader.request_body(xid(7))


def test_who_makes_the_file_beside_another_waits_for_it(tmp_path: Path) -> None:
    path = tmp_path / "new.db"
    with (
        contextlib.closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False)) as one,
        contextlib.closing(sqlite3.connect(path, isolation_level=None, timeout=0)) as other,
    ):
        one.execute("BEGIN EXCLUSIVE")
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            schema.write_ahead(other, 0)
        ending = threading.Timer(0.05, one.execute, ["COMMIT"])
        ending.start()
        schema.write_ahead(other, 30)
        ending.join()
        assert other.execute("PRAGMA journal_mode").fetchone() == ("wal",)
