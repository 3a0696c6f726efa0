"""Traffic that means harm, or is broken: refused strictly, in plain words, and never half passed on."""

import contextlib
import time

import pytest

from proxy.wire.heads import WireLimits
from tests.wire.raw_upstream import (
    END,
    OK,
    Proxy,
    RawUpstream,
    eventually,
    frame,
    proxy_to,
    request,
)

FREE = "/openai/v1/files"
MODEL = "/anthropic/v1/messages"


@pytest.mark.parametrize("path", [FREE, MODEL])
@pytest.mark.parametrize(
    "fields_and_body",
    [
        b"Content-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
        b"Content-Length: 3\r\nContent-Length: 3\r\n\r\nabc",
        b"Content-Length: 3, 4\r\n\r\nabcd",
        b"Content-Length: +3\r\n\r\nabc",
        b"Content-Length: -1\r\n\r\n",
        b"Content-Length: 0x3\r\n\r\nabc",
        b"Content-Length: 99999999999999999999999\r\n\r\nabc",
        b"Content-Length: \r\n\r\n",
        b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n",
        b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
        b"Transfer-Encoding: identity\r\n\r\n",
        b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
        b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"Transfer-Encoding:\x0bchunked\r\n\r\n0\r\n\r\n",
        b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\nzz\r\n\r\n",
        b"Transfer-Encoding: chunked\r\n\r\n3\r\nabcd\r\n0\r\n\r\n",
        b"Transfer-Encoding: chunked\r\n\r\n-3\r\nabc\r\n0\r\n\r\n",
        b"Transfer-Encoding: chunked\r\n\r\n0x3\r\nabc\r\n0\r\n\r\n",
        b"Transfer-Encoding: chunked\r\n\r\n11111111111111111\r\nabc\r\n0\r\n\r\n",
        b"Transfer-Encoding: chunked\r\n\r\n3\nabc\n0\n\n",
        b"Content-Length : 3\r\n\r\nabc",
        b" Content-Length: 3\r\n\r\nabc",
        b"X-A: 1\r\n Content-Length: 3\r\n\r\n",
        b"X-A: 1\rX-B: 2\r\n\r\n",
        b"X-A: 1\x002\r\n\r\n",
        b"X A: 1\r\n\r\n",
        b": 1\r\n\r\n",
        b"no colon\r\n\r\n",
        b"Host: y\r\n\r\n",
        b"X-A: 1\n\n",
    ],
)
def test_what_could_be_read_in_two_ways_is_refused(
    proxy: Proxy, upstream: RawUpstream, path: str, fields_and_body: bytes
) -> None:
    answer = proxy.ask(b"POST %b HTTP/1.1\r\nHost: x\r\n%b" % (path.encode(), fields_and_body))
    assert answer is not None
    assert answer.status in (400, 501)
    assert answer.get(b"connection") == b"close"
    assert not [message for message in upstream.seen if message.whole]


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\r\n\r\n", 400),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
        (b"GET /openai/x HTTP/2.0\r\nHost: x\r\n\r\n", 505),
        (b"GET /openai/x HTTP/0.9\r\nHost: x\r\n\r\n", 505),
        (b"GET /openai/x\r\n\r\n", 505),
        (b"FROB /openai/x HTTP/1.1\r\nHost: x\r\n\r\n", 400),
        (b"CONNECT evil.com:443 HTTP/1.1\r\nHost: evil.com\r\n\r\n", 405),
        (b"GET http://evil.com/v1/messages HTTP/1.1\r\nHost: evil.com\r\n\r\n", 400),
        (b"OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n", 400),
        (b"GET //evil.com/x HTTP/1.1\r\nHost: evil.com\r\n\r\n", 404),
        (b"GET /@evil.com/x HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    ],
)
def test_what_is_no_request_for_us_is_refused(
    proxy: Proxy, upstream: RawUpstream, raw: bytes, status: int
) -> None:
    answer = proxy.ask(raw, "GET")
    assert answer is not None
    assert answer.status == status
    assert answer.body.startswith(b"looptap: ")
    assert upstream.connections == 0


