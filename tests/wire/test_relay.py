"""The plain way through: bytes, framing, order and time of what passes, and what the thinker is told."""

import contextlib
import gc
import threading
import time

import pytest

from proxy.exchange import LiveExchange
from proxy.server import ClientConnection
from proxy.verdict import Reply
from proxy.wire.guard import Watch
from proxy.wire.heads import WireLimits
from proxy.wire.incoming import IncomingRequest
from proxy.wire.reader import RequestReader
from proxy.wire.relay import Relay
from proxy.wire.upstream import UpstreamConnection
from tests.wire.raw_upstream import (
    END,
    OK,
    PATIENCE_S,
    STREAM,
    Message,
    Proxy,
    RawUpstream,
    Wire,
    eventually,
    frame,
    proxy_to,
    request,
)

FREE = "/openai/v1/files"
MODEL = "/anthropic/v1/messages"


def test_a_model_call_passes_whole_and_the_thinker_sees_both_ways(
    any_proxy: Proxy, upstream: RawUpstream
) -> None:
    upstream.reply = STREAM + frame(b"data: 1\n\n") + frame(b"data: 2\n\n") + END
    answer = any_proxy.ask(request(MODEL + "?beta=true", b'{"a":1}', fields=b"X-A: b\r\n"))
    assert answer is not None
    assert answer.body == b"data: 1\n\ndata: 2\n\n"
    assert answer.whole
    [sent] = upstream.seen
    assert sent.start == b"POST /v1/messages?beta=true HTTP/1.1"
    assert sent.fields == [
        (b"Host", b"127.0.0.1:%d" % upstream.port), (b"X-A", b"b"), (b"Content-Length", b"7"),
    ]  # fmt: skip
    assert eventually(lambda: any_proxy.thinker.exchanges[0].ends == ["complete"])
    [seen] = any_proxy.thinker.exchanges
    assert (seen.given, seen.data) == (b'{"a":1}', answer.body)
    assert seen.exchange.path == "/v1/messages"
    assert seen.exchange.id.startswith("exc_")
    assert len(seen.exchange.id) == 24
    assert seen.response is not None
    assert seen.response.status == 200


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/anthropic/v1/messages/count_tokens?beta=true"),
        ("HEAD", "/api/hello"),
        ("GET", "/openai/v1/models"),
        ("PUT", "/openai/v1/nobody/knows?x=1&x="),
        ("DELETE", "/openai/v1/files/a%2Fb"),
        ("PATCH", "/openai/x"),
        ("OPTIONS", "/openai/x"),
    ],
)
def test_WIRE_09_unknown_endpoints_are_relayed_verbatim(
    proxy: Proxy, upstream: RawUpstream, method: str, path: str
) -> None:
    answer = proxy.ask(request(path, method=method), method)
    assert answer is not None
    assert answer.status == 200
    target = path if path.startswith("/api") else "/" + path.split("/", 2)[2]
    assert upstream.seen[0].start == f"{method} {target} HTTP/1.1".encode()


def test_WIRE_10_WIRE_19_beta_values_and_unknown_fields_arrive_as_sent(
    proxy: Proxy, upstream: RawUpstream
) -> None:
    fields = [
        (b"anthropic-beta", b"a-2099-01-01,zzz"),
        (b"Anthropic-Beta", b"other"),
        (b"ANTHROPIC-odd", b"1"),
        (b"x-anything", b"caf\xe9"),
        (b"Authorization", b"Bearer token"),
        (b"Cookie", b"a=b"),
    ]
    raw = b"".join(name + b": " + value + b"\r\n" for name, value in fields)
    proxy.ask(request(MODEL, b"{}", fields=raw))
    assert [pair for pair in upstream.seen[0].fields if pair[0] not in (b"Host", b"Content-Length")] == fields


def test_our_own_fields_and_labels_are_taken_off(proxy: Proxy, upstream: RawUpstream) -> None:
    raw = b"x-looptap-label-team: search\r\nX-Looptap-Key: lt_1\r\nx-kept: 1\r\n"
    answer = proxy.ask(request("/@env=ci" + MODEL, b"{}", fields=raw))
    assert answer is not None
    [seen] = proxy.thinker.exchanges
    assert seen.exchange.identity.labels == {"env": "ci", "team": "search"}
    assert not [name for name, _ in seen.exchange.head.headers if b"looptap" in name.lower()]
    assert [name for name, _ in upstream.seen[0].fields] == [b"Host", b"x-kept", b"Content-Length"]


