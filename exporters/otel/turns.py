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
from dataclasses import dataclass, field
from typing import Any

from exporters.otel import names
from exporters.otel.content import Lens, Part, messages, text_of
from exporters.otel.draft import Draft
from exporters.otel.events import BLOCKS, Happening, decision, stronger
from exporters.otel.ids import client_span, span_of, trace_of
from exporters.otel.state import Said, StepState, TurnState
from proxy.model import Record

LINGER_S = 1.0
MOST_TURNS = 4_096
"""Turns in the making; beyond that the longest quiet one is sent as it is."""
MOST_TOLD = 16_384
MOST_THREADS = 4_096
MOST_BROUGHT = 1_024
"""Requests whose new content waits for their answer."""
MOST_WAITING = 64
"""Events that wait for their span."""

Tell = Callable[[Happening, int, int], None]
"""Takes an event with its trace and span, for the log."""


@dataclass(frozen=True, slots=True)
class Style:
    """How turns are told."""

    dress: names.Dress = field(default_factory=names.Dress)
    lens: Lens = field(default_factory=Lens)
    join: bool = False
    ratio: float = 1.0


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
        self._threads: OrderedDict[str, tuple[int, int, int]] = OrderedDict()
        """Of each thread its newest step: epoch, trace, span."""
        self._brought: OrderedDict[str, list[Part]] = OrderedDict()
        """What each request newly brings, by exchange, where content is shown."""
        self._now_s = 0.0

    def take(self, record: Record, now_s: float) -> None:
        """Read one record. ``now_s`` counts the lingering, by any clock that only rises."""
        self._now_s = now_s
        if record.turn is None:
            return
        match record.type:
            case "item":
                self._item(record)
            case "step/attempt":
                self._attempt(record)
            case "step/start":
                self._step_start(record)
            case "step/end":
                turn = self._turn(record)
                step = self._step(turn, record)
                step.draft.put(names.step_end(record.data))
                self._end_step(turn, step, record.time_ns)
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
    def left_open(self) -> Iterable[str]:
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
            self._end_step(turn, step, now_ns)
        turn.draft.end_ns = max(turn.draft.end_ns, now_ns)
        self._cool(turn.draft, turn)

    def _break_off(self, turn: TurnState) -> None:
        """No more of a turn will be seen here: tell it as it stands."""
        if turn.end is None:
            if turn.stretch and not turn.known:  # its span is out; only a late step came after it
                for step in turn.steps.values():
                    self._end_step(turn, step, turn.last_ns)
            else:
                turn.draft.put({"looptap.turn.open": True})
                self._end_turn(turn, {"usage": turn.usage, "steps": turn.step_count}, turn.last_ns)
        self._remember(turn.id)
        self._turns.pop(turn.id, None)

    def _finish(self, turn: TurnState) -> None:
        """Add up a turn whose span goes out now."""
        end, draft = turn.end or {}, turn.draft
        for step in turn.steps.values():
            self._end_step(turn, step, draft.end_ns)
        draft.put(names.turn_end(end, turn.models, turn.tool_calls))
        draft.put({"looptap.policy.max_action": turn.action})
        error = names.turn_error(end.get("cause"))
        if error is not None:
            draft.fail(turn.failure or error if error == "error" else error)
        self._show(draft, "gen_ai.input.messages", turn.asked)
        self._show(draft, "gen_ai.output.messages", turn.answered)
        self._remember(turn.id)
        if self._turns.get(turn.id) is turn:
            del self._turns[turn.id]

    def _remember(self, id: str) -> None:
        self._told[id] = None
        if len(self._told) > MOST_TOLD:
            self._told.popitem(last=False)

    # -- steps

    def _step(self, turn: TurnState, record: Record) -> StepState:
        id = record.step or ""
        step = turn.steps.get(id)
        if step is None:
            draft = Draft(
                "agent_step", turn.trace, span_of(turn.trace, "step", id), turn.root, record.time_ns
            )
            draft.put({**turn.common, "looptap.step.id": id, **names.step({})})
            step = turn.steps[id] = StepState(id, draft)
        return step

    def _step_start(self, record: Record) -> None:
        turn = self._turn(record)
        step = self._step(turn, record)
        step.started = True
        step.draft.start_ns = record.time_ns
        step.draft.put(names.step(record.data))
        turn.step_count += 1
        turn.draft.start_ns = min(turn.draft.start_ns, record.time_ns)
        self._epoch(turn, step, record)
        waiting, step.waiting = step.waiting, []
        for happening in waiting:
            self._place(turn, step, happening)

    def _epoch(self, turn: TurnState, step: StepState, record: Record) -> None:
        """Where a history was rewritten, point at the step before."""
        epoch, thread = int(record.data.get("epoch") or 0), record.thread or ""
        before = self._threads.get(thread)
        if before is not None and epoch > before[0]:
            step.compacted = True
            step.draft.link(before[1], before[2], "previous_epoch")
        self._threads[thread] = (epoch, turn.trace, step.draft.id)
        self._threads.move_to_end(thread)
        if len(self._threads) > MOST_THREADS:
            self._threads.popitem(last=False)

    def _end_step(self, turn: TurnState, step: StepState, now_ns: int) -> None:
        """All of it has been seen; what is still open of it ends here."""
        waiting, step.waiting = step.waiting, []
        if not step.started:
            for happening in waiting:
                _tell_on(turn.draft, happening)
            return
        for happening in waiting:
            _tell_on(step.draft, happening)
        for tool in step.tools.values():
            tool.put({"looptap.tool.outcome": "no_result"})
            self._end_tool(turn, step, tool, now_ns)
        step.tools.clear()
        if step.ended:
            return
        step.ended = True
        step.draft.end_ns = max(step.draft.end_ns, now_ns)
        if step.failure is not None and not step.whole:
            step.draft.fail(step.failure)
        turn.draft.grow(step.draft)
        self._cool(step.draft)

    # -- model calls

    def _attempt(self, record: Record) -> None:
        turn, data = self._turn(record), record.data
        step = self._step(turn, record)
        if data.get("outcome") == "refused":
            self._refused(turn, step, record)
            return
        step.started = True
        number = int(data.get("attempt") or 0)
        chat = Draft(
            f"chat {data.get('requested_model') or data.get('model') or ''}".rstrip(),
            turn.trace,
            span_of(turn.trace, "chat", f"{step.id}/{number}"),
            step.draft.id,
            data.get("sent_ns") or data.get("arrived_ns") or record.time_ns,
            data.get("ended_ns") or record.time_ns,
            "client",
        )
        chat.put({**turn.common, "looptap.step.id": step.id, **names.chat(data, self._style.dress)})
        if step.compacted:
            chat.put({"gen_ai.conversation.compacted": True})
        error = names.chat_error(data)
        if error is not None:
            chat.fail(error[0], self._style.lens.safe(error[1] or "")[:500])
            turn.failure = error[0]
        step.failure = error[0] if error is not None else None
        self._links(turn, step, chat, data)
        self._contents(turn, step, chat, data, number)
        self._calls(turn, step, number, data)
        turn.add(data)
        exchange = str(data.get("exchange"))
        step.chats[exchange] = chat
        for happening in [one for one in step.waiting if one.exchange == exchange]:
            step.waiting.remove(happening)
            self._place(turn, step, happening)
        step.draft.grow(chat)
        turn.draft.grow(chat)
        self._cool(chat)

    def _refused(self, turn: TurnState, step: StepState, record: Record) -> None:
        """A request that we answered ourselves is no step: an event on the turn."""
        if not step.started:
            turn.steps.pop(step.id, None)
            for happening in step.waiting:
                _tell_on(turn.draft, happening)
        exchange = record.data.get("exchange")
        if not turn.draft.sent:
            turn.draft.event("looptap.attempt.refused", record.time_ns, {"looptap.exchange.id": exchange})
        self._brought.pop(str(exchange), None)
        self._inbound(turn, None, record.data, record.time_ns)

    def _links(self, turn: TurnState, step: StepState, chat: Draft, data: Mapping[str, Any]) -> None:
        if step.first is None:
            step.first = chat.id
        else:
            chat.link(turn.trace, step.first, "retry_of")
        if isinstance(told := data.get("traceparent"), str):
            trace, span, sampled = client_span(told)
            if sampled:
                chat.link(trace, span, "client_span")
                self._inbound(turn, chat, data, chat.end_ns)

    def _inbound(self, turn: TurnState, chat: Draft | None, data: Mapping[str, Any], now_ns: int) -> None:
        """The request in the client's own trace, where that is asked for. It bears no tokens: they stand
        on the model call, and would count twice."""
        told = data.get("traceparent")
        if not self._style.join or not isinstance(told, str):
            return
        trace, parent, sampled = client_span(told)
        if not sampled:
            return
        span = span_of(trace, "inbound", str(data.get("exchange")))
        begin = data.get("arrived_ns") or now_ns
        inbound = Draft(
            f"POST {data.get('route') or '/'}", trace, span, parent, begin, now_ns, "server", True
        )
        inbound.put(names.inbound(data, turn.id))
        status = data.get("status")
        if status is not None and status >= 500:
            inbound.fail(str(status))
        inbound.link(
            turn.trace, chat.id if chat is not None else turn.root, "turn" if chat is None else "chat"
        )
        self._cool(inbound)

    # -- items: tools, and content

    def _item(self, record: Record) -> None:
        data, exchange = record.data, str(record.data.get("exchange"))
        part = self._style.lens.part(record)
        turn = self._turn(record)
        if data.get("direction") == "in":
            if part is not None:
                self._brought.setdefault(exchange, []).append(part)
                if len(self._brought) > MOST_BROUGHT:
                    self._brought.popitem(last=False)
            if record.step is not None and data.get("kind") == "tool_result":
                self._result(turn, self._step(turn, record), record, part)
            return
        step, number = self._step(turn, record), int(data.get("attempt") or 0)
        said = step.said.setdefault(number, Said())
        if part is not None:
            said.parts.append(part)
        if data.get("kind") == "thinking":
            said.thinking += 1
        if data.get("call") is not None:
            said.calls[int(data["call"])] = self._tool(turn, step, record, part)

    def _tool(self, turn: TurnState, step: StepState, record: Record, part: Part | None) -> Draft:
        data, name = record.data, str(record.data.get("tool") or "")
        index = f"{step.id}/{data['call']}"
        tool = Draft(
            f"execute_tool {name}".rstrip(),
            turn.trace,
            span_of(turn.trace, "tool", index),
            step.draft.id,
            record.time_ns,
        )
        tool.put({**turn.common, "looptap.step.id": step.id})
        tool.put(names.tool(name, data.get("call_id"), self._style.dress))
        if part is not None:
            arguments = part.shape.get("arguments")
            tool.put({"gen_ai.tool.call.arguments": text_of(arguments)})
        return tool

    def _result(self, turn: TurnState, step: StepState, record: Record, part: Part | None) -> None:
        tool = step.tools.pop(int(record.data.get("call", -1)), None)
        if tool is None:
            return
        bad = bool(record.data.get("is_error"))
        tool.put(
            {
                "looptap.tool.outcome": "error" if bad else "ok",
                "looptap.tool.result_chars": record.data.get("chars"),
                "gen_ai.tool.call.result": part.shape.get("response") if part is not None else None,
            }
        )
        if bad:
            tool.fail("tool_error")
        self._end_tool(turn, step, tool, record.time_ns)

    def _end_tool(self, turn: TurnState, step: StepState, tool: Draft, now_ns: int) -> None:
        tool.end_ns = max(tool.start_ns, now_ns)
        step.draft.grow(tool)
        turn.draft.grow(tool)
        self._cool(tool)

    def _calls(self, turn: TurnState, step: StepState, number: int, data: Mapping[str, Any]) -> None:
        """The calls of a whole reply wait for their results; those of a broken one were never run."""
        said = step.said.pop(number, None)
        if data.get("outcome") != "complete":
            return
        step.whole = True
        for place, tool in (said.calls if said is not None else {}).items():
            if place not in step.tools:
                step.tools[place] = tool
                turn.tool_calls += 1

    def _contents(
        self, turn: TurnState, step: StepState, chat: Draft, data: Mapping[str, Any], number: int
    ) -> None:
        said = step.said.get(number)
        if said is not None and said.thinking:
            chat.put({"looptap.thinking.blocks": said.thinking})
        if not self._style.lens.on:
            return
        brought = self._brought.pop(str(data.get("exchange")), [])
        stop = data.get("stop_reason")
        self._show(chat, "gen_ai.input.messages", brought)
        if brought:
            chat.put({"looptap.input.messages_delta": True})
        turn.asked = turn.asked or [part for part in brought if part.role == "user"]
        if said is not None and said.parts:
            self._show(chat, "gen_ai.output.messages", said.parts, names.finish(stop) if stop else None)
            turn.answered = [part for part in said.parts if part.shape["type"] == "text"] or turn.answered

    def _show(self, draft: Draft, name: str, parts: list[Part], finish: str | None = None) -> None:
        text, cut = messages(parts, finish)
        draft.put({name: text, "looptap.content.truncated": True if cut else None})
        if self._style.dress.openinference and text is not None:
            draft.put(names.shown(name, text))

    # -- findings and interventions

    def _decision(self, record: Record) -> None:
        happening = decision(record)
        turn = self._turn(record)
        turn.action = stronger(turn.action, happening.action)
        if record.step is None or happening.action in BLOCKS:
            _tell_on(turn.draft, happening)
            self._tell(happening, turn.trace, turn.root)
            return
        step = self._step(turn, record)
        self._tell(happening, turn.trace, step.draft.id if step.started else turn.root)
        self._place(turn, step, happening)

    def _place(self, turn: TurnState, step: StepState, happening: Happening) -> None:
        """Put an event on the span that it concerns, or keep it until there is one."""
        chat = step.chats.get(happening.exchange or "")
        if not step.started or (happening.of_call and chat is None and not step.ended):
            if len(step.waiting) < MOST_WAITING:
                step.waiting.append(happening)
            return
        places = (chat, step.draft, turn.draft) if happening.of_call else (step.draft, turn.draft)
        for draft in places:
            if draft is not None and not draft.sent:
                _tell_on(draft, happening)
                break
        if not step.draft.sent:
            action = step.draft.attributes.get("looptap.policy.max_action")
            step.draft.put(
                {"looptap.policy.max_action": stronger(str(action or "observe"), happening.action)}
            )

    def _log(self, turn: TurnState, name: str, time_ns: int, more: Mapping[str, Any] | None = None) -> None:
        self._tell(Happening(name, time_ns, {**turn.common, **(more or {})}, "info"), turn.trace, turn.root)


def _tell_on(draft: Draft, happening: Happening) -> None:
    if not draft.sent:
        draft.event(happening.name, happening.time_ns, happening.attributes)
