"""A reply as it comes: what is kept of it is what came, in little room."""

import random
import tracemalloc

from hypothesis import given
from hypothesis import strategies as st

from proxy.core.heard import AT_ONCE, Heard
from proxy.core.kept import Folded
from proxy.dialects.gemini_stream import GeminiDecoder
from proxy.dialects.responses_stream import ResponsesDecoder
from proxy.model import ResponseHead
from proxy.verdict import Reply
from tests.bench.along import event, gemini, responses


def heard(*, decoder: object = GeminiDecoder, max_kept: int = 1 << 20, at_once: bool = False) -> Heard:
    reply = Heard(keep=True, max_kept=max_kept, at_once=at_once)
    reply.begin(ResponseHead(200, b"OK", ()), decoder(200) if decoder is not None else None, 1 << 20)  # type: ignore[operator]
    return reply


chunk = st.binary(max_size=300) | st.sampled_from([b'data: {"a": "b"}\n\n', b"long" * 1_500])


@given(st.lists(chunk, max_size=80), st.booleans())
def test_the_bytes_that_came_are_the_bytes_that_are_kept(chunks: list[bytes], read: bool) -> None:
    reply = heard(decoder=GeminiDecoder if read else None)
    for chunk in chunks:
        reply.feed(chunk, 1)
    assert reply.body is not None
    assert bytes(reply.body) == b"".join(chunks)
    assert len(reply.body) == reply.received == sum(map(len, chunks))


def test_a_stream_takes_less_than_half_of_its_bytes_while_it_runs() -> None:
    for decoder, frame, at_once in ((ResponsesDecoder, responses, False), (GeminiDecoder, gemini, True)):
        reply = heard(decoder=decoder, at_once=at_once)
        tracemalloc.start()
        try:
            for number in range(400):
                reply.feed(event(frame(number)), 1)
            taken, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert taken * 2 < reply.received  # with what was read from it
        assert isinstance(reply.body, Folded)
        assert bytes(reply.body) == b"".join(event(frame(number)) for number in range(400))


def test_what_does_not_get_smaller_is_kept_as_it_is() -> None:
    noise = random.Random(7)
    reply = heard()
    for _ in range(2 * AT_ONCE):
        reply.feed(noise.randbytes(200), 1)
    assert isinstance(reply.body, bytes)


def test_beyond_the_bound_nothing_is_kept_and_our_own_answer_takes_its_place() -> None:
    reply = heard(max_kept=10_000)
    for number in range(200):
        reply.feed(event(gemini(number)), 1)
    assert reply.body is None
    reply = heard()
    for number in range(40):
        reply.feed(event(gemini(number)), 1)
    reply.ours(Reply(400, (), b"no"))
    assert reply.body == b"no"
