"""Requests out of a client's bytes, strictly: the parser's callbacks and the limits of a head.

llhttp's strictness is the whole defence against smuggling and is never loosened here; on top come
bounds on sizes and counts, one ``Host``, one transfer coding, and the refusal of ``CONNECT``.

An upgrade stops the parser behind its head. Only a WebSocket handshake is carried on; any other
(h2c of clients that try HTTP/2 first) is plain HTTP, body included.

The one invariant: after the first fault nothing more is read from this client as a request.
"""

from collections.abc import Callable

import httptools

from proxy.model import Head
from proxy.wire.heads import OWN_PREFIX, SPECIAL, Framing, WireLimits, plain_names
from proxy.wire.incoming import BadRequest, Held, IncomingRequest, Pulse, Room

_METHODS = {name.encode(): name for name in ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")}


class RequestReader:
    """Parses one client's connection. ``arrived`` gets each request at the end of its head."""

    def __init__(
        self,
        connection: Held,
        pulse: Pulse,
        room: Room,
        limits: WireLimits,
        arrived: Callable[[IncomingRequest], None],
        bad: Callable[[BadRequest, IncomingRequest | None], None],
        fault: Callable[[str, BaseException], None],
    ) -> None:
        self._connection = connection
        self._pulse = pulse
        self._room = room
        self._limits = limits
        self._arrived = arrived
        self._bad = bad
        self._fault = fault
        self._parser = httptools.HttpRequestParser(self)
        self.deaf = False
        """Nothing more is read as a request: what still comes is dropped."""
        self.arriving: IncomingRequest | None = None
        """The request whose body is being read."""
        self.head_since = 0.0
        """Since when a head is incomplete; 0 while none is."""
        self.body_since = 0.0
        """When a body that is not complete last moved; 0 while none is being read."""
        self._tail: list[bytes] | None = None
        """Bytes behind a handshake whose answer is not known yet."""
        self._replaying = False
        self._last_request = False
        """The request being read asks to close: nothing behind it counts."""
        self._body_came = False
        self._read_bytes = 0
        self._begin_head()

    def _begin_head(self) -> None:
        self._in_head = False
        self._target = b""
        self._fields: list[tuple[bytes, bytes]] = []
        self._special: dict[bytes, bytes] = {}
        self._own_fields = False
        self._overhead = 0

    def feed(self, data: bytes) -> None:
        """Take what one read brought."""
        if self._tail is not None:
            self._tail.append(data)
            self._connection.unclaimed(len(data))
            return
        if self.deaf:
            return
        self._read_bytes = len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as switched:
            self._after_upgrade(data[switched.args[0] :])
        except httptools.HttpParserCallbackError as error:
            cause = error.__context__
            if isinstance(cause, BadRequest):
                self.fail(cause)
            else:
                self._fault("parse", cause if cause is not None else error)
                self.fail(BadRequest(500, "an internal fault of the proxy; its log says more"))
        except httptools.HttpParserError as error:
            self.fail(BadRequest(400, f"not a valid HTTP request: {error}"))
        if self.arriving is not None:
            self._after_body(self.arriving, len(data))
        elif self._in_head:
            self._watch_head(len(data))

    def fail(self, failure: BadRequest) -> None:
        """What came is no valid request, or takes too long; the connection ends after its answer."""
        if self.deaf:
            return
        self.deaf = True
        self._in_head = False
        self.head_since = self.body_since = 0.0
        arriving, self.arriving = self.arriving, None
        self._bad(failure, arriving)

    def close(self) -> None:
        """The connection is gone: read nothing more, and hold nothing that holds this in turn."""
        self.deaf = True
        self.head_since = self.body_since = 0.0
        self.arriving = self._tail = None
        del self._parser, self._connection, self._arrived, self._bad

    def _after_body(self, arriving: IncomingRequest, size: int) -> None:
        """A read has ended inside a body: pass it on, and bound what is no body in it."""
        self.body_since = self._pulse.now
        arriving.flush()
        if arriving.framing is Framing.CHUNKED:
            self._overhead = 0 if self._body_came else self._overhead + size
            self._body_came = False
            if self._overhead > self._limits.max_fields:
                self.fail(BadRequest(400, "endless chunk extensions or trailers"))

    def _watch_head(self, size: int) -> None:
        """A head that is not complete yet: bound its size and its time."""
        if not self.head_since:
            self.head_since = self._pulse.loop.time()
        self._overhead += size
        limits = self._limits
        if self._overhead > limits.max_target + limits.max_fields:
            self.fail(BadRequest(431 if self._target else 414, "the request head is too large"))

    # -- upgrades

    def _after_upgrade(self, tail: bytes) -> None:
        """The parser stopped behind a head that asks for another protocol."""
        self._parser = httptools.HttpRequestParser(self)
        if self._tail is not None:
            if tail:
                self.feed(tail)
            return
        arriving = self.arriving
        if arriving is not None and self._replaying:
            # The parser took this body for the new protocol. A head of the same framing brings the
            # fresh one to where the body begins.
            chunked = arriving.framing is Framing.CHUNKED
            framing = b"Transfer-Encoding: chunked" if chunked else b"Content-Length: %d" % arriving.length
            self._parser.feed_data(b"POST / HTTP/1.1\r\n" + framing + b"\r\n\r\n")
            self._replaying = False
        if tail:
            self.feed(tail)

    def take_tail(self) -> list[bytes]:
        """What the client sent behind its handshake, for the tunnel."""
        tail, self._tail = self._tail or [], None
        for data in tail:
            self._connection.unclaimed(-len(data))
        return tail

    def go_on(self) -> None:
        """The handshake was answered otherwise: what came behind it is HTTP."""
        for data in self.take_tail():
            self.feed(data)

    # -- httptools

    def on_message_begin(self) -> None:
        if not self._replaying:
            self._begin_head()
            self._in_head = True

    def on_url(self, part: bytes) -> None:
        if self._replaying:
            return
        self._target += part
        if len(self._target) > self._limits.max_target:
            raise BadRequest(414, f"the request target is longer than {self._limits.max_target} bytes")

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._in_head:
            return  # a trailer: dropped, like the TE that would have asked for it
        value = value.rstrip(b" \t")
        self._fields.append((name, value))
        if name in plain_names:
            return
        low = name.lower()
        if low in SPECIAL:
            before = self._special.get(low)
            if before is not None and low == b"host":
                raise BadRequest(400, "more than one Host field")
            self._special[low] = value if before is None else before + b"," + value
        elif low.startswith(OWN_PREFIX):
            self._own_fields = True

    def on_headers_complete(self) -> None:
        if self._replaying:
            return
        parser, special, limits = self._parser, self._special, self._limits
        self._in_head = False
        self.head_since = 0.0
        head_bytes = self._overhead + self._read_bytes  # at most: the head may be less of it
        self._overhead = 0
        if len(self._fields) > limits.max_field_count or (
            head_bytes > limits.max_fields and _size(self._fields) > limits.max_fields
        ):
            raise BadRequest(431, f"more fields than {limits.max_fields} bytes or {limits.max_field_count}")
        name = parser.get_method()
        method = _METHODS.get(name) or name.decode("ascii")
        version = parser.get_http_version()
        if version not in ("1.1", "1.0"):
            raise BadRequest(505, "only HTTP/1.1 and HTTP/1.0 are spoken here")
        if method == "CONNECT":
            raise BadRequest(405, "Looptap is no forward proxy")
        head = Head(method, self._target.decode("latin-1"), tuple(self._fields))
        framing, length = _framing(special)
        request = IncomingRequest(self._connection, self._room, head, framing, length)
        request.own_fields = self._own_fields
        request.http_1_0 = version == "1.0"
        if special:
            request.keep_alive = b"close" not in special.get(b"connection", b"").lower()
            request.expects_continue = special.get(b"expect", b"").lower() == b"100-continue"
            if b"upgrade" in special:
                self._ask_upgrade(request, special[b"upgrade"])
        self._last_request = not request.keep_alive or request.http_1_0
        if framing is not Framing.NONE:
            self.arriving = request
        self._arrived(request)

    def _ask_upgrade(self, request: IncomingRequest, protocol: bytes) -> None:
        if not self._parser.should_upgrade():
            return
        if request.framing is not Framing.NONE:
            self._replaying = True
        elif protocol.lower() == b"websocket" and request.head.method == "GET" and not request.http_1_0:
            request.upgrade = True
            self._tail = []

    def on_body(self, data: bytes) -> None:
        if self.arriving is not None:
            self._body_came = True
            self.arriving.feed(data)

    def on_message_complete(self) -> None:
        if self._replaying:  # an upgrade's body is still to come
            return
        arriving, self.arriving = self.arriving, None
        if arriving is not None:
            self.body_since = 0.0
            arriving.finish()
        if self._last_request:
            self.deaf = True


def _size(fields: list[tuple[bytes, bytes]]) -> int:
    return sum(len(name) + len(value) for name, value in fields)


def _framing(special: dict[bytes, bytes]) -> tuple[Framing, int]:
    """How the body ends, and its announced length; the parser has refused contradictions."""
    coding = special.get(b"transfer-encoding")
    if coding is not None:
        if coding.lower() != b"chunked":
            raise BadRequest(501, "the only transfer coding understood is chunked")
        return Framing.CHUNKED, 0
    length = int(special.get(b"content-length", b"0"))
    return (Framing.LENGTH if length else Framing.NONE), length