@pytest.mark.parametrize("path", [FREE, MODEL])
def test_chunked_uploads_stay_chunked_and_trailers_end_here(
    proxy: Proxy, upstream: RawUpstream, path: str
) -> None:
    raw = request(path, fields=b"Transfer-Encoding: chunked\r\nTrailer: X-T\r\n")
    proxy.ask(raw + frame(b'{"a"') + b"3;ext=1\r\n:1}\r\n" + b"0\r\nX-T: 1\r\n\r\n")
    [sent] = upstream.seen
    assert (sent.body, sent.whole) == (b'{"a":1}', True)
    assert sent.get(b"transfer-encoding") == b"chunked"
    assert sent.get(b"content-length") is None
    assert sent.get(b"trailer") is None


def test_WIRE_01_codings_and_lengths_pass_untouched(proxy: Proxy, upstream: RawUpstream) -> None:
    for coding in (b"br", b"gzip", b"zstd", b"x-unknown"):
        upstream.reply = (
            b"HTTP/1.1 200 OK\r\nContent-Encoding: %b\r\nContent-Length: 4\r\n\r\n\x1f\x8b\x08\x00" % coding
        )
        answer = proxy.ask(request(MODEL, b"\x28\xb5\x2f", fields=b"Content-Encoding: zstd\r\n"))
        assert answer is not None
        assert answer.body == b"\x1f\x8b\x08\x00"
        assert answer.get(b"content-encoding") == coding
        assert answer.get(b"content-length") == b"4"
        assert upstream.seen[-1].body == b"\x28\xb5\x2f"


def test_WIRE_05_no_chunk_waits_for_another(any_proxy: Proxy, upstream: RawUpstream) -> None:
    step = threading.Semaphore(0)

    def script(wire: Wire, message: Message) -> bool:
        wire.send(STREAM)
        for index in range(20):
            wire.send(frame(b"data: %d\n\n" % index))
            assert step.acquire(timeout=PATIENCE_S)
        wire.send(END)
        return True

    upstream.script = script
    client = any_proxy.connect()
    with contextlib.closing(client.sock):
        client.send(request(MODEL, b"{}"))
        assert client.head() is not None
        for index in range(20):
            assert client.until(b"\n\n\r\n") == frame(b"data: %d\n\n" % index)
            step.release()
        assert client.until(END) == END


def test_WIRE_06_pings_alone_keep_a_stream_alive(upstream: RawUpstream) -> None:
    """With every limit cut to fractions of a second, a stream that only pings is never silent."""
    limits = WireLimits(silence_s=2.0, idle_s=2.0, head_s=2.0, stalled_write_s=2.0)
    arrived = threading.Semaphore(0)

    def script(wire: Wire, message: Message) -> None:
        wire.send(STREAM)
        for _ in range(8):
            time.sleep(0.3)
            wire.send(frame(b": ping\n\n"))
            assert arrived.acquire(timeout=PATIENCE_S)  # the next only when this one is through
        wire.send(END)

    upstream.script = script
    with proxy_to({"anthropic": upstream.url}, limits=limits) as proxy:
        client = proxy.connect()
        with contextlib.closing(client.sock):
            client.send(request(MODEL, b"{}"))
            assert client.head() is not None
            for _ in range(8):
                assert client.until(b"\n\n\r\n") is not None
                arrived.release()
            assert client.until(END) == END
        assert eventually(lambda: proxy.thinker.exchanges[0].ends == ["complete"])


def test_an_upload_streams_and_its_answer_may_come_meanwhile(any_proxy: Proxy, upstream: RawUpstream) -> None:
    def early(wire: Wire, message: Message) -> None:
        wire.send(STREAM)
        for _ in range(5):
            data = wire.exactly(10)
            assert data is not None
            wire.send(frame(b"got " + data))
        wire.send(END)

    upstream.early = early
    client = any_proxy.connect()
    with contextlib.closing(client.sock):
        client.send(request(FREE, fields=b"Content-Length: 50\r\n"))
        assert client.head() is not None
        for index in range(5):
            client.send(b"%010d" % index)
            assert client.until(b"%010d\r\n" % index) is not None
        assert client.until(END) == END


