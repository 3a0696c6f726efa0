"""What the wire asks of the part that thinks, and the guard around every such call.

``core.Core`` is a ``Thinker`` by its shape alone. A fault in there is counted and reported once per
kind; the exchange goes on unobserved (or is refused, where the configuration says so).

The one invariant: what was opened is closed exactly once, and a fault never reaches the traffic.
"""

import time
from collections.abc import Callable, Iterator
from typing import Any, Protocol, TypeVar

from proxy.model import EndKind, Exchange, Head, ResponseHead, Upstream
from proxy.verdict import Reply
from proxy.wire.rounds import Rounds
from proxy.wire.timing import Buckets, Timings

T = TypeVar("T")


class Asked(Protocol):
    """A request, however far it was looked into."""

    @property
    def request(self) -> Any:
        """As read, None where no dialect reads it. Opaque to the wire."""
        ...


class Opened(Asked, Protocol):
    """One exchange as the thinking part sees it."""

    @property
    def body(self) -> bytes:
        """What goes upstream; the identical object when nothing edited it."""
        ...

    @property
    def refusal(self) -> Reply | None:
        """An answer of our own instead of the upstream's."""
        ...

    @property
    def unsaved(self) -> bool:
        """It carries something of ours that has to be stored before it goes out."""
        ...

    @property
    def stamps(self) -> tuple[tuple[bytes, bytes], ...]:
        """Fields of our own for the answer's head; none unless the configuration asks for them."""
        ...

    waited_ns: int
    """How long it waited for an operator, which is no time of ours."""
    failure: str
    """Why no whole answer came from the upstream, where the wire knows."""
    on_cut: Callable[[], None] | None
    """Called when the reply that is under way is to end."""

    def over(self) -> None:
        """Nothing of it can be cut any more; ``close`` comes in its turn. Must not raise."""
        ...

    @property
    def closing(self) -> bytes:
        """What ends a running stream so that its client parses it; empty where nothing does."""
        ...

    def last_words(self) -> Reply | None:
        """The answer where nothing of the reply has gone out yet."""
        ...

    def reading(self) -> Iterator[None]:
        """Read the request, in slices between which others may go on."""
        ...

    def place(self, now_ns: int, *, number: int | None = None) -> None:
        """Find out whose the request is; ``number``: its number by now."""
        ...

    def sent(self, now_ns: int) -> None:
        """The request is on its way."""
        ...

    def respond(self, head: ResponseHead, now_ns: int) -> None: ...

    def feed(self, data: bytes, now_ns: int) -> None:
        """Body bytes without chunk framing, still content-encoded; the client has them already."""
        ...

    def close(self, end: EndKind, now_ns: int) -> None:
        """Called exactly once, whatever happened."""
        ...


class Thinker(Protocol):
    """What thinks about exchanges."""

    def match(self, head: Head, upstream: Upstream, path: str) -> bool:
        """Whether this is a model call, so that its body is wanted whole."""
        ...

    def open(self, exchange: Exchange, body: bytes, now_ns: int) -> Opened: ...

    def begin(self, exchange: Exchange, body: bytes) -> Opened:
        """``open`` in parts: ``Opened.reading`` and then ``Opened.place`` follow."""
        ...

    def relay(self, exchange: Exchange, now_ns: int) -> Opened:
        """An exchange whose bodies stream past."""
        ...


class Faults:
    """Our own bugs, counted; each kind is reported once."""

    def __init__(self, report: Callable[[str, BaseException], None]) -> None:
        self._report = report
        self.counts: dict[tuple[str, str], int] = {}

    def caught(self, where: str, error: BaseException) -> None:
        kind = (where, type(error).__name__)
        count = self.counts.get(kind, 0) + 1
        self.counts[kind] = count
        if count == 1:
            self._report(where, error)


