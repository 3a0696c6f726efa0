"""Rebuilds sessions, threads, turns and steps from requests and replies. Pure: no IO, no clock.

Every exchange goes through ``place`` (whose request is it?), then ``admit`` or ``refuse``, then
``close``; ``tick`` lets time pass. What happens is told as ``Record``s through ``emit``. The rules:
``placing`` (search), ``turns`` (table of turns), ``likeness`` (rewritten replies); the state:
``threads``; the words: ``telling``.

==========  ====================  ============================================================
state of    changes by            to
==========  ====================  ============================================================
step        admit                 started: it counts
            close, whole reply    its calls are pending, or it is over
            close, otherwise      in vain: the same request again is its next attempt
            place of results      over, once all its calls are answered
turn        place                 new, or goes on (resumed if it had ended), see ``turns``
            close, whole reply    ended, if no call is left to the client
            close, clean but cut  ended: error (nothing tells the client to ask again)
            close, we stop        ended: interrupted by shutdown
            refuse                ended by what was reached; a retry resumes it
            next input, tick      ended: error, interrupted, superseded, abandoned
==========  ====================  ============================================================

Invariants: what ``place`` says about a request depends on earlier calls only; a request is in the
index before it is forwarded; two requests of one session never wait for each other.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from proxy.model import (
    Attempt,
    Carrier,
    Exchange,
    Kept,
    ModelRequest,
    Nudge,
    Outcome,
    ThreadKind,
)
from proxy.reading.library import fold
from proxy.structs import replace
from proxy.tracking import repairs, telling
from proxy.tracking.births import JOIN_NS, Arrival, origin_of, spawner
from proxy.tracking.course import Course
from proxy.tracking.heads import agreed_in, head, kept_steps, revive
from proxy.tracking.landing import cause_of
from proxy.tracking.likeness import opening, reply_text
from proxy.tracking.lookups import known_threads, lacks_reply, names_of_request, names_of_thread
from proxy.tracking.merging import absorb
from proxy.tracking.nudges import Placed, at_the_end, may_begin, may_end, same_place, standing
from proxy.tracking.placement import Placement
from proxy.tracking.placing import (
    Match,
    ask_of,
    asks_to_compact,
    is_side_call,
    search,
)
from proxy.tracking.repairs import At
from proxy.tracking.retelling import handed_on, kin_of, served_by, task_of
from proxy.tracking.threads import Call, Step, Thread, Turn, said
from proxy.tracking.turns import (
    JOINS_REFUSED_NS,
    Move,
    delta_of,
    ending,
    goes_on,
    handed_over,
    left_open,
    move,
    pair,
    refusal_cause,
    repeated,
    since_refusal,
)
from proxy.verdict import Terminal

_SUMMED_UP = frozenset({"completed", "max_tokens"})
"""How a reply ends that is the last of a turn which a limit ended."""


class Tracker(Course):
    """One per process; used from one thread."""

    # -- a request comes

    def place(self, exchange: Exchange, request: ModelRequest, now_ns: int) -> Placement:
        """Find or open the session, thread, turn and step of a request."""
        scope = self.shelf.scope(exchange.identity.scope)
        arrival = Arrival(scope, exchange, request, ask_of(scope, request), now_ns)
        placement = self._join(arrival, search(scope, request, arrival.ask, now_ns))
        thread = placement.thread_state
        if thread.client_session is not None and thread.kind != "side":
            scope.agents[thread.client_session, thread.agent] = thread
        placement.previous, placement.answered = thread.request, thread.answered
        self.shelf.keep_request(thread, exchange, request)
        thread.hint_turn = request.hints.turn or thread.hint_turn
        thread.last_ns = thread.session.last_ns = placement.step_state.turn.last_ns = now_ns
        placement.step_state.running += 1
        self.shelf.touch(thread)
        self._note_change(thread)
        return placement

    def fetch(self, exchange: Exchange, request: ModelRequest, now_ns: int) -> Placement | None:
        """Where a reply that is fetched by its id belongs: one more attempt of the step that ordered it.

        None: no step of this scope waits for it.
        """
        step = self.shelf.scope(exchange.identity.scope).held.get(request.held or "")
        if step is None or not step.deferred:
            return None
        thread, turn = step.thread, step.turn
        ordered = thread.request if step is thread.last and thread.request is not None else request
        placement = Placement(exchange, ordered, step, step.attempts, relation="attempt")
        step.attempts += 1
        step.running += 1
        if not turn.open:
            self._resume(turn, now_ns)
        thread.last_ns = thread.session.last_ns = turn.last_ns = now_ns
        self.shelf.touch(thread)
        self._note_change(thread)
        return placement

    def _join(self, arrival: Arrival, match: Match) -> Placement:
        request, relation = arrival.request, match.relation
        if match.step is not None and relation in ("attempt", "continue", "epoch"):
            self._introduce(match.step.thread, arrival)
        if relation == "attempt" and match.step is not None:
            return self._again(arrival, match.step)
        beside = is_side_call(arrival.scope, request) and relation in ("new", "sibling", "fork")
        if beside or asks_to_compact(request):
            return self._aside(arrival, match)
        if relation in ("continue", "epoch") and match.step is not None:
            return self._go_on(arrival, match, match.step)
        return self._begin(arrival, match)

    def _again(self, arrival: Arrival, step: Step) -> Placement:
        """One more attempt of a step."""
        arrival.scope.add_ask(step, arrival.ask)
        if step.foreign and step.started:
            step.foreign = False
            self.emit(telling.step_start(step))
        placement = Placement(
            arrival.exchange,
            arrival.request,
            step,
            step.attempts,
            brought=step.brought,
            matched_by="prefix",
            relation="attempt",
        )
        step.attempts += 1
        step.closed = False
        if not step.turn.open:
            self._resume(step.turn, arrival.now_ns)
        return placement

    def _go_on(self, arrival: Arrival, match: Match, base: Step) -> Placement:
        """The next step of a thread."""
        thread, request, now_ns = base.thread, arrival.request, arrival.now_ns
        pending = thread.pending()
        delta = delta_of(request, match, pending, base)
        again = repeated(thread, base, delta)
        if again is not None and match.relation == "continue":
            return self._again(arrival, again)
        what = move(
            delta,
            pending=bool(pending),
            turn_open=thread.turn is not None and thread.turn.open,
            since_refusal_ns=since_refusal(thread, now_ns),
            continues=goes_on(thread, match, request.hints.turn) or handed_over(thread, request, pending),
        )
        turn, new_turn = self._turn_for(thread, what, arrival)
        if match.relation == "epoch":
            thread.epoch += 1
        thread.summed_up = False
        placement = self._add_step(arrival, match, turn, delta, base)
        placement.new_turn = new_turn
        return placement

    def _turn_for(self, thread: Thread, what: Move, arrival: Arrival) -> tuple[Turn, bool]:
        """The turn that a continuing request belongs to, opened, resumed or ended as the move says."""
        now_ns = arrival.now_ns
        turn = thread.turn
        if turn is not None and what in ("goes_on", "joins"):
            if not turn.open:
                self._resume(turn, now_ns)
            return turn, False
        if turn is not None and turn.open:
            if what == "interrupted":
                self._end_turn(turn, "interrupted", "user")
            elif what == "superseded":
                self._end_turn(turn, "superseded")
            elif any(step.under_way for step in thread.steps if step.turn is turn):
                turn.overtaken = True  # the client has read more of its reply than we: its end will tell
            else:
                self._end_turn(turn, *left_open(thread.last))
        return self._open_turn(thread, arrival), True

    def _begin(self, arrival: Arrival, match: Match) -> Placement:
        """A new thread: a conversation, a sub-agent's, a fork, or a sibling."""
        scope, request = arrival.scope, arrival.request
        origin = origin_of(match, request)
        if match.relation in ("new", "sibling") and served_by(scope, request, arrival.now_ns) is not None:
            return self._aside(arrival, match)
        kind: ThreadKind = "main"
        parent, parent_turn, by = None, None, match.by
        handed = match.relation in ("new", "sibling") or handed_on(origin, request)
        task = task_of(scope, request) if handed else None
        near = task[0] if task is not None else origin
        kin = near.thread if near is not None else kin_of(scope, request, arrival.now_ns)
        session = self._births.session(arrival, kin)
        if request.hints.agent is not None or request.hints.kind == "subagent":
            kind, by = "subagent", "hint"
            parent = spawner(arrival, session, task[0].thread if task is not None else None)
        elif task is not None:
            kind, parent, by = "subagent", task[0].thread, "content"
        elif origin is not None:
            parent = origin.thread
            kind = parent.kind if parent.kind != "side" else "main"
            parent_turn = parent.parent_turn
        if parent is not None and kind == "subagent":
            parent_turn = parent.turn
        thread = self._births.thread(arrival, session, kind, parent, parent_turn, by)
        _inherit(thread, origin)
        if kind == "main" and session.main is None:
            session.main = thread
        pending = [(origin, call) for call in origin.pending] if origin is not None else []
        delta = replace(delta_of(request, match, pending, origin), answers=())
        turn = self._open_turn(thread, arrival)
        if match.relation == "sibling" and match.step is not None and match.step.turn.charged_to is not None:
            turn.charged_to = match.step.turn.charged_to
        elif origin is not None and (match.relation == "sibling" or not delta.has_input):
            turn.charged_to = origin.turn.charged_to or origin.turn
        placement = self._add_step(arrival, replace(match, by=by), turn, delta, origin)
        placement.new_thread = placement.new_turn = True
        return placement

    def _aside(self, arrival: Arrival, match: Match) -> Placement:
        """A side call: a thread of its own, with one turn and one step."""
        request, now_ns = arrival.request, arrival.now_ns
        base = match.step if match.relation != "sibling" else None
        parent = base.thread if base is not None else served_by(arrival.scope, request, now_ns)
        session = self._births.session(arrival, parent)
        running = parent if parent is not None else session.main
        parent_turn = running.turn if running is not None else None
        thread = self._births.thread(arrival, session, "side", parent, parent_turn, match.by)
        _inherit(thread, base)
        if parent_turn is None or not parent_turn.open:
            session.unjoined = [s for s in session.unjoined if now_ns - s.last_ns <= JOIN_NS][-15:]
            session.unjoined.append(thread)
        if parent is None and session.main is None:
            session.lonely = tuple(text[:2_000] for text in opening(request))
            arrival.scope.lonely.append(session)
        if base is not None and asks_to_compact(request):
            base.thread.summed_up = True
        delta = delta_of(request, match, base.thread.pending() if base is not None else [], base)
        placement = self._add_step(arrival, match, self._open_turn(thread, arrival), delta, base)
        placement.new_thread = placement.new_turn = True
        return placement

    # -- it goes out, or not

    def admit(self, placement: Placement, now_ns: int) -> None:
        """The request goes out: it counts as a step."""
        step = placement.step_state
        if step.started:
            return
        step.started = True
        step.brought = ()
        step.arrived_ns = placement.exchange.arrived_ns
        if step.waits is not None:  # of earlier attempts, too
            step.waits.ns = min(step.waits.ns, max(0, now_ns - step.arrived_ns))
        step.place = step.turn.steps
        step.turn.steps += 1
        self.emit(telling.step_start(step, self._around(step.thread, placement.request)))

    def refuse(self, placement: Placement, why: Terminal, now_ns: int) -> None:
        """Looptap answers itself. ``close`` follows with the end ``refused``."""
        placement.refused = True
        self.cut(placement, why, now_ns)

    def cut(self, placement: Placement, why: Terminal, now_ns: int) -> None:
        """What a request reached, at the door or under way, ends its turn."""
        turn = placement.step_state.turn
        turn.refused_ns = now_ns
        turn.last_ns = now_ns
        if turn.open and why.retry_after_s is None:  # who is only to wait comes again
            by = "operator" if why.cause == "interrupted" else None
            self._end_turn(turn, refusal_cause(why.cause), by)

    def remember(self, placement: Placement, memories: Mapping[str, Mapping[str, Any]]) -> None:
        """Keep what policies want to know at the thread's next request."""
        placement.thread_state.memories.update(memories)

    # -- what the model of a thread has read of ours

    def nudges(self, placement: Placement) -> list[Placed]:
        """Nudges that stand in a request's history, each with the message behind which it stands."""
        step = placement.step_state
        return standing(step.thread.nudges, placement.request, step.ask)

    def beside(
        self, exchange: Exchange, request: ModelRequest, source: str, now_ns: int
    ) -> tuple[list[Placed], list[At]]:
        """The same for a request that is no step (its tokens are counted), with what was put back: those of
        the thread that it is like."""
        scope = self.shelf.scopes.get(exchange.identity.scope)
        if scope is None or not self._nudged:
            return [], []
        ask = ask_of(scope, request)
        step = search(scope, request, ask, now_ns).step
        if step is None:
            return [], []
        there = repairs.standing(step.thread.kept, request, source)
        return standing(step.thread.nudges, request, ask), there

    def nudge(
        self, placement: Placement, there: Sequence[Placed], policy: str, carrier: Carrier
    ) -> Placed | None:
        """Keep a new nudge behind the last message; None where this thread may get none there."""
        thread, request = placement.thread_state, placement.request
        if placement.attempt > 0 or not may_begin(thread, request, there):
            return None
        nudge = at_the_end(request, placement.step_state.ask, policy, carrier)
        if any(same_place(nudge, one) for one in thread.nudges):
            return None  # there was one that no model read
        thread.nudges = [*thread.nudges, nudge]
        self._nudged = True
        return len(request.messages) - 1, nudge

    def may_end(self, placement: Placement) -> bool:
        """Whether this request may be given words of ours to end its turn with."""
        return may_end(placement.step_state, placement.request)

    def last_words(self, placement: Placement, policy: str, carrier: Carrier) -> Nudge:
        """Keep words of ours behind the last message, in the place of what no model has read there."""
        thread = placement.thread_state
        nudge = at_the_end(placement.request, placement.step_state.ask, policy, carrier)
        thread.nudges = [*(one for one in thread.nudges if not same_place(one, nudge)), nudge]
        self._nudged = True
        return nudge

    def withdraw(self, placement: Placement, nudge: Nudge) -> None:
        """Forget a nudge that no model has read."""
        thread = placement.thread_state
        thread.nudges = [replace(n, withdrawn=True) if same_place(n, nudge) else n for n in thread.nudges]
        self._changed[thread.id] = thread

    def end_nudging(self, placement: Placement) -> None:
        """This thread gets no further nudges."""
        placement.thread_state.nudging = False

    # -- reasoning of its replies, should the client lose it

    def keep(self, placement: Placement, reply: Kept) -> None:
        """Keep a reply's reasoning in the bytes in which it goes back."""
        thread = placement.thread_state
        thread.kept = repairs.with_reply(thread.kept, reply)
        self.shelf.weigh(thread)
        self._changed[thread.id] = thread

    def mark_back(self, placement: Placement, bound: Mapping[str, bool], *, back: bool) -> None:
        """Reasoning of some replies stands in the history from here on, though its client lacks it; by their
        steps, whether it is bound to what stands around."""
        thread = placement.thread_state
        thread.kept = repairs.marked(thread.kept, bound, back=back)
        self._nudged = True
        self._changed[thread.id] = thread

    def end_mending(self, placement: Placement) -> None:
        """Nothing more is put back in this thread."""
        placement.thread_state.mending = False

    # -- its answer has come, as far as it comes

    def close(self, placement: Placement, attempt: Attempt) -> None:
        """An exchange is over."""
        if placement.closed:
            return
        placement.closed = True
        step, exchange = placement.step_state, placement.exchange
        self._note_change(step.thread)
        turn, reply = step.turn, attempt.reply
        if attempt.outcome != "refused":
            self.admit(placement, attempt.arrived_ns)
        step.running -= 1
        tokens = reply.usage.public() if reply.usage is not None else {}
        step.bill.add(tokens, attempt.cost.usd, attempt.cost.quality)
        turn.bill.add(tokens, attempt.cost.usd, attempt.cost.quality)
        turn.last_ns = max(turn.last_ns, attempt.ended_ns)
        step.thread.last_ns = step.thread.session.last_ns = turn.last_ns
        step.ended_ns = attempt.ended_ns
        self._tell_output(placement, attempt)
        self.emit(telling.step_attempt(step, placement.attempt, exchange, attempt, placement.request))
        if attempt.outcome != "complete" and (step.whole or (step.deferred and not reply.whole)):
            return  # another attempt has brought the reply already, or a later one will
        step.outcome = attempt.outcome
        if attempt.outcome == "refused" and attempt.end != "refused":
            step.outcome = "client_gone"  # it waited for an operator, and nothing had been sent
        if attempt.outcome == "complete":
            self._take_reply(placement, reply, attempt.ended_ns)
        else:
            step.text = reply_text(reply.items)
            step.calls = _calls(reply)
            step.stop_reason = reply.stop_reason
            if attempt.outcome == "cut" and attempt.end == "complete" and not step.calls and turn.open:
                self._end_turn(turn, "error")  # a clean end tells the client nothing to ask again for
            elif step.outcome == "client_gone" and attempt.end == "shutdown" and turn.open:
                self._end_turn(turn, "interrupted", "shutdown")
        if turn.overtaken and turn.open:
            self._end_turn(turn, *left_open(step))

    def _take_reply(self, placement: Placement, reply: Outcome, now_ns: int) -> None:
        """A whole good reply: index it, and see whether the turn is over."""
        step = placement.step_state
        thread, turn = step.thread, step.turn
        scope = thread.scope
        scope.drop_reply(step)
        if thread.request is not None:  # else it was let go of, with all that it shares
            thread.answered = placement.request
        step.whole = not reply.deferred
        step.reply = fold(step.ask, reply.items)
        step.said = said(reply.items)
        step.summaries = tuple(i.digest for i in reply.items if i.kind == "compaction" and i.digest)
        step.item_ids = tuple({item.item_id: None for item in reply.items if item.item_id})
        step.text = reply_text(reply.items)
        step.calls = _calls(reply)
        step.response_id = reply.response_id
        step.stop_reason = reply.stop_reason
        if not step.forgotten:
            scope.add_reply(step)
            if placement.request.held is not None and not placement.request.held.startswith("resp_"):
                thread.conversation = placement.request.held
                scope.held[thread.conversation] = step
        self.shelf.slim(thread)
        early, step.early = step.early, ()
        if early:
            delta = pair(early, [(step, call) for call in step.calls], {}, guess=True)
            self._answer(delta, placement.exchange, now_ns, None)
        if step.calls:
            self._close_step(step, now_ns, only_if_answered=True)
            return
        self._close_step(step, now_ns)
        cause = ending(reply)
        if cause in _SUMMED_UP and (reached := cause_of(step)) is not None:
            cause = refusal_cause(reached)
        if cause is not None and turn.open and not _others_running(thread, step):
            self._end_turn(turn, cause)

    # -- heads: how threads outlive the process

    def head(self, placement: Placement) -> dict[str, Any]:
        """The thread of a placement as a JSON-ready head for a ``ThreadStore``."""
        return head(placement.thread_state, texts=self.texts)

    def heads(self) -> list[dict[str, Any]]:
        """Heads of all threads at hand, those in use last."""
        return [head(thread, texts=self.texts) for thread in self.shelf.threads.values()]

    def changed_heads(self, most: int) -> list[dict[str, Any]]:
        """Heads of threads that changed since theirs was last taken, the newest first, at most so many."""
        some = [self._changed.popitem()[1] for _ in range(min(most, len(self._changed)))]
        return [head(thread, texts=self.texts) for thread in some]

    def load(self, heads: Iterable[Mapping[str, Any]]) -> int:
        """Take in heads that are not at hand yet; answers how many were."""
        count = 0
        for value in heads:
            thread = revive(value, self.shelf)
            if thread is not None:
                count += 1
                self._nudged = self._nudged or bool(thread.nudges or thread.kept)
                if thread.turn is not None and thread.turn.open:
                    self._watch(thread.turn, thread.turn.last_ns + self.idle_after_ns)
        return count

    def is_stranger(self, exchange: Exchange, request: ModelRequest, now_ns: int) -> bool:
        """Whether a request would begin a conversation that nothing ties to anything known here."""
        hints = request.hints
        if hints.session or hints.kind or exchange.identity.labels.get("session") or asks_to_compact(request):
            return False
        if request.held is not None or any(message.role == "assistant" for message in request.messages):
            return False
        scope = self.shelf.scopes.get(exchange.identity.scope)
        if scope is None:
            return True
        if is_side_call(scope, request) or served_by(scope, request, now_ns) is not None:
            return False
        match = search(scope, request, ask_of(scope, request), now_ns)
        return match.relation == "new" and task_of(scope, request) is None

    def refused_turn(self, exchange: Exchange, request: ModelRequest, now_ns: int) -> Turn | None:
        """The turn that a request would go on with, where all that it tried lately was refused.

        Only for a part of the time in which it would join that turn, so that one refusal is recorded often
        enough for the next request to join, too.
        """
        scope = self.shelf.scopes.get(exchange.identity.scope)
        if scope is None or asks_to_compact(request):
            return None
        match = search(scope, request, ask_of(scope, request), now_ns)
        thread = match.thread
        if thread is None or thread.kind == "side" or match.relation not in ("attempt", "continue"):
            return None
        turn, last, since_ns = thread.turn, thread.last, since_refusal(thread, now_ns)
        if turn is None or turn.open or last is None or last.started or last.turn is not turn:
            return None
        again = match.step if match.relation == "attempt" else None
        if again is not None and (again.started or again.turn is not turn):
            return None  # what has gone out once is no further step, and none of this refusal
        return turn if since_ns is not None and since_ns <= JOINS_REFUSED_NS // 4 else None

    # -- heads that instances share

    def names(self, exchange: Exchange, request: ModelRequest) -> list[bytes]:
        """What to look for before a request is placed."""
        return names_of_request(self.shelf.scope(exchange.identity.scope), exchange, request)

    def known(self, exchange: Exchange, request: ModelRequest) -> dict[str, int]:
        """Threads at hand that the names find, with the revision in which they are shared."""
        scope = self.shelf.scope(exchange.identity.scope)
        return {thread.id: thread.agreed.rev for thread in known_threads(scope, request)}

    def lacks_reply(self, exchange: Exchange, request: ModelRequest) -> bool:
        """Whether a request goes on from a reply that another instance is still about to save."""
        return lacks_reply(self.shelf.scope(exchange.identity.scope), request)

    def shared_head(self, thread: Thread) -> dict[str, Any]:
        """A thread's head for all instances."""
        names = names_of_thread(thread, kept_steps(thread))
        busy = any(step.running for step in thread.steps)
        return {**head(thread, texts=self.texts), "keys": [n.hex() for n in names], "under_way": busy}

    def agree(self, thread: Thread, told: Mapping[str, Any], memories: Mapping[str, Any]) -> None:
        """A head was stored in the place of the one that it was made from."""
        agreed = agreed_in(told)
        thread.agreed = replace(agreed, rev=agreed.rev + 1, memories=memories)

    def absorb(self, heads: Iterable[Mapping[str, Any]], now_ns: int) -> None:
        """Take in what other instances did; what ended there is told here, too, where it was begun."""
        for value in heads:
            taken = absorb(value, self.shelf)
            if taken is None:
                continue
            thread = taken.thread
            self._nudged = self._nudged or bool(thread.nudges or thread.kept)
            for step in taken.closed:
                if not step.foreign:
                    self.emit(telling.elsewhere(telling.step_end(step, now_ns)))
            for turn in taken.ended:
                if not turn.foreign:
                    self.emit(telling.elsewhere(telling.turn_end(turn)))
            if thread.turn is not None and thread.turn.open:
                self._watch(thread.turn, thread.turn.last_ns + self.idle_after_ns)
            self._note_change(thread)

    def idle(self, now_ns: int) -> list[Thread]:
        """Threads whose turn ``tick`` may be about to end: another instance may know better."""
        return [turn.thread for due, _, turn in self._idle if due <= now_ns and turn.open]

    def _introduce(self, thread: Thread, arrival: Arrival) -> None:
        """Tell of a thread that began elsewhere and goes on here: this record is then whole by itself."""
        if thread.session.foreign:
            thread.session.foreign = False
            started = telling.session_start(thread.session, arrival.exchange, arrival.now_ns)
            self.emit(telling.elsewhere(started))
        if thread.foreign:
            thread.foreign = False
            began = telling.thread_start(thread, arrival.exchange, "prefix", arrival.now_ns)
            self.emit(telling.elsewhere(began))
        turn = thread.turn
        if turn is not None and turn.foreign:
            turn.foreign = False
            self.emit(telling.elsewhere(telling.turn_start(turn, arrival.exchange, None, arrival.now_ns)))


def _inherit(thread: Thread, origin: Step | None) -> None:
    """A thread that shares another's history begins with what policies know of that history."""
    if origin is not None:
        thread.memories = dict(origin.thread.memories)
        thread.nudges, thread.nudging = list(origin.thread.nudges), origin.thread.nudging
        thread.kept, thread.mending = list(origin.thread.kept), origin.thread.mending


def _others_running(thread: Thread, step: Step) -> bool:
    return any(s.under_way for s in thread.steps if s is not step and s.turn is step.turn)


def _calls(reply: Outcome) -> list[Call]:
    return [
        Call(item.tool or "", item.call_id, item.item_id, item.arguments or "", item.digest)
        for item in reply.tool_calls
    ]
