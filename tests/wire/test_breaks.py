"""Ends that are no good ends: broken upstreams, clients that leave, connections that died in the pool."""

import array
import contextlib
import fcntl
import socket
import termios
import threading
import time

import pytest

from proxy.wire.heads import WireLimits
from tests.wire.raw_upstream import (
    END,
    OK,
    PATIENCE_S,
    STREAM,
    Message,
    Proxy,
    RawUpstream,
    Wire,
    dead_end,
    eventually,
    frame,
    proxy_to,
    request,
)

FREE = "/openai/v1/files"
MODEL = "/anthropic/v1/messages"
EVENT = frame(b"data: 1\n\n")


@pytest.mark.parametrize("reset", [False, True], ids=["fin", "reset"])
@pytest.mark.parametrize(
    ("sent", "body"),
    [
        (STREAM + EVENT * 3, b"data: 1\n\n" * 3),
        (STREAM + EVENT + b"ff\r\nabc", b"data: 1\n\nabc"),
        (STREAM, b""),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nabc", b"abc"),
    ],
    ids=["between chunks", "in a chunk", "after the head", "in a body with length"],
)
def test_WIRE_07_a_broken_answer_is_seen_broken(
    any_proxy: Proxy, upstream: RawUpstream, sent: bytes, body: bytes, reset: bool
) -> None:
    def script(wire: Wire, message: Message) -> None:
        wire.send(sent)
        time.sleep(0.05)
        if reset:
            wire.reset()

    upstream.script = script
    answer = any_proxy.ask(request(MODEL, b"{}"))
    assert answer is not None
    assert (answer.body, answer.whole) == (body, False)
    assert len(upstream.seen) == 1
    assert eventually(lambda: any_proxy.thinker.exchanges[0].ends == ["upstream_reset"])
    assert any_proxy.thinker.exchanges[0].data == body


def test_a_reset_is_told_from_a_close_where_only_that_tells(any_proxy: Proxy, upstream: RawUpstream) -> None:
    """A body that ends with the connection is complete after a FIN and broken after a reset."""

    def script(wire: Wire, message: Message) -> None:
        wire.send(b"HTTP/1.1 200 OK\r\n\r\nabc")
        time.sleep(0.05)
        if message.body == b"reset":
            wire.reset()

    upstream.script = script
    for body in (b"fin", b"reset"):
        client = any_proxy.connect()
        with contextlib.closing(client.sock):
            client.send(request(FREE, body))
            head = client.head()
            assert head is not None
            assert head.get(b"connection") == b"close"
            assert client.exactly(3) == b"abc"
            if body == b"fin":
                assert client.sock.recv(1) == b""
            else:
                with pytest.raises(ConnectionResetError):
                    client.sock.recv(1)
    assert eventually(
        lambda: [seen.ends for seen in any_proxy.thinker.exchanges] == [["complete"], ["upstream_reset"]]
    )


@pytest.mark.parametrize("reset", [False, True], ids=["fin", "reset"])
@pytest.mark.parametrize("sent", [b"", b"HTTP/1.1 200 OK\r\nX-A:"], ids=["no byte", "half a head"])
def test_no_answer_is_a_502_and_one_copy(
    any_proxy: Proxy, upstream: RawUpstream, sent: bytes, reset: bool
) -> None:
    def script(wire: Wire, message: Message) -> None:
        wire.send(sent)
        if reset:
            wire.reset()

    upstream.script = script
    answer = any_proxy.ask(request(MODEL, b"{}"))
    assert answer is not None
    assert answer.status == 502
    assert b'"api_error"' in answer.body
    assert len(upstream.seen) == 1
    assert eventually(lambda: any_proxy.thinker.exchanges[0].ends == ["upstream_reset"])


@pytest.mark.parametrize(
    "reply",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
        b"\x16\x03\x01 no http at all",
        b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"y" * 2_000_000 + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 300_000 + b"\r\n",
    ],
    ids=["two framings", "two lengths", "no http", "unasked 101", "endless field", "endless fields"],
)
def test_an_answer_that_is_no_http_is_a_502(any_proxy: Proxy, upstream: RawUpstream, reply: bytes) -> None:
    upstream.reply = reply
    answer = any_proxy.ask(request(FREE, b"x"))
    assert answer is not None
    assert answer.status == 502
    assert answer.get(b"content-type") == b"text/plain; charset=utf-8"


