"""Storms of refusals: the same request again and again.

A client that repeats a refused request byte for byte gets the ledger's answer again, but it is not read,
placed, judged and recorded again each time: the first few in a minute are, the rest is counted. The
ledger itself is asked each time, so that a top-up, a stop or a new window holds for the very next request
of every instance, with the numbers of the moment. ``pressure`` is the same for what is new each time.

The one invariant: what is remembered here never refuses anything by itself.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Generic, TypeVar

from proxy.model import Exchange, ModelRequest
from proxy.ports import Dialect
from proxy.verdict import Claim, Reply, Terminal

RECORDED = 5
"""Repetitions of one request that are recorded in a minute."""
MINUTE_NS = 60_000_000_000
_MOST = 4_096
_SHORT = 256
"""Characters of an option that is kept: what words depend on is shorter, a schema is not."""
NAMELESS = "exc_once-more-the-same-00"
"""Stands for an exchange's id in words that are used again."""
_CHANGING = (
    b"x-stainless-retry-count", b"x-stainless-read-timeout", b"traceparent", b"tracestate", b"x-request-id",
    b"x-client-request-id", b"idempotency-key", b"x-amz-date", b"date", b"content-length", b"authorization",
    b"x-api-key", b"api-key", b"x-goog-api-key",
)  # fmt: skip
"""Fields that are new in each repetition, or that stand for the key, which is looked at by itself."""


T = TypeVar("T")


class Question(Generic[T]):
    """Put to the ledger for many at once: all who wait when it goes out share its answer, and nobody gets the
    answer to an earlier one."""

    __slots__ = ("_asking", "_next")

    def __init__(self) -> None:
        self._asking: asyncio.Task[T] | None = None
        self._next: asyncio.Task[T] | None = None

    async def put(self, ask: Callable[[], Awaitable[T]]) -> T:
        """The answer; ``ask`` is called where nobody waits for the same question already."""
        if self._next is None:
            self._next = asyncio.get_running_loop().create_task(self._ask(ask, self._asking))
        return await asyncio.shield(self._next)

    async def _ask(self, ask: Callable[[], Awaitable[T]], before: "asyncio.Task[T] | None") -> T:
        if before is not None:
            await asyncio.wait({before})
        self._asking, self._next = self._next, None
        return await ask()


def worded(reply: Reply, id: str) -> Reply:
    """A refusal that was made for the exchange ``NAMELESS``, for another."""
    place, name = NAMELESS.encode(), id.encode()
    headers = [(field, value.replace(place, name)) for field, value in reply.headers]
    return Reply(reply.status, headers, reply.body.replace(place, name))


@dataclass(slots=True)
class Repeated:
    """A request that was refused."""

    claims: Sequence[Claim]
    names: Sequence[str]
    dialect: Dialect
    request: ModelRequest
    """Less its history and all that is long: what the words of a refusal depend on."""
    since_ns: int
    """By a clock that nobody puts back."""
    told_ns: int
    """When its claims were made: limits on time go on from there."""
    landed: bool = False
    """Its turn has had its last step."""
    count: int = 1

    question: Question[Terminal | None] = field(default_factory=Question)
    _why: Terminal | None = None
    _reply: Reply | None = None

    def worded(self, why: Terminal, id: str) -> Reply:
        """The refusal in the client's words; the same words but for the id as long as nothing changes."""
        if self._reply is None or why != self._why:
            self._why, self._reply = why, self.dialect.refusal(self.request, why, NAMELESS)
        return worded(self._reply, id)

    def claims_now(self, now_ns: int) -> list[Claim]:
        """What it would have to have held by now."""
        ran_ms = (now_ns - self.told_ns) // 1_000_000
        return [
            replace(claim, level=(claim.level or 0) + ran_ms) if claim.dimension == "wall_clock" else claim
            for claim in self.claims
        ]


class Storms:
    """The refused requests of the last minute. One per door."""

    def __init__(self) -> None:
        self._known: OrderedDict[bytes, Repeated] = OrderedDict()

    def note(
        self,
        exchange: Exchange,
        body: bytes,
        dialect: Dialect,
        request: ModelRequest,
        claims: Sequence[Claim],
        names: Sequence[str],
        *,
        landed: bool = False,
    ) -> None:
        """A request was refused. ``landed``: because its turn has had its last step."""
        now_ns = time.time_ns()
        since_ns = time.monotonic_ns()
        mark = fingerprint(exchange, body)
        known = self._known.get(mark)
        if known is not None and since_ns - known.since_ns < MINUTE_NS:
            known.count += 1
            known.claims, known.names, known.told_ns, known.landed = claims, names, now_ns, landed
            return
        self._known[mark] = Repeated(claims, names, dialect, _bare(request), since_ns, now_ns, landed)
        self._known.move_to_end(mark)
        if len(self._known) > _MOST:
            self._known.popitem(last=False)

    def find(self, exchange: Exchange, body: bytes) -> Repeated | None:
        """What is known of a request that was repeated often enough within the last minute."""
        if not self._known:
            return None
        known = self._known.get(fingerprint(exchange, body))
        if known is None or known.count < RECORDED or time.monotonic_ns() - known.since_ns >= MINUTE_NS:
            return None
        return known

    def forget(self, known: Repeated) -> None:
        """It is not refused any more."""
        for mark, one in self._known.items():
            if one is known:
                del self._known[mark]
                return

    def clear(self) -> None:
        """Other budgets or prices hold from now on."""
        self._known.clear()


def _bare(request: ModelRequest) -> ModelRequest:
    options = {name: value for name, value in request.options.items() if len(repr(value)) <= _SHORT}
    return replace(request, messages=(), chain=(), system=(), tools=(), shared=0, options=options)


def fingerprint(exchange: Exchange, body: bytes) -> bytes:
    """Names a request by its bytes and by who pays; what differs in each repetition is left out."""
    identity, upstream = exchange.identity, exchange.upstream
    digest = blake2b(body, digest_size=16)
    labels: Mapping[str, str] = identity.labels
    words = [identity.key, identity.team, identity.org, *(f"{n}={labels[n]}" for n in sorted(labels))]
    words += [upstream.name if upstream is not None else "", exchange.head.method, exchange.head.target]
    digest.update("\0".join(words).encode("utf-8", "replace"))
    for name, value in exchange.head.headers:
        if name.lower() not in _CHANGING:
            digest.update(b"\0%b:%b" % (name, value))
    return digest.digest()
