"""Stopping: nothing new, idle ones go, streams get their time, then all is cut and closed once."""

import contextlib
import threading
from collections.abc import Callable

from proxy.wire.rounds import Rounds
from tests.wire.raw_upstream import (
    END,
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

MODEL = "/anthropic/v1/messages"


def test_streams_in_progress_may_end_and_idle_connections_go(any_proxy: Proxy, upstream: RawUpstream) -> None:
    gate = threading.Event()

    def script(wire: Wire, message: Message) -> bool:
        wire.send(STREAM + frame(b"1"))
        assert gate.wait(PATIENCE_S)
        wire.send(frame(b"2") + END)
        return True

    upstream.script = script
    idle, busy = any_proxy.connect(), any_proxy.connect()
    with contextlib.closing(idle.sock), contextlib.closing(busy.sock):
        busy.send(request(MODEL, b"{}"))
        assert busy.until(frame(b"1")) is not None
        stopping = threading.Thread(target=lambda: any_proxy.call(any_proxy.server.stop(5)), daemon=True)
        stopping.start()
        assert idle.rest() == b""
        with contextlib.suppress(OSError), contextlib.closing(any_proxy.connect().sock) as late:
            assert late.recv(1) == b""
        assert stopping.is_alive()
        gate.set()
        assert busy.until(frame(b"2") + END) is not None
        assert busy.rest() == b""  # closed after the answer, though the client asked to keep it
        stopping.join(5)
        assert not stopping.is_alive()
    assert any_proxy.thinker.exchanges[0].ends == ["complete"]
    assert any_proxy.server.counters.upstream_connections == 0


def test_what_takes_too_long_is_cut_visibly_and_closed_once(any_proxy: Proxy, upstream: RawUpstream) -> None:
    left = threading.Event()

    def early(wire: Wire, message: Message) -> None:
        wire.send(STREAM + frame(b"1"))
        if wire.ended(PATIENCE_S):
            left.set()

    upstream.early = early
    client = any_proxy.connect()
    with contextlib.closing(client.sock):
        client.send(request(MODEL, b"{}"))
        assert client.until(frame(b"1")) is not None
        any_proxy.call(any_proxy.server.stop(0.2))
        assert client.rest() == b""  # no END: a break, not an end
    assert left.wait(PATIENCE_S)
    assert any_proxy.thinker.exchanges[0].ends == ["shutdown"]
    assert any_proxy.server.counters.open_exchanges == 0
    assert eventually(lambda: any_proxy.server.counters.open_connections == 0)


def test_an_answer_read_on_without_its_client_is_closed_when_all_has_stopped(upstream: RawUpstream) -> None:
    gate, complete = threading.Event(), threading.Event()

    class Crowded(Rounds):
        def do(self, piece: Callable[[], None]) -> None:
            self._waiting.append(piece)
            complete.set()

    def script(wire: Wire, message: Message) -> bool:
        wire.send(STREAM.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n") + frame(b"1"))
        assert gate.wait(PATIENCE_S)
        wire.send(frame(b"2") + END)
        return False

    upstream.script = script
    with proxy_to({"anthropic": upstream.url}, on_abort="drain") as proxy:

        async def stopped() -> list[list[str]]:
            await proxy.server.stop(0)
            return [list(exchange.ends) for exchange in proxy.thinker.exchanges]

        crowded = proxy.server.shell.pulse.rounds = Crowded()
        crowded.loop = proxy.loop
        client = proxy.connect()
        client.send(request(MODEL, b"{}"))
        assert client.until(frame(b"1")) is not None
        client.sock.close()
        assert eventually(lambda: proxy.server.counters.open_connections == 0)
        gate.set()
        assert complete.wait(PATIENCE_S)
        assert eventually(lambda: proxy.server.counters.upstream_connections == 0)
        assert proxy.call(stopped()) == [["client_gone"]]


def test_bodies_and_connects_in_progress_are_cut_too(any_proxy: Proxy, upstream: RawUpstream) -> None:
    client = any_proxy.connect()
    with contextlib.closing(client.sock):
        client.send(request(MODEL, fields=b"Content-Length: 100\r\n") + b"x")
        assert eventually(lambda: any_proxy.server.counters.open_exchanges == 1)
        any_proxy.call(any_proxy.server.stop(0))
        assert any_proxy.server.counters.open_exchanges == 0
        assert any_proxy.server.counters.buffered_bytes == 0


def test_requests_that_only_the_kernel_has_taken_are_answered(
    any_proxy: Proxy, upstream: RawUpstream
) -> None:
    """The loop is busy while clients connect and ask; then it is told to stop, before it saw any of them."""
    held, go = threading.Event(), threading.Event()

    def busy() -> None:
        held.set()
        assert go.wait(PATIENCE_S)

    any_proxy.loop.call_soon_threadsafe(busy)
    assert held.wait(PATIENCE_S)
    clients = [any_proxy.connect() for _ in range(5)]
    for client in clients:
        client.send(request(MODEL, b"{}"))
    stopping = threading.Thread(target=lambda: any_proxy.call(any_proxy.server.stop(5)), daemon=True)
    stopping.start()
    assert eventually(lambda: stopping.is_alive())
    go.set()
    answers = [client.response() for client in clients]
    assert [answer is not None and answer.start.split()[1] for answer in answers] == [b"200"] * 5
    stopping.join(5)
    assert not stopping.is_alive()
    for client in clients:
        client.sock.close()


def test_a_kept_connection_on_which_the_next_request_lies_unread_is_served_once_more(
    any_proxy: Proxy, upstream: RawUpstream
) -> None:
    held, go = threading.Event(), threading.Event()

    def busy() -> None:
        held.set()
        assert go.wait(PATIENCE_S)

    client = any_proxy.connect()
    with contextlib.closing(client.sock):
        client.send(request(MODEL, b"{}"))
        assert client.response() is not None
        any_proxy.loop.call_soon_threadsafe(busy)
        assert held.wait(PATIENCE_S)
        client.send(request(MODEL, b"{}"))
        stopping = threading.Thread(target=lambda: any_proxy.call(any_proxy.server.stop(5)), daemon=True)
        stopping.start()
        go.set()
        answer = client.response()
        assert answer is not None
        assert client.rest() == b""
        stopping.join(5)
        assert not stopping.is_alive()


def test_a_request_of_which_only_a_part_has_come_is_waited_for(
    any_proxy: Proxy, upstream: RawUpstream
) -> None:
    whole = request(MODEL, b"{}")
    client = any_proxy.connect()
    with contextlib.closing(client.sock):
        client.send(whole[:20])
        assert eventually(lambda: any_proxy.server.counters.open_connections == 1)
        stopping = threading.Thread(target=lambda: any_proxy.call(any_proxy.server.stop(5)), daemon=True)
        stopping.start()
        assert eventually(lambda: any_proxy.server.shell.pulse.stopping)
        client.send(whole[20:])
        assert client.response() is not None
        stopping.join(5)
        assert not stopping.is_alive()
