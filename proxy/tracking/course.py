"""Turns and steps as they begin, go on and end, each change told once as a ``Record``.

Lives here: what happens to a turn or a step once it is decided, and the watch over turns that nobody
goes on with. Not here: deciding (``proxy.tracker`` with ``placing`` and ``turns``).

The one invariant: an end is told exactly once, and only for what was told to have begun.
"""

import heapq
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from proxy.model import Attempt, Cause, Exchange, Item, ModelRequest, Record
from proxy.ports import Answer
from proxy.structs import replace
from proxy.tracking import around, telling, waits
from proxy.tracking.births import JOIN_NS, Arrival, Births
from proxy.tracking.placement import Placement
from proxy.tracking.placing import Match
from proxy.tracking.shelf import Shelf
from proxy.tracking.threads import Step, Thread, Turn
from proxy.tracking.turns import Delta, left_open
from proxy.tracking.twins import naming

IDLE_NS = 1_800_000_000_000
_MOST_IDLE = 500
"""Turns on watch before those that have ended are first taken off it."""
_MOST_ITEMS = 512
"""Items of one request that are told one by one (a thread first seen in its middle brings many)."""
_MOST_ENDED = 4_096
"""Ended turns kept until somebody asks for them."""


class Course:
    """The state of all threads at hand, and what is told of it."""

    def __init__(
        self,
        emit: Callable[[Record], None],
        new_id: Callable[[str, str], str],
        *,
        idle_after_ns: int = IDLE_NS,
        previews: bool = False,
        texts: bool = True,
        content_chars: int = 0,
        max_bytes: int = 128_000_000,
        max_threads: int = 50_000,
        max_request_bytes: int = 128_000_000,
    ) -> None:
        self.emit = emit
        self.new_id = new_id
        self.idle_after_ns = idle_after_ns
        self.previews = previews
        self.texts = texts
        """Whether heads may hold content."""
        self.content_chars = content_chars
        """How much of each item goes along with its record, for exporters."""
        self.shelf = Shelf(
            self._forgotten,
            max_bytes=max_bytes,
            max_threads=max_threads,
            max_request_bytes=max_request_bytes,
        )
        self._births = Births(emit, new_id, self.shelf)
        self._idle: list[tuple[int, int, Turn]] = []
        self._changed: OrderedDict[str, Thread] = OrderedDict()
        """Threads whose head has changed since it was last taken, oldest change first."""
        self._watched = 0
        self._most_idle = _MOST_IDLE
        self._nudged = False
        """Whether there has been anything at all that we put in."""
        self._ended: list[Turn] = []

    # -- time passes

    def tick(self, now_ns: int) -> None:
        """End the turns whose client has not been heard of for long."""
        heap = self._idle
        while heap and heap[0][0] <= now_ns:
            _, _, turn = heapq.heappop(heap)
            if not turn.open or turn.thread.id not in self.shelf.threads:
                continue
            due = turn.last_ns + self.idle_after_ns
            if any(step.under_way for step in turn.thread.steps):
                due = max(due, now_ns + self.idle_after_ns)
            if due > now_ns:
                self._watch(turn, due)
            else:
                cause, by = left_open(turn.thread.last)
                self._end_turn(turn, "abandoned" if cause == "superseded" else cause, by)

    def _watch(self, turn: Turn, due_ns: int) -> None:
        self._watched += 1
        heapq.heappush(self._idle, (due_ns, self._watched, turn))
        if len(self._idle) > self._most_idle:  # of turns that have ended, whole threads would hang here
            self._idle = [entry for entry in self._idle if entry[2].open]
            heapq.heapify(self._idle)
            self._most_idle = _MOST_IDLE + 2 * len(self._idle)

    def _forgotten(self, thread: Thread) -> None:
        """A thread leaves memory: what was open in it will not be heard of again."""
        if thread.turn is not None and thread.turn.open:
            self._end_turn(thread.turn, "abandoned")
        self._changed.pop(thread.id, None)

    def _note_change(self, thread: Thread) -> None:
        self._changed[thread.id] = thread
        self._changed.move_to_end(thread.id)

    # -- what waits for an operator

    def hold(self, placement: Placement, now_ns: int) -> None:
        """A request begins to wait: the clocks that it belongs to stand still."""
        placement.clocks = _clocks(placement.step_state)
        for one in placement.clocks:
            waits.begin(one, now_ns)

    def let_go(self, placement: Placement, now_ns: int, *, allowed: bool = False) -> None:
        """It waits no longer. ``allowed``: an operator said yes to it, also for its further attempts."""
        clocks, placement.clocks = placement.clocks, ()
        for one in clocks:
            waits.end(one, now_ns)
        step = placement.step_state
        step.allowed = step.allowed or allowed
        self._note_change(step.thread)

    # -- turns and steps

    def _open_turn(self, thread: Thread, arrival: Arrival) -> Turn:
        now_ns = arrival.now_ns
        turn = Turn(
            self.new_id("trn_", arrival.exchange.id), thread.turns, thread, began_ns=now_ns, last_ns=now_ns
        )
        previous = thread.turn
        parent = thread.scope.threads.get(thread.parent or "") if thread.kind == "subagent" else None
        if parent is not None and parent.turn is not None and parent.turn.open:
            thread.parent_turn = parent.turn  # who is called again works for the turn that calls
        thread.turns += 1
        thread.turn = turn
        self.emit(telling.turn_start(turn, arrival.exchange, previous, now_ns))
        self._watch(turn, now_ns + self.idle_after_ns)
        session = thread.session
        if thread.kind == "main" and session.unjoined:
            for side in session.unjoined:
                if now_ns - side.last_ns <= JOIN_NS:
                    side.parent_turn = turn
            session.unjoined = []
        return turn

    def _resume(self, turn: Turn, now_ns: int) -> None:
        turn.open, turn.cause, turn.by = True, None, None
        self.emit(telling.turn_resume(turn, now_ns))
        self._watch(turn, now_ns + self.idle_after_ns)

    def _end_turn(self, turn: Turn, cause: Cause, by: str | None = None) -> None:
        for step in turn.thread.steps:
            if step.turn is turn and step.started and not step.under_way:
                self._close_step(step, turn.last_ns)
        turn.open, turn.cause, turn.by = False, cause, by
        turn.thread.note_end(turn)
        self._ended = [*self._ended[-_MOST_ENDED:], turn]
        self.emit(telling.turn_end(turn))

    def take_ended(self) -> list[Turn]:
        """The turns that have ended since this was asked last, in order."""
        ended, self._ended = self._ended, []
        return ended

    def _add_step(
        self, arrival: Arrival, match: Match, turn: Turn, delta: Delta, base: Step | None
    ) -> Placement:
        """A step, indexed before it goes out, with what its request brings."""
        thread, exchange = turn.thread, arrival.exchange
        self._answer(delta, exchange, arrival.now_ns, base)
        step = Step(
            id=self.new_id("stp_", exchange.id),
            index=thread.step_count,
            thread=thread,
            turn=turn,
            epoch=thread.epoch,
            ask=arrival.ask,
            matched_by=match.by,
            dialect=arrival.request.dialect,
            named=naming(arrival.request),
            exchange=exchange.id,
            number=exchange.number,
            arrived_ns=arrival.now_ns,
            attempts=1,
            model=arrival.request.model,
        )
        step.brought = tuple((call.name, item.is_error) for item, _, call in delta.answers)
        arrival.scope.add_step(step)
        self.shelf.weigh(thread)
        self._tell_input(step, delta, exchange, arrival.now_ns)
        return Placement(
            exchange,
            arrival.request,
            step,
            0,
            delta=delta.items,
            results=tuple(item for item, _, _ in delta.answers),
            answers=tuple(
                Answer(item, call.name, call.id, call.arguments, call.digest)
                for item, _, call in delta.answers
            ),
            brought=step.brought,
            matched_by=match.by,
            relation=match.relation,
            rewritten=match.rewritten,
        )

    def _close_step(self, step: Step, now_ns: int, *, only_if_answered: bool = False) -> None:
        if step.closed or not step.started or (only_if_answered and step.pending):
            return
        step.closed = True
        step.thread.scope.answered(step)
        if not step.foreign:
            self.emit(telling.step_end(step, now_ns))

    def _answer(self, delta: Delta, exchange: Exchange, now_ns: int, base: Step | None) -> None:
        """Book results at the steps whose calls they answer."""
        answered = {id(step): step for _, step, _ in delta.answers}.values()
        places = {id(call): at for step in answered for at, call in enumerate(step.calls)}
        for value, step, call in delta.answers:
            call.answered = True
            more: dict[str, Any] = {"call_id": call.id or value.call_id, "call": places[id(call)]}
            self._tell_item(step, value, "in", exchange, now_ns, **more)
        for step in answered:
            self._close_step(step, now_ns, only_if_answered=True)
        if base is not None and base.under_way and not base.whole:
            base.early = [*base.early, *(item for item in delta.items if item.kind == "tool_result")]

    def _around(self, thread: Thread, request: ModelRequest) -> str | None:
        """What stands around the messages, as far as it is new in the thread and exporters want it."""
        if not self.content_chars:
            return None
        known, thread.around = thread.around, around.names(request)
        return around.told(request, known, self.content_chars)

    def _tell_input(self, step: Step, delta: Delta, exchange: Exchange, now_ns: int) -> None:
        """Tell what else a request brings. Results that answer nothing we know stay without a step."""
        answered = {id(item) for item, _, _ in delta.answers}
        for value in delta.items[-_MOST_ITEMS:]:
            if id(value) in answered or value.role == "assistant":
                continue
            self._tell_item(step, value, "in", exchange, now_ns, stray=value.kind == "tool_result")

    def _tell_item(
        self,
        step: Step,
        value: Item,
        direction: str,
        exchange: Exchange,
        now_ns: int,
        *,
        stray: bool = False,
        **more: Any,
    ) -> None:
        """``stray``: it belongs to no step."""
        record = telling.item(
            step,
            value,
            direction,
            exchange,
            now_ns,
            preview=self.previews,
            content_chars=self.content_chars,
            **more,
        )
        self.emit(replace(record, step=None) if stray else record)

    def _tell_output(self, placement: Placement, attempt: Attempt) -> None:
        """Tell what a reply holds, each item at the time at which it was complete; its calls are counted."""
        calls = 0
        for index, value in enumerate(attempt.reply.items):
            when = attempt.item_ns[index] if index < len(attempt.item_ns) else attempt.ended_ns
            more: dict[str, Any] = {"attempt": placement.attempt}
            if value.kind == "tool_call" and not value.server:
                more["call"] = calls
                calls += 1
            self._tell_item(placement.step_state, value, "out", placement.exchange, when, **more)


def _clocks(step: Step) -> tuple[waits.Waiting, ...]:
    """Whatever a wait of this step's request stops: of a sub-agent's, also what it works for."""
    thread, root = step.thread, step.thread.root_turn()
    found: list[waits.Waiting] = [step, step.turn, thread, thread.session]
    if root is not None and root is not step.turn:
        found.append(root)
    above = thread.scope.threads.get(thread.parent or "")
    while above is not None and above not in found:
        found.append(above)
        above = thread.scope.threads.get(above.parent or "")
    return tuple(found)
