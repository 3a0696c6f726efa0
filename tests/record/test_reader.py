"""Reading back: events by filter and place, lists, ids, exchanges in order."""

import sqlite3
import time
from pathlib import Path

import pytest

from proxy.model import Record
from proxy.record import Ambiguous, NotRecorded, Reader, RecordWriter, seconds
from proxy.record.events import MAX_RUN, TYPES, decode, encode, kinds_mask
from proxy.record.exchanges import in_order
from proxy.record.schema import FILE, open_writer
from tests.record.kit import SECOND, T, end, event, start, whole_turn, xid


@pytest.fixture
def three(tmp_path: Path) -> Path:
    """Two sessions, the first with two turns."""
    writer = RecordWriter(tmp_path)
    writer.write(whole_turn(1, labels={"team": "search"}, client="codex"))
    writer.write(whole_turn(2, session="ses_1", model="m-2", cause="max_tokens", labels={"team": "search"}))
    writer.write(whole_turn(3, cause=None, steps=3))
    writer.write([Record(T, "gap", data={"lost_bodies": 1}), start(9_000, None, session=None, thread=None,
                                                                   turn=None, step=None)])  # fmt: skip
    writer.close()
    return tmp_path


def test_events_keep_their_order_and_place(three: Path) -> None:
    with Reader(three) as reader:
        everything = list(reader.events())
        assert [seq for seq, _ in everything] == list(range(1, len(everything) + 1))
        assert reader.last_seq() == len(everything)
        for after in range(len(everything) + 2):
            assert list(reader.events(after)) == everything[after:]
        assert list(reader.events(2, limit=3)) == everything[2:5]


@pytest.mark.parametrize(
    ("chosen", "keep", "count"),
    [
        ({"session": "ses_1"}, lambda r: r.session == "ses_1", 14),
        ({"thread": "thr_ses_1"}, lambda r: r.thread == "thr_ses_1", 13),
        ({"turn": "trn_2"}, lambda r: r.turn == "trn_2", 6),
        ({"step": "stp_3001"}, lambda r: r.step == "stp_3001", 2),
        ({"types": ["turn/end", "gap"]}, lambda r: r.type in ("turn/end", "gap"), 3),
        (
            {"types": ["step/start"], "turn": "trn_3"},
            lambda r: r.turn == "trn_3" and r.type == "step/start",
            3,
        ),
        ({"session": "ses_3", "turn": "trn_1"}, lambda r: False, 0),
        ({"turn": "trn_none"}, lambda r: False, 0),
        ({"types": ["no/such"]}, lambda r: False, 0),
    ],
)
def test_filters_narrow_to_what_they_say(three: Path, chosen, keep, count: int) -> None:  # type: ignore[no-untyped-def]
    with Reader(three) as reader:
        expected = [(seq, record) for seq, record in reader.events() if keep(record)]
        assert list(reader.events(**chosen)) == expected
        assert len(expected) == count


def test_long_runs_are_cut_and_followed_from_any_place(tmp_path: Path) -> None:
    writer = RecordWriter(tmp_path)
    writer.write([event("item", n, chars=n) for n in range(3 * MAX_RUN + 7)])
    with Reader(tmp_path) as reader:
        for after in (0, 1, MAX_RUN - 1, MAX_RUN, MAX_RUN + 1, 3 * MAX_RUN + 6):
            assert [r.data["chars"] for _, r in reader.events(after)] == list(range(after, 3 * MAX_RUN + 7))
    writer.close()


def test_another_process_follows_by_seq(tmp_path: Path) -> None:
    writer = RecordWriter(tmp_path)
    writer.write([event("turn/start")])
    seen: list[str] = []
    with Reader(tmp_path) as reader:
        at = 0
        for n in range(20):
            writer.write([event(TYPES[n % len(TYPES)], n), event("x/own", n)])
            for at, record in reader.events(at):  # noqa: B007, B020 - goes on from where it stood
                seen.append(record.type)
    writer.close()
    assert seen == ["turn/start", *(t for n in range(20) for t in (TYPES[n % len(TYPES)], "x/own"))]


def test_odd_values_are_put_down_rather_than_lost() -> None:
    odd = {"lone": "a\ud800b", "big": 1 << 80, "tuple": (1, 2), "nested": {"k": {"x"}}, "ok": "ü", "f": 1.5}
    run = [event("internal/error", where="here", **odd), event("item", 1, step="stp_1"), event("item", 2)]
    mask, data = encode(run)
    assert mask == kinds_mask(["internal/error", "item"])
    back = list(decode(data, "ses_a", "thr_a", "trn_a"))
    assert back[0].data == {
        "where": "here", "lone": "a?b", "big": str(1 << 80), "tuple": [1, 2], "nested": {"k": ["x"]},
        "ok": "ü", "f": 1.5,
    }  # fmt: skip
    assert [record.step for record in back] == [None, "stp_1", None]


