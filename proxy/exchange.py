"""The live shell: one exchange from its head to its end, every await of it on one page (``run``).

Between the awaits the answer flows by plain calls through ``wire.relay``; what thinks is asked
through ``wire.guard``. Here are the order of things and every way an exchange can end.

The one invariant: the upstream is let go and what was opened is closed on every way out:
answered, broken, refused, timed out, client gone, shutdown.
"""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import Literal

from proxy.model import EndKind, Exchange, Head, Identity
from proxy.structs import replace
from proxy.verdict import Reply
from proxy.wire import answers
from proxy.wire.away import Away
from proxy.wire.dial import ConnectTimeout, Unreachable
from proxy.wire.guard import Asked, Faults, Opened, Thinker, Watch
from proxy.wire.heads import (
    LAST_CHUNK,
    Fields,
    Framing,
    WireLimits,
    chunk,
    own_answer,
    request_head,
    without_own_fields,
)
from proxy.wire.incoming import BadRequest, IncomingRequest, Pulse, Room
from proxy.wire.relay import Client, Relay
from proxy.wire.routes import Route, RouteTable, Unroutable
from proxy.wire.timing import Timings
from proxy.wire.upstream import Broken, Peer, UpstreamConnection, UpstreamPool

__all__ = ["LiveExchange", "Opened", "Shell", "Thinker"]

CUT_S = 2.0
"""How long an answer that is to end may take to finish its event."""
CUT_WORDS = "Looptap ended this answer before it began, and could not say why."
ID_BYTES = 10
JOIN_BELOW = 64 * 1024
"""A body smaller than this is read at once, and leaves in one write with its head."""
SLICE = 1024 * 1024
"""Bytes of a larger one that are written in one go: between its slices other streams go on."""
RESENDABLE = frozenset({"GET", "HEAD", "OPTIONS"})