def test_a_fault_in_the_chunking_breaks_after_what_was_good(any_proxy: Proxy, upstream: RawUpstream) -> None:
    upstream.reply = STREAM + EVENT + b"zz\r\n"
    answer = any_proxy.ask(request(FREE, b"x"))
    assert answer is not None
    assert (answer.status, answer.body, answer.whole) == (200, b"data: 1\n\n", False)


def test_surplus_bytes_never_reach_the_next_exchange(any_proxy: Proxy, upstream: RawUpstream) -> None:
    upstream.reply = OK + b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil"
    client = any_proxy.connect()
    with contextlib.closing(client.sock):
        for _ in range(3):
            client.send(request(FREE, b"x"))
            answer = client.response()
            assert answer is not None
            assert answer.body == b"ok"
    assert upstream.connections == 3


def test_bytes_sent_while_idle_drop_the_connection(proxy: Proxy, upstream: RawUpstream) -> None:
    def script(wire: Wire, message: Message) -> bool:
        wire.send(OK)
        time.sleep(0.1)
        wire.send(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil")
        return True

    upstream.script = script
    answer = proxy.ask(request(FREE, b"x"))
    assert answer is not None
    assert eventually(lambda: proxy.server.counters.upstream_connections == 0)


# -- connections that died in the pool


def dies_on_second(copies: list[bytes]) -> object:
    """Serves the first request of a connection; dies silently on the second after reading it."""
    served: dict[int, int] = {}

    def script(wire: Wire, message: Message) -> bool:
        copies.append(message.start)
        served[wire.number] = served.get(wire.number, 0) + 1
        if served[wire.number] == 1:
            wire.send(OK if not message.start.startswith(b"HEAD") else OK[:-2])
            return True
        time.sleep(0.05)
        return False

    return script


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
def test_a_request_with_effects_is_never_sent_twice(
    any_proxy: Proxy, upstream: RawUpstream, method: str
) -> None:
    copies: list[bytes] = []
    upstream.script = dies_on_second(copies)  # type: ignore[assignment]
    for path in (FREE, MODEL):
        copies.clear()
        assert any_proxy.ask(request(path, b"1", method=method)) is not None
        answer = any_proxy.ask(request(path, b"2", method=method))
        assert answer is not None
        assert answer.status == 502
        assert len(copies) == 2


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS"])
def test_a_harmless_request_is_resent_once_on_a_fresh_connection(
    any_proxy: Proxy, upstream: RawUpstream, method: str
) -> None:
    copies: list[bytes] = []
    upstream.script = dies_on_second(copies)  # type: ignore[assignment]
    assert any_proxy.ask(request(FREE, method=method), method) is not None
    answer = any_proxy.ask(request(FREE, method=method), method)
    assert answer is not None
    assert answer.status == 200
    assert len(copies) == 3


def test_a_fresh_connection_that_dies_is_not_tried_again(proxy: Proxy, upstream: RawUpstream) -> None:
    upstream.script = lambda wire, message: False
    answer = proxy.ask(request(FREE, method="GET"), "GET")
    assert answer is not None
    assert answer.status == 502
    assert len(upstream.seen) == 1


def test_an_idle_connection_that_the_upstream_closed_is_not_used(
    any_proxy: Proxy, upstream: RawUpstream
) -> None:
    def script(wire: Wire, message: Message) -> bool:
        wire.send(OK)
        return False

    upstream.script = script
    for index in range(4):
        answer = any_proxy.ask(request(MODEL, b"%d" % index))
        assert answer is not None
        assert answer.status == 200
        assert eventually(lambda: any_proxy.server.counters.upstream_connections == 0)
    assert [message.body for message in upstream.seen] == [b"0", b"1", b"2", b"3"]


def test_idle_connections_age_and_a_promise_shortens_it(upstream: RawUpstream) -> None:
    with proxy_to({"openai": upstream.url}, idle_s=0.2) as proxy:
        proxy.ask(request(FREE, b"x"))
        assert eventually(lambda: proxy.server.counters.upstream_connections == 0, 3)
    upstream.reply = b"HTTP/1.1 200 OK\r\nKeep-Alive: timeout=1\r\nContent-Length: 2\r\n\r\nok"
    with proxy_to({"openai": upstream.url}) as proxy:
        proxy.ask(request(FREE, b"x"))
        assert eventually(lambda: proxy.server.counters.upstream_connections == 0, 3)


# -- clients that leave


def holds(sent: bytes, left: threading.Event, reads: int = 65536) -> object:
    def early(wire: Wire, message: Message) -> None:
        wire.send(sent)
        if wire.ended(3):
            left.set()

    return early


@pytest.mark.parametrize("how", ["closes", "resets", "half-closes"])
@pytest.mark.parametrize(
    ("sent", "awaited"),
    [(STREAM + EVENT, b"data: 1\n\n"), (b"", b""), (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\na", b"a")],
    ids=["mid-stream", "before the answer", "inside a body"],
)
def test_WIRE_18_a_client_that_leaves_takes_the_upstream_with_it(
    any_proxy: Proxy, upstream: RawUpstream, sent: bytes, awaited: bytes, how: str
) -> None:
    left = threading.Event()
    upstream.early = holds(sent, left)  # type: ignore[assignment]
    client = any_proxy.connect()
    client.send(request(MODEL, b"{}"))
    if awaited:
        assert client.until(awaited) is not None
    else:
        assert eventually(lambda: len(upstream.heads) == 1)
    if how == "closes":
        client.sock.close()
    elif how == "resets":
        client.reset()
    else:
        client.sock.shutdown(1)
    assert left.wait(PATIENCE_S)
    assert eventually(lambda: any_proxy.thinker.exchanges[0].ends == ["client_gone"])
    client.sock.close()


@pytest.mark.parametrize("path", [FREE, MODEL])
def test_a_client_that_leaves_inside_its_body_is_no_request(
    any_proxy: Proxy, upstream: RawUpstream, path: str
) -> None:
    left = threading.Event()
    upstream.early = holds(b"", left)  # type: ignore[assignment]
    client = any_proxy.connect()
    client.send(request(path, fields=b"Content-Length: 99999\r\n") + b"x" * 500)
    if path == FREE:
        assert eventually(lambda: len(upstream.heads) == 1)
    client.sock.close()
    if path == FREE:
        assert left.wait(PATIENCE_S)
    assert eventually(lambda: any_proxy.server.counters.open_exchanges == 0)
    assert not upstream.seen
    assert any_proxy.server.counters.buffered_bytes == 0


def unsent(sock: socket.socket) -> int:
    """Bytes that the other end's kernel has not taken yet."""
    size = array.array("i", [0])
    fcntl.ioctl(sock, termios.TIOCOUTQ, size)
    return size[0]


def all_arrived_and_held(proxy: Proxy, client: Wire) -> bool:
    """Send until the proxy reads no more; whether everything sent is on the proxy's side then."""
    for _ in range(3000):
        if proxy.server.counters.held_connections:
            return unsent(client.sock) == 0
        client.send(b"z" * 20_000)
        if not eventually(lambda: unsent(client.sock) == 0, 2.0):
            return False
    return False


def test_a_client_that_leaves_while_it_is_not_read_is_noticed_within_a_second(
    any_proxy: Proxy, upstream: RawUpstream
) -> None:
    """The upstream does not read, so neither is the client read: its FIN stays in the kernel.

    (Bytes that do not fit into the kernel's buffer would hold the FIN back at the client's end, where
    nobody can see it: so each piece is only sent when the last one has arrived.)
    """
    over = threading.Event()
    upstream.early = lambda wire, message: over.wait(10)
    for _ in range(8):  # where the last piece found no room the FIN could not be seen: another try
        client = any_proxy.connect()
        client.send(request(FREE, fields=b"Content-Length: 400000000\r\n"))
        if all_arrived_and_held(any_proxy, client):
            break
        client.sock.close()
        over.set()
        assert eventually(lambda: any_proxy.server.counters.open_exchanges == 0, 6.0)
        over.clear()
    assert any_proxy.server.counters.held_connections == 1
    client.sock.close()
    # A second on an idle machine; here only that it is not the upstream's end that tells.
    assert eventually(lambda: any_proxy.server.counters.open_exchanges == 0, 6.0)
    over.set()


def test_a_client_that_leaves_while_connecting_cancels_it() -> None:
    with dead_end() as nowhere, proxy_to({"openai": nowhere}) as proxy:
        client = proxy.connect()
        client.send(request(FREE, b"x"))
        assert eventually(lambda: proxy.server.counters.open_exchanges == 1)
        client.sock.close()
        assert eventually(lambda: proxy.server.counters.open_exchanges == 0, 6)


def test_on_abort_drain_reads_the_reply_on(upstream: RawUpstream) -> None:
    gate = threading.Event()

    def script(wire: Wire, message: Message) -> bool:
        wire.send(STREAM + EVENT)
        assert gate.wait(PATIENCE_S)
        wire.send(frame(b"data: usage\n\n") + END)
        return True

    upstream.script = script
    with proxy_to({"anthropic": upstream.url}, on_abort="drain") as proxy:
        client = proxy.connect()
        client.send(request(MODEL, b"{}"))
        assert client.until(b"data: 1\n\n") is not None
        client.sock.close()
        assert eventually(lambda: proxy.server.counters.open_connections == 0)
        gate.set()
        assert eventually(lambda: proxy.thinker.exchanges[0].ends == ["client_gone"])
        assert proxy.thinker.exchanges[0].data.endswith(b"data: usage\n\n")
        assert proxy.server.counters.open_exchanges == 0


def test_on_abort_drain_is_bounded(upstream: RawUpstream) -> None:
    left = threading.Event()
    upstream.early = holds(STREAM + EVENT, left)  # type: ignore[assignment]
    limits = WireLimits(drain_s=0.3)
    with proxy_to({"anthropic": upstream.url}, on_abort="drain", limits=limits) as proxy:
        client = proxy.connect()
        client.send(request(MODEL, b"{}"))
        assert client.until(b"data: 1\n\n") is not None
        client.sock.close()
        assert left.wait(PATIENCE_S)
        assert eventually(lambda: proxy.thinker.exchanges[0].ends == ["client_gone"])


# -- back-pressure


def test_a_slow_client_holds_the_upstream(any_proxy: Proxy, upstream: RawUpstream) -> None:
    sent = [0]

    def script(wire: Wire, message: Message) -> None:
        wire.send(b"HTTP/1.1 200 OK\r\nContent-Length: 24000000\r\n\r\n")
        wire.sock.settimeout(0.4)
        with contextlib.suppress(TimeoutError):
            while sent[0] < 24_000_000:
                sent[0] += wire.sock.send(b"z" * 262144)
        wire.sock.settimeout(5)
        while sent[0] < 24_000_000:
            sent[0] += wire.sock.send(b"z" * min(262144, 24_000_000 - sent[0]))

    upstream.script = script
    client = any_proxy.connect()
    client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
    with contextlib.closing(client.sock):
        client.send(request(FREE, b"x"))
        time.sleep(0.6)
        assert 0 < sent[0] < 20_000_000
        answer = client.response()  # and once it reads, all comes
        assert answer is not None
        assert (len(answer.body), answer.whole) == (24_000_000, True)


def test_a_slow_upstream_holds_the_client(any_proxy: Proxy, upstream: RawUpstream) -> None:
    gate = threading.Event()

    def early(wire: Wire, message: Message) -> None:
        assert gate.wait(PATIENCE_S)
        assert wire.exactly(60_000_000) is not None
        wire.send(OK)

    upstream.early = early
    client = any_proxy.connect()
    with contextlib.closing(client.sock):
        client.send(request(FREE, fields=b"Content-Length: 60000000\r\n"))
        client.sock.settimeout(0.4)
        sent = 0
        with contextlib.suppress(TimeoutError):
            while sent < 60_000_000:
                sent += client.sock.send(b"z" * 262144)
        assert 0 < sent < 40_000_000
        gate.set()
        client.sock.settimeout(5)
        client.send(b"z" * (60_000_000 - sent))
        answer = client.response()
        assert answer is not None
        assert answer.status == 200


@pytest.mark.parametrize("status", [b"000", b"042"])
def test_a_status_that_is_none_gives_no_body_without_a_head(
    proxy: Proxy, upstream: RawUpstream, status: bytes
) -> None:
    sent = b"HTTP/1.1 " + status + b" Odd\r\nContent-Length: 3\r\n\r\nabc"
    upstream.script = lambda wire, message: wire.send(sent)
    for path in (MODEL, FREE):
        answer = proxy.ask(request(path, b"{}"))
        assert answer is not None
        assert answer.status == 502
        assert b"abc" not in answer.body
