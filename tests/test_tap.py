"""The tap reads along: it never raises, never grows, and says when things were complete."""

import gzip
from collections.abc import Sequence

from proxy.dialects.anthropic_stream import AnthropicDecoder
from proxy.model import Event, Item, Outcome
from proxy.reading.tap import Tap

STREAM = (
    b'event: message_start\ndata: {"type":"message_start",'
    b'"message":{"id":"m1","usage":{"input_tokens":5}}}\n\n'
    b'event: content_block_start\ndata: {"type":"content_block_start","index":0,'
    b'"content_block":{"type":"text","text":""}}\n\n'
    b'event: content_block_delta\ndata: {"type":"content_block_delta","index":0,'
    b'"delta":{"type":"text_delta","text":"hello"}}\n\n'
    b'event: content_block_stop\ndata: {"type":"content_block_stop","index":0}\n\n'
    b'event: message_delta\ndata: {"type":"message_delta","delta":{"stop_reason":"end_turn"},'
    b'"usage":{"output_tokens":9}}\n\n'
    b'event: message_stop\ndata: {"type":"message_stop"}\n\n'
)


class Failing:
    """A decoder with a bug."""

    def __init__(self, *, late: bool) -> None:
        self.late = late

    def feed(self, data: bytes) -> Sequence[Event]:
        if not self.late:
            raise ZeroDivisionError("a bug")
        return ()

    def repeats(self, data: bytes) -> bool:
        raise ZeroDivisionError("a bug")

    @property
    def whole(self) -> bool:
        return False

    def finish(self) -> Outcome:
        raise ZeroDivisionError("a bug")


class Counting:
    """A decoder that makes an item of every chunk."""

    def __init__(self) -> None:
        self.items: list[Item] = []
        self.bytes = 0

    def feed(self, data: bytes) -> Sequence[Event]:
        self.bytes += len(data)
        self.items.append(Item("text", "assistant", str(len(data))))
        return [Event("item", self.items[-1])]

    def repeats(self, data: bytes) -> bool:
        return False

    @property
    def whole(self) -> bool:
        return False

    def finish(self) -> Outcome:
        return Outcome(items=(*self.items, Item("text", "assistant", "cut")), stop_reason="x")


def test_WIRE_01_an_encoded_reply_reads_like_a_plain_one() -> None:
    outcomes = []
    for encoding, body in ((None, STREAM), (b"gzip", gzip.compress(STREAM))):
        tap = Tap(AnthropicDecoder(200), encoding, 10**6)
        kinds = [event.kind for at in range(0, len(body), 11) for event in tap.feed(body[at : at + 11], at)]
        assert kinds == ["usage", "first_output", "item", "usage"]
        outcomes.append(tap.finish())
    assert outcomes[0] == outcomes[1]
    assert outcomes[0].whole
    assert outcomes[0].items[0].text == "hello"


def test_items_carry_the_time_of_the_chunk_that_completed_them() -> None:
    tap = Tap(Counting(), None, 10**6)
    for now_ns in (10, 20, 30):
        tap.feed(b"x", now_ns)
    outcome = tap.finish()
    assert len(outcome.items) == 4
    assert tap.item_ns == (10, 20, 30, 30)


def test_a_bug_in_a_decoder_is_kept_and_raises_nothing() -> None:
    tap = Tap(Failing(late=False), None, 10**6)
    assert list(tap.feed(b"x", 1)) == []
    assert list(tap.feed(b"x", 2)) == []
    assert isinstance(tap.fault, ZeroDivisionError)
    assert tap.finish() == Outcome()
    late = Tap(Failing(late=True), None, 10**6)
    late.feed(b"x", 1)
    assert late.finish() == Outcome()
    assert isinstance(late.fault, ZeroDivisionError)


def test_an_unknown_or_broken_encoding_keeps_what_was_understood() -> None:
    unknown = Tap(AnthropicDecoder(200), b"aws-chunked", 10**6)
    assert list(unknown.feed(STREAM, 1)) == []
    assert unknown.finish() == Outcome()
    assert "aws-chunked" in unknown.problem
    encoded = gzip.compress(STREAM, 0)
    broken = Tap(AnthropicDecoder(200), b"gzip", 10**6)
    broken.feed(encoded[:300], 1)
    broken.feed(b"\x00" * 300, 2)
    broken.feed(encoded[300:], 3)
    assert broken.problem
    outcome = broken.finish()
    assert outcome.response_id == "m1"
    assert not outcome.whole


def test_beyond_its_limit_the_tap_tells_of_no_items_but_finds_the_usage() -> None:
    decoder = AnthropicDecoder(200)
    tap = Tap(decoder, None, 300)
    events = [event for at in range(0, len(STREAM), 50) for event in tap.feed(STREAM[at : at + 50], at)]
    assert [event.kind for event in events] == ["usage", "first_output"]
    outcome = tap.finish()
    assert outcome.usage is not None
    assert (outcome.usage.input_tokens, outcome.usage.output_tokens) == (5, 9)


def test_far_beyond_its_limit_the_tap_stops_reading() -> None:
    decoder = Counting()
    tap = Tap(decoder, None, 100)
    for now_ns in range(100):
        tap.feed(b"x" * 50, now_ns)
    assert decoder.bytes <= 800
    assert "more than 800 bytes" in tap.problem
    assert tap.finish().stop_reason == "x"


def test_the_outcome_is_one_value_however_often_it_is_asked_for() -> None:
    tap = Tap(Counting(), None, 10**6)
    tap.feed(b"x", 1)
    assert tap.finish() is tap.finish()
    assert list(tap.feed(b"late", 2)) == []


def test_an_encoded_reply_is_read_to_the_limit_and_no_further() -> None:
    decoder = Counting()
    tap = Tap(decoder, b"gzip", 1_000_000)
    tap.feed(gzip.compress(b":" * 8_000_000), 1)
    assert decoder.bytes <= 1_000_000
    assert "more than 1000000 bytes" in tap.problem
