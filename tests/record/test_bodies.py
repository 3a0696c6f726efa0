"""Bodies: byte for byte back, at the price of what is new, and never silently different."""

import random
import sqlite3
import string
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.model import Splice
from proxy.record import BodyDamaged, Reader, RecordWriter
from proxy.record.bodies import INSERT, MAX_CHAIN, Bases, Bodies, rekey
from proxy.record.rows import insert
from proxy.record.schema import FILE, open_writer
from tests.record.kit import Growth, disk_bytes, end, start, xid

HEX = b"0123456789abcdef"
BASE64 = (string.ascii_letters + string.digits + "+/").encode()


@pytest.mark.parametrize("marks", [False, True], ids=["append-only", "moved-marks"])
@pytest.mark.parametrize("alphabet", [HEX, BASE64], ids=["hex", "base64"])
def test_forty_steps_that_grow_to_two_megabytes_cost_less_than_twice_the_last_body(
    tmp_path: Path, alphabet: bytes, marks: bool
) -> None:
    growth = Growth(seed=1, block=52_000, alphabet=alphabet, marks=marks)
    writer = RecordWriter(tmp_path)
    sent = []
    for n in range(40):
        sent.append(growth.step())
        writer.write([start(n, sent[-1]), end(n)])
    writer.close()
    assert len(sent[-1]) > 2_000_000
    assert disk_bytes(tmp_path) < 2 * len(sent[-1])
    with Reader(tmp_path) as reader:
        for n in reversed(range(40)):
            assert reader.request_body(xid(n)) == sent[n]


def test_the_log_beside_the_file_is_bounded_while_a_reader_looks_on(tmp_path: Path) -> None:
    growth = Growth(seed=2, block=40_000, alphabet=BASE64)
    writer = RecordWriter(tmp_path)
    writer.write([])
    with Reader(tmp_path) as reader:
        for n in range(30):
            writer.write([start(n, growth.step()), end(n)])
            assert reader.last_seq() == 0
        assert disk_bytes(tmp_path) < 16 << 20
    writer.close()


@pytest.mark.parametrize(
    "splice",
    [
        Splice(xid(0), 3, 3), Splice(xid(0), 0, 0), Splice(xid(0), 500, 500), Splice(xid(0), 10**9, 0),
        Splice("exc_unknown", 5, 5), None,
    ],
)  # fmt: skip
def test_a_splice_is_a_claim_that_is_compared_first(tmp_path: Path, splice: Splice | None) -> None:
    writer = RecordWriter(tmp_path)
    first, second = b"a" * 300 + b"middle" + b"b" * 300, b"a" * 310 + b"other middle" + b"b" * 290
    writer.write([start(0, first), start(1, second, splice)])
    writer.close()
    with Reader(tmp_path) as reader:
        assert reader.request_body(xid(0)) == first
        assert reader.request_body(xid(1)) == second


def test_a_repeated_body_costs_nothing_and_an_empty_one_is_a_body(tmp_path: Path) -> None:
    connection = open_writer(tmp_path, print)
    bases = Bases()
    text = random.Random(3).randbytes(100_000)
    rows = []
    for no, body in enumerate([text, text, b"", text], start=1):
        rows.append(bases.place(no, f"e{no}", "t", body, bases.base(None, "t"), None, 0))
    insert(connection, INSERT, rows)
    assert len(rows[1].data) == 0
    bodies = Bodies(connection)
    assert [bodies.read(no) for no in (4, 3, 2, 1)] == [text, b"", text, text]
    connection.close()


def test_the_way_back_to_a_whole_frame_is_bounded() -> None:
    bases = Bases()
    depth = longest = 0
    body = b"x" * 5_000
    for no in range(1, 3 * MAX_CHAIN):
        body += b"+%d" % no
        row = bases.place(no, f"e{no}", "t", body, bases.base(None, "t"), None, 0)
        depth = depth + 1 if row.base is not None else 0
        longest = max(longest, depth)
    assert 100 < longest <= MAX_CHAIN


def test_deltas_that_add_up_to_the_body_end_in_a_whole_frame() -> None:
    bases, random_ = Bases(), random.Random(4)
    fixed = b"f" * 4_000
    wholes = 0
    for no in range(1, 40):
        body = fixed + random_.randbytes(2_000)
        row = bases.place(no, f"e{no}", "t", body, bases.base(None, "t"), None, 0)
        wholes += row.base is None
    assert wholes >= 10


