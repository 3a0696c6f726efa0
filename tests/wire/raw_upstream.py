"""A raw HTTP/1.1 upstream and client over sockets, and a proxy in a thread: bytes in, bytes seen.

Nothing here uses the code under test to read or write HTTP, so a mistake cannot cancel itself out.
Every wait is bounded.
"""

import asyncio
import contextlib
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from proxy.model import EndKind, Exchange, Head, Identity, ResponseHead, Upstream
from proxy.server import Server, new_event_loop
from proxy.verdict import Reply
from proxy.wire.dial import Dialer, TlsSettings
from proxy.wire.heads import WireLimits
from proxy.wire.routes import RouteTable
from proxy.wire.upstream import UpstreamPool

PATIENCE_S = 30.0
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
END = b"0\r\n\r\n"


def frame(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def request(
    path: str, body: bytes | None = None, *, method: str = "POST", fields: bytes = b"", host: bytes = b"x"
) -> bytes:
    if body is not None:
        fields += b"Content-Length: %d\r\n" % len(body)
    return b"%b %b HTTP/1.1\r\nHost: %b\r\n%b\r\n%b" % (
        method.encode(),
        path.encode("latin-1"),
        host,
        fields,
        body or b"",
    )


@dataclass
class Message:
    """One message as seen on a socket."""

    start: bytes
    fields: list[tuple[bytes, bytes]]
    body: bytes = b""
    whole: bool = False
    connection: int = 0

    def get(self, name: bytes) -> bytes | None:
        return next((value for key, value in self.fields if key.lower() == name), None)

    @property
    def status(self) -> int:
        return int(self.start.split(b" ")[1])

    @property
    def end_to_end(self) -> list[tuple[bytes, bytes]]:
        hop = {b"connection", b"keep-alive", b"host", b"upgrade", b"te", b"trailer", b"proxy-connection"}
        return [pair for pair in self.fields if pair[0].lower() not in hop]


class Wire:
    """A socket read as HTTP messages."""

    def __init__(self, sock: socket.socket, number: int = 0) -> None:
        self.sock = sock
        self.number = number
        self._buffer = bytearray()
        sock.settimeout(PATIENCE_S)
        if sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, data: bytes) -> None:
        self.sock.sendall(data)

    def more(self) -> bool:
        try:
            data = self.sock.recv(1 << 18)
        except ConnectionError:
            return False
        self._buffer += data
        return bool(data)

    def until(self, mark: bytes) -> bytes | None:
        """Bytes through ``mark``; None when the connection ended before."""
        while (at := self._buffer.find(mark)) < 0:
            if not self.more():
                return None
        return self._take(at + len(mark))

    def exactly(self, size: int) -> bytes | None:
        while len(self._buffer) < size:
            if not self.more():
                return None
        return self._take(size)

    def _take(self, size: int) -> bytes:
        taken = bytes(memoryview(self._buffer)[:size])
        del self._buffer[:size]
        return taken

    def rest(self) -> bytes:
        while self.more():
            pass
        return self._take(len(self._buffer))

    def head(self) -> Message | None:
        raw = self.until(b"\r\n\r\n")
        if raw is None:
            return None
        start, *lines = raw[:-4].split(b"\r\n")
        fields = [(n, v.strip(b" \t")) for n, _, v in (line.partition(b":") for line in lines)]
        return Message(start, fields, connection=self.number)

    def body(self, message: Message, *, until_close: bool = False) -> Message:
        length = message.get(b"content-length")
        if message.get(b"transfer-encoding") is not None:
            self._chunked(message)
        elif length is not None:
            data = self.exactly(int(length))
            message.whole = data is not None
            message.body = data if data is not None else self._leftover()
        elif until_close:
            message.body, message.whole = self.rest(), True
        else:
            message.whole = True
        return message

    def _chunked(self, message: Message) -> None:
        parts: list[bytes] = []
        while (line := self.until(b"\r\n")) is not None:
            size = int(line.split(b";")[0], 16)
            if size == 0:
                while (line := self.until(b"\r\n")) not in (b"\r\n", None):
                    pass
                message.whole = line is not None
                break
            data = self.exactly(size + 2)
            if data is None:
                parts.append(self._leftover())
                break
            parts.append(data[:-2])
        message.body = b"".join(parts)

    def _leftover(self) -> bytes:
        return self._take(len(self._buffer))

    def response(self, method: str = "POST") -> Message | None:
        """The next final response; interim ones are skipped."""
        while (message := self.head()) is not None:
            if 100 <= message.status < 200 and message.status != 101:
                continue
            if method == "HEAD" or message.status in (101, 204, 304):
                message.whole = True
                return message
            return self.body(message, until_close=True)
        return None

    def reset(self) -> None:
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.close()

    def ended(self, within_s: float = PATIENCE_S) -> bool:
        """The other side's end is seen in time."""
        self.sock.settimeout(within_s)
        try:
            while self.sock.recv(1 << 18):
                pass
        except TimeoutError:
            return False
        except ConnectionError:
            return True
        return True


