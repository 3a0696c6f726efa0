"""Puts records together into spans: one trace per turn, turn → step → model calls and tools.

Pure state, no IO: ``take`` reads a record, ``ripe`` hands out spans that ended a moment ago. That
moment is there because findings about an end are told right after it, and a retry may take it back.

=================  ===========================================================================
span               from … to
=================  ===========================================================================
turn               its first request … its end; what resumes it later is a child of this span
step               its request … the request with the results of all its calls, or its reply
chat (attempt)     its request … the last byte of its answer
execute_tool       its call complete in the reply … the request that brings its result
inbound (`join`)   as the attempt, in the client's trace
=================  ===========================================================================

Invariants: every span is handed out once; a parent reaches around its children; ids follow from the
record alone (``ids``), so that what comes late, or from another process, finds its parent.
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from exporters.otel import names
from exporters.otel.draft import Draft
from exporters.otel.events import BLOCKS, Happening, decision, stronger
from exporters.otel.ids import span_of, trace_of
from exporters.otel.state import TurnState
from exporters.otel.steps import Steps, Style, tell_on
from proxy.model import Record

LINGER_S = 1.0
MOST_TURNS = 4_096
"""Turns in the making; beyond that the longest quiet one is sent as it is."""
MOST_TOLD = 16_384
"""Turns that are remembered as told."""

Tell = Callable[[Happening, int, int], None]
"""Takes an event with its trace and span, for the log."""


class Turns:
    """All turns in the making. Used by one thread at a time."""

    def __init__(
        self, style: Style, tell: Tell, told: Iterable[str] = (), linger_s: float = LINGER_S
    ) -> None:
        self._style = style
        self._tell = tell
        self._linger_s = linger_s
        self._turns: OrderedDict[str, TurnState] = OrderedDict()
        self._told: OrderedDict[str, None] = OrderedDict.fromkeys(told)
        """Turns whose own span is out."""
        self._cooling: deque[tuple[float, Draft, TurnState | None, int]] = deque()
        """What has ended and is handed out a moment later; a turn's span with the count of its ends."""
        self._steps = Steps(style, self._cool)
        self._now_s = 0.0

    def take(self, record: Record, now_s: float) -> None:
        """Read one record. ``now_s`` counts the lingering, by any clock that only rises."""
        self._now_s = now_s
        if record.turn is None:
            return
        if record.data.get("elsewhere"):
            self._elsewhere(self._turn(record), record)
            return
        match record.type:
            case "item":
                self._steps.item(self._turn(record), record)
            case "step/attempt":
                self._steps.attempt(self._turn(record), record)
            case "step/start":
                self._steps.start(self._turn(record), record)
            case "step/end":
                self._steps.end(self._turn(record), record)
            case "turn/start" | "turn/resume":
                self._turn_start(record)
            case "turn/end":
                self._turn_end(record)
            case "finding" | "intervention" | "budget/alert":
                self._decision(record)

    def ripe(self, now_s: float) -> Iterator[Draft]:
        """Spans that ended long enough ago, each once: children before their parents."""
        while self._cooling and self._cooling[0][0] <= now_s:
            _, draft, turn, ends = self._cooling.popleft()
            if turn is not None:
                if turn.end is None or turn.ends != ends:
                    continue  # it went on meanwhile
                self._finish(turn)
            draft.sent = True
            if self._sampled(draft):
                yield draft

    def close(self) -> Iterator[Draft]:
        """Everything, also what is still open: the process ends."""
        for turn in list(self._turns.values()):
            self._break_off(turn)
        yield from self.ripe(float("inf"))

    @property
    def told(self) -> Iterable[str]:
        """Turns whose own span is out: what goes on in them later must not tell it again."""
        return self._told

    def _sampled(self, draft: Draft) -> bool:
        return draft.remote or (draft.trace & (2**64 - 1)) < self._style.ratio * 2**64

    def _cool(self, draft: Draft, turn: TurnState | None = None) -> None:
        self._cooling.append(
            (self._now_s + self._linger_s, draft, turn, turn.ends if turn is not None else 0)
        )

    # -- turns

    def _turn(self, record: Record) -> TurnState:
        """The turn of a record, as far as it is known here."""
        id = record.turn or ""
        turn = self._turns.get(id)
        if turn is None:
            trace = trace_of(id)
            root = span_of(trace, "turn")
            turn = TurnState(id, trace, root, Draft("invoke_agent", trace, root, None, record.time_ns))
            self._name(turn, record, {})
            if id in self._told:
                turn.stretch = True  # its own span is out: what comes now is a child of it
                turn.draft.parent = root
                turn.draft.id = span_of(trace, "turn", str(record.time_ns))
                turn.draft.put({"looptap.turn.resumed": True})
            self._turns[id] = turn
            if len(self._turns) > MOST_TURNS:
                self._break_off(next(iter(self._turns.values())))
        self._turns.move_to_end(id)
        turn.last_ns = max(turn.last_ns, record.time_ns)
        return turn

    def _name(self, turn: TurnState, record: Record, facts: Mapping[str, Any]) -> None:
        turn.common = names.common(record.session or "", record.thread or "", turn.id, facts)
        agent = names.agent_of(facts)
        turn.draft.name = f"invoke_agent {agent}" if agent else "invoke_agent"
        turn.draft.put({**turn.common, **names.turn(facts)})

    def _turn_start(self, record: Record) -> None:
        facts, started = record.data, record.type == "turn/start"
        if not started and record.turn is not None and record.turn not in self._turns:
            self._remember(record.turn)  # it ended before, and whoever saw that has told it
        turn = self._turn(record)
        turn.known = True
        self._name(turn, record, facts)
        if turn.end is not None:  # its end was not handed out yet, and is taken back
            turn.end = None
            turn.draft.put({"looptap.turn.resumed": True})
        for kind, name in (("previous", "previous_turn"), ("parent_turn", "spawned_by")):
            if started and isinstance(other := facts.get(kind), str):
                trace = trace_of(other)
                turn.draft.link(trace, span_of(trace, "turn"), name)
                turn.draft.put({f"looptap.turn.{name}.trace_id": f"{trace:032x}"})
        self._log(turn, "looptap.turn.started" if started else "looptap.turn.resumed", record.time_ns)

    def _turn_end(self, record: Record) -> None:
        turn, data = self._turn(record), record.data
        if not turn.known:  # it began in another process
            self._name(turn, record, data)
        if not turn.stretch and isinstance(began := data.get("began_ns"), int):
            turn.draft.start_ns = min(turn.draft.start_ns, began)
        self._end_turn(turn, data, record.time_ns)
        self._log(turn, "looptap.turn.ended", record.time_ns, {"looptap.turn.cause": data.get("cause")})

    def _end_turn(self, turn: TurnState, end: Mapping[str, Any], now_ns: int) -> None:
        turn.end, turn.ends = end, turn.ends + 1
        for step in turn.steps.values():
            self._steps.end_step(turn, step, now_ns)
        turn.draft.end_ns = max(turn.draft.end_ns, now_ns)
        self._cool(turn.draft, turn)

    def _elsewhere(self, turn: TurnState, record: Record) -> None:
        """What happened at another instance, which tells it: only what follows from it here."""
        if record.type == "turn/start":
            turn.known = turn.foreign = True
            self._name(turn, record, record.data)
        elif record.type == "step/end" and (step := turn.steps.get(record.step or "")) is not None:
            self._steps.end_step(turn, step, record.time_ns, elsewhere=True)
        elif record.type == "turn/end":
            for step in turn.steps.values():
                self._steps.end_step(turn, step, record.time_ns, elsewhere=True)
            self._remember(turn.id)
            self._turns.pop(turn.id, None)

    def _break_off(self, turn: TurnState) -> None:
        """No more of a turn will be seen here: tell it as it stands."""
        if turn.end is None:
            if turn.stretch and not turn.known:  # its span is out; only a late step came after it
                for step in turn.steps.values():
                    self._steps.end_step(turn, step, turn.last_ns)
            else:
                turn.draft.put({"looptap.turn.open": True})
                self._end_turn(turn, {"usage": turn.usage, "steps": turn.step_count}, turn.last_ns)
        self._remember(turn.id)
        self._turns.pop(turn.id, None)

    def _finish(self, turn: TurnState) -> None:
        """Add up a turn whose span goes out now."""
        end, draft = turn.end or {}, turn.draft
        for step in turn.steps.values():
            self._steps.end_step(turn, step, draft.end_ns)
        draft.put(names.turn_end(end, turn.models, turn.tool_calls))
        draft.put({"looptap.policy.max_action": turn.action})
        error = names.turn_error(end.get("cause"))
        if error is not None:
            draft.fail(turn.failure or error if error == "error" else error)
        self._steps.show(draft, "gen_ai.input.messages", turn.asked)
        self._steps.show(draft, "gen_ai.output.messages", turn.answered)
        self._remember(turn.id)
        if self._turns.get(turn.id) is turn:
            del self._turns[turn.id]

    def _remember(self, id: str) -> None:
        self._told[id] = None
        if len(self._told) > MOST_TOLD:
            self._told.popitem(last=False)

    def _decision(self, record: Record) -> None:
        happening = decision(record)
        turn = self._turn(record)
        turn.action = stronger(turn.action, happening.action)
        if record.step is None or happening.action in BLOCKS:
            tell_on(turn.draft, happening)
            self._tell(happening, turn.trace, turn.root)
            return
        step = self._steps.step(turn, record)
        self._tell(happening, turn.trace, step.draft.id if step.started else turn.root)
        self._steps.place(turn, step, happening)

    def _log(self, turn: TurnState, name: str, time_ns: int, more: Mapping[str, Any] | None = None) -> None:
        self._tell(Happening(name, time_ns, {**turn.common, **(more or {})}, "info"), turn.trace, turn.root)