class Watch:
    """The thinking part's view of one exchange, behind the guard."""

    __slots__ = (
        "_arrived_ns", "_begun", "_faults", "_gaps", "_last_ns", "_opened", "_opened_ns", "_rounds",
        "_thinker", "_timings", "_upstream", "end", "failed", "on_cut",
    )  # fmt: skip

    def __init__(self, thinker: Thinker, faults: Faults, timings: Timings, rounds: Rounds) -> None:
        self._thinker = thinker
        self._rounds = rounds
        self._faults = faults
        self._timings = timings
        self._begun: Opened | None = None
        """Read and not placed yet: where its client leaves before that, nobody was told of it."""
        self._opened: Opened | None = None
        self._upstream = ""
        self._arrived_ns = 0
        self._opened_ns = 0
        """When the request was whole; 0: it is no model call, or it is on its way."""
        self._last_ns = 0
        """When the last chunk came."""
        self._gaps: Buckets | None = None
        """Where the gaps between chunks are counted, while a stream is under way."""
        self.on_cut: Callable[[], None] | None = None
        """How a reply under way is ended."""
        self.failed = False
        """The thinking part failed on this exchange: it is not asked again, only closed."""
        self.end: EndKind | None = None
        """How the exchange ended; set once."""

    def wants_whole(self, exchange: Exchange, upstream: Upstream) -> bool:
        try:
            return self._thinker.match(exchange.head, upstream, exchange.path)
        except Exception as error:  # noqa: BLE001 - a fault of ours costs observations, not traffic
            self.fault("match", error)
            return False

    def begin(self, exchange: Exchange, body: bytes) -> Opened | None:
        """A request that is to be read in slices (``reading``); ``open`` follows."""
        try:
            self._begun = self._thinker.begin(exchange, body)
        except Exception as error:  # noqa: BLE001 - as in ``wants_whole``
            self.fault("open", error)
        return self._begun

    def reading(self) -> Iterator[None]:
        """Read what was begun."""
        if self._begun is not None:
            try:
                yield from self._begun.reading()
            except Exception as error:  # noqa: BLE001 - as in ``wants_whole``
                self.fault("open", error)

    def open(self, exchange: Exchange, body: bytes | None) -> Opened | None:
        """Begin to watch; ``body`` is None where it streams past.

        It is placed as of its arrival, as in a replay: how long it waited for its turn is nobody's history.
        """
        self._opened, self._begun = self._begun, None
        if self.failed:
            return self._opened
        try:
            now_ns = time.time_ns()
            if body is None:
                self._opened = self._thinker.relay(exchange, now_ns)
            elif self._opened is not None:
                self._measure_from(exchange, now_ns)
                self._opened.place(exchange.arrived_ns, number=exchange.number)
            else:
                self._measure_from(exchange, now_ns)
                self._opened = self._thinker.open(exchange, body, exchange.arrived_ns)
            self._opened.on_cut = self.on_cut
        except Exception as error:  # noqa: BLE001 - as in ``wants_whole``
            self.fault("open", error)
        return self._opened

    def _asked(self, where: str, ask: Callable[[Opened], T], otherwise: T, *, to_the_end: bool = False) -> T:
        """What the thinking part answers; ``otherwise`` where it is not there, or fails.

        ``to_the_end``: even where it failed before, since how an answer is ended does not hang on that.
        """
        if self._opened is None or (self.failed and not to_the_end):
            return otherwise
        try:
            return ask(self._opened)
        except Exception as error:  # noqa: BLE001 - as in ``wants_whole``
            self.fault(where, error)
            return otherwise

    @property
    def closing(self) -> bytes:
        """What ends a running stream so that its client parses it."""
        return self._asked("closing", lambda opened: opened.closing, b"", to_the_end=True)

    def last_words(self) -> Reply | None:
        """The answer where nothing of a cut reply has gone out."""
        return self._asked("last_words", lambda opened: opened.last_words(), None, to_the_end=True)

    def _measure_from(self, exchange: Exchange, now_ns: int) -> None:
        self._upstream = exchange.upstream.name if exchange.upstream is not None else ""
        self._arrived_ns, self._opened_ns = exchange.arrived_ns, now_ns

    @property
    def request(self) -> Any:
        return self._opened.request if self._opened is not None else None

    @property
    def refusal(self) -> Reply | None:
        return self._asked("refusal", lambda opened: opened.refusal, None)

    @property
    def stamps(self) -> tuple[tuple[bytes, bytes], ...]:
        return self._asked("stamps", lambda opened: opened.stamps, ())

    def edited(self, body: bytes) -> bytes:
        """The body to send: as it came, unless an edit was made. What we add to its way ends here."""
        if self._opened_ns:
            waited_ns = self._opened.waited_ns if self._opened is not None else 0
            self._timings.request.add(time.time_ns() - self._opened_ns - waited_ns)
            self._opened_ns = 0
        return self._asked("edited", lambda opened: opened.body, body)

    def sent(self) -> None:
        """The request is on its way."""
        if self._opened is not None and not self.failed:
            try:
                self._opened.sent(time.time_ns())
            except Exception as error:  # noqa: BLE001 - as in ``wants_whole``
                self.fault("sent", error)

    def respond(self, head: ResponseHead) -> None:
        if self._arrived_ns and (head.get(b"content-type") or b"").startswith(b"text/event-stream"):
            self._gaps = self._timings.gaps(self._upstream)
        if self._opened is not None and not self.failed:
            try:
                self._opened.respond(head, time.time_ns())
            except Exception as error:  # noqa: BLE001 - as in ``wants_whole``
                self.fault("respond", error)

    def feed(self, data: bytes) -> None:
        """A chunk of the answer has just been passed on."""
        opened = self._opened
        if opened is None or self.failed:
            return
        now_ns = time.time_ns()
        try:
            opened.feed(data, now_ns)
        except Exception as error:  # noqa: BLE001 - as in ``wants_whole``
            self.fault("feed", error)
        if self._arrived_ns:
            if not self._last_ns:
                self._timings.first(self._upstream).add(now_ns - self._arrived_ns - opened.waited_ns)
            elif self._gaps is not None:
                self._gaps.add(now_ns - self._last_ns)
            self._last_ns = now_ns
            self._timings.chunk.add(time.time_ns() - now_ns)

    def failed_with(self, words: str) -> None:
        """Why no whole answer comes from the upstream; ``close`` follows."""
        if self._opened is not None and self.end is None:
            self._opened.failure = words

    def close(self, end: EndKind) -> None:
        """It ends now, and the first call counts; what that means is thought about in its turn."""
        self._rounds.send()
        if self.end is not None:
            return
        self.end = end
        self.on_cut = None  # no reference cycle through the relay: what the exchange held is let go at once
        if self._opened is not None:
            self._opened.over()
        ended_ns = time.time_ns()
        self._rounds.do(lambda: self._close(end, ended_ns))

    def _close(self, end: EndKind, ended_ns: int) -> None:
        if self._opened is not None:
            try:
                self._opened.close(end, ended_ns)
            except Exception as error:  # noqa: BLE001 - as in ``wants_whole``
                self.fault("close", error)

    def fault(self, where: str, error: Exception) -> None:
        self.failed = True
        self._faults.caught(where, error)
