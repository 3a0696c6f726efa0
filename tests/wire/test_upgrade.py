"""WebSocket: relayed unread after 101, answered otherwise where it is, refused at once where it must be."""

import contextlib
import threading
import time

import pytest

from proxy.wire.heads import WireLimits
from tests.wire.raw_upstream import (
    OK,
    PATIENCE_S,
    Message,
    Proxy,
    RawUpstream,
    Wire,
    eventually,
    proxy_to,
    request,
)

SOCKET = "/openai/v1/responses"
HANDSHAKE = (
    b"Connection: keep-alive, Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: k\r\n"
    b"Sec-WebSocket-Version: 13\r\n"
)
SWITCH = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: a\r\n\r\n"  # noqa: E501


def echo(wire: Wire, message: Message) -> None:
    wire.send(SWITCH + b"hello")
    while (data := wire.exactly(4)) is not None:
        wire.send(data.upper())


def test_WIRE_14_after_101_both_ways_are_relayed_unread(any_proxy: Proxy, upstream: RawUpstream) -> None:
    upstream.early = echo
    unread: list[str] = []
    any_proxy.server.shell.unread = unread.append
    client = any_proxy.connect()
    with contextlib.closing(client.sock):
        client.send(request(SOCKET, method="GET", fields=HANDSHAKE) + b"tail")  # frames right behind it
        head = client.head()
        assert head is not None
        assert head.start == b"HTTP/1.1 101 Switching Protocols"
        assert head.fields == [
            (b"Upgrade", b"websocket"), (b"Connection", b"Upgrade"), (b"Sec-WebSocket-Accept", b"a"),
        ]  # fmt: skip
        assert client.exactly(9) == b"helloTAIL"
        for index in range(20):
            client.send(b"m%03d" % index)
            assert client.exactly(4) == b"M%03d" % index
    [sent] = upstream.heads
    assert sent.get(b"upgrade") == b"websocket"
    assert sent.get(b"connection") == b"Upgrade"
    assert eventually(lambda: any_proxy.thinker.exchanges[0].ends == ["complete"])
    assert any_proxy.thinker.exchanges[0].data.startswith(b"helloTAILM000")
    assert eventually(lambda: unread == ["openai"])


def test_either_side_ends_it(any_proxy: Proxy, upstream: RawUpstream) -> None:
    upstream.early = lambda wire, message: wire.send(SWITCH + b"bye")
    client = any_proxy.connect()
    with contextlib.closing(client.sock):
        client.send(request(SOCKET, method="GET", fields=HANDSHAKE))
        assert client.head() is not None
        assert client.rest() == b"bye"
    last: list[bytes | None] = []

    def listen(wire: Wire, message: Message) -> None:
        wire.send(SWITCH)
        last.append(wire.exactly(7))
        wire.ended()
        last.append(b"ended")

    upstream.early = listen
    client = any_proxy.connect()
    client.send(request(SOCKET, method="GET", fields=HANDSHAKE))
    assert client.head() is not None
    client.send(b"goodbye")
    client.sock.close()
    assert eventually(lambda: last == [b"goodbye", b"ended"])
    assert eventually(lambda: [seen.ends for seen in any_proxy.thinker.exchanges] == [["complete"]] * 2)


def test_a_handshake_answered_otherwise_goes_on_as_http(any_proxy: Proxy, upstream: RawUpstream) -> None:
    client = any_proxy.connect()
    with contextlib.closing(client.sock):
        client.send(request(SOCKET, method="GET", fields=HANDSHAKE) + request("/openai/v1/files", b"next"))
        for body in (b"", b"next"):
            answer = client.response()
            assert answer is not None
            assert answer.body == b"ok"
            assert upstream.seen[-1].body == body or body == b""
    assert [message.body for message in upstream.seen] == [b"", b"next"]


def test_a_silent_tunnel_is_left_alone(upstream: RawUpstream) -> None:
    upstream.early = echo
    limits = WireLimits(silence_s=0.3, idle_s=0.3)
    with proxy_to({"openai": upstream.url}, limits=limits) as proxy:
        client = proxy.connect()
        with contextlib.closing(client.sock):
            client.send(request(SOCKET, method="GET", fields=HANDSHAKE))
            assert client.until(b"hello") is not None
            time.sleep(1.2)
            client.send(b"ping")
            assert client.exactly(4) == b"PING"


def test_a_tunnel_keeps_back_pressure(any_proxy: Proxy, upstream: RawUpstream) -> None:
    gate = threading.Event()
    got: list[int] = []

    def early(wire: Wire, message: Message) -> None:
        wire.send(SWITCH)
        assert gate.wait(PATIENCE_S)
        data = wire.exactly(40_000_000)
        got.append(len(data or b""))

    upstream.early = early
    client = any_proxy.connect()
    with contextlib.closing(client.sock):
        client.send(request(SOCKET, method="GET", fields=HANDSHAKE))
        assert client.head() is not None
        client.sock.settimeout(0.4)
        sent = 0
        with contextlib.suppress(TimeoutError):
            while sent < 40_000_000:
                sent += client.sock.send(b"z" * min(262144, 40_000_000 - sent))
        assert sent < 35_000_000
        gate.set()
        client.sock.settimeout(5)
        client.send(b"z" * (40_000_000 - sent))
        assert eventually(lambda: got == [40_000_000])


def test_WIRE_14_responses_upgrades_get_426_at_once_where_the_settings_say_so(upstream: RawUpstream) -> None:
    with proxy_to({"openai": upstream.url}, refuse_websocket=True) as proxy:
        answer = proxy.ask(request(SOCKET, method="GET", fields=HANDSHAKE), "GET")
        assert answer is not None
        assert answer.start == b"HTTP/1.1 426 Upgrade Required"
        assert answer.get(b"upgrade") == b"HTTP/1.1"
        assert b'"looptap_websocket_refused"' in answer.body
        assert not upstream.heads
        assert eventually(lambda: proxy.thinker.exchanges[0].ends == ["refused"])
        # The same route over HTTP, and other upgrades, are not touched.
        answer = proxy.ask(request(SOCKET, b"{}"))
        assert answer is not None
        assert answer.body == b"ok"
        upstream.early = echo
        client = proxy.connect()
        with contextlib.closing(client.sock):
            client.send(request("/openai/v1/realtime", method="GET", fields=HANDSHAKE))
            assert client.until(b"hello") is not None


@pytest.mark.parametrize("fields", [b"Upgrade: websocket\r\n", b"Connection: Upgrade\r\nUpgrade: h2c\r\n"])
def test_what_is_no_handshake_is_plain_http(proxy: Proxy, upstream: RawUpstream, fields: bytes) -> None:
    upstream.reply = OK
    answer = proxy.ask(request(SOCKET, method="GET", fields=fields), "GET")
    assert answer is not None
    assert answer.body == b"ok"
    assert upstream.seen[0].get(b"upgrade") is None


def test_a_client_that_leaves_during_the_handshake_cancels_it(
    any_proxy: Proxy, upstream: RawUpstream
) -> None:
    left = threading.Event()
    upstream.early = lambda wire, message: left.set() if wire.ended(3) else None
    client = any_proxy.connect()
    client.send(request(SOCKET, method="GET", fields=HANDSHAKE))
    assert eventually(lambda: len(upstream.heads) == 1)
    client.sock.close()
    assert left.wait(PATIENCE_S)
