"""One exchange on its way, from its request to its end: read, placed, judged, heard, settled.

The one invariant: ``close`` is called exactly once, and whatever was opened (attempt, tab, capture)
ends there, on every way out.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from proxy.chain import Point, Ruling
from proxy.core.ending import NOTHING, attempt_outcome, unheard, usage_of
from proxy.core.heard import Heard
from proxy.core.ours import Ours
from proxy.core.parts import Parts
from proxy.core.repairs import mend, source_of
from proxy.core.scribe import Scribe, capture_end, capture_start
from proxy.core.views import view_of
from proxy.model import (
    Attempt,
    AttemptOutcome,
    Cost,
    EndKind,
    Exchange,
    ModelRequest,
    Outcome,
    ResponseHead,
    Splice,
    Usage,
)
from proxy.outgoing import Outgoing
from proxy.ports import Dialect, Tab, Unreadable, View
from proxy.reading.codings import Undecodable
from proxy.reading.library import Reading
from proxy.structs import replace
from proxy.tracking.placement import Placement
from proxy.verdict import Balance, Claim, Demand, Edit, Reply, Terminal, Verdict

_NONE: frozenset[str] = frozenset()


class Opened:
    """One exchange: ``respond``, ``feed`` and, exactly once, ``close``."""

    __slots__ = (
        "_captured", "_dialect", "_heard", "_held_ns", "_ours", "_parts", "_placed_ns", "_reading",
        "_refused_by", "_reply", "_scribe", "_sent_ns", "_waits", "ended_by", "exchange", "failure",
        "fetches", "held", "on_cut", "out", "placement", "refusal", "request", "splice", "tab",
        "verdict_ns", "waited_ns", "warnings",
    )  # fmt: skip

    def __init__(self, parts: Parts, exchange: Exchange, body: bytes | None) -> None:
        self._parts = parts
        self.exchange = exchange
        self.out = Outgoing(body if body is not None else b"", exchange.head.get(b"content-encoding"))
        """What the client sent, and what goes upstream."""
        self.request: ModelRequest | None = None
        self.refusal: Reply | None = None
        self.placement: Placement | None = None
        self.warnings: tuple[str, ...] = ()
        """What policies warned of before the request went out: ``policy/kind``."""
        self.splice: Splice | None = None
        self.tab: Tab | None = None
        """What was reserved for this exchange; it is told how the exchange ended, once."""
        self.fetches: str | None = None
        """Id of the reply that this exchange only fetches."""
        self.held: Terminal | None = None
        """Why it does not go out before an operator has said yes."""
        self.verdict_ns: int | None = None
        """When it was known what becomes of it, where it waited; 0: it waits."""
        self.waited_ns = 0
        """How long it has waited for an operator."""
        self.ended_by: Terminal | None = None
        """Why the reply is ended under way."""
        self.failure = ""
        """Why no whole answer came, in the wire's words."""
        self.on_cut: Callable[[], None] | None = None
        """How the shell ends it. None offline, and from when the exchange has ended on the wire."""
        self._dialect: Dialect | None = None
        self._reading: Reading | None = None
        """The request as read, until it is placed."""
        self._scribe: Scribe | None = None
        self._ours: Ours | None = None
        """What of ours goes along, where it has its place in a thread."""
        self._heard = Heard(
            keep=parts.settings.record_bodies and body is not None,
            max_kept=parts.settings.max_reply,
            at_once=parts.chain.wants_deltas,
        )
        self._captured = False
        self._waits = False
        """Nothing has gone upstream yet (known only where the shell reserves first)."""
        self._refused_by: Terminal | None = None
        """Why it did not go out."""
        self._held_ns = 0
        """When it began to wait for an operator."""
        self._placed_ns: int | None = None
        """The same of its first wait, which is where a log has it."""
        self._sent_ns: int | None = None
        self._reply: Outcome | None = None

    @property
    def body(self) -> bytes:
        """What goes upstream; the identical object when nothing edited it."""
        return self.out.body

    @property
    def dialect(self) -> Dialect | None:
        """Who reads and words this exchange."""
        return self._dialect

    # -- the request

    def read(self) -> None:
        """Read the request."""
        for _ in self.reading():
            pass

    def reading(self) -> Iterator[None]:
        """Read the request in slices, for a shell that lets others go on in between."""
        try:
            yield from self._read()
        except Exception as error:  # noqa: BLE001 - a bug of ours costs what is seen, never the request
            self._unread(error)

    def place(
        self,
        now_ns: int,
        *,
        number: int | None = None,
        refused: Terminal | None = None,
        waits: bool = False,
    ) -> None:
        """Find out whose the request is, and judge it. ``number``: its number, where others came before."""
        if number is not None:
            self.exchange = replace(self.exchange, number=number)
        try:
            self._place(now_ns, refused, waits=waits)
        except Exception as error:  # noqa: BLE001 - a bug of ours costs what is seen, never the request
            self._unread(error)
        if not self._waits:
            self._capture_start(now_ns)

    def _unread(self, error: Exception) -> None:
        """It cannot be read; where that is a bug of ours, this exchange is relayed unseen."""
        if isinstance(error, Unreadable | Undecodable):
            self._parts.unread(str(error) or type(error).__name__)
        else:
            self._parts.on_fault("open", error)
            self._parts.unread("internal fault")

    def _read(self) -> Iterator[None]:
        parts, exchange = self._parts, self.exchange
        assert exchange.upstream is not None
        dialect = parts.dialects(exchange.head.method, exchange.path, exchange.upstream, exchange.head)
        if dialect is None:
            raise Unreadable("no model call")
        self._dialect = dialect
        if exchange.head.method == "GET":
            self.request = dialect.read_request(exchange.head, exchange.path, {}, ())
            return
        plain = self.out.read(parts.settings.max_decoded)
        reading = yield from parts.library.slices(dialect, exchange, plain)
        if not self.out.coded:
            self.splice = reading.splice
        self.request, self._reading = reading.request, reading

    def _place(self, now_ns: int, refused: Terminal | None, *, waits: bool) -> None:
        parts, exchange, dialect = self._parts, self.exchange, self._dialect
        if dialect is None or self.request is None:
            return
        reading, self._reading = self._reading, None
        if reading is None:
            self._place_fetch(dialect, self.request, now_ns)
            return
        if reading.request.operation in ("count", "other"):
            source = source_of(exchange, reading.request)
            nudges, mended = parts.tracker.beside(exchange, reading.request, source, now_ns)
            self.out.carry(dialect, reading, nudges)
            mend(dialect, reading, self.out, mended)
            parts.unread(f"{reading.request.operation}, no step")
            return
        ours = self._belongs(dialect, parts.tracker.place(exchange, reading.request, now_ns))
        placement = ours.placement
        parts.judge_ended()
        self._deny(ours.behind(), now_ns)
        if placement.new_turn:
            self._judge("turn_start", now_ns)
        self._judge("step_start", now_ns)
        if self.refusal is None:
            ours.say(reading, now_ns)
            self._deny(ours.end(now_ns), now_ns)
            self.splice = None if ours.landing is not None else self.splice
        if self.refusal is None and refused is not None:
            self._refused_by = refused
            parts.tracker.refuse(placement, refused, now_ns)
            parts.judge_ended()
        elif self.refusal is None and (parts.reserves or self.unsaved or waits):
            self._waits = True
        elif self.refusal is None:
            self._go(placement, now_ns)

    def _place_fetch(self, dialect: Dialect, asked: ModelRequest, now_ns: int) -> None:
        """A reply made in the background is fetched: the order was judged, and is already paid for."""
        parts = self._parts
        placement = parts.tracker.fetch(self.exchange, asked, now_ns)
        if placement is None:
            self.request = None
            parts.unread("a stored reply")
            return
        self.fetches = asked.held
        self.request = placement.request
        self._belongs(dialect, placement)
        parts.tracker.admit(placement, now_ns)

    def _belongs(self, dialect: Dialect, placement: Placement) -> Ours:
        self.placement = placement
        self._scribe = Scribe(self._parts, self.exchange, placement)
        self._ours = Ours(self._parts, self._scribe, self.out, self.exchange, dialect)
        return self._ours

    # -- what the shell waited for: a thread stored, the verdict of the ledger

    @property
    def unsaved(self) -> bool:
        """It carries something of ours that the shell has to store first; then it calls ``keep``."""
        return self._ours is not None and self._ours.unsaved

    def keep(self, now_ns: int, *, safe: bool) -> None:
        """What is newly put in is stored with its thread; or it could not be, and then it does not go out."""
        assert self._ours is not None
        self._deny(self._ours.stored(now_ns, safe=safe), now_ns)
        if not self._parts.reserves:
            self.admit(now_ns)

    # -- as the last step of its turn

    @property
    def landing(self) -> Terminal | None:
        """Why it is its turn's last step, where it is."""
        return self._ours.landing if self._ours is not None else None

    @property
    def may_land(self) -> bool:
        """Whether it can go out as its turn's last step, or does already."""
        return self._ours is not None and self._ours.may_land

    @property
    def room_of_last_words(self) -> int:
        """Bytes that a last step adds to its prompt, at the most."""
        return self._ours.room_of_last_words if self._ours is not None else 0

    def land(self, why: Terminal, now_ns: int) -> bool:
        """Have the model sum up and stop, without tools. False: that cannot be done lawfully.

        Where ``unsaved`` says so the shell stores its words; ``landing`` is None if it could not.
        """
        self.splice = None
        return self._ours is not None and self._ours.land(why, now_ns)

    def _deny(self, why: Terminal | None, now_ns: int) -> None:
        """Refuse it in its client's words, where there is a reason to."""
        if why is None or self._dialect is None or self.placement is None or self._scribe is None:
            return
        self._refused_by, self.held = why, None
        self.refusal = self._dialect.refusal(self.request, why, self.exchange.id)
        self._parts.tracker.refuse(self.placement, why, now_ns)
        self._parts.judge_ended()
        self._scribe.intervened(why.policy, why.kind, {"code": why.code, **why.fields}, now_ns)

    def admit(self, now_ns: int) -> None:
        """What this request may cost is held: it may go out."""
        if self.placement is not None and self.refusal is None:
            self._go(self.placement, now_ns)
        self._capture_start(now_ns)

    def _go(self, placement: Placement, now_ns: int) -> None:
        if self.held is not None:  # nobody lets it wait: a log that was recorded under other settings
            self._tell_hold(self.held, {}, now_ns)
            self.held = None
        self._parts.tracker.admit(placement, now_ns)

    def hold(self, why: Terminal, more: Mapping[str, Any], now_ns: int) -> None:
        """It begins to wait for an operator; nothing of it has gone out. ``more`` is told with the reason."""
        assert self.placement is not None
        if self.verdict_ns is None:
            self._placed_ns = now_ns
        self.held, self.verdict_ns, self._held_ns = why, 0, now_ns
        self._parts.tracker.hold(self.placement, now_ns)
        self._tell_hold(why, more, now_ns)

    def _tell_hold(self, why: Terminal, more: Mapping[str, Any], now_ns: int) -> None:
        assert self._scribe is not None
        self._scribe.intervened(why.policy, "hold", {"code": why.code, **why.fields, **more}, now_ns)

    def let_go(self, verdict: Verdict, now_ns: int, *, allowed: bool = False) -> None:
        """It waits no longer: ``admit`` or ``refuse`` follows, or its end.

        ``allowed``: an operator said yes to this request, which further attempts need not ask for again.
        """
        why, self.held = self.held, None
        if why is None or self.placement is None or self._scribe is None:
            return
        self.verdict_ns = now_ns
        waited_ns = max(0, now_ns - self._held_ns)
        self.waited_ns += waited_ns
        self._parts.tracker.let_go(self.placement, now_ns, allowed=allowed)
        data = {"verdict": verdict, "waited_s": round(waited_ns / 1e9, 3), "code": why.code}
        self._scribe.intervened(why.policy, "hold_over", data, now_ns)

    def refuse(self, why: Terminal, reply: Reply | None, now_ns: int) -> None:
        """It may not; ``reply`` where no dialect knows how to say so."""
        self._refused_by = why
        if self._ours is not None:
            self._ours.refused()
        if self.placement is not None:
            self._parts.tracker.refuse(self.placement, why, now_ns)
            self._parts.judge_ended()
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

    # -- what policies say

    def _judge(self, point: Point, now_ns: int, attempt: Attempt | None = None) -> None:
        """Ask the policies at one point, and do what they say."""
        chain, placement = self._parts.chain, self.placement
        assert placement is not None
        if chain.speaks(point) and (self.refusal is None or point == "step_end"):
            view = self._view(placement, now_ns, attempt)
            self._apply(chain.judge(point, view, placement.memories), placement, now_ns)

    def _apply(self, ruling: Ruling, placement: Placement, now_ns: int) -> None:
        """Book what the chain said, and act on it where it may act."""
        parts, scribe = self._parts, self._scribe
        assert scribe is not None
        for finding in ruling.findings:
            scribe.found(finding, now_ns)
            if finding.severity != "info":
                self.warnings += (f"{finding.policy}/{finding.kind}",)
        if ruling.memories:
            parts.tracker.remember(placement, ruling.memories)
        why = ruling.terminal
        if why is not None and why.kind == "cut":
            if self.ended_by is None:
                scribe.intervened(why.policy, why.kind, {"code": why.code, **why.fields}, now_ns)
                self.cut(why)
        elif why is not None and why.kind == "hold":
            self.held = self.held or (why if not placement.step_state.allowed else None)
            self._edit(ruling.edits, scribe, now_ns)
        elif why is not None and self._dialect is not None:
            self._deny(why, now_ns)
        else:
            self._edit(ruling.edits, scribe, now_ns)
        for one in ruling.withheld:
            more = {"code": one.code} if one.code else {}
            for about in one.data.get("replies", ({},)):
                scribe.intervened(one.policy, f"would_{one.kind}", {**more, **about}, now_ns)

    def _edit(self, edits: Sequence[Edit], scribe: Scribe, now_ns: int) -> None:
        """Take up what may be changed."""
        ours = self._ours
        assert ours is not None
        for edit in edits:
            if edit.kind != "clamp":
                if not ours.wish(edit):
                    scribe.intervened(edit.policy, f"would_{edit.kind}", {}, now_ns)
            elif edit.max_output_tokens is None or ours.made_up:
                scribe.intervened(edit.policy, "would_clamp", {}, now_ns)
            elif self.clamp(edit.max_output_tokens):
                more = {"max_output_tokens": edit.max_output_tokens}
                scribe.intervened(edit.policy, "clamp", more, now_ns)

    def claims(self, demand: Demand, now_ns: int) -> Sequence[Claim]:
        """What policies want held for it beside the budgets; ``demand`` is what it may take."""
        chain, placement = self._parts.chain, self.placement
        if placement is None or not chain.has_claims:
            return ()
        return chain.claims(self._view(placement, now_ns, None, demand), placement.memories)

    def _view(
        self, placement: Placement, now_ns: int, attempt: Attempt | None, demand: Demand | None = None
    ) -> View:
        parts = self._parts
        self._reply = attempt.reply if attempt is not None else None
        return view_of(
            self.exchange,
            placement,
            self.request,
            attempt,
            now_ns=now_ns,
            mode=parts.chain.mode,
            price=self._price if attempt is not None else None,
            balances=self._balances(placement, now_ns),
            demand=demand,
            repaired=self._ours.repaired if attempt is not None and self._ours is not None else _NONE,
        )

    def _price(self, usage: Usage) -> Cost:
        """What other numbers of tokens would have cost."""
        request, upstream = self.request, self.exchange.upstream
        assert request is not None
        assert upstream is not None
        reply = self._reply if self._reply is not None else Outcome()
        return self._parts.prices.cost(request, reply, usage, upstream, self.exchange.arrived_ns)

    def _balances(self, placement: Placement, now_ns: int) -> Mapping[str, Balance]:
        standing, request = self._parts.standing, self.request
        if standing is None or request is None:
            return {}
        return standing.balances(self.exchange, placement, request, now_ns)

    # -- a reply that must not go on

    @property
    def is_told(self) -> bool:
        """Its client has the whole reply already, or will get no more: there is nothing left to cut."""
        return self.on_cut is None or self._heard.is_whole()

    def over(self) -> None:
        """Its answer has ended on the wire; ``close`` comes in its turn."""
        self.on_cut = None  # no reference cycle through the wire

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
        self._heard.ours(reply)
        return reply

    # -- the reply

    @property
    def stamps(self) -> tuple[tuple[bytes, bytes], ...]:
        """``x-looptap-session|thread|turn|step|warning`` for the answer, where the settings ask for them."""
        placement = self.placement
        if placement is None or not self._parts.settings.response_headers:
            return ()
        names = ("session", "thread", "turn", "step")
        told = tuple((f"x-looptap-{n}".encode(), getattr(placement, n).encode()) for n in names)
        return told + tuple((b"x-looptap-warning", warning.encode()) for warning in self.warnings)

    def respond(self, head: ResponseHead, now_ns: int) -> None:
        """The upstream's head has come."""
        decoder = None
        if self.placement is not None and self._dialect is not None and self.request is not None:
            content_type = (head.get(b"content-type") or b"").decode("latin-1")
            decoder = self._dialect.decoder(self.request, head.status, content_type)
        self._heard.begin(head, decoder, self._parts.settings.max_decoded)

    def feed(self, data: bytes, now_ns: int) -> None:
        """Body bytes as they came from the upstream; the client has them already."""
        events = self._heard.feed(data, now_ns)
        if not events:
            return
        placement, chain = self.placement, self._parts.chain
        if placement is None or not chain.wants_deltas:
            return
        for event in events:
            ruling = chain.delta(self._view(placement, now_ns, None), event, placement.memories)
            self._apply(ruling, placement, now_ns)

    # -- the end

    def close(self, end: EndKind, now_ns: int) -> None:
        """The exchange is over, one way or another. Called exactly once."""
        placement, heard = self.placement, self._heard
        if self._ours is not None:
            self._ours.left(now_ns)
        try:
            if placement is not None:
                self._settle(placement, end, now_ns)
        finally:
            if self.tab is not None:
                self.tab.end(end, heard.head.status if heard.head is not None else None, now_ns)
            if placement is not None and self._parts.on_closed is not None:
                self._parts.on_closed(placement)
            self._capture_start(now_ns)
            self._capture_end(end, now_ns)

    def _settle(self, placement: Placement, end: EndKind, now_ns: int) -> None:
        parts, ours = self._parts, self._ours
        assert self.request is not None
        assert ours is not None
        attempt = self._attempt(self.request, end, now_ns)
        if self.tab is not None:
            self.tab.settle(attempt, now_ns)
        if parts.standing is not None:
            parts.standing.charge(self.exchange, placement, self.request, attempt)
        ours.blame(attempt, now_ns)
        parts.tracker.close(placement, attempt)
        if attempt.outcome == "cut" and self.ended_by is not None:
            parts.tracker.cut(placement, self.ended_by, now_ns)
        ours.settle(attempt, now_ns)
        self._judge("step_end", now_ns, attempt)
        parts.judge_ended()

    def _attempt(self, request: ModelRequest, end: EndKind, now_ns: int) -> Attempt:
        """How it ended, what it took and what that cost."""
        parts, heard, upstream = self._parts, self._heard, self.exchange.upstream
        assert upstream is not None
        reply, problem = heard.finish(parts.on_fault)
        if problem:
            parts.unread(f"reply: {problem}")
        held = self.verdict_ns == 0
        if held:
            self._refused_by = self.held
            self.let_go("shutdown" if end == "shutdown" else "gone", now_ns)
            self.verdict_ns = 0
        outcome = attempt_outcome(end, heard.head, reply, cut=self.ended_by is not None, held=held)
        billed = heard.head is not None or (outcome in ("client_gone", "cut") and not self._waits)
        usage, guessed = usage_of(
            outcome, reply, billed=billed, estimate=lambda: self._estimate(request, reply, now_ns)
        )
        cost = NOTHING
        if usage is not None:
            cost = parts.prices.cost(request, reply, usage, upstream, self.exchange.arrived_ns)
            if guessed and cost.quality == "measured":
                cost = Cost(cost.usd, "estimated")
        return Attempt(
            outcome=outcome,
            end=end,
            reply=reply,
            usage=usage,
            cost=cost,
            status=heard.head.status if heard.head is not None else None,
            arrived_ns=self.exchange.arrived_ns,
            ended_ns=now_ns,
            sent_ns=self._sent_ns,
            first_output_ns=heard.first_output_ns,
            item_ns=heard.item_ns,
            streaming=request.stream,
            request_bytes=len(self.body),
            response_bytes=heard.received,
            refused=self._reached(outcome),
            failure=self.failure,
            waited_ns=self.waited_ns,
        )

    def _reached(self, outcome: AttemptOutcome) -> dict[str, Any] | None:
        """Why it was refused, or cut under way, where it was we who did."""
        why = {"refused": self._refused_by, "cut": self.ended_by}.get(outcome)
        if why is None:
            return None
        return {**why.fields, "action": why.kind, "policy": why.policy, "code": why.code}

    def _estimate(self, request: ModelRequest, reply: Outcome, now_ns: int) -> Usage:
        estimate = self._parts.prices.estimate(reply, self.out.said)
        if self._heard.head is not None:
            return estimate
        since_ns = self.exchange.arrived_ns + self.waited_ns
        return unheard(estimate, now_ns - since_ns, request.max_output_tokens)

    # -- what is recorded

    def _capture_start(self, now_ns: int) -> None:
        """Record the request as it goes out, once."""
        if not self._captured:
            self._captured = True
            self._parts.sink.capture(
                capture_start(
                    self.exchange,
                    self.placement,
                    self.out,
                    self.splice,
                    now_ns if self._placed_ns is None else self._placed_ns,
                    keep=self._heard.keeps,
                    verdict_ns=self.verdict_ns,
                )
            )

    def _capture_end(self, end: EndKind, now_ns: int) -> None:
        if end == "refused" and self.refusal is not None:
            self._heard.ours(self.refusal)
        streaming = self.request.stream if self.request is not None else False
        self._parts.sink.capture(
            capture_end(
                self.exchange,
                self._heard,
                end,
                now_ns,
                streaming=streaming,
                request_bytes=len(self.body),
            )
        )
