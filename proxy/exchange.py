"""The live shell: one exchange from its head to its end, every await of it on one page (``run``).

Between the awaits the answer flows by plain calls from the upstream's connection (``on_data``):
the client gets the chunk first, then the thinking part sees it. What thinks is behind ``Thinker``
and ``Opened``; a fault in there is counted and reported, and costs observations, not traffic.

The one invariant: what was opened is closed exactly once, on every way out: answered, broken,
refused, timed out, client gone, shutdown.
"""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

from proxy import answers
from proxy.dial import ConnectTimeout, Unreachable
from proxy.incoming import HOLD_UPSTREAM, BadRequest, IncomingRequest, Room
from proxy.model import EndKind, Exchange, Head, Identity, ResponseHead, Upstream
from proxy.routes import Route, RouteTable, Unroutable
from proxy.upstream import Broken, Peer, UpstreamConnection, UpstreamPool
from proxy.verdict import Reply
from proxy.wire import (
    CONTINUE,
    LAST_CHUNK,
    Framing,
    WireLimits,
    chunk,
    request_head,
    response_head,
    without_own_fields,
)

JOIN_BELOW = 64 * 1024
"""A body smaller than this leaves in one write with its head."""
ID_BYTES = 10
RESENDABLE = frozenset({"GET", "HEAD", "OPTIONS"})


class Opened(Protocol):
    """One exchange as the thinking part sees it."""

    @property
    def body(self) -> bytes:
        """What goes upstream; the identical object when nothing edited it."""
        ...

    @property
    def refusal(self) -> Reply | None: ...
    @property
    def request(self) -> Any: ...
    def respond(self, head: ResponseHead, now_ns: int) -> None: ...
    def feed(self, data: bytes, now_ns: int) -> None:
        """Body bytes without chunk framing, still content-encoded."""
        ...

    def close(self, end: EndKind, now_ns: int) -> None: ...


class Thinker(Protocol):
    """What thinks about exchanges. ``core.Core`` is one."""

    def match(self, head: Head, upstream: Upstream, path: str) -> bool:
        """Whether this is a model call, so that its body is read whole."""
        ...

    def open(self, exchange: Exchange, body: bytes, now_ns: int) -> Opened: ...
    def relay(self, exchange: Exchange, now_ns: int) -> Opened: ...


class Client(Protocol):
    """The client's connection, as far as an exchange needs it."""

    write_paused: bool

    def write(self, data: bytes) -> None: ...
    def hold(self, why: int) -> None: ...
    def unhold(self, why: int) -> None: ...
    def break_off(self, *, reset: bool) -> None:
        """End the connection visibly unfinished, after what was written has been flushed."""
        ...

    def tunnel(self, take: Callable[[bytes], None]) -> None:
        """The handshake succeeded: from here on bytes pass unread."""
        ...

    def no_tunnel(self) -> None:
        """The handshake was answered otherwise: HTTP goes on."""
        ...


class Faults:
    """Our own bugs, counted; each kind is reported once."""

    def __init__(self, report: Callable[[str, BaseException], None]) -> None:
        self._report = report
        self.counts: dict[tuple[str, str], int] = {}

    def caught(self, where: str, error: BaseException) -> None:
        kind = (where, type(error).__name__)
        self.counts[kind] = self.counts.get(kind, 0) + 1
        if self.counts[kind] == 1:
            self._report(where, error)


@dataclass(slots=True)
class Shell:
    """What all exchanges of one server share. Routes and identities may be swapped on reload."""

    routes: RouteTable
    thinker: Thinker
    pool: UpstreamPool
    limits: WireLimits
    identify: Callable[[Head], Identity]
    faults: Faults
    room: Room
    admit: Callable[[Exchange, Opened], Awaitable[None]] | None = None
    """Awaited after ``open`` and before anything goes out: reserving in a ledger, shared threads.
    May set ``opened.refusal``; may be cancelled when the client leaves."""
    on_internal_error: Literal["open", "closed"] = "open"
    on_abort: Literal["cancel", "drain"] = "cancel"
    refuse_websocket: bool = False
    """Answer upgrades of ``/responses`` with 426 at once: what passes there cannot be held to caps."""
    loop: asyncio.AbstractEventLoop = field(init=False)
    """Asked for once: each question costs a system call before Python 3.12."""
    now: float = 0.0
    """The loop's time at the last sweep: near enough for every limit of the wire."""
    requests: int = 0
    open_exchanges: int = 0
    open_streams: int = 0
    draining: set["LiveExchange"] = field(default_factory=set)
    stopping: bool = False
    _random: bytes = b""

    def new_id(self) -> str:
        """A random exchange id; randomness is fetched for many at once."""
        if len(self._random) < ID_BYTES:
            self._random = os.urandom(256 * ID_BYTES)
        taken, self._random = self._random[:ID_BYTES], self._random[ID_BYTES:]
        return f"exc_{taken.hex()}"