def test_of_each_thread_only_the_newest_body_stays_at_hand() -> None:
    bases = Bases()
    for n in range(50):
        body = b"history " * 100 * (n + 1)
        bases.place(n, xid(n), f"thr_{n % 2}", body, bases.base(None, f"thr_{n % 2}"), None, 0)
    assert [kept.no for kept in bases._kept.values()] == [48, 49]
    assert bases._bytes == sum(len(kept.body) for kept in bases._kept.values())


def test_equal_bodies_of_many_threads_are_held_once() -> None:
    bases = Bases()
    for n in range(9):
        splice = Splice(xid(n - 1), 1_000, 4_000) if n else None
        bases.place(
            n, xid(n), f"thr_{n}", bytes(bytearray(b"long " * 1_000)), bases.base(splice, None), splice, 0
        )
    assert len(bases._kept) == 9
    assert len({id(kept.body) for kept in bases._kept.values()}) == 1


def test_bases_stay_within_their_bytes_and_a_lost_base_only_costs_a_whole_frame() -> None:
    bases = Bases(max_bytes=100_000)
    for no in range(1, 50):
        bases.place(no, f"e{no}", f"t{no}", b"x" * 10_000, None, None, 0)
    assert bases.base(None, "t1") is None
    assert bases.base(None, "t49") is not None
    assert bases.place(50, "e50", "t1", b"y" * 100, bases.base(None, "t1"), None, 0).base is None
    assert bases.place(51, "big", "t", b"z" * 90_000, None, None, 0).base is None
    assert bases.base(None, "t") is None


@pytest.mark.parametrize(
    ("row", "change"),
    [
        (1, "data = CAST(substr(data, 1, length(data) - 1) AS BLOB)"),
        (1, "data = zeroblob(length(data))"),
        (1, "digest = x'00'"),
        (1, "size = size + 1"),
        (2, "prefix = prefix - 1"),
        (2, "base = 3"),
        (2, "base = 77"),
        (2, "base = 2"),
        (2, "data = CAST('other' AS BLOB)"),
    ],
)
def test_a_damaged_body_is_an_error_in_words_never_other_bytes(tmp_path: Path, row: int, change: str) -> None:
    writer = RecordWriter(tmp_path)
    text = b"word " * 2_000
    writer.write([start(0, text), start(1, text + b"more " * 100), start(2, b"untouched", thread="thr_b")])
    writer.close()
    with sqlite3.connect(tmp_path / FILE) as connection:
        connection.execute(f"UPDATE bodies SET {change} WHERE no = {row}")
    connection.close()
    with Reader(tmp_path) as reader:
        with pytest.raises(BodyDamaged, match="body"):
            reader.request_body(xid(1))
        assert reader.request_body(xid(2)) == b"untouched"
        assert len(list(reader.check())) == 3 - row
        if row == 2:
            assert reader.request_body(xid(0)) == text


def test_bodies_that_stay_survive_their_bases(tmp_path: Path) -> None:
    writer = RecordWriter(tmp_path)
    growth = Growth(seed=5, block=3_000, alphabet=HEX)
    sent = [growth.step() for _ in range(12)]
    writer.write([start(n, body) for n, body in enumerate(sent)])
    writer.close()
    connection = open_writer(tmp_path, print)
    connection.execute("BEGIN")
    rekey(connection, range(1, 8))
    connection.execute("DELETE FROM bodies WHERE no < 8")
    connection.execute("COMMIT")
    connection.close()
    with Reader(tmp_path) as reader:
        for n in range(7, 12):
            assert reader.request_body(xid(n)) == sent[n]
        with pytest.raises(BodyDamaged):
            reader.request_body(xid(3))


edits = st.lists(
    st.tuples(st.integers(0, 400), st.integers(0, 60), st.binary(max_size=80)), min_size=1, max_size=12
)


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=300), edits)
def test_any_chain_of_edits_reads_back(first: bytes, changes: list[tuple[int, int, bytes]]) -> None:
    connection = sqlite3.connect(":memory:", isolation_level=None)
    connection.execute(
        "CREATE TABLE bodies (no INTEGER PRIMARY KEY, base, prefix, suffix, size, codec, digest, seal, data)"
    )
    bases, bodies = Bases(), Bodies(connection)
    sent = [first]
    for at, gone, new in changes:
        sent.append(sent[-1][:at] + new + sent[-1][at + gone :])
    for no, body in enumerate(sent, start=1):
        row = bases.place(no, f"e{no}", "t", body, bases.base(None, "t"), None, 0)
        insert(connection, INSERT, [row])
    for no in reversed(range(1, len(sent) + 1)):
        assert bodies.read(no) == sent[no - 1]
    connection.close()
