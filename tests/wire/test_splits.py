"""One answer however its bytes are cut into reads: what passes, where it ends, and where it can be cut.

Without sockets: the upstream's connection and the relay are given the reads, what the client would get is
read by a few lines of our own.
"""

import asyncio
from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any, cast

import pytest

from proxy.model import ResponseHead, Upstream
from proxy.wire.guard import Watch
from proxy.wire.incoming import IncomingRequest, Pulse
from proxy.wire.relay import Relay
from proxy.wire.upstream import UpstreamConnection, UpstreamPool

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
BYE = b"event: bye\n\n"


class Transport:
    """Where the upstream's connection writes, which nobody reads."""

    closing = False

    def is_closing(self) -> bool:
        return self.closing

    def abort(self) -> None:
        self.closing = True

    def write(self, data: bytes) -> None: ...


class Ends:
    """The client's connection, its request, and what thinks, which may want to cut."""

    write_paused = http_1_0 = expects_continue = upgrade = False
    keep_alive = True
    stamps = ()
    closing = BYE

    def __init__(self, cut_at: int | None) -> None:
        self.out = self.seen = b""
        self.broken: bool | None = None
        self.end = ""
        self.relay: Relay | None = None
        self._cut_at = cut_at

    def write(self, data: bytes) -> None:
        self.out += data

    def break_off(self, *, reset: bool) -> None:
        self.broken = True

    def release(self) -> None: ...
    def respond(self, head: ResponseHead) -> None: ...
    def failed_with(self, words: str) -> None: ...

    def feed(self, data: bytes) -> None:
        self.seen += data
        if self._cut_at is not None and self.relay is not None and len(self.seen) >= self._cut_at:
            self.relay.cut()

    def close(self, end: str) -> None:
        self.end = self.end or end

    @property
    def body(self) -> tuple[bytes, bool]:
        """What the client reads, and whether it came to its end."""
        framed = self.out.partition(b"\r\n\r\n")[2]
        body = b""
        while framed:
            size, _, rest = framed.partition(b"\r\n")
            long = int(size, 16)
            assert rest[long : long + 2] == b"\r\n"
            if not long:
                return body, rest == b"\r\n"
            body, framed = body + rest[:long], rest[long + 2 :]
        return body, False


def carried(reads: Sequence[bytes], cut_at: int | None = None, *, one_look: bool = False) -> Ends:
    """An answer that came so, to its end or to the end of its connection.

    ``one_look``: all of it in one look at the sockets, so that its chunks leave along with each other.
    """
    ends, pulse, pool = Ends(cut_at), Pulse(), UpstreamPool()
    loop = asyncio.new_event_loop()
    pulse.rounds.loop, pulse.now = loop, 1.0
    if one_look:
        loop.time = lambda: 1.0  # type: ignore[method-assign]
    relay = Relay(pulse, ends, cast(IncomingRequest, ends), cast(Watch, ends))
    ends.relay = relay
    connection = UpstreamConnection(pool, pool.peer(Upstream("u", "http://127.0.0.1:9", "openai", "openai")))
    connection.connection_made(cast(Any, Transport()))
    relay.attach(connection)
    connection.begin(relay, "POST", b"", chunked=False, whole=True)
    for read in reads:
        if not relay.done.done():
            connection.data_received(read)
    connection.connection_lost(None)
    loop.close()
    return ends


def splits(answer: bytes) -> Iterator[list[bytes]]:
    """Reads of each size, and two at each place; the head mostly comes alone."""
    head, body = answer[: len(HEAD)], answer[len(HEAD) :]
    for size in range(1, len(body) + 1):
        yield [head, *(body[at : at + size] for at in range(0, len(body), size))]
        yield [head, body[:size], body[size:]]
        yield [head + body[:size], body[size:]]


@pytest.mark.parametrize(
    ("body", "whole"),
    [
        (b"5\r\nhello\r\n9\r\n5\r\nhello\r\r\n0\r\n\r\n", b"hello5\r\nhello\r"),
        (
            b"5\r\nhello\r\n05;a=b\r\n0\r\n\r\n\r\nA\r\nxxxxxxxxxx\r\n0\r\nX: y\r\n\r\n",
            b"hello0\r\n\r\nxxxxxxxxxx",
        ),
        (b"5\r\nhello\r\n2\r\n\r\n\r\n5 \r\nhello\r\n0\r\n\r\n", b"hello\r\nhello"),
    ],
)  # fmt: skip
def test_every_split_of_an_answer_is_the_same_answer(body: bytes, whole: bytes) -> None:
    for reads, one_look in product(splits(HEAD + body), (False, True)):
        passed = carried(reads, one_look=one_look)
        assert (passed.body, passed.seen, passed.end) == ((whole, True), whole, "complete"), reads


@pytest.mark.parametrize("tail", [b"-5\r\nhello\r\n", b"5\r\nhel", b"\r\n0\r\n\r\n", b"zz\r\n", b""])
def test_a_body_that_breaks_is_never_a_whole_one(tail: bytes) -> None:
    for reads in splits(HEAD + b"5\r\nhello\r\n" + tail):
        passed = carried(reads, one_look=True)
        body, ended = passed.body
        assert not ended
        assert passed.broken
        assert b"hellohel".startswith(body)


@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n", b"\r\r"])
@pytest.mark.parametrize("size", [1, 2, 3, 5, 8])
def test_a_stream_is_cut_behind_an_event_however_small_its_chunks(end: bytes, size: int) -> None:
    stream = (b"data: x" + end) * 3
    chunks = [stream[at : at + size] for at in range(0, len(stream), size)]
    frames = [b"%x\r\n%b\r\n" % (len(one), one) for one in chunks]
    for cut_at, one_look in product(range(1, len(stream) + 1), (False, True)):
        passed = carried([HEAD, *frames, b"0\r\n\r\n"], cut_at, one_look=one_look)
        body, ended = passed.body
        assert (ended, passed.end) == (True, "refused"), cut_at
        assert body.endswith(end + BYE)
        assert (body.removesuffix(BYE)) in (b"data: x" + end, 2 * (b"data: x" + end), stream)