def test_an_early_answer_arrives_and_the_connection_lives_on(any_proxy: Proxy, upstream: RawUpstream) -> None:
    def early(wire: Wire, message: Message) -> None:
        wire.send(b"HTTP/1.1 413 Too Large\r\nContent-Length: 3\r\n\r\nbig")
        wire.ended()

    upstream.early = early
    client = any_proxy.connect()
    with contextlib.closing(client.sock):
        client.send(request(FREE, fields=b"Content-Length: 2000000\r\n") + b"x" * 1000)
        answer = client.response()
        assert answer is not None
        assert (answer.status, answer.body) == (413, b"big")
        client.send(b"x" * 1_999_000)
        upstream.reset()
        client.send(request(FREE, b"next"))
        answer = client.response()
        assert answer is not None
        assert answer.status == 200
        assert upstream.seen[-1].body == b"next"


def test_an_early_answer_to_a_body_that_never_ends_is_closed_after_a_while(upstream: RawUpstream) -> None:
    upstream.early = lambda wire, message: wire.send(b"HTTP/1.1 403 No\r\nContent-Length: 2\r\n\r\nno")
    with proxy_to({"openai": upstream.url}, limits=WireLimits(linger_s=0.5)) as proxy:
        client = proxy.connect()
        with contextlib.closing(client.sock):
            client.send(request(FREE, fields=b"Content-Length: 2000000\r\n") + b"x" * 1000)
            answer = client.response()
            assert answer is not None
            assert answer.body == b"no"
            assert client.ended(3)