def test_sessions_add_up_their_turns(three: Path) -> None:
    with Reader(three) as reader:
        newest, oldest = reader.sessions()
    assert (newest["id"], oldest["id"]) == ("ses_3", "ses_1")
    assert oldest["client"] == "codex"
    assert oldest["labels"] == {"team": "search"}
    assert (oldest["turns"], oldest["steps"], oldest["threads"]) == (2, 4, 1)
    assert oldest["usage"] == {"input_tokens": 40, "output_tokens": 4}
    assert oldest["cost_usd"] == "0.0000005"
    assert oldest["cost_quality"] == "measured"


@pytest.mark.parametrize(
    ("chosen", "turns"),
    [
        ({}, ["trn_3", "trn_2", "trn_1"]),
        ({"limit": 2}, ["trn_3", "trn_2"]),
        ({"session": "ses_1"}, ["trn_2", "trn_1"]),
        ({"session": "ses_none"}, []),
        ({"model": "m-2"}, ["trn_2"]),
        ({"model": "m"}, []),
        ({"cause": "max_tokens"}, ["trn_2"]),
        ({"cause": "open"}, ["trn_3"]),
        ({"agent": "codex"}, ["trn_2", "trn_1"]),
        ({"label": "team"}, ["trn_2", "trn_1"]),
        ({"label": "team=search"}, ["trn_2", "trn_1"]),
        ({"label": "team=other"}, []),
        ({"label": "team=search", "model": "m-1"}, ["trn_1"]),
    ],
)
def test_turns_are_listed_newest_first_and_filtered(three: Path, chosen, turns: list[str]) -> None:  # type: ignore[no-untyped-def]
    with Reader(three) as reader:
        assert [turn["id"] for turn in reader.turns(**chosen)] == turns


def test_a_turn_row_says_what_the_tree_says(three: Path) -> None:
    with Reader(three) as reader:
        turn = reader.turns(session="ses_1")[0]
    assert turn["cause"] == "max_tokens"
    assert not turn["open"]
    assert (turn["steps"], turn["models"], turn["index"]) == (2, ["m-2"], 0)
    assert (turn["cost_usd"], turn["cost_quality"]) == ("0.00000025", "measured")
    assert turn["started_at"] == "2023-11-14T22:13:22.123456Z"


def test_an_unknown_price_makes_the_sum_unknown_and_a_resume_opens_the_turn(tmp_path: Path) -> None:
    writer = RecordWriter(tmp_path)
    writer.write(whole_turn(1))
    writer.write([
        event("turn/resume", session="ses_1", thread="thr_ses_1", turn="trn_1"),
        event("step/attempt", session="ses_1", thread="thr_ses_1", turn="trn_1", step="stp_x",
              cost_usd=None, cost_quality="unpriced", usage={"output_tokens": 5}),
    ])  # fmt: skip
    writer.close()
    with Reader(tmp_path) as reader:
        (turn,) = reader.turns()
    assert turn["open"]
    assert turn["cause"] is None
    assert (turn["cost_usd"], turn["cost_quality"]) == (None, "unpriced")
    assert turn["usage"] == {"input_tokens": 20, "output_tokens": 7}


def test_the_derived_tables_can_be_made_anew(three: Path) -> None:
    with Reader(three) as reader:
        before = reader.sessions(), reader.turns(), reader.last_seq()
    connection = open_writer(three, print)
    connection.execute("UPDATE turns SET steps = 99, cause = 'nonsense'")
    connection.execute("DELETE FROM sessions")
    connection.close()
    writer = RecordWriter(three)
    assert writer.rebuild() == before[2]
    writer.close()
    with Reader(three) as reader:
        assert (reader.sessions(), reader.turns(), reader.last_seq()) == before


def test_lists_of_ten_thousand_turns_are_fast(tmp_path: Path) -> None:
    writer = RecordWriter(tmp_path)
    for hundred in range(100):
        batch = []
        for n in range(hundred * 100, hundred * 100 + 100):
            entries = whole_turn(n + 1, steps=1, client=f"client-{n % 7}", labels={"n": str(n % 10)})
            batch += [entry for entry in entries if isinstance(entry, Record)]
        writer.write(batch)
    writer.close()
    with Reader(tmp_path) as reader:
        for ask in (
            lambda: reader.turns(50), lambda: reader.turns(50, agent="client-3"), lambda: reader.sessions(50),
            lambda: reader.turns(50, label="n=7"), lambda: reader.turns(50, cause="open"),
        ):  # fmt: skip
            took = []
            for _ in range(5):
                began = time.thread_time()
                ask()
                took.append(time.thread_time() - began)
            assert min(took) < 0.05