class LiveExchange:
    """One request and its answer. Created by the connection's task, which awaits ``run``."""

    __slots__ = (
        "_chunked", "_client", "_connection", "_continued", "_done", "_end_kind", "_head_out", "_id",
        "_muted_since", "_opened", "_out", "_paused_since", "_peer", "_progress", "_request", "_route",
        "_seen", "_shell", "_stream_counted", "_task", "_timed_out", "_tunnel", "exchange", "reusable",
    )  # fmt: skip

    def __init__(
        self, shell: Shell, client: Client, request: IncomingRequest, task: "asyncio.Task[None]"
    ) -> None:
        self._shell = shell
        self._client = client
        self._request = request
        self._task = task
        self._id = shell.new_id()
        self._route: Route | None = None
        self._peer: Peer | None = None
        self.exchange: Exchange | None = None
        self._opened: Opened | None = None
        self._seen = True
        """False once the thinking part failed on this exchange: it is only closed then."""
        self._end_kind: EndKind | None = None
        self._connection: UpstreamConnection | None = None
        self._done: asyncio.Future[Broken | None] | None = None
        self._out = b""
        """The response's head until it leaves together with the first body bytes."""
        self._head_out = False
        self._chunked = False
        self._continued = False
        self._tunnel = False
        self._timed_out = False
        self._stream_counted = False
        self._progress = shell.now
        self._paused_since = 0.0
        self._muted_since = 0.0
        self.reusable = request.keep_alive and not request.http_1_0
        """The client's connection can carry another exchange after this one."""

    # -- the exchange, from top to bottom

    async def run(self) -> None:
        """Every await of one exchange, in order. Cancelled when the client has left."""
        shell = self._shell
        shell.requests += 1
        shell.open_exchanges += 1
        end: EndKind = "client_gone"
        try:
            self._find_upstream()
            if self._is_model_call():
                self._grant_body()
                body = await self._request.whole()
                self._open(body)
            else:
                body = None
                self._relay()
            if shell.admit is not None and self._opened is not None:
                await self._admit(shell.admit)
            if self._refuse():
                end = "refused"
            else:
                await self._reach_upstream(body)
                end = self._end_kind or "complete"
            if not self._request.complete:  # an early answer: closing now could destroy it on its way
                self._request.discard()
                await self._request.drained()
        except Unroutable as error:
            self._answer(answers.text(error.status, str(error)))
        except BadRequest as error:
            self._answer_broken_request(error)
        except Unreachable as error:
            end = "timeout" if isinstance(error, ConnectTimeout) else "upstream_reset"
            self._answer_unreachable(error)
        except Exception as error:  # noqa: BLE001 - ours: the client gets an end, the others go on
            shell.faults.caught("exchange", error)
            self._answer_fault()
        finally:
            self._leave_upstream()
            self._request.discard()
            self._close(end)
            self._count_stream(-1)
            shell.open_exchanges -= 1

    def _find_upstream(self) -> None:
        """Route the request and say what it is. Raises Unroutable."""
        shell, request = self._shell, self._request
        arrived_ns = time.time_ns()
        head = request.head
        route = self._route = shell.routes.route(head, own_fields=request.own_fields)
        try:
            self._peer = shell.pool.peer(route.upstream)
        except ValueError as error:
            raise Unroutable(502, f"upstream {route.upstream.name!r}: {error}") from error
        identity = shell.identify(head)
        if route.labels:  # a label that hangs on the key wins over what the client says
            identity = replace(identity, labels={**route.labels, **identity.labels})
        if request.own_fields:
            head = Head(head.method, head.target, without_own_fields(head.headers))
        number = shell.requests - 1
        self.exchange = Exchange(self._id, number, head, route.upstream, route.path, arrived_ns, identity)

    def _is_model_call(self) -> bool:
        assert self.exchange is not None
        assert self._route is not None
        if self._request.upgrade:
            return False
        try:
            return self._shell.thinker.match(self.exchange.head, self._route.upstream, self._route.path)
        except Exception as error:  # noqa: BLE001 - ours: relay
            self._shell.faults.caught("match", error)
            return False

    def _open(self, body: bytes) -> None:
        assert self.exchange is not None
        try:
            self._opened = self._shell.thinker.open(self.exchange, body, time.time_ns())
        except Exception as error:  # noqa: BLE001
            self._fault("open", error)

    def _relay(self) -> None:
        assert self.exchange is not None
        try:
            self._opened = self._shell.thinker.relay(self.exchange, time.time_ns())
        except Exception as error:  # noqa: BLE001
            self._fault("relay", error)

    async def _admit(self, admit: Callable[[Exchange, Opened], Awaitable[None]]) -> None:
        assert self.exchange is not None
        assert self._opened is not None
        try:
            await admit(self.exchange, self._opened)
        except Exception as error:  # noqa: BLE001
            self._fault("admit", error)

    def _refuse(self) -> bool:
        """Answer ourselves where the verdict, our own fault or the settings say so."""
        assert self._route is not None
        if self._opened is not None and self._opened.refusal is not None and self._seen:
            self._answer(self._opened.refusal)
            return True
        if not self._seen and self._shell.on_internal_error == "closed":
            self._answer_fault()
            return True
        if self._request.upgrade and self._shell.refuse_websocket and _holds_responses(self._route):
            message = "WebSocket is not carried while budgets or policies are enforced; use HTTP"
            reply = answers.failure("openai", 426, "looptap_websocket_refused", message, self._id)
            self._answer(Reply(426, [*reply.headers, (b"upgrade", b"HTTP/1.1")], reply.body), close=True)
            return True
        return False

    async def _reach_upstream(self, body: bytes | None) -> None:
        """Send the request and wait until its answer has been passed on. Raises Unreachable."""
        peer, pool = self._peer, self._shell.pool
        assert peer is not None
        if body is not None and self._opened is not None:
            body = self._opened.body
        fresh = False
        while True:
            connection = None if fresh else pool.take(peer)
            if connection is None:
                connection = await pool.connect(peer)
            self._send(connection, body)
            assert self._done is not None
            broken = await self._done
            if broken is None:
                return
            if self._may_resend(connection, broken):
                fresh = True
                continue
            if self._timed_out:
                raise ConnectTimeout(f"no byte within {self._shell.limits.silence_s:g} s")
            raise Unreachable(broken.words)

    def _may_resend(self, connection: UpstreamConnection, broken: Broken) -> bool:
        """Only where a second copy does no harm: the pooled connection was probably already dead."""
        return (
            connection.carried > 1
            and not broken.answered
            and not self._timed_out
            and self._request.head.method in RESENDABLE
            and self._request.framing is Framing.NONE
            and not self._request.upgrade
        )

    def _send(self, connection: UpstreamConnection, body: bytes | None) -> None:
        """Write what there is of the request, and let the rest follow as it comes."""
        request, exchange, route, peer = self._request, self.exchange, self._route, self._peer
        assert exchange is not None
        assert route is not None
        assert peer is not None
        if request.failure is not None:
            raise request.failure
        self._connection = connection
        self._done = self._shell.loop.create_future()
        self._progress = self._shell.now
        chunked = request.framing is Framing.CHUNKED
        last = request.complete
        data = body if body is not None else request.taken()
        fields = exchange.head.headers
        if peer.proxy_authorization is not None:
            fields = (*fields, (b"Proxy-Authorization", peer.proxy_authorization))
        head = request_head(
            exchange.head.method,
            peer.target_prefix + route.target,
            peer.authority,
            fields,
            length=len(data) if body is not None and request.framing is Framing.LENGTH else None,
            upgrade=request.upgrade,
        )
        if len(data) < JOIN_BELOW:
            if data:
                head += chunk(data) if chunked else data
            if last and chunked:
                head += LAST_CHUNK
            connection.begin(
                self, exchange.head.method, head, chunked=chunked, whole=last, upgrade=request.upgrade
            )
        else:
            connection.begin(self, exchange.head.method, head, chunked=chunked, whole=False)
            connection.send_body(data, last)
        if not last:
            request.stream_to(self._upload)
        if self._client.write_paused:
            connection.pause_reading()

    def _upload(self, data: bytes, last: bool) -> None:
        self._progress = self._shell.now
        if self._connection is not None:
            self._connection.send_body(data, last)

    def _leave_upstream(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.abort()

    # -- the answer, as the upstream's connection brings it (ReplySink)

    def on_continue(self) -> None:
        if self._request.expects_continue and not self._continued and not self._head_out:
            self._continued = True
            self._client.write(CONTINUE)

    def on_head(self, head: ResponseHead, framing: Framing) -> None:
        request = self._request
        request.release()
        if self._seen and self._opened is not None:
            try:
                self._opened.respond(head, time.time_ns())
            except Exception as error:  # noqa: BLE001
                self._fault("respond", error)
        self._chunked = framing is Framing.CHUNKED and not request.http_1_0
        if framing is Framing.UNTIL_CLOSE or self._shell.stopping:
            self.reusable = False
        self._out = response_head(
            head.status,
            head.reason,
            head.headers,
            close=not self.reusable,
            chunked=not request.http_1_0,
        )
        if request.upgrade:
            self._client.no_tunnel()

    def on_data(self, data: bytes, complete: bool) -> None:
        """One read's worth of the answer: to the client first, then to what thinks."""
        shell = self._shell
        self._progress = shell.now
        out = self._out
        if out:
            self._out = b""
            self._head_out = True
            if not complete:
                self._count_stream(1)
        if not data:
            if complete and self._chunked:
                out += LAST_CHUNK
        elif not self._chunked:
            out = out + data if out else data
        elif complete:
            out = b"%b%x\r\n%b\r\n0\r\n\r\n" % (out, len(data), data)
        else:
            out = b"%b%x\r\n%b\r\n" % (out, len(data), data)
        if out:
            self._client.write(out)
        if data and self._seen and self._opened is not None:
            try:
                self._opened.feed(data, time.time_ns())
            except Exception as error:  # noqa: BLE001
                self._fault("feed", error)
        if complete:
            self._connection = None
            self._close("client_gone" if self._muted_since else "complete")
            self._settle(None)

    def on_broken(self, broken: Broken) -> None:
        self._connection = None
        if not self._head_out and not self._out:
            self._settle(broken)
            return
        self.reusable = False
        if self._out:  # the head was all that came
            self._head_out = True
            self._client.write(self._out)
            self._out = b""
        if self._tunnel and not broken.reset:
            self._close("complete")
        else:
            self._close("timeout" if self._timed_out else "upstream_reset")
        self._client.break_off(reset=broken.reset)
        self._settle(None)

    def on_upgraded(self, head: ResponseHead, tail: bytes) -> None:
        """101: pass both directions on unread; only the upstream's bytes are counted."""
        connection = self._connection
        assert connection is not None
        self._tunnel = True
        self._head_out = True
        self.reusable = False
        if self._seen and self._opened is not None:
            try:
                self._opened.respond(head, time.time_ns())
            except Exception as error:  # noqa: BLE001
                self._fault("respond", error)
        self._client.write(response_head(head.status, head.reason, head.headers, close=False, upgrade=True))
        self._count_stream(1)
        self._client.tunnel(connection.write)
        if tail:
            self.on_tunnel_data(tail)

    def on_tunnel_data(self, data: bytes) -> None:
        self._client.write(data)
        if self._seen and self._opened is not None:
            try:
                self._opened.feed(data, time.time_ns())
            except Exception as error:  # noqa: BLE001
                self._fault("feed", error)

    def on_upload_paused(self) -> None:
        self._paused_since = self._shell.now
        self._client.hold(HOLD_UPSTREAM)

    def on_upload_resumed(self) -> None:
        self._paused_since = 0.0
        self._progress = self._shell.now
        self._client.unhold(HOLD_UPSTREAM)

    def _settle(self, broken: Broken | None) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_result(broken)

    # -- what the client's side tells

    def on_client_paused(self) -> None:
        """The client does not read: neither do we."""
        if self._connection is not None:
            self._connection.pause_reading()

    def on_client_resumed(self) -> None:
        if self._connection is not None:
            self._progress = self._shell.now
            self._connection.resume_reading()

    def on_client_left(self) -> None:
        """The client's connection is gone: cancel, or read the reply on for its usage."""
        if self._tunnel:
            if self._connection is not None:
                self._connection.finish_writing()
                self._connection = None
            self._close("complete")
            self._settle(None)
        elif self._may_drain():
            self._muted_since = self._shell.now
            self._shell.draining.add(self)
            self.on_client_resumed()
        else:
            self._task.cancel()

    def _may_drain(self) -> bool:
        return (
            self._shell.on_abort == "drain"
            and not self._shell.stopping
            and self._connection is not None
            and self._request.complete
            and self._opened is not None
            and self._opened.request is not None
        )

    def on_bad_body(self, failure: BadRequest) -> None:
        """The rest of the request is not valid: the upstream must not get a whole one."""
        self.reusable = False
        if self._connection is not None:
            self._connection.abort()
            self._connection = None
        self._request.fail(failure)
        if self._done is not None and not self._done.done():
            self._done.set_exception(failure)

    def carries(self, request: IncomingRequest) -> bool:
        return request is self._request

    @property
    def answered_early(self) -> bool:
        """The answer is complete and the rest of the request is being dropped."""
        return self._end_kind is not None or (self._done is None and self._head_out)

    def cancel(self) -> None:
        self._task.cancel()

    def sweep(self, now: float) -> None:
        """Twice a second: has anything waited for too long?"""
        limits = self._shell.limits
        if self._muted_since:
            if now - self._muted_since > limits.drain_s:
                self._task.cancel()
        elif self._tunnel or self._connection is None:
            return
        elif self._paused_since:
            if now - self._paused_since > limits.stalled_write_s:
                self._time_out()
        elif not self._client.write_paused and now - self._progress > limits.silence_s:
            self._time_out()

    def _time_out(self) -> None:
        self._timed_out = True
        if self._connection is not None:
            self._connection.end()

    # -- the end

    def _close(self, end: EndKind) -> None:
        """Tell the thinking part how it ended; the first call counts."""
        if self._end_kind is not None:
            return
        self._end_kind = end
        self._shell.draining.discard(self)
        if self._opened is not None:
            try:
                self._opened.close(end, time.time_ns())
            except Exception as error:  # noqa: BLE001
                self._fault("close", error)

    def _fault(self, where: str, error: Exception) -> None:
        self._seen = False
        self._shell.faults.caught(where, error)

    def _count_stream(self, step: int) -> None:
        if (step > 0) is not self._stream_counted:
            self._stream_counted = step > 0
            self._shell.open_streams += step

    # -- answers of our own

    def _grant_body(self) -> None:
        """The body is wanted before the upstream is asked, so the go-ahead is ours to give."""
        if self._request.expects_continue and not self._request.complete:
            self._continued = True
            self._client.write(CONTINUE)

    def _answer(self, reply: Reply, *, close: bool = False) -> None:
        """Write a whole answer, unless one has begun."""
        if self._head_out:
            return
        self._head_out = True
        if close or not self._request.complete or self._shell.stopping:
            self.reusable = False
        fields = [pair for pair in reply.headers if pair[0].lower() != b"content-length"]
        fields.append((b"content-length", b"%d" % len(reply.body)))
        lines = [b"HTTP/1.1 %d %b" % (reply.status, answers.reason(reply.status))]
        lines += [name + b": " + value for name, value in fields]
        if not self.reusable:
            lines.append(b"Connection: close")
        head = b"\r\n".join(lines) + b"\r\n\r\n"
        self._client.write(head if self._request.head.method == "HEAD" else head + reply.body)
        if self._request.upgrade:
            self._client.no_tunnel()

    def _failure(self, status: int, code: str, message: str) -> Reply:
        """Shaped for the dialect where this is a model call, one line elsewhere."""
        known = self._opened is not None and self._opened.request is not None and self._route is not None
        api = self._route.upstream.api if known and self._route is not None else None
        return answers.failure(api, status, code, message, self._id)

    def _answer_unreachable(self, error: Unreachable) -> None:
        assert self._route is not None
        name = self._route.upstream.name
        if isinstance(error, ConnectTimeout):
            reply = self._failure(
                504, "looptap_upstream_timeout", f"upstream {name!r} did not answer in time: {error}"
            )
        else:
            reply = self._failure(502, "looptap_upstream_unreachable", f"upstream {name!r} failed: {error}")
        self._answer(reply)

    def _answer_broken_request(self, error: BadRequest) -> None:
        self.reusable = False
        if self._head_out:
            self._client.break_off(reset=False)
        else:
            self._answer(answers.text(error.status, str(error)), close=True)

    def _answer_fault(self) -> None:
        if self._head_out:
            self.reusable = False
            self._client.break_off(reset=True)
        else:
            message = "an internal fault of the proxy; see its log"
            self._answer(self._failure(500, "looptap_internal_error", message))


def _holds_responses(route: Route) -> bool:
    return route.upstream.api == "openai" and route.path.rstrip("/").endswith("/responses")
