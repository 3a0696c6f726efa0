"""HTTP/1.1 as bytes, for the witnesses of a test run: messages cut out of a recorded stream, and a tee.

A ``Message`` keeps its head exactly as it came. The ``Tee`` sits in front of whatever a client talks
to and copies both directions without reading them; what it saw is cut into messages only afterwards,
so it cannot repair what it carries.
"""

import io
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import BinaryIO

HOP_BY_HOP = frozenset(
    b"connection host keep-alive proxy-authenticate proxy-authorization te trailer transfer-encoding".split()
) | {b"upgrade"}


class Broken(Exception):
    """The stream ended in the middle of a message."""


@dataclass(frozen=True, slots=True)
class Message:
    """One request or response: its start line, its fields as sent, its body without chunk framing."""

    start: bytes
    fields: tuple[tuple[bytes, bytes], ...]
    body: bytes

    def field(self, name: bytes) -> bytes | None:
        return next((value for key, value in self.fields if key.lower() == name), None)

    def end_to_end(self) -> "Message":
        """The message less what each hop may set for itself."""
        kept = tuple((key, value) for key, value in self.fields if key.lower() not in HOP_BY_HOP)
        return Message(self.start, kept, self.body)

    @property
    def method(self) -> str:
        return self.start.split(b" ")[0].decode("ascii")

    @property
    def target(self) -> str:
        return self.start.split(b" ")[1].decode("ascii")


def read_message(source: BinaryIO, *, bodyless: bool = False) -> Message | None:
    """The next message of a stream, or None at its end. ``bodyless``: the answer to a HEAD."""
    start = source.readline()
    if not start:
        return None
    fields = []
    while (line := source.readline()) not in (b"\r\n", b"\n"):
        if not line:
            raise Broken("in the head")
        name, _, value = line.rstrip(b"\r\n").partition(b":")
        fields.append((name, value.strip(b" \t")))
    head = Message(start.rstrip(b"\r\n"), tuple(fields), b"")
    return head if bodyless else Message(head.start, head.fields, _read_body(source, head))


def _read_body(source: BinaryIO, head: Message) -> bytes:
    if (head.field(b"transfer-encoding") or b"").lower() == b"chunked":
        return b"".join(_read_chunks(source))
    length = head.field(b"content-length")
    if length is not None:
        body = source.read(int(length))
        if len(body) < int(length):
            raise Broken("in the body")
        return body
    is_response = head.start.startswith(b"HTTP/")
    unframed = is_response and head.start.split(b" ")[1] not in (b"204", b"304")
    return source.read() if unframed else b""


def _read_chunks(source: BinaryIO) -> Iterator[bytes]:
    while True:
        line = source.readline()
        if not line:
            raise Broken("between chunks")
        size = int(line.split(b";")[0], 16)
        if size == 0:
            while source.readline() not in (b"\r\n", b""):
                pass
            return
        yield source.read(size)
        source.readline()


class Listener:
    """A loopback port whose connections are served by threads; everything it opened is closed again."""

    def __init__(self, serve: Callable[[socket.socket], None]) -> None:
        self._serve = serve
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=128)
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self.port: int = self._socket.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def adopt(self, connection: socket.socket) -> socket.socket:
        """Have a connection closed together with the listener."""
        with self._lock:
            self._open.add(connection)
        return connection

    def close(self) -> None:
        """Stop listening and hang up on everybody."""
        shut(self._socket)
        self._thread.join(5)
        with self._lock:
            connections = list(self._open)
        for connection in connections:
            shut(connection)

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=self._one, args=(self.adopt(connection),), daemon=True).start()

    def _one(self, connection: socket.socket) -> None:
        try:
            self._serve(connection)
        except (OSError, Broken):
            pass  # a client may hang up at any moment
        finally:
            shut(connection)
            with self._lock:
                self._open.discard(connection)


def shut(connection: socket.socket) -> None:
    """Close a socket so that a thread that waits on it wakes up."""
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass
    connection.close()


class Tee:
    """Carries bytes between a client and a port, and remembers them per connection."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._tapes: list[tuple[bytearray, bytearray]] = []
        self._listener = Listener(self._carry)
        self.url = self._listener.url

    def close(self) -> None:
        self._listener.close()

    def requests(self) -> list[Message]:
        """What the client sent, in order within each connection."""
        return [message for up, _ in self._tapes for message in _cut(bytes(up))]

    def exchanges(self) -> list[tuple[Message, Message]]:
        """Each request with the answer the client got."""
        pairs = []
        for up, down in self._tapes:
            requests = _cut(bytes(up))
            pairs += list(zip(requests, _cut(bytes(down), [r.method for r in requests]), strict=False))
        return pairs

    def _carry(self, client: socket.socket) -> None:
        server = self._listener.adopt(socket.create_connection(("127.0.0.1", self._target), timeout=30))
        server.settimeout(None)
        server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        up, down = bytearray(), bytearray()
        self._tapes.append((up, down))
        back = threading.Thread(target=_pump, args=(server, client, down), daemon=True)
        back.start()
        _pump(client, server, up)
        back.join(30)
        shut(server)


def _pump(source: socket.socket, sink: socket.socket, tape: bytearray) -> None:
    try:
        while data := source.recv(1 << 16):
            tape += data
            sink.sendall(data)
    except OSError:
        pass
    try:
        sink.shutdown(socket.SHUT_WR)
    except OSError:
        pass


def _cut(data: bytes, methods: list[str] | None = None) -> list[Message]:
    source = io.BytesIO(data)
    found: list[Message] = []
    try:
        while True:
            bodyless = methods is not None and len(found) < len(methods) and methods[len(found)] == "HEAD"
            message = read_message(source, bodyless=bodyless)
            if message is None:
                return found
            found.append(message)
    except Broken:
        return found  # cut by whoever hung up