def test_ids_are_found_by_their_beginning(three: Path) -> None:
    with Reader(three) as reader:
        assert reader.resolve("trn_2").kind == "turn"
        assert reader.resolve("ses_1").id == "ses_1"
        assert reader.resolve("stp_3002").kind == "step"
        assert reader.resolve(xid(3_001)).kind == "exchange"
        assert reader.resolve("thr_ses_3").kind == "thread"
        assert reader.parents("stp_2001") == ["trn_2", "thr_ses_1", "ses_1"]
        for text in ("trn_9", "", "'; DROP TABLE names", "%", "ses_1x"):
            with pytest.raises(NotRecorded):
                reader.resolve(text)
        for text in ("trn_", "stp_1", "exc_0"):
            with pytest.raises(Ambiguous, match="fits several"):
                reader.resolve(text)


def test_exchanges_come_in_order_of_arrival_with_what_was_sent(three: Path) -> None:
    with Reader(three) as reader:
        assert [e.number for e in reader.exchanges(session="ses_1")] == [1_000, 1_001, 2_000, 2_001]
        assert [e.number for e in reader.exchanges(thread="thr_ses_1")] == [1_000, 1_001, 2_000, 2_001]
        assert [e.number for e in reader.exchanges(turn="trn_2")] == [2_000, 2_001]
        assert [e.number for e in reader.attempts("stp_2001")] == [2_001]
        assert list(reader.exchanges(turn="trn_none")) == []
        assert len(list(reader.exchanges())) == 8
        one = reader.exchange(xid(2_001))
        assert (one.session, one.thread, one.turn, one.step) == ("ses_1", "thr_ses_1", "trn_2", "stp_2001")
        assert one.headers == [(b"Accept", b"*/*"), (b"accept", b"caf\xe9")]
        assert (one.end, one.status, one.streaming, one.labels) == ("complete", 200, True, {"team": "search"})
        assert reader.request_body(xid(2_001)) == b'{"m":1}2001'
        assert reader.response_body(xid(2_001)) == b"answer 2001"
        loose = reader.exchange(xid(9_000))
        assert (loose.session, loose.end, loose.end_ns, loose.status) == (None, None, None, None)
        with pytest.raises(NotRecorded, match="was not recorded"):
            reader.request_body(xid(9_000))


def test_arrival_decides_not_the_order_of_writing(tmp_path: Path) -> None:
    writer = RecordWriter(tmp_path)
    writer.write([event("turn/start"), start(2, b"late", time_ns=T + 5), start(1, b"early", time_ns=T + 1)])
    writer.write([end(1), end(2, status=None, end="upstream_reset", body=None, headers=())])
    writer.close()
    with Reader(tmp_path) as reader:
        assert [e.number for e in reader.exchanges(session="ses_a")] == [1, 2]
        assert reader.exchange(xid(2)).response_headers == []


def test_exchanges_stand_as_they_were_opened_whatever_the_clock_says(tmp_path: Path) -> None:
    def stood(*rows: tuple[int, int]) -> list[int]:
        return [rows[no][0] for no in in_order((at, *row, False) for at, row in enumerate(rows))]

    assert stood((0, 10), (2, 30), (1, 20), (3, 40)) == [0, 1, 2, 3]  # it waited before it was recorded
    assert stood((0, 10), (2, 12), (1, 11), (3, 5), (5, 7), (4, 6)) == [
        0,
        1,
        2,
        3,
        4,
        5,
    ]  # the clock was set back
    assert stood((0, 10), (1, 20), (0, 30), (1, 40)) == [0, 1, 0, 1]  # another process
    many = [(n, n) for n in range(1_000, 2_000)]
    assert stood(*many, (0, 5)) == [n for n, _ in many] + [0]  # another process, and the clock was set back
    writer = RecordWriter(tmp_path)
    writer.write([event("turn/start"), start(1, b"a", time_ns=T + 9), start(2, b"b", time_ns=T + 4)])
    writer.close()
    with Reader(tmp_path) as reader:
        assert [e.number for e in reader.exchanges()] == [1, 2]


def test_an_answer_without_its_request_is_counted_and_leaves_nothing(tmp_path: Path) -> None:
    told: list[str] = []
    writer = RecordWriter(tmp_path, warn=told.append)
    for number in (5, 6):
        writer.write([end(number, b"x" * 100)])
    writer.close()
    assert writer.lost_answers == 2
    assert ["an answer was not recorded" in line for line in told] == [True]
    connection = sqlite3.connect(tmp_path / FILE)
    assert connection.execute("SELECT count(*) FROM bodies").fetchone() == (0,)
    connection.close()


@pytest.mark.parametrize(
    ("time_ns", "text"),
    [
        (T, "1700000000.123456789"), (5 * SECOND, "5.0"), (5 * SECOND + 120_000_000, "5.12"), (0, "0.0"),
        (1, "0.000000001"),
    ],
)  # fmt: skip
def test_seconds_keep_every_digit(time_ns: int, text: str) -> None:
    assert seconds(time_ns) == text
