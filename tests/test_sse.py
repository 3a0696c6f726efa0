"""Event framing: every line end, any split, bounded events."""

from hypothesis import given
from hypothesis import strategies as st

from proxy.reading.sse import SSE

STREAM = (
    b'\xef\xbb\xbfevent: message_start\r\ndata: {"a":1}\r\n\r\n'
    b": a comment\n\nid: 7\nretry: 10\ndata:no space\n\n"
    b"event: two\rdata: first\rdata: second\r\r"
    b"event: nothing\n\ndata\n\ndata: \xe2\x98\x83 snow\nevent: late\n\n"
)
EVENTS = [
    ("message_start", b'{"a":1}'),
    ("", b"no space"),
    ("two", b"first\nsecond"),
    ("", b""),
    ("late", b"\xe2\x98\x83 snow"),
]


def split(data: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({cut % (len(data) + 1) for cut in cuts})
    return [data[a:b] for a, b in zip([0, *places], [*places, len(data)], strict=True)]


def all_events(pieces: list[bytes], limit: int = 1_000) -> list[tuple[str, bytes]]:
    splitter = SSE(limit)
    found = [event for piece in pieces for event in splitter.feed(piece)]
    return found + splitter.flush()


def test_line_ends_comments_and_fields_are_read_as_the_standard_says() -> None:
    assert all_events([STREAM]) == EVENTS


@given(st.lists(st.integers(0, 10_000), max_size=12))
def test_WIRE_04_any_split_gives_the_same_events(cuts: list[int]) -> None:
    assert all_events(split(STREAM, cuts)) == EVENTS


def test_one_byte_at_a_time_gives_the_same_events() -> None:
    assert all_events([STREAM[i : i + 1] for i in range(len(STREAM))]) == EVENTS


@given(st.binary(max_size=200), st.lists(st.integers(0, 300), max_size=6))
def test_any_bytes_give_the_same_events_in_any_split(data: bytes, cuts: list[int]) -> None:
    assert all_events(split(data, cuts), 40) == all_events([data], 40)


def test_an_event_is_out_as_soon_as_its_blank_line_is() -> None:
    splitter = SSE()
    assert splitter.feed(b"data: 1\n") == []
    assert splitter.feed(b"\n") == [("", b"1")]
    assert splitter.feed(b"data: 2\r\n\r") == [("", b"2")]
    assert splitter.feed(b"\ndata: 3\n\n") == [("", b"3")]


def test_a_last_event_without_its_blank_line_comes_with_the_end() -> None:
    splitter = SSE()
    assert splitter.feed(b"event: x\ndata: {}") == []
    assert splitter.flush() == [("x", b"{}")]


def test_an_event_that_outgrows_the_bound_is_skipped_whole_and_held_nowhere() -> None:
    splitter = SSE(100)
    found = splitter.feed(b"data: 1\n\ndata: ")
    for _ in range(1_000):
        found += splitter.feed(b"x" * 50)
        assert sum(map(len, splitter._parts)) <= 200
    found += splitter.feed(b"\nevent: odd\ndata: more\n\ndata: 2\n\n")
    assert found == [("", b"1"), ("", b"2")]
    assert splitter.skipped == 1


def test_an_event_of_many_small_lines_is_bounded_too() -> None:
    splitter = SSE(100)
    found = [event for _ in range(100) for event in splitter.feed(b"data: 123456\n")]
    assert found + splitter.feed(b"\ndata: 2\n\n") == [("", b"2")]
    assert splitter.skipped == 1
