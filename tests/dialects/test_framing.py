"""Documents and event streams, told apart by their first byte."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.dialects.framing import MAX_DOCUMENT, Frame, Framing

STREAM = b": hello\n\nevent: a\ndata: {}\n\ndata: [DONE]\n\n"


def read(body: bytes, step: int = 0) -> tuple[list[Frame], object]:
    framing = Framing()
    frames: list[Frame] = []
    for at in range(0, len(body), step or len(body) or 1):
        frames += framing.feed(body[at : at + (step or len(body))])
    return frames + framing.finish(), framing.document


@pytest.mark.parametrize("before", [b"", b"\n\n", b"   \r\n\t", b"\xef\xbb\xbf", b"\xef\xbb\xbf \n"])
def test_white_space_before_the_reply_is_no_part_of_it(before: bytes) -> None:
    assert read(before + b'{"a": 1}\n') == ([], {"a": 1})
    assert read(before + STREAM) == ([("a", b"{}"), ("", b"[DONE]")], None)


def test_what_is_no_json_is_no_document() -> None:
    for body in (b"", b"  ", b'{"a"', b"[1,", b"<html>", b"\xff\xfe"):
        assert read(body)[1] is None


def test_a_document_beyond_the_bound_is_let_go() -> None:
    framing = Framing()
    framing.feed(b'{"a":"')
    for _ in range(MAX_DOCUMENT // 1_048_576 + 1):
        framing.feed(b"x" * 1_048_576)
    framing.feed(b'"}')
    assert (framing.finish(), framing.document) == ([], None)


@given(st.sampled_from([STREAM, b' {"a": [1, 2]} ', b"\n\n" + STREAM, b"junk"]), st.integers(1, 7))
def test_any_split_gives_the_same(body: bytes, step: int) -> None:
    assert read(body, step) == read(body)
