"""What a stream repeats is read without care, and never read otherwise than with care."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.dialects.anthropic_stream import AnthropicDecoder
from proxy.dialects.chat_stream import ChatDecoder
from proxy.dialects.refrain import Refrain

Frame = dict[str, Any]


def start(index: int, kind: str) -> Frame:
    block = {"text": {"type": "text", "text": ""}, "tool_use": {"type": "tool_use", "id": "t", "name": "n"}}
    return {"type": "content_block_start", "index": index, "content_block": block[kind]}


def delta(index: int, kind: str, piece: Any, **more: Any) -> Frame:
    member = {"text_delta": "text", "input_json_delta": "partial_json", "thinking_delta": "thinking"}[kind]
    return {"type": "content_block_delta", "index": index, "delta": {"type": kind, member: piece, **more}}


def spoken(piece: Any, **more: Any) -> Frame:
    return {"id": "c", "model": "m", "choices": [{"index": 0, "delta": {"content": piece}, **more}]}


words = st.sampled_from(
    ["a", " b", "text", "index", "", '"', "\\", '"}}', "\n", "\u2028", "€", "\ud83d", "\ude00", "x" * 900]
)
kinds = st.sampled_from(["text_delta", "thinking_delta", "input_json_delta"])
blocks = st.lists(
    st.builds(delta, st.integers(0, 1), kinds, words)
    | st.builds(delta, st.just(0), st.just("text_delta"), words)
    | st.builds(start, st.integers(0, 1), st.sampled_from(["text", "tool_use"]))
    | st.just({"type": "content_block_stop", "index": 0}),
    max_size=30,
)  # fmt: skip
chunks = st.lists(
    st.builds(spoken, words)
    | st.builds(spoken, words, finish_reason=st.sampled_from([None, "", "stop"]))
    | st.builds(spoken, words, error=st.none(), logprobs=st.none())
    | st.just({"choices": [{"index": 1, "delta": {"content": "other"}}]})
    | st.just({"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 2}}),
    max_size=30,
)


def written(frame: Frame, event: bool, ascii: bool, end: str) -> bytes:
    name = f"event: {frame.get('type', 'x')}{end}" if event else ""
    text = json.dumps(frame, ensure_ascii=ascii, separators=(",", ":"))
    return f"{name}data: {text}{end}{end}".encode("utf-8", "surrogatepass")


def told(decoder: Any, parts: list[bytes]) -> Any:
    events = [[(e.kind, e.item) for e in decoder.feed(part)] for part in parts]
    return events, decoder.whole, decoder.finish()


def told_by_heaps(decoder: Any, parts: list[bytes]) -> Any:
    events = []
    for at in range(0, len(parts), 4):
        heap = parts[at : at + 4]
        if decoder.repeats(b"".join(heap)):
            events.extend([[]] * len(heap))
        else:
            events.extend([(e.kind, e.item) for e in decoder.feed(part)] for part in heap)
    return events, decoder.whole, decoder.finish()


def both(make: Callable[[int], Any], parts: list[bytes]) -> None:
    quick, heaped = told(make(200), parts), told_by_heaps(make(200), parts)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Refrain, "again", lambda self, data: None)
        assert quick == heaped == told(make(200), parts)


forms = st.tuples(st.booleans(), st.booleans(), st.sampled_from(["\n", "\r\n"]))
cuts = st.lists(st.integers(0, 60), max_size=3)


def cut(parts: list[bytes], places: list[int]) -> list[bytes]:
    """Some events come in two chunks, others together with the next."""
    for place in places:
        if place < len(parts):
            whole = parts[place]
            parts[place : place + 1] = [whole[: len(whole) // 2], whole[len(whole) // 2 :]]
        elif len(parts) > 1:
            at = place % (len(parts) - 1)
            parts[at : at + 2] = [parts[at] + parts[at + 1]]
    return parts


@given(blocks, forms, cuts)
def test_an_anthropic_reply_is_read_the_same(frames: list[Frame], form: Any, places: list[int]) -> None:
    frames = [start(0, "text"), delta(0, "text_delta", "once"), *frames]
    both(AnthropicDecoder, cut([written(frame, *form) for frame in frames], places))


@given(chunks, forms, cuts)
def test_a_chat_reply_is_read_the_same(frames: list[Frame], form: Any, places: list[int]) -> None:
    frames = [spoken("once"), spoken("again"), *frames]
    both(ChatDecoder, cut([written(frame, *form) for frame in frames], places))


@pytest.mark.parametrize(
    ("make", "frames"),
    [
        (AnthropicDecoder, [start(0, "text"), *[delta(0, "text_delta", f"word {n}") for n in range(9)]]),
        (AnthropicDecoder, [start(0, "tool_use"), *[delta(0, "input_json_delta", str(n)) for n in range(9)]]),
        (ChatDecoder, [spoken("Well"), *[spoken(f" {n}") for n in range(9)]]),
    ],
)  # fmt: skip
def test_most_of_a_stream_is_read_without_care(make: Any, frames: list[Frame]) -> None:
    taken: list[list[str] | None] = []
    again = Refrain.again
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Refrain, "again", lambda self, data: taken.append(again(self, data)) or taken[-1])
        decoder = make(200)
        for frame in frames:
            decoder.feed(written(frame, True, False, "\n"))
    assert len([piece for piece in taken if piece is not None]) == 8


def test_what_a_chunk_tells_of_its_reply_is_told_again_by_the_next_one_like_it() -> None:
    said = [{"provider": "a", "choices": [{"delta": {"content": f" {n}"}}]} for n in range(4)]
    frames = [*said[:2], {"provider": "b", "choices": []}, *said[2:]]
    both(ChatDecoder, [written(frame, False, False, "\n") for frame in frames])


def test_a_string_that_stands_elsewhere_too_teaches_nothing() -> None:
    refrain = Refrain()
    twice = b'data: {"a":"x","b":"x"}\n\n'
    assert not refrain.learn(twice, ("", b'{"a":"x","b":"x"}'), "x")
    hidden = b'data: {"a":"x","b":"\\u0078"}\n\n'
    assert not refrain.learn(hidden, ("", b'{"a":"x","b":"\\u0078"}'), "x")
    overridden = b'{"a":"x","a":"\\u0078"}'
    assert not refrain.learn(b"data: %b\n\n" % overridden, ("", overridden), "x")
    noted = b': "x"\ndata: {"a":"\\u0078"}\n\n'
    assert not refrain.learn(noted, ("", b'{"a":"\\u0078"}'), "x")
    deep = b'{"a":"x","b":%b%b}' % (b"[" * 300, b"]" * 300)
    assert not refrain.learn(b"data: %b\n\n" % deep, ("", deep), "x")
    half = b'data: {"a":"x"}\n'
    assert not refrain.learn(half, ("", b'{"a":"x"}'), "x")
    assert refrain.learn(b'data: {"a":"x"}\n\n', ("", b'{"a":"x"}'), "x")
    assert refrain.again(b'data: {"a":"y\\n"}\n\n') == ["y\n"]
    assert refrain.again(b'data: {"a":"y"}\n\ndata: {"a":"z"}\n\n') == ["y", "z"]
    for other in (b'{"a":"y","b":"z"}', b'{"a":"y"z"}', b'{"a":"y\\"}', b'{"a":""}', b'{"a":"}'):
        assert refrain.again(b"data: " + other + b"\n\n") is None
    refrain.between(at_rest=False)
    assert refrain.again(b'data: {"a":"y"}\n\n') is None