def test_no_trick_in_the_target_moves_the_host(proxy: Proxy, upstream: RawUpstream) -> None:
    for rest in ("//evil.com/x", "/@evil.com/x", "/http://evil.com/", "/..//evil.com", "/%2f%2fevil.com"):
        answer = proxy.ask(request("/openai" + rest, method="GET", host=b"evil.com"), "GET")
        assert answer is not None
        assert answer.status == 200
        assert upstream.seen[-1].start == f"GET {rest} HTTP/1.1".encode()
        assert upstream.seen[-1].get(b"host") == b"127.0.0.1:%d" % upstream.port


def test_connection_cannot_name_away_what_frames_a_message(proxy: Proxy, upstream: RawUpstream) -> None:
    raw = b"Connection: content-length, host, transfer-encoding, x-a\r\nX-A: 1\r\n"
    proxy.ask(request(FREE, b"abc", fields=raw))
    assert (upstream.seen[0].body, upstream.seen[0].whole) == (b"abc", True)
    assert upstream.seen[0].get(b"x-a") is None


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (b"GET /openai/" + b"a" * 70_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n", 414),
        (b"GET /openai/" + b"a" * 2_000_000, 414),
        (b"GET /openai/x HTTP/1.1\r\nX: " + b"a" * 300_000 + b"\r\n\r\n", 431),
        (b"GET /openai/x HTTP/1.1\r\nX: " + b"a" * 2_000_000, 431),
        (b"GET /openai/x HTTP/1.1\r\n" + b"X: a\r\n" * 1_500 + b"\r\n", 431),
        (b"GET /openai/x HTTP/1.1\r\n" + b"X: a\r\n" * 300_000, 431),
    ],
    ids=["long target", "endless target", "long field", "endless field", "many fields", "endless fields"],
)
def test_oversized_heads_are_refused_and_the_answer_arrives(
    any_proxy: Proxy, upstream: RawUpstream, raw: bytes, status: int
) -> None:
    answer = any_proxy.ask(raw, "GET")
    assert answer is not None
    assert answer.status == status
    assert upstream.connections == 0


def test_large_but_lawful_heads_pass(proxy: Proxy, upstream: RawUpstream) -> None:
    fields = b"X-Big: " + b"v" * 65_000 + b"\r\n" + b"".join(b"X-%d: %d\r\n" % (i, i) for i in range(200))
    target = "/openai/a?" + "k" * 16_000
    answer = proxy.ask(request(target, method="GET", fields=fields), "GET")
    assert answer is not None
    assert answer.status == 200
    assert len(upstream.seen[0].fields) == 202


@pytest.mark.parametrize("tail", [b"1;" + b"x" * 400_000, b"1\r\na\r\n0\r\n" + b"X: y\r\n" * 100_000])
def test_endless_chunk_extensions_and_trailers_are_refused(
    proxy: Proxy, upstream: RawUpstream, tail: bytes
) -> None:
    answer = proxy.ask(request(MODEL, fields=b"Transfer-Encoding: chunked\r\n") + tail)
    assert answer is not None
    assert answer.status in (400, 431)
    assert not upstream.seen


def test_a_slow_head_is_cut_off(upstream: RawUpstream) -> None:
    with proxy_to({"openai": upstream.url}, limits=WireLimits(head_s=0.6)) as proxy:
        client = proxy.connect()
        with contextlib.closing(client.sock):
            client.send(b"GET /openai/x HT")
            for _ in range(3):  # a byte now and then does not help
                time.sleep(0.2)
                client.send(b"TP/"[_ : _ + 1])
            answer = client.response("GET")
            assert answer is not None
            assert answer.status == 408
            assert client.ended(3)


def test_a_stalled_body_is_cut_off(upstream: RawUpstream) -> None:
    with proxy_to({"anthropic": upstream.url}, limits=WireLimits(silence_s=0.6)) as proxy:
        client = proxy.connect()
        with contextlib.closing(client.sock):
            client.send(request(MODEL, fields=b"Content-Length: 100\r\n") + b"x")
            answer = client.response()
            assert answer is not None
            assert answer.status == 408
    assert not upstream.heads