Script = Callable[[Wire, Message], Any]


class RawUpstream:
    """Reads requests and runs ``script`` (after the body) or ``early`` (after the head) on each.

    A script that returns True keeps the connection; otherwise it is closed.
    """

    def __init__(self, tls: Any = None) -> None:
        self.seen: list[Message] = []
        self.heads: list[Message] = []
        self.connections = 0
        self.reply: bytes = OK
        self.script: Script | None = None
        self.early: Script | None = None
        self._tls = tls
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=512)
        self.port: int = self._listener.getsockname()[1]
        self._threads: list[threading.Thread] = []
        self._open: set[socket.socket] = set()
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()

    @property
    def url(self) -> str:
        return f"{'https' if self._tls else 'http'}://127.0.0.1:{self.port}"

    def reset(self) -> None:
        self.seen, self.heads = [], []
        self.reply, self.script, self.early = OK, None, None

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            thread = threading.Thread(target=self._serve, args=(sock, self.connections), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, sock: socket.socket, number: int) -> None:
        self._open.add(sock)
        try:
            if self._tls is not None:
                sock.settimeout(PATIENCE_S)
                sock = self._tls.wrap_socket(sock, server_side=True)
            wire = Wire(sock, number)
            sock.settimeout(60)
            while (message := wire.head()) is not None:
                self.heads.append(message)
                if self.early is not None:
                    self.early(wire, message)
                    break
                wire.body(message)
                self.seen.append(message)
                if not message.whole:
                    break
                if self.script is None:
                    wire.send(self.reply)
                elif self.script(wire, message) is not True:
                    break
        except (OSError, ValueError):
            pass
        finally:
            with contextlib.suppress(OSError):
                if self._tls is None:
                    sock.shutdown(socket.SHUT_RDWR)
            sock.close()
            self._open.discard(sock)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._accepting.join(PATIENCE_S)
        for sock in list(self._open):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(PATIENCE_S)

    def __enter__(self) -> "RawUpstream":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Recorded:
    """What the thinking part was told of one exchange."""

    def __init__(self, exchange: Exchange, body: bytes | None, thinker: "RecordingThinker") -> None:
        self.exchange = exchange
        self.given = body
        self.body = body if thinker.edit is None or body is None else thinker.edit(body)
        self.refusal: Reply | None = thinker.refuse
        self.request: Any = object() if body is not None else None
        self.response: ResponseHead | None = None
        self.data = b""
        self.ends: list[EndKind] = []
        self.waited_ns = 0
        self._thinker = thinker

    def reading(self) -> Iterator[None]:
        yield

    def place(self, now_ns: int, *, number: int | None = None) -> None:
        if number is not None:
            self.exchange = replace(self.exchange, number=number)

    @property
    def stamps(self) -> tuple[tuple[bytes, bytes], ...]:
        self._thinker.maybe_fail("stamps")
        return ()

    def sent(self, now_ns: int) -> None:
        """The request is on its way."""
        self._thinker.maybe_fail("sent")

    def respond(self, head: ResponseHead, now_ns: int) -> None:
        self._thinker.maybe_fail("respond")
        self.response = head

    def feed(self, data: bytes, now_ns: int) -> None:
        self._thinker.maybe_fail("feed")
        self.data += data

    def over(self) -> None:
        self.on_cut = None

    def close(self, end: EndKind, now_ns: int) -> None:
        self.ends.append(end)
        self._thinker.maybe_fail("close")