@dataclass(slots=True)
class Shell:
    """What all exchanges of one server share. Routes and settings may be swapped on reload."""

    routes: RouteTable
    thinker: Thinker
    pool: UpstreamPool
    limits: WireLimits
    identify: Callable[[Head], Identity]
    faults: Faults
    room: Room
    admit: Callable[[Exchange, Opened], Awaitable[None]] | None = None
    """Awaited after ``open`` and before anything goes out: reserving in a ledger, shared threads.
    May set ``opened.refusal``; is cancelled when the client leaves."""
    keep: Callable[[Opened], Awaitable[None]] | None = None
    """Awaited before that where the request carries text of ours for the first time: it is stored first."""
    on_internal_error: Literal["open", "closed"] = "open"
    on_abort: Literal["cancel", "drain"] = "cancel"
    refuse_websocket: bool = False
    """Answer upgrades of ``/responses`` with 426 at once: what passes there cannot be held to caps."""
    stand_in: Callable[[Head, str, str], tuple[Fields, str]] | None = None
    """Puts the upstream's real key in the place of a virtual one. Raises Unroutable."""
    again: Callable[[Exchange, bytes], Awaitable[Reply | None]] | None = None
    """Asked before a request is read: the answer to one that repeats what was refused over and over."""
    look: Callable[[Exchange, Asked], Awaitable[None]] | None = None
    """Awaited when a request is read and not placed yet: other instances may know its thread."""
    share: Callable[[Opened], Awaitable[None]] | None = None
    """Awaited before a request goes out: other instances must know its thread."""
    away: Away | None = None
    """Told of every upstream that fails before its answer has begun."""
    unread: Callable[[str], None] | None = None
    """Told of an upstream to which model calls went through a WebSocket, when that is over."""
    pulse: Pulse = field(default_factory=Pulse)
    timings: Timings = field(default_factory=Timings)
    requests: int = 0
    opened: int = 0
    """Exchanges whose request is whole, or streams past: what they are numbered by, as in a log."""
    open_exchanges: int = 0
    draining: set["LiveExchange"] = field(default_factory=set)
    """Exchanges whose client has left while their reply is still read."""
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
        "_asked", "_client", "_drain_since", "_exchange", "_id", "_outgoing", "_peer", "_request",
        "_route", "_shell", "_stopped", "_task", "_watch", "relay",
    )  # fmt: skip

    _exchange: Exchange
    _peer: Peer

    def __init__(
        self, shell: Shell, client: Client, request: IncomingRequest, task: "asyncio.Task[None]"
    ) -> None:
        self._shell = shell
        self._client = client
        self._request = request
        self._task = task
        self._id = shell.new_id()
        self._route: Route | None = None
        self._watch = Watch(shell.thinker, shell.faults, shell.timings, shell.pulse.rounds)
        self._outgoing: tuple[Fields, str] | None = None
        self._drain_since = 0.0
        self._stopped = False
        self._asked = False
        """Its request is whole, and waits for its turn or has had it."""
        self.relay = Relay(shell.pulse, client, request, self._watch)
        self._watch.on_cut = self.relay.cut

    # -- the exchange, from top to bottom

    async def run(self) -> None:
        """Every await of one exchange, in order. Cancelled when the client has left."""
        shell, request, watch = self._shell, self._request, self._watch
        shell.requests += 1
        shell.open_exchanges += 1
        end: EndKind = "client_gone"
        body: bytes | None = None
        try:
            route = self._find_upstream()
            if not request.upgrade and watch.wants_whole(self._exchange, route.upstream):
                self.relay.grant_body()
                body = await request.whole()
                if shell.again is not None and (again := await self._again(shell.again, body)) is not None:
                    end = "refused"
                    self._answer(again)
                    return
                if shell.look is not None or len(body) >= JOIN_BELOW:
                    await self._read(body)
                self._asked = True
                opened = await shell.pulse.rounds.through(lambda: self._open(body))
            else:
                opened = self._open(None)
            if shell.keep is not None and opened is not None and opened.unsaved:
                await self._keep(shell.keep, opened)
            if shell.admit is not None and opened is not None:
                await self._admit(shell.admit, opened)
            refusal = self._refusal(route)
            if refusal is not None:
                end = "refused"
                self._answer(refusal)
            else:
                if shell.share is not None and opened is not None:
                    await self._share(shell.share, opened)
                await self._reach_upstream(route, body)
                if self.relay.unsaid:
                    end = "refused"
                    self._answer(watch.last_words() or answers.text(403, CUT_WORDS))
            if not request.complete:  # an early answer: closing now could destroy it on its way
                request.discard()
                await request.drained()
        except asyncio.CancelledError:
            if body is not None and not self._asked:  # it was asked all the same
                shell.pulse.rounds.do(lambda: self._open(body))
            if self._stopped and end == "client_gone":
                end = "shutdown"
            raise
        except Unroutable as error:
            self._answer(answers.text(error.status, str(error)))
        except BadRequest as error:
            self._answer_bad_request(error)
        except Unreachable as error:
            end = "timeout" if isinstance(error, ConnectTimeout) else "upstream_reset"
            self._answer_unreachable(error)
        except Exception as error:  # noqa: BLE001 - ours: this client gets an end, the others go on
            shell.faults.caught("exchange", error)
            self._answer_fault()
        finally:
            self.relay.leave()
            request.discard()
            watch.close(end)
            shell.draining.discard(self)
            shell.pulse.rounds.do(self._over)
            if self.relay.is_tunnel and shell.unread is not None:
                self._tell_unread(shell.unread)

    def _over(self) -> None:
        self._shell.open_exchanges -= 1

    def _tell_unread(self, tell: Callable[[str], None]) -> None:
        if self._route is not None and _is_responses(self._route):
            tell(self._route.upstream.name)

    def _find_upstream(self) -> Route:
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
        if shell.stand_in is not None:
            self._outgoing = shell.stand_in(head, route.target, route.upstream.name)
        self._exchange = Exchange(
            self._id, shell.opened, head, route.upstream, route.path, arrived_ns, identity
        )
        return route

    def _open(self, body: bytes | None) -> Opened | None:
        """Begin to watch, under the exchange's number by now: others may have been whole before it."""
        shell = self._shell
        if body is not None and shell.opened != self._exchange.number:
            self._exchange = replace(self._exchange, number=shell.opened)
        shell.opened += 1
        return self._watch.open(self._exchange, body)

    async def _again(
        self, again: Callable[[Exchange, bytes], Awaitable[Reply | None]], body: bytes
    ) -> Reply | None:
        try:
            return await again(self._exchange, body)
        except Exception as error:  # noqa: BLE001 - ours: it takes the long way
            self._shell.faults.caught("again", error)
            return None

    async def _read(self, body: bytes) -> None:
        """Read the request while others go on, and let other instances tell what they know of its thread."""
        watch, look = self._watch, self._shell.look
        try:
            await asyncio.sleep(0)
            opened = watch.begin(self._exchange, body)
            await self._read_on(watch.reading())
            await asyncio.sleep(0)
            if look is not None and opened is not None:
                await look(self._exchange, opened)
        except Exception as error:  # noqa: BLE001 - ours: what is known here has to do
            self._shell.faults.caught("look", error)

    @staticmethod
    async def _read_on(slices: Iterator[None]) -> None:
        """Read to the end, even where the client leaves meanwhile: half of it can be placed nowhere."""
        left: asyncio.CancelledError | None = None
        ended = False
        while not ended:
            try:
                for _ in slices:
                    await asyncio.sleep(0)
                ended = True
            except asyncio.CancelledError as error:
                left = error
        if left is not None:
            raise left

    async def _share(self, share: Callable[[Opened], Awaitable[None]], opened: Opened) -> None:
        try:
            await share(opened)
        except Exception as error:  # noqa: BLE001 - ours: others will not know of this request in time
            self._shell.faults.caught("share", error)

    async def _admit(self, admit: Callable[[Exchange, Opened], Awaitable[None]], opened: Opened) -> None:
        try:
            await admit(self._exchange, opened)
        except Exception as error:  # noqa: BLE001 - ours: the posture decides
            self._watch.fault("admit", error)

    async def _keep(self, keep: Callable[[Opened], Awaitable[None]], opened: Opened) -> None:
        try:
            await keep(opened)
        except Exception as error:  # noqa: BLE001 - ours: the request goes out as it came
            self._watch.fault("keep", error)

    def _refusal(self, route: Route) -> Reply | None:
        """An answer of our own, where the verdict, a fault of ours or the settings ask for one."""
        if self._watch.refusal is not None:
            return self._watch.refusal
        if self._watch.failed and self._shell.on_internal_error == "closed":
            message = "an internal fault of the proxy, and on_internal_error is closed"
            return self._failure(500, "looptap_internal_error", message)
        if self._request.upgrade and self._shell.refuse_websocket and _is_responses(route):
            message = "WebSocket is not carried while budgets or policies are enforced; use HTTP"
            reply = answers.failure("openai", 426, "looptap_websocket_refused", message, self._id)
            return Reply(426, [*reply.headers, (b"upgrade", b"HTTP/1.1")], reply.body)
        return None

    async def _reach_upstream(self, route: Route, body: bytes | None) -> None:
        """Send the request and wait until its answer has been passed on. Raises Unreachable."""
        peer, pool, relay = self._peer, self._shell.pool, self.relay
        if body is not None:
            body = self._watch.edited(body)
        connection = pool.take(peer)
        while True:
            if connection is None:
                connection = await pool.connect(peer)
            await self._send(connection, route, body)
            broken = await relay.done
            if broken is None:
                return
            if relay.timed_out:
                raise ConnectTimeout(f"nothing came for {self._shell.limits.silence_s:g} s")
            if not self._may_resend(connection, broken):
                raise Unreachable(broken.words)
            connection = None

    def _may_resend(self, connection: UpstreamConnection, broken: Broken) -> bool:
        """Only where a second copy does no harm: the pooled connection was probably dead already."""
        return (
            connection.carried > 1
            and not broken.answered
            and self._request.head.method in RESENDABLE
            and self._request.framing is Framing.NONE
            and not self._request.upgrade
        )

    async def _send(self, connection: UpstreamConnection, route: Route, body: bytes | None) -> None:
        """Write what there is of the request, and let the rest follow as it comes."""
        request, peer, head = self._request, self._peer, self._exchange.head
        if request.failure is not None:
            raise request.failure
        fields, target = self._outgoing or (head.headers, route.target)
        chunked = request.framing is Framing.CHUNKED
        last = request.complete
        data = body if body is not None else request.taken()
        first = request_head(
            head.method,
            peer.target_prefix + target,
            peer.authority,
            fields,
            length=len(data) if body is not None and request.framing is Framing.LENGTH else None,
            upgrade=request.upgrade,
            proxy_authorization=peer.proxy_authorization,
        )
        joined = len(data) < JOIN_BELOW
        if joined:
            if data:
                first += chunk(data) if chunked else data
            if last and chunked:
                first += LAST_CHUNK
        self.relay.attach(connection)
        self._watch.sent()
        connection.begin(
            self.relay,
            head.method,
            first,
            chunked=chunked,
            whole=last and joined,
            upgrade=request.upgrade,
        )
        if last and not joined:
            await self._send_slices(connection, data)
        elif not joined:
            connection.send_body(data, last=False)
        if not last:
            request.stream_to(self.relay.upload)

    async def _send_slices(self, connection: UpstreamConnection, body: bytes) -> None:
        """Write a whole body, unless its answer comes to an end before."""
        view = memoryview(body)
        for at in range(0, len(body), SLICE):
            await asyncio.sleep(0)
            if not self.relay.is_waiting:
                return
            connection.send_body(view[at : at + SLICE], last=at + SLICE >= len(body))

    # -- what the client's connection tells

    def on_client_left(self) -> None:
        """The client is gone: cancel, or read the reply on for its usage."""
        if self.relay.is_tunnel:
            self.relay.close_tunnel()
        elif self._may_drain():
            if not self._drain_since:
                self._drain_since = self._shell.pulse.now
                self._shell.draining.add(self)
                self.relay.client_left = True
                self.relay.on_client_resumed()
        else:
            self._task.cancel()

    def on_stopped(self) -> None:
        """We go before its end, not its client."""
        self._stopped = True
        if self.relay.is_waiting:
            self._watch.failed_with("looptap was stopped")

    def _may_drain(self) -> bool:
        return (
            self._shell.on_abort == "drain"
            and not self._shell.pulse.stopping
            and self.relay.is_waiting
            and self._request.complete
            and self._watch.request is not None
        )

    def carries(self, request: IncomingRequest) -> bool:
        return request is self._request

    def on_bad_body(self, failure: BadRequest) -> None:
        """The rest of the request is not valid: the upstream must not get a whole one."""
        self.relay.reusable = False
        was_waiting = self.relay.is_waiting
        self.relay.leave()
        self._request.fail(failure)
        if was_waiting and not self.relay.done.done():
            self.relay.done.set_exception(failure)

    @property
    def is_answered(self) -> bool:
        """The answer is complete; at most the rest of the request is still being dropped."""
        return self.relay.head_out and not self.relay.is_waiting

    @property
    def reusable(self) -> bool:
        return self.relay.reusable

    def cancel(self) -> "asyncio.Task[None]":
        """Give it up; the task that still has to come to its end."""
        self._task.cancel()
        return self._task

    def sweep(self, now: float) -> None:
        """Has anything waited for too long?"""
        limits, relay = self._shell.limits, self.relay
        if relay.cut_since and relay.head_out and relay.is_waiting and now - relay.cut_since > CUT_S:
            relay.break_cut()
        elif self._drain_since:
            if now - self._drain_since > limits.drain_s or relay.drained > limits.drain_bytes:
                self._task.cancel()
        elif relay.is_tunnel or not relay.is_waiting:
            return
        elif relay.paused_since:
            if now - relay.paused_since > limits.stalled_write_s:
                relay.time_out()
        elif not self._client.write_paused and now - relay.progress > limits.silence_s:
            relay.time_out()

    # -- answers of our own

    def _answer(self, reply: Reply) -> None:
        """Write a whole answer, unless one has begun."""
        relay, request = self.relay, self._request
        if relay.head_out:
            return
        relay.head_out = True
        if not request.complete or self._shell.pulse.stopping or reply.status == 426:
            relay.reusable = False
        data = own_answer(
            reply.status,
            answers.reason(reply.status),
            reply.headers,
            reply.body,
            close=not relay.reusable,
            bodiless=request.head.method == "HEAD",
        )
        self._client.write(data)
        if request.upgrade:
            self._client.no_tunnel()

    def _failure(self, status: int, code: str, message: str) -> Reply:
        """Shaped for the API where this is a model call, one line elsewhere."""
        known = self._route is not None and self._watch.request is not None
        api = self._route.upstream.api if known and self._route is not None else None
        return answers.failure(api, status, code, message, self._id)

    def _answer_unreachable(self, error: Unreachable) -> None:
        name = self._route.upstream.name if self._route is not None else ""
        self._watch.failed_with(str(error))
        if self._shell.away is not None:
            self._shell.away.failed(name, str(error))
        if isinstance(error, ConnectTimeout):
            message = f"upstream {name!r} did not answer in time: {error}"
            self._answer(self._failure(504, "looptap_upstream_timeout", message))
        else:
            message = f"upstream {name!r} failed: {error}"
            self._answer(self._failure(502, "looptap_upstream_unreachable", message))

    def _answer_bad_request(self, error: BadRequest) -> None:
        self.relay.reusable = False
        if self.relay.head_out:
            self._client.break_off(reset=False)
        else:
            self._answer(answers.text(error.status, str(error)))

    def _answer_fault(self) -> None:
        if self.relay.head_out:
            self.relay.reusable = False
            self._client.break_off(reset=True)
        else:
            message = "an internal fault of the proxy; its log says more"
            self._answer(self._failure(500, "looptap_internal_error", message))


def _is_responses(route: Route) -> bool:
    return route.upstream.api == "openai" and route.path.rstrip("/").endswith("/responses")