def test_a_silent_upstream_is_a_504(upstream: RawUpstream) -> None:
    upstream.early = lambda wire, message: wire.ended()
    with proxy_to({"anthropic": upstream.url}, limits=WireLimits(silence_s=0.6)) as proxy:
        answer = proxy.ask(request(MODEL, b"{}"))
        assert answer is not None
        assert answer.status == 504
        assert b'"timeout_error"' in answer.body
        assert eventually(lambda: proxy.thinker.exchanges[0].ends == ["timeout"])


def test_an_idle_connection_is_closed_quietly(upstream: RawUpstream) -> None:
    with proxy_to({"openai": upstream.url}, limits=WireLimits(idle_s=0.3)) as proxy:
        client = proxy.connect()
        with contextlib.closing(client.sock):
            client.send(request(FREE, b"x"))
            assert client.response() is not None
            assert client.rest() == b""


def test_a_client_that_does_not_read_is_given_up(upstream: RawUpstream) -> None:
    upstream.reply = b"HTTP/1.1 200 OK\r\nContent-Length: 60000000\r\n\r\n" + b"z" * 60_000_000
    with proxy_to({"openai": upstream.url}, limits=WireLimits(stalled_write_s=0.5)) as proxy:
        client = proxy.connect()
        with contextlib.closing(client.sock):
            client.send(request(FREE, b"x"))
            assert eventually(lambda: proxy.server.counters.open_exchanges == 1)
            assert eventually(lambda: proxy.server.counters.open_connections == 0)
            assert eventually(lambda: proxy.thinker.exchanges[0].ends == ["client_gone"])


def test_PERF_06_too_many_connections_are_turned_away_at_once(upstream: RawUpstream) -> None:
    with proxy_to({"openai": upstream.url}, limits=WireLimits(max_connections=2)) as proxy:
        with contextlib.ExitStack() as stack:
            for _ in range(2):
                client = proxy.connect()
                stack.enter_context(contextlib.closing(client.sock))
                client.send(request(FREE, b"x"))
                assert client.response() is not None
            answer = proxy.ask(b"")
            assert answer is not None
            assert answer.status == 503
            assert answer.get(b"retry-after") == b"1"
        assert eventually(lambda: proxy.server.counters.open_connections == 0)
        assert proxy.server.counters.rejected_connections_total == 1


def test_pipelining_is_read_only_so_far_ahead(upstream: RawUpstream) -> None:
    """A client that never waits is held, not buffered."""
    with proxy_to({"openai": upstream.url}) as proxy:
        upstream.early = lambda wire, message: wire.ended(2)
        client = proxy.connect()
        with contextlib.closing(client.sock):
            client.send(request(FREE, b"first"))
            client.sock.settimeout(0.3)
            sent = 0
            with contextlib.suppress(TimeoutError):
                while sent < 100_000_000:
                    sent += client.sock.send(request(FREE, b"x" * 1000) * 100)
            assert sent < 40_000_000
            assert proxy.server.counters.held_connections == 1


def test_a_fault_behind_good_requests_is_answered_in_its_turn(
    any_proxy: Proxy, upstream: RawUpstream
) -> None:
    client = any_proxy.connect()
    with contextlib.closing(client.sock):
        client.send(request(FREE, b"1") + request(FREE, b"2") + b"garbage\r\n\r\n" + request(FREE, b"3"))
        statuses = []
        while (answer := client.response()) is not None:
            statuses.append(answer.status)
        assert statuses == [200, 200, 400]
    assert [message.body for message in upstream.seen] == [b"1", b"2"]