class RecordingThinker:
    """Takes POSTs to ``/messages`` for model calls; fails where ``fail_at`` says."""

    def __init__(self) -> None:
        self.exchanges: list[Recorded] = []
        self.fail_at = ""
        self.edit: Callable[[bytes], bytes] | None = None
        self.refuse: Reply | None = None

    def maybe_fail(self, where: str) -> None:
        if self.fail_at == where:
            raise RuntimeError(f"planted in {where}")

    def match(self, head: Head, upstream: Upstream, path: str) -> bool:
        self.maybe_fail("match")
        return head.method == "POST" and path.endswith(("/messages", "/responses"))

    def open(self, exchange: Exchange, body: bytes, now_ns: int) -> Recorded:
        self.maybe_fail("open")
        self.exchanges.append(Recorded(exchange, body, self))
        return self.exchanges[-1]

    def begin(self, exchange: Exchange, body: bytes) -> Recorded:
        return self.open(exchange, body, 0)

    def relay(self, exchange: Exchange, now_ns: int) -> Recorded:
        self.maybe_fail("open")
        self.exchanges.append(Recorded(exchange, None, self))
        return self.exchanges[-1]


@dataclass
class Proxy:
    """A proxy that runs in a thread."""

    port: int
    server: Server
    loop: asyncio.AbstractEventLoop
    thinker: RecordingThinker
    faults: list[str] = field(default_factory=list)

    def connect(self) -> Wire:
        return Wire(socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE_S))

    def ask(self, raw: bytes, method: str = "POST") -> Message | None:
        with contextlib.closing(self.connect().sock) as sock:
            wire = Wire(sock)
            with contextlib.suppress(ConnectionError):
                wire.send(raw)
            return wire.response(method)

    def call(self, what: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(what, self.loop).result(30)


@contextlib.contextmanager
def proxy_to(
    upstreams: Mapping[str, str],
    *,
    limits: WireLimits | None = None,
    uvloop: bool = True,
    default: str | None = None,
    environ: Mapping[str, str] | None = None,
    tls: Mapping[str, TlsSettings] | None = None,
    connect_s: float = 30.0,
    idle_s: float = 30.0,
    **options: Any,
) -> Iterator[Proxy]:
    """Run a proxy to the named upstreams; everything is torn down at the end."""
    apis = {"anthropic": "anthropic", "gemini": "gemini"}
    table = RouteTable(
        [Upstream(name, url, apis.get(name, "openai")) for name, url in upstreams.items()],  # type: ignore[arg-type]
        default,
    )
    thinker = RecordingThinker()
    faults: list[str] = []
    started = threading.Event()
    box: list[Any] = []

    async def main() -> None:
        pool = UpstreamPool(Dialer(connect_s=connect_s, environ=environ or {}), tls=tls, idle_s=idle_s)
        server = Server(
            table,
            thinker,
            pool,
            limits or WireLimits(),
            lambda head: Identity(),
            lambda where, error: faults.append(f"{where}: {error}"),
            **options,
        )
        _, port = await server.start("127.0.0.1", 0)
        stop = asyncio.Event()
        box.extend([port, server, asyncio.get_running_loop(), stop])
        started.set()
        await stop.wait()
        await server.stop(0)

    def run() -> None:
        loop = new_event_loop() if uvloop else asyncio.new_event_loop()
        try:
            loop.run_until_complete(main())
            loop.run_until_complete(loop.shutdown_default_executor())
        finally:
            loop.close()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert started.wait(PATIENCE_S)
    port, server, loop, stop = box
    try:
        yield Proxy(port, server, loop, thinker, faults)
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(20)
        assert not thread.is_alive()


@contextlib.contextmanager
def dead_end() -> Iterator[str]:
    """A URL whose connections never complete: a listener whose queue is full and stays so."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        port = listener.getsockname()[1]
        for _ in range(4):
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(("127.0.0.1", port))
        yield f"http://127.0.0.1:{port}"


def eventually(what: Callable[[], bool], within_s: float = PATIENCE_S) -> bool:
    """Poll a condition of another thread; bounded."""
    deadline = time.monotonic() + within_s
    while not what():
        if time.monotonic() > deadline:
            return False
        threading.Event().wait(0.005)
    return True
