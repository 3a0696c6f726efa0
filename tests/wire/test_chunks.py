"""A chunk that passes in its own frame: the shortcut reads what the parser would have read."""

import httptools
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.wire.upstream import _of_whole_chunk


class Body:
    """What the parser makes of a chunked body."""

    def __init__(self) -> None:
        self.data = b""
        self.open = False
        self.ended = False

    def on_body(self, data: bytes) -> None:
        self.data += data

    def on_chunk_header(self) -> None:
        self.open = True

    def on_chunk_complete(self) -> None:
        self.open = False

    def on_message_complete(self) -> None:
        self.ended = True


def parsed(data: bytes) -> Body:
    body = Body()
    parser = httptools.HttpResponseParser(body)
    parser.feed_data(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    parser.feed_data(data)
    return body


size = st.sampled_from([b"%x", b"%X", b"0%x", b"%x ", b"%x;a=b", b"+%x"])
pieces = st.lists(st.tuples(size, st.binary(max_size=40) | st.just(b"\r\n5\r\nhello\r\n")), max_size=5)


@given(pieces, st.integers(0, 6), st.sampled_from([b"", b"0\r\n\r\n", b"1f", b"5\r\nhe", b"\r\n", b"zz\r\n"]))
def test_what_is_taken_for_a_whole_chunk_is_what_the_parser_reads(
    chunks: list[tuple[bytes, bytes]], cut: int, tail: bytes
) -> None:
    framed = b"".join((form % len(data)) + b"\r\n" + data + b"\r\n" for form, data in chunks) + tail
    framed = framed[: len(framed) - cut]
    body = _of_whole_chunk(framed)
    if body:
        read = parsed(framed)
        assert read.data == body
        assert not read.open
        assert not read.ended


def test_a_plain_frame_is_taken() -> None:
    assert _of_whole_chunk(b"5\r\nhello\r\n") == b"hello"
    assert _of_whole_chunk(b"1a\r\n" + b"x" * 26 + b"\r\n") == b"x" * 26


@pytest.mark.parametrize(
    "framed",
    [
        b"",
        b"0\r\n\r\n",
        b"5\r\nhello",
        b"05\r\nhello\r\n",
        b"5\r\nhello\r\n0\r\n\r\n",
        b"5\r\nhello\r\n" * 2,
        b"-5\r\nhello\r\n",
    ],
)
def test_everything_else_is_left_to_the_parser(framed: bytes) -> None:
    assert _of_whole_chunk(framed) == b""