def test_heads_cut_at_every_byte(any_proxy: Proxy, upstream: RawUpstream) -> None:
    raw = (
        request(MODEL, fields=b"Transfer-Encoding: chunked\r\nX-A: 1\r\n")
        + frame(b'{"a":')
        + frame(b"1}")
        + END
    )
    for cut in range(1, len(raw)):
        client = any_proxy.connect()
        with contextlib.closing(client.sock):
            client.send(raw[:cut])
            time.sleep(0.0005)
            client.send(raw[cut:])
            answer = client.response()
            assert answer is not None
            assert answer.status == 200
    assert {message.body for message in upstream.seen} == {b'{"a":1}'}


def test_an_upgrade_with_a_body_is_no_way_to_smuggle(any_proxy: Proxy, upstream: RawUpstream) -> None:
    """Clients that try HTTP/2 first send h2c upgrades with their POSTs; the body stays a body."""
    h2c = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n"
    hidden = request(FREE, b"hidden")
    client = any_proxy.connect()
    with contextlib.closing(client.sock):
        client.send(request(MODEL, hidden, fields=h2c) + request(FREE, method="GET", fields=h2c))
        client.send(request(FREE, fields=h2c + b"Transfer-Encoding: chunked\r\n") + frame(hidden) + END)
        client.send(request(FREE, b"last"))
        for _ in range(4):
            answer = client.response()
            assert answer is not None
            assert answer.status == 200
    assert [message.body for message in upstream.seen] == [hidden, b"", hidden, b"last"]
    assert not [m for m in upstream.seen if m.get(b"upgrade") or m.get(b"http2-settings")]


def test_room_for_bodies_is_bounded_and_comes_free(upstream: RawUpstream) -> None:
    limits = WireLimits(max_buffered=1_000_000, room_s=1.0)
    with proxy_to({"anthropic": upstream.url}, limits=limits) as proxy:
        too_large = proxy.ask(request(MODEL, fields=b"Content-Length: 1000001\r\n"))
        assert too_large is not None
        assert too_large.status == 413
        with contextlib.ExitStack() as stack:
            clients = [proxy.connect() for _ in range(3)]
            for client in clients:
                stack.enter_context(contextlib.closing(client.sock))
                client.send(request(MODEL, fields=b"Content-Length: 900000\r\n") + b"x" * 400_000)
            assert eventually(lambda: proxy.server.counters.held_connections == 2)  # not the oldest
            assert proxy.server.counters.buffered_bytes < 1_300_000
            # Nobody finishes: the newest is given up, and the others go on.
            answers = []
            for client in clients:
                client.sock.settimeout(0.05)
            deadline = time.monotonic() + 4
            while len(answers) < 1 and time.monotonic() < deadline:
                for client in clients:
                    with contextlib.suppress(TimeoutError):
                        head = client.head()
                        if head is not None:
                            answers.append(head.status)
            assert answers == [503]
        assert eventually(lambda: proxy.server.counters.buffered_bytes == 0)
        upstream.reply = OK
        good = proxy.ask(request(MODEL, b"x" * 900_000))
        assert good is not None
        assert good.status == 200


def test_large_bodies_that_fill_the_room_wait_for_each_other_in_turn_and_stop_no_small_ones(
    upstream: RawUpstream,
) -> None:
    size, half = 3_000_000, 2_000_000
    limits = WireLimits(max_buffered=5_000_000, room_s=30.0)
    upstream.reply = OK
    with proxy_to({"anthropic": upstream.url}, limits=limits) as proxy, contextlib.ExitStack() as stack:
        clients = [proxy.connect() for _ in range(3)]
        head = request(MODEL, fields=b"Content-Length: %d\r\n" % size)
        for client in clients:
            stack.enter_context(contextlib.closing(client.sock))
            client.send(head + b"x" * half)
        assert eventually(lambda: proxy.server.counters.held_connections == 2)
        small = proxy.ask(request(MODEL, b"{}"))
        assert small is not None
        assert small.status == 200
        for client in clients:  # each can only end because the one before it did
            client.send(b"x" * (size - half))
            answer = client.response()
            assert answer is not None
            assert answer.status == 200
        assert eventually(lambda: proxy.server.counters.buffered_bytes == 0)