def test_expect_continue_is_the_upstreams_to_grant(proxy: Proxy, upstream: RawUpstream) -> None:
    def early(wire: Wire, message: Message) -> None:
        wire.send(b"HTTP/1.1 100 Continue\r\n\r\n")
        data = wire.exactly(5)
        assert data is not None
        wire.send(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n" + data)

    upstream.early = early
    client = proxy.connect()
    with contextlib.closing(client.sock):
        client.send(request(FREE, fields=b"Expect: 100-continue\r\nContent-Length: 5\r\n"))
        assert client.until(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        assert upstream.heads[0].get(b"expect") == b"100-continue"
        client.send(b"hello")
        answer = client.response()
        assert answer is not None
        assert answer.body == b"hello"


def test_expect_continue_refused_by_the_upstream_is_never_granted(
    proxy: Proxy, upstream: RawUpstream
) -> None:
    upstream.early = lambda wire, message: wire.send(b"HTTP/1.1 417 No\r\nContent-Length: 2\r\n\r\nno")
    client = proxy.connect()
    with contextlib.closing(client.sock):
        client.send(request(FREE, fields=b"Expect: 100-continue\r\nContent-Length: 5\r\n"))
        head = client.head()
        assert head is not None
        assert head.status == 417


def test_expect_continue_of_a_model_call_is_granted_here_once(proxy: Proxy, upstream: RawUpstream) -> None:
    def script(wire: Wire, message: Message) -> bool:
        wire.send(b"HTTP/1.1 100 Continue\r\n\r\n" + OK)
        return True

    upstream.script = script
    client = proxy.connect()
    with contextlib.closing(client.sock):
        client.send(request(MODEL, fields=b"Expect: 100-continue\r\nContent-Length: 2\r\n"))
        assert client.until(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        client.send(b"{}")
        head = client.head()
        assert head is not None
        assert head.status == 200


def test_an_http_1_0_client_gets_a_plain_body_and_a_close(proxy: Proxy, upstream: RawUpstream) -> None:
    upstream.reply = STREAM + frame(b"abc") + frame(b"def") + END
    answer = proxy.ask(b"GET %b HTTP/1.0\r\n\r\n" % FREE.encode(), "GET")
    assert answer is not None
    assert answer.get(b"transfer-encoding") is None
    assert answer.body == b"abcdef"
    assert answer.get(b"connection") == b"close"


def test_connections_are_reused_on_both_sides(any_proxy: Proxy, upstream: RawUpstream) -> None:
    client = any_proxy.connect()
    with contextlib.closing(client.sock):
        for reply, method in [
            (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n", "HEAD"),
            (b"HTTP/1.1 204 N\r\n\r\n", "GET"),
            (b"HTTP/1.1 304 N\r\nContent-Length: 5\r\n\r\n", "GET"),
            (STREAM + frame(b"abc") + END, "POST"),
            (STREAM + END, "POST"),
            (b"HTTP/1.1 103 Early\r\nLink: x\r\n\r\n" + OK, "GET"),
            (OK, "OPTIONS"),
        ]:
            upstream.reply = reply
            client.send(request(FREE, b"b" if method == "POST" else None, method=method))
            answer = client.response(method)
            assert answer is not None
            assert answer.whole
    assert upstream.connections == 1
    assert len(upstream.seen) == 7


def test_close_is_honoured_both_ways(proxy: Proxy, upstream: RawUpstream) -> None:
    upstream.reply = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok"
    client = proxy.connect()
    with contextlib.closing(client.sock):
        client.send(request(FREE, b"x"))
        answer = client.response()
        assert answer is not None
        assert answer.get(b"connection") is None  # their hop closes, ours goes on
        upstream.reply = OK
        client.send(request(FREE, b"x", fields=b"Connection: close\r\n") + request(FREE, b"ignored"))
        answer = client.response()
        assert answer is not None
        assert answer.get(b"connection") == b"close"
        assert client.rest() == b""
    assert upstream.connections == 2
    assert upstream.seen[-1].body == b"x"
    assert upstream.seen[-1].get(b"connection") is None


def test_pipelined_requests_are_answered_in_order(any_proxy: Proxy, upstream: RawUpstream) -> None:
    def script(wire: Wire, message: Message) -> bool:
        wire.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(message.body), message.body))
        return True

    upstream.script = script
    client = any_proxy.connect()
    with contextlib.closing(client.sock):
        client.send(b"".join(request((FREE, MODEL)[i % 2], b"%d" % i) for i in range(100)))
        for index in range(100):
            answer = client.response()
            assert answer is not None
            assert answer.body == b"%d" % index


def test_an_edited_body_goes_out_with_its_own_length(proxy: Proxy, upstream: RawUpstream) -> None:
    proxy.thinker.edit = lambda body: body + b" and more"
    proxy.ask(request(MODEL, b"{}"))
    assert upstream.seen[0].body == b"{} and more"
    assert upstream.seen[0].get(b"content-length") == b"11"
    proxy.ask(request(MODEL, fields=b"Transfer-Encoding: chunked\r\n") + frame(b"{}") + END)
    assert (upstream.seen[1].body, upstream.seen[1].whole) == (b"{} and more", True)


def test_a_refusal_is_answered_here_and_the_connection_lives_on(proxy: Proxy, upstream: RawUpstream) -> None:
    proxy.thinker.refuse = Reply(402, [(b"content-type", b"application/json")], b'{"no":1}')
    client = proxy.connect()
    with contextlib.closing(client.sock):
        for _ in range(2):
            client.send(request(MODEL, b"{}"))
            answer = client.response()
            assert answer is not None
            assert (answer.status, answer.body) == (402, b'{"no":1}')
            assert answer.start == b"HTTP/1.1 402 Payment Required"
    assert upstream.seen == []
    assert eventually(lambda: [seen.ends for seen in proxy.thinker.exchanges] == [["refused"], ["refused"]])


@pytest.mark.parametrize("where", ["match", "open", "sent", "respond", "stamps", "feed", "close"])
def test_a_fault_of_ours_costs_observations_not_traffic(
    proxy: Proxy, upstream: RawUpstream, where: str
) -> None:
    upstream.reply = STREAM + frame(b"data: 1\n\n") + END
    proxy.thinker.fail_at = where
    for _ in range(3):
        answer = proxy.ask(request(MODEL, b'{"a":1}'))
        assert answer is not None
        assert (answer.body, answer.whole) == (b"data: 1\n\n", True)
    assert [message.body for message in upstream.seen] == [b'{"a":1}'] * 3
    assert eventually(lambda: sum(proxy.server.counters.faults.values()) == 3)
    assert proxy.faults == [f"{where}: planted in {where}"]  # counted each time, told once
    assert eventually(lambda: all(len(seen.ends) == 1 for seen in proxy.thinker.exchanges))


def test_a_fault_of_ours_refuses_where_the_posture_says_closed(upstream: RawUpstream) -> None:
    with proxy_to({"anthropic": upstream.url}, on_internal_error="closed") as proxy:
        proxy.thinker.fail_at = "open"
        answer = proxy.ask(request(MODEL, b"{}"))
        assert answer is not None
        assert answer.status == 500
        assert upstream.seen == []


def test_admit_is_awaited_before_anything_goes_out(upstream: RawUpstream) -> None:
    order: list[str] = []

    async def admit(exchange: object, opened: object) -> None:
        order.append(f"admit with {len(upstream.heads)} sent")

    with proxy_to({"anthropic": upstream.url}, admit=admit) as proxy:
        answer = proxy.ask(request(MODEL, b"{}"))
        assert answer is not None
        assert answer.status == 200
    assert order == ["admit with 0 sent"]


def test_PERF_01_large_bodies_are_the_upstreams_to_judge(proxy: Proxy, upstream: RawUpstream) -> None:
    for size in (900_000, 1_150_000, 8 << 20, 33 << 20):
        answer = proxy.ask(request(MODEL, b"z" * size))
        assert answer is not None
        assert answer.status == 200
        assert len(upstream.seen[-1].body) == size


def test_PERF_03_a_stream_of_tiny_events_makes_no_task_per_event(proxy: Proxy, upstream: RawUpstream) -> None:
    upstream.reply = STREAM + b"".join(frame(b"data: %d\n\n" % i) for i in range(50_000)) + END
    answer = proxy.ask(request(MODEL, b"{}"))
    assert answer is not None
    assert answer.body == b"".join(b"data: %d\n\n" % i for i in range(50_000))

    async def tasks() -> int:
        import asyncio

        return len(asyncio.all_tasks())

    assert proxy.call(tasks()) <= 4


def test_counters_return_to_nothing(proxy: Proxy, upstream: RawUpstream) -> None:
    gate = threading.Event()

    def script(wire: Wire, message: Message) -> bool:
        wire.send(STREAM + frame(b"1"))
        gate.wait(PATIENCE_S)
        wire.send(END)
        return True

    upstream.script = script
    client = proxy.connect()
    with contextlib.closing(client.sock):
        client.send(request(MODEL, b"{}"))
        assert client.head() is not None
        counters = proxy.server.counters
        assert (counters.open_connections, counters.open_exchanges, counters.open_streams) == (1, 1, 1)
        gate.set()
        assert client.until(END) is not None
        assert eventually(lambda: proxy.server.counters.open_exchanges == 0)
        assert proxy.server.counters.open_streams == 0
        assert proxy.server.counters.buffered_bytes == 0
        assert proxy.server.counters.idle_upstream_connections == 1
    assert eventually(lambda: proxy.server.counters.open_connections == 0)
    assert proxy.server.counters.requests_total == 1


def test_an_exchange_and_its_connection_leave_nothing_for_the_garbage_collector(
    any_proxy: Proxy, upstream: RawUpstream
) -> None:
    """A circle would keep whole bodies until thousands of objects later; and looking for it stops streams."""
    upstream.reply = STREAM + frame(b"data: 1\n\n") + END
    kinds = (ClientConnection, IncomingRequest, LiveExchange, Relay, RequestReader, UpstreamConnection, Watch)

    def left() -> list[str]:
        return [type(one).__name__ for one in gc.get_objects() if type(one) in kinds]

    gc.collect()
    gc.disable()
    try:
        with contextlib.closing(any_proxy.connect().sock) as sock:
            client = Wire(sock)
            for path in (MODEL, FREE):
                client.send(request(path, b"{}"))
                assert client.response() is not None
            assert eventually(
                lambda: sorted(left()) == ["ClientConnection", "RequestReader", "UpstreamConnection"]
            )
        assert eventually(lambda: left() == ["UpstreamConnection"])
        upstream.script = lambda wire, message: wire.send(STREAM + frame(b"data: 1\n\n")) or wire.more()
        with contextlib.closing(any_proxy.connect().sock) as sock:  # and leave in the middle
            Wire(sock).send(request(MODEL, b"{}"))
            assert sock.recv(1 << 16)
        assert eventually(lambda: left() == [])
    finally:
        gc.enable()
