"""The straight line without its awaits: opened → fed → closed.

``Core`` strings together what thinks: dialects, reading, tracker, chain, tap, prices. It owns no
socket, clock, file or random source, so the live shell (``exchange``) and the offline one
(``replay``) run exactly this code: a bug seen live is a file that replays.

Nothing in here may cost traffic. ``open`` hands back the body to forward (the very same object
unless something edited it); the shells call every method through their own guard, and what
cannot be read is relayed and counted as unmodelled.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any, Protocol

from proxy.chain import Chain, Point, Ruling
from proxy.dialects.nudges import blame
from proxy.model import (
    Attempt,
    AttemptOutcome,
    CaptureEnd,
    CaptureStart,
    Cost,
    EndKind,
    Event,
    Exchange,
    Head,
    ModelRequest,
    Nudge,
    Outcome,
    Record,
    ResponseHead,
    Splice,
    Upstream,
    Usage,
)
from proxy.outgoing import Outgoing
from proxy.ports import Dialect, Sink, Tab, Unreadable, View
from proxy.reading.codings import Undecodable
from proxy.reading.library import Library, Reading, read
from proxy.reading.redact import redact_headers, redact_target
from proxy.reading.tap import Tap
from proxy.tracker import Tracker
from proxy.tracking.nudges import Placed
from proxy.tracking.placement import Placement
from proxy.tracking.threads import Step, Turn
from proxy.verdict import Balance, Consequence, Edit, Finding, Reply, Severity, Terminal

AT_ONCE = 16
"""Chunks that are read in one go, where nobody waits for what they say: one by one, between the chunks of
other streams, each costs twice as much."""
LONG = 4_096
"""Bytes of a chunk that is read at once, so that little waits unread."""


class DialectTable(Protocol):
    """``dialects.match``: which dialect speaks on this route, None where none does."""

    def __call__(self, method: str, path: str, upstream: Upstream, head: Head) -> Dialect | None: ...


class Prices(Protocol):
    """What a reply cost. ``pricing`` implements it; the core does no arithmetic on money."""

    def cost(
        self, request: ModelRequest, outcome: Outcome, usage: Usage, upstream: Upstream, at_ns: int
    ) -> Cost: ...

    def estimate(self, outcome: Outcome, request_bytes: int) -> Usage: ...


class Standing(Protocol):
    """Where budgets stand by what passed here. ``money.standing`` implements it."""

    def balances(
        self, exchange: Exchange, placement: Placement, request: ModelRequest, now_ns: int
    ) -> Mapping[str, Balance]: ...

    def charge(
        self, exchange: Exchange, placement: Placement, request: ModelRequest, attempt: Attempt
    ) -> None: ...


@dataclass(frozen=True, slots=True)
class CoreSettings:
    """What the core needs to know of the configuration."""

    record_bodies: bool = True
    """``record: full``: bodies go to the record and previews into items."""
    quotes: bool = True
    """Findings may quote the traffic (``evidence.quotes``)."""
    max_decoded: int = 128_000_000
    """Bytes that a decoded copy of one body may take."""
    response_headers: bool = False
    """Tell the client on each answer where it stands in the tree: ``x-looptap-session`` and so on."""
    max_reply: int = 64_000_000
    """Bytes of one reply kept for the record; a longer one is recorded without its body."""


class Core:
    """Everything that thinks about an exchange. One per process; used from one thread."""

    def __init__(
        self,
        *,
        dialects: DialectTable,
        library: Library,
        tracker: Tracker,
        chain: Chain,
        prices: Prices,
        sink: Sink,
        settings: CoreSettings,
        on_fault: Callable[[str, BaseException], None],
        standing: Standing | None = None,
    ) -> None:
        self.dialects = dialects
        self.library = library
        self.tracker = tracker
        self.chain = chain
        self.prices = prices
        self.sink = sink
        self.settings = settings
        self.on_fault = on_fault
        self.standing = standing
        """None: there are no budgets to tell policies about."""
        self.on_closed: Callable[[Placement], None] | None = None
        """Told of every exchange of a thread when all is known of it."""
        self.reserves = False
        """The shell reserves in a ledger first and then admits or refuses; else ``open`` admits."""
        self.keeps = False
        """The shell stores a thread with its new nudge before the request goes out; else ``open`` goes on."""
        self.unmodelled: dict[str, int] = {}
        """Exchanges that we carried and did not read, by reason."""

    def match(self, head: Head, upstream: Upstream, path: str) -> bool:
        """Whether a dialect reads this route, so that the body is wanted whole."""
        return self.dialects(head.method, path, upstream, head) is not None

    def open(
        self, exchange: Exchange, body: bytes, now_ns: int, *, refused: Terminal | None = None
    ) -> "Opened":
        """Read and place a request whose body is at hand.

        ``refused``: how this very request was refused when it was recorded (replay).
        """
        opened = self.begin(exchange, body)
        opened.place(now_ns, refused=refused)
        return opened

    def begin(self, exchange: Exchange, body: bytes) -> "Opened":
        """Read a request; ``place`` follows, after the shell has looked for its thread elsewhere."""
        opened = Opened(self, exchange, body)
        opened._guarded(opened._read)
        return opened

    def stranger(self, exchange: Exchange, body: bytes, now_ns: int) -> tuple[Dialect, ModelRequest] | None:
        """A model call that would begin a conversation tied to nothing known; None for every other.

        Read only: neither kept nor placed, so that a storm of such calls drives out nothing of use.
        """
        upstream, head = exchange.upstream, exchange.head
        dialect = self.dialects(head.method, exchange.path, upstream, head) if upstream is not None else None
        if dialect is None or head.method != "POST" or head.get(b"content-encoding") is not None:
            return None
        try:
            request = read(dialect, exchange, body, None).request
        except Unreadable:
            return None
        known = request.operation != "chat" or not self.tracker.is_stranger(exchange, request, now_ns)
        return None if known else (dialect, request)

    def relay(self, exchange: Exchange, now_ns: int) -> "Opened":
        """An exchange that no dialect reads: bodies stream past, only its shape is recorded."""
        opened = Opened(self, exchange, None)
        opened._unmodelled("no model call")
        opened._capture_start(now_ns)
        return opened

    def tick(self, now_ns: int) -> None:
        """Let time pass: turns whose client never came back are closed."""
        self.tracker.tick(now_ns)
        self.judge_ended()

    def judge_ended(self) -> None:
        """Ask the policies about the turns that have just ended, each end once."""
        for turn in self.tracker.take_ended():
            if not self.chain.speaks("turn_end"):
                continue
            last = turn.last_step
            ruling = self.chain.judge(
                "turn_end", _end_view(turn, last, self.chain.mode), turn.thread.memories
            )
            turn.thread.memories.update(ruling.memories)
            told_by = (last.exchange, last.number) if last is not None else ("", None)
            for finding in ruling.findings:
                self.sink.put(self.told(finding, turn, last, told_by, turn.last_ns))

    def told(
        self, finding: Finding, turn: Turn, step: Step | None, by: tuple[str, int | None], now_ns: int
    ) -> Record:
        """A finding as it is recorded. ``by``: id and number of the exchange at which it was made."""
        data: dict[str, Any] = {
            "policy": finding.policy,
            "kind": finding.kind,
            "severity": finding.severity,
            "evidence": self._evidence(finding),
            "exchange": by[0],
            "number": by[1],
        }
        if finding.consequence is not None:
            data["consequence"] = finding.consequence
        if finding.path is not None:
            data["path"] = finding.path
        thread = turn.thread
        step_id = step.id if step is not None else None
        return Record(now_ns, "finding", thread.session.id, thread.id, turn.id, step_id, data)

    def _evidence(self, finding: Finding) -> dict[str, Any]:
        """What a finding rests on. What it quotes of the traffic stays out where no content is kept."""
        evidence = dict(finding.evidence)
        if not self.settings.quotes:
            evidence.pop("quotes", None)
        return evidence


class Opened:
    """One exchange on its way: ``respond``, ``feed`` and, exactly once, ``close``."""

    __slots__ = (
        "_arrived_ns", "_captured", "_core", "_dialect", "_first_output_ns", "_kept", "_kept_bytes",
        "_reading", "_received", "_reply", "_response", "_sent_ns", "_tap", "_unread", "_waits", "_wishes",
        "ended_by", "exchange", "fetches", "nudge", "on_cut", "out", "placement", "refusal", "request",
        "splice", "tab", "unsaved", "warnings",
    )  # fmt: skip

    def __init__(self, core: Core, exchange: Exchange, body: bytes | None) -> None:
        self._core = core
        self.exchange = exchange
        self.out = Outgoing(body if body is not None else b"", exchange.head.get(b"content-encoding"))
        """What the client sent, and what goes upstream."""
        self.request: ModelRequest | None = None
        self.refusal: Reply | None = None
        self.placement: Placement | None = None
        self.warnings: tuple[str, ...] = ()
        """What policies warned of before the request went out: ``policy/kind``."""
        self._dialect: Dialect | None = None
        self._reading: Reading | None = None
        """The request as read, until it is placed."""
        self.splice: Splice | None = None
        self.nudge: tuple[Nudge, Edit] | None = None
        """The one that this request is the first to carry, and the wish for it."""
        self.unsaved = False
        """It is not safe in the thread store yet; the shell stores it and then calls ``keep``."""
        self._wishes: list[Edit] | None = []
        """Nudges that policies want; None once the body is made up."""
        self.tab: Tab | None = None
        """What was reserved for this exchange; it is told how the exchange ended, once."""
        self.fetches: str | None = None
        """Id of the reply that this exchange only fetches."""
        self.ended_by: Terminal | None = None
        """Why the reply is ended under way."""
        self.on_cut: Callable[[], None] | None = None
        """How the shell ends it; where there is nothing to end, None."""
        self._captured = False
        self._waits = False
        """Nothing has gone upstream yet (known only where the shell reserves first)."""
        self._tap: Tap | None = None
        self._unread: list[tuple[bytes, int]] = []
        """Chunks that the tap has not seen yet, and when they came."""
        self._reply: Outcome | None = None
        self._response: ResponseHead | None = None
        self._first_output_ns: int | None = None
        self._sent_ns: int | None = None
        self._kept: list[bytes] | None = [] if core.settings.record_bodies and body is not None else None
        self._kept_bytes = 0
        self._received = 0
        self._arrived_ns = exchange.arrived_ns

    @property
    def body(self) -> bytes:
        """What goes upstream; the identical object when nothing edited it."""
        return self.out.body

    # -- the request

    def place(self, now_ns: int, *, number: int | None = None, refused: Terminal | None = None) -> None:
        """Find out whose the request is, and judge it. ``number``: its number, where others came before."""
        if number is not None:
            self.exchange = replace(self.exchange, number=number)
        self._guarded(lambda: self._place(now_ns, refused))
        if not self._waits:
            self._capture_start(now_ns)

    def _guarded(self, do: Callable[[], None]) -> None:
        try:
            do()
        except (Unreadable, Undecodable) as problem:
            self._unmodelled(str(problem) or type(problem).__name__)
        except Exception as error:  # noqa: BLE001 - a bug of ours: this exchange is relayed unseen
            self._core.on_fault("open", error)
            self._unmodelled("internal fault")

    def _read(self) -> None:
        core, exchange = self._core, self.exchange
        assert exchange.upstream is not None
        dialect = core.dialects(exchange.head.method, exchange.path, exchange.upstream, exchange.head)
        if dialect is None:
            raise Unreadable("no model call")
        self._dialect = dialect
        if exchange.head.method == "GET":
            self.request = dialect.read_request(exchange.head, exchange.path, {}, ())
            return
        reading = core.library.read(dialect, exchange, self.out.read(core.settings.max_decoded))
        if not self.out.coded:
            self.splice = reading.splice
        self.request, self._reading = reading.request, reading

    def _place(self, now_ns: int, refused: Terminal | None) -> None:
        core, exchange, dialect = self._core, self.exchange, self._dialect
        if dialect is None or self.request is None:
            return
        reading, self._reading = self._reading, None
        if reading is None:
            self._place_fetch(self.request, now_ns)
            return
        if reading.request.operation in ("count", "other"):
            self.out.carry(dialect, reading, core.tracker.nudges_beside(exchange, reading.request, now_ns))
            self._unmodelled(f"{reading.request.operation}, no step")
            return
        self.placement = core.tracker.place(exchange, reading.request, now_ns)
        core.judge_ended()
        if self.placement.new_turn:
            self._judge("turn_start", now_ns)
        self._judge("step_start", now_ns)
        if self.refusal is None:
            self._nudge(dialect, reading, now_ns)
        if self.refusal is None and refused is not None:
            core.tracker.refuse(self.placement, refused, now_ns)
            core.judge_ended()
        elif self.refusal is None and (core.reserves or self.unsaved):
            self._waits = True
        elif self.refusal is None:
            core.tracker.admit(self.placement, now_ns)

    def _place_fetch(self, asked: ModelRequest, now_ns: int) -> None:
        """A reply made in the background is fetched: the order was judged, and is already paid for."""
        core, exchange = self._core, self.exchange
        placement = core.tracker.fetch(exchange, asked, now_ns)
        if placement is None:
            self.request = None
            self._unmodelled("a stored reply")
            return
        self.fetches = asked.held
        self.request, self.placement = placement.request, placement
        core.tracker.admit(placement, now_ns)

    # -- text of ours

    def _nudge(self, dialect: Dialect, reading: Reading, now_ns: int) -> None:
        """Put back what the model has read of ours, and perhaps something new behind all of it."""
        core, placement, request = self._core, self.placement, reading.request
        assert placement is not None
        wishes, self._wishes = self._wishes or [], None
        there = core.tracker.nudges(placement)
        last = len(request.messages) - 1
        said = {nudge.policy for at, nudge in there if at == last}
        for wish in wishes:
            if wish.policy in said:
                continue  # the same request again: it was said the first time
            begun: Placed | None = None
            if self.nudge is None and (carrier := dialect.nudge(request, self._words(wish))) is not None:
                begun = core.tracker.nudge(placement, there, wish.policy, carrier)
            if begun is None:
                self._tell_nudge("would_nudge", wish, now_ns)
            else:
                there.append(begun)
                self.nudge = begun[1], wish
        if there:
            self.out.carry(dialect, reading, there)
        if self.nudge is not None and self.nudge[0] not in self.out.nudges:
            core.tracker.withdraw(placement, self.nudge[0])
            self._tell_nudge("would_nudge", self.nudge[1], now_ns)
            self.nudge = None
        thread = placement.thread_state
        if self.nudge is not None and core.keeps:
            thread.unsaved = True
        elif self.nudge is not None:
            self._tell_nudge("nudge", self.nudge[1], now_ns)
        self.unsaved = thread.unsaved and bool(self.out.nudges)

    def keep(self, now_ns: int, *, safe: bool) -> None:
        """A new nudge is stored with its thread; or it could not be, and then the model must not read it."""
        core, placement, unread = self._core, self.placement, self.out.unread
        assert placement is not None
        if not safe and unread is not None:
            core.tracker.withdraw(placement, unread)
            self.out.leave_out(unread)
        if safe or unread is not None:
            placement.thread_state.unsaved = False
        self.unsaved = False
        if self.nudge is not None:
            self._tell_nudge(
                "nudge" if self.nudge[0] in self.out.nudges else "would_nudge", self.nudge[1], now_ns
            )
        if not core.reserves:
            self.admit(now_ns)

    def _words(self, wish: Edit) -> str:
        """What is kept with a thread may quote the traffic only where the record may."""
        return wish.text if self._core.settings.quotes else str(wish.data.get("unquoted", wish.text))

    def _tell_nudge(self, kind: str, wish: Edit, now_ns: int) -> None:
        data: dict[str, Any] = {"chars": len(wish.text)}
        if self._core.settings.quotes:
            data["quotes"] = {"text": wish.text}
        self._intervened(wish.policy, kind, data, now_ns)

    def _blame(self, attempt: Attempt, now_ns: int) -> None:
        """What the provider would not take may be our own fault: say so, and put nothing new in."""
        placement, nudges = self.placement, self.out.nudges
        assert placement is not None
        told = blame(attempt)
        if not nudges or told is None or not placement.thread_state.nudging:
            return
        unread = self.out.unread if attempt.status is not None and attempt.status >= 400 else None
        if told == "unsaid" and unread is None:
            return
        core = self._core
        core.tracker.end_nudging(placement)
        evidence: dict[str, Any] = {"says": told, "nudges": len(nudges), "status": attempt.status}
        weight: tuple[Severity, Consequence] = ("violation", "hard")
        if told == "unsaid" or (unread is None and attempt.status == 200):
            weight = ("info", "hard") if told == "unsaid" else ("warning", "soft")
        if unread is not None:
            core.tracker.withdraw(placement, unread)
            evidence["withdrawn"] = True
        if attempt.reply.error is not None:
            evidence["quotes"] = {"error": attempt.reply.error.message[:200]}
        finding = Finding(nudges[-1].policy, "nudge_refused", weight[0], evidence, weight[1])
        step, by = placement.step_state, (self.exchange.id, self.exchange.number)
        core.sink.put(core.told(finding, step.turn, step, by, now_ns))

    def _intervened(self, policy: str, kind: str, more: Mapping[str, Any], now_ns: int) -> None:
        """Record what was done to this request, or would have been."""
        placement = self.placement
        assert placement is not None
        data = {
            **more,
            "policy": policy,
            "kind": kind,
            "exchange": self.exchange.id,
            "number": self.exchange.number,
        }
        names = (placement.session, placement.thread, placement.turn, placement.step)
        self._core.sink.put(Record(now_ns, "intervention", *names, data))

    # -- the verdict of the ledger, where the shell asked for one

    def admit(self, now_ns: int) -> None:
        """What this request may cost is held: it may go out."""
        if self.placement is not None and self.refusal is None:
            self._core.tracker.admit(self.placement, now_ns)
        self._capture_start(now_ns)

    def refuse(self, why: Terminal, reply: Reply | None, now_ns: int) -> None:
        """It may not; ``reply`` where no dialect knows how to say so."""
        if self.placement is not None:
            self._core.tracker.refuse(self.placement, why, now_ns)
            self._core.judge_ended()
        if self._dialect is not None and reply is None:
            reply = self._dialect.refusal(self.request, why, self.exchange.id)
        self.refusal = reply
        self._capture_start(now_ns)

    def clamp(self, most: int) -> bool:
        """Ask for no more output than was held. False: the body could not be edited."""
        if self._dialect is None or self.request is None:
            return False
        done = self.out.clamp(self._dialect, self.request, most)
        if done:
            self.splice = None
        return done

    def sent(self, now_ns: int) -> None:
        """The request is on its way: from here on it may cost something."""
        if self._sent_ns is None:
            self._sent_ns = now_ns
        self._waits = False

    def _judge(self, point: Point, now_ns: int, attempt: Attempt | None = None) -> None:
        """Ask the policies at one point, and do what they say."""
        core, placement = self._core, self.placement
        assert placement is not None
        if core.chain.speaks(point) and (self.refusal is None or point == "step_end"):
            self._apply(core.chain.judge(point, self._view(now_ns, attempt), placement.memories), now_ns)

    def _apply(self, ruling: Ruling, now_ns: int) -> None:
        """Book what the chain said, and act on it where it may act."""
        core, placement = self._core, self.placement
        assert placement is not None
        step, by = placement.step_state, (self.exchange.id, self.exchange.number)
        for finding in ruling.findings:
            core.sink.put(core.told(finding, step.turn, step, by, now_ns))
            if finding.severity != "info":
                self.warnings += (f"{finding.policy}/{finding.kind}",)
        if ruling.memories:
            core.tracker.remember(placement, ruling.memories)
        if ruling.terminal is not None and ruling.terminal.kind == "cut":
            if self.ended_by is None:
                why = ruling.terminal
                self._intervened(why.policy, why.kind, {"code": why.code, **why.fields}, now_ns)
                self.cut(why)
        elif ruling.terminal is not None and self._dialect is not None:
            self.refusal = self._dialect.refusal(self.request, ruling.terminal, self.exchange.id)
            core.tracker.refuse(placement, ruling.terminal, now_ns)
            core.judge_ended()
            why = ruling.terminal
            self._intervened(why.policy, why.kind, {"code": why.code, **why.fields}, now_ns)
        else:
            self._edit(ruling.edits, now_ns)
        for one in ruling.withheld:
            self._intervened(one.policy, f"would_{one.kind}", {"code": one.code} if one.code else {}, now_ns)

    def _edit(self, edits: Sequence[Edit], now_ns: int) -> None:
        """Take up what may be changed. ``repair`` and ``land`` have their place here and are not built."""
        for edit in edits:
            if edit.kind == "nudge" and self._wishes is not None:
                self._wishes.append(edit)
            elif edit.kind != "clamp" or edit.max_output_tokens is None or self._wishes is None:
                self._intervened(edit.policy, f"would_{edit.kind}", {}, now_ns)
            elif self.clamp(edit.max_output_tokens):
                self._intervened(edit.policy, "clamp", {"max_output_tokens": edit.max_output_tokens}, now_ns)

    @property
    def dialect(self) -> Dialect | None:
        """Who reads and words this exchange."""
        return self._dialect

    # -- a reply that must not go on

    def cut(self, why: Terminal) -> None:
        """End the reply that is under way; the first reason counts."""
        if self.ended_by is None and self._dialect is not None:
            self.ended_by = replace(why, kind="cut", fields={**why.fields, "cut": True})
            if self.on_cut is not None:
                self.on_cut()

    @property
    def closing(self) -> bytes:
        """What ends a stream so that its client parses it; empty where nothing does."""
        if self._dialect is None or self.request is None or self.ended_by is None:
            return b""
        return self._dialect.closing_frames(self.request, self.ended_by)

    def last_words(self) -> Reply | None:
        """The answer to a client that has not seen a byte of the reply yet; it takes the reply's place."""
        if self._dialect is None or self.ended_by is None:
            return None
        reply = self._dialect.refusal(self.request, replace(self.ended_by, kind="deny"), self.exchange.id)
        self._note_ours(reply)
        return reply

    def _note_ours(self, reply: Reply) -> None:
        """Record an answer of our own as the one that came: a replay learns from it why."""
        self._response = ResponseHead(reply.status, b"", tuple(reply.headers))
        if self._kept is not None:
            self._kept = [reply.body]

    # -- the reply

    @property
    def stamps(self) -> tuple[tuple[bytes, bytes], ...]:
        """``x-looptap-session|thread|turn|step|warning`` for the answer, where the settings ask for them."""
        placement = self.placement
        if placement is None or not self._core.settings.response_headers:
            return ()
        names = ("session", "thread", "turn", "step")
        told = tuple((f"x-looptap-{n}".encode(), getattr(placement, n).encode()) for n in names)
        return told + tuple((b"x-looptap-warning", warning.encode()) for warning in self.warnings)

    def respond(self, head: ResponseHead, now_ns: int) -> None:
        """The upstream's head has come."""
        self._response = head
        if self.placement is None or self._dialect is None or self.request is None:
            return
        content_type = (head.get(b"content-type") or b"").decode("latin-1")
        decoder = self._dialect.decoder(self.request, head.status, content_type)
        self._tap = Tap(decoder, head.get(b"content-encoding"), self._core.settings.max_decoded)

    def feed(self, data: bytes, now_ns: int) -> None:
        """Body bytes as they came from the upstream; the client has them already."""
        self._received += len(data)
        if self._kept is not None:
            self._keep(data)
        if self._tap is None:
            return
        self._unread.append((data, now_ns))
        if len(self._unread) >= AT_ONCE or len(data) > LONG or self._core.chain.wants_deltas:
            self._read_along(self._tap)

    def _read_along(self, tap: Tap) -> None:
        """Show the tap what has come since it looked last."""
        unread, self._unread = self._unread, []
        for data, now_ns in unread:
            for event in tap.feed(data, now_ns):
                self._saw(event, now_ns)

    def _keep(self, data: bytes) -> None:
        self._kept_bytes += len(data)
        if self._kept is None:
            return
        if self._kept_bytes > self._core.settings.max_reply:
            self._kept = None
        else:
            self._kept.append(data)

    def _saw(self, event: Event, now_ns: int) -> None:
        if event.kind == "first_output" and self._first_output_ns is None:
            self._first_output_ns = now_ns
        core = self._core
        if core.chain.wants_deltas and self.placement is not None:
            self._apply(core.chain.delta(self._view(now_ns, None), event, self.placement.memories), now_ns)

    # -- the end

    def close(self, end: EndKind, now_ns: int) -> None:
        """The exchange is over, one way or another. Called exactly once."""
        if self.unsaved and self.nudge is not None:  # its client left first; the same request again has it
            self._tell_nudge("nudge", self.nudge[1], now_ns)
        try:
            if self.placement is not None:
                self._settle(end, now_ns)
        finally:
            if self.tab is not None:
                status = self._response.status if self._response is not None else None
                self.tab.end(end, status, now_ns)
            if self.placement is not None and self._core.on_closed is not None:
                self._core.on_closed(self.placement)
            self._capture_start(now_ns)
            self._capture_end(end, now_ns)

    def _settle(self, end: EndKind, now_ns: int) -> None:
        core, placement, request = self._core, self.placement, self.request
        assert placement is not None
        assert request is not None
        assert self.exchange.upstream is not None
        reply = self._finish()
        outcome = attempt_outcome(end, self._response, reply, cut=self.ended_by is not None)
        usage, guessed = self._usage(outcome, reply)
        if usage is None:
            cost = NOTHING
        else:
            cost = core.prices.cost(request, reply, usage, self.exchange.upstream, self._arrived_ns)
            if guessed and cost.quality == "measured":
                cost = Cost(cost.usd, "estimated")
        attempt = Attempt(
            outcome=outcome,
            end=end,
            reply=reply,
            usage=usage,
            cost=cost,
            status=self._response.status if self._response is not None else None,
            arrived_ns=self._arrived_ns,
            ended_ns=now_ns,
            sent_ns=self._sent_ns,
            first_output_ns=self._first_output_ns,
            item_ns=self._tap.item_ns if self._tap is not None else (),
            streaming=request.stream,
            request_bytes=len(self.body),
            response_bytes=self._received,
        )
        if self.tab is not None:
            self.tab.settle(attempt, now_ns)
        if core.standing is not None:
            core.standing.charge(self.exchange, placement, request, attempt)
        self._blame(attempt, now_ns)
        core.tracker.close(placement, attempt)
        if outcome == "cut" and self.ended_by is not None:
            core.tracker.cut(placement, self.ended_by, now_ns)
        self._judge("step_end", now_ns, attempt)
        core.judge_ended()

    def _finish(self) -> Outcome:
        """The reply as far as it came and could be read."""
        tap = self._tap
        if tap is None:
            return Outcome()
        self._read_along(tap)
        reply = tap.finish()
        if tap.fault is not None:
            self._core.on_fault("tap", tap.fault)
        if tap.problem:
            self._unmodelled(f"reply: {tap.problem}")
        return reply

    def _usage(self, outcome: AttemptOutcome, reply: Outcome) -> tuple[Usage | None, bool]:
        """The tokens to book, and whether they are a guess (a reply whose usage never came whole)."""
        if reply.deferred:
            return None, False  # the fetch that brings the reply brings them
        if outcome in ("failed", "refused") and reply.usage is None:
            return None, False
        if reply.usage is not None and (reply.whole or outcome == "complete"):
            return reply.usage, False
        if self._response is None and (outcome not in ("client_gone", "cut") or self._waits):
            return None, False
        return self._core.prices.estimate(reply, len(self.body)), True

    # -- what leaves

    def _unmodelled(self, why: str) -> None:
        counts = self._core.unmodelled
        counts[why] = counts.get(why, 0) + 1

    def _price(self, usage: Usage) -> Cost:
        """What other numbers of tokens would have cost."""
        request, upstream = self.request, self.exchange.upstream
        assert request is not None
        assert upstream is not None
        reply = self._reply if self._reply is not None else Outcome()
        return self._core.prices.cost(request, reply, usage, upstream, self._arrived_ns)

    def _view(self, now_ns: int, attempt: Attempt | None) -> View:
        placement = self.placement
        assert placement is not None
        self._reply = attempt.reply if attempt is not None else None
        return View(
            now_ns=now_ns,
            mode=self._core.chain.mode,
            session=placement.session,
            thread=placement.thread,
            turn=placement.turn,
            step=placement.step,
            step_index=placement.step_index,
            number=self.exchange.number,
            kind=placement.kind,
            relation=placement.relation,
            attempt_index=placement.attempt,
            new_turn=placement.new_turn,
            upstream=self.exchange.upstream,
            request=self.request,
            previous=placement.previous,
            answered=placement.answered,
            delta=placement.delta,
            answers=placement.answers,
            results=placement.results,
            outcome=self._reply,
            attempt=attempt,
            price=self._price if attempt is not None else None,
            balances=self._balances(placement, now_ns),
        )

    def _balances(self, placement: Placement, now_ns: int) -> Mapping[str, Balance]:
        standing, request = self._core.standing, self.request
        if standing is None or request is None:
            return {}
        return standing.balances(self.exchange, placement, request, now_ns)

    def _capture_start(self, now_ns: int) -> None:
        """Record the request as it goes out, once."""
        if self._captured:
            return
        self._captured = True
        exchange, placement = self.exchange, self.placement
        upstream = exchange.upstream
        head = exchange.head
        self._core.sink.capture(
            CaptureStart(
                exchange=exchange.id,
                number=exchange.number,
                time_ns=now_ns,  # whole: the order in which requests were placed, and replay places them
                provider=upstream.provider if upstream is not None else "",
                upstream=upstream.name if upstream is not None else "",
                host=upstream.url if upstream is not None else "",
                method=head.method,
                target=redact_target(head.target),
                headers=redact_headers(head.headers),
                body=self.body if self._kept is not None else None,
                splice=self.splice,
                inserted=self.out.ours,
                labels=exchange.identity.labels,
                session=placement.session if placement is not None else None,
                thread=placement.thread if placement is not None else None,
                turn=placement.turn if placement is not None else None,
                step=placement.step if placement is not None else None,
            )
        )

    def _capture_end(self, end: EndKind, now_ns: int) -> None:
        response = self._response
        if end == "refused" and self.refusal is not None:
            self._note_ours(self.refusal)
            response = self._response
        self._core.sink.capture(
            CaptureEnd(
                exchange=self.exchange.id,
                time_ns=now_ns,
                end=end,
                status=response.status if response is not None else None,
                headers=redact_headers(response.headers) if response is not None else (),
                body=b"".join(self._kept) if self._kept is not None else None,
                streaming=self.request.stream if self.request is not None else False,
                request_bytes=len(self.body),
                response_bytes=self._received,
            )
        )


def _end_view(turn: Turn, last: Step | None, mode: str) -> View:
    """What a policy sees of a turn that is over."""
    thread = turn.thread
    return View(
        now_ns=turn.last_ns,
        mode=mode,
        session=thread.session.id,
        thread=thread.id,
        turn=turn.id,
        step=last.id if last is not None else "",
        step_index=max(0, turn.steps - 1),
        number=last.number if last is not None else 0,
        kind=thread.kind,
        cause=turn.cause,
    )


NOTHING = Cost(Decimal(0), "measured")
"""An attempt that the provider answered with an error, or never took: it bills nothing."""


def attempt_outcome(
    end: EndKind, response: ResponseHead | None, reply: Outcome, *, cut: bool = False
) -> AttemptOutcome:
    """How an attempt ended, from the wire's end and what the reply says.

    A reply that was whole when its reader left is complete: several SDKs close the connection at
    the terminal event without waiting for the end of the body. ``cut``: we ended it under way.
    """
    if end == "refused":
        return "cut" if cut else "refused"
    if response is None:
        return "client_gone" if end == "client_gone" else "failed"
    if response.status >= 400 or reply.error is not None:
        return "failed"
    if reply.whole:
        return "complete"
    return "client_gone" if end == "client_gone" else "cut"
