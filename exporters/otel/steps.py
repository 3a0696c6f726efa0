"""Steps, their model calls and tools: what of a turn lies below it.

``Steps`` reads records about one step each and hands what has ended to ``cool``; ``turns`` decides when
that goes out. The invariant: a span is handed over once, with whatever lies below it within its time.
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from exporters.otel import names
from exporters.otel.content import Lens, Part, listed, messages, text_of
from exporters.otel.draft import Draft
from exporters.otel.events import Happening, stronger
from exporters.otel.ids import client_span, span_of
from exporters.otel.state import Brought, Said, StepState, TurnState
from proxy.model import Record

MOST_THREADS = 4_096
MOST_BROUGHT = 1_024
"""Requests whose new content waits for their answer."""
MOST_WAITING = 64
"""Events of one step that wait for their span."""


@dataclass(frozen=True, slots=True)
class Style:
    """How turns are told."""

    dress: names.Dress = field(default_factory=names.Dress)
    lens: Lens = field(default_factory=Lens)
    join: bool = False
    """The client's trace gets a span of ours."""
    ratio: float = 1.0
    """Share of turns that are traced."""


class Steps:
    """All steps in the making. Used by one thread at a time."""

    def __init__(self, style: Style, cool: Callable[[Draft], None]) -> None:
        self._style = style
        self._cool = cool
        self._threads: OrderedDict[str, tuple[int, int, int]] = OrderedDict()
        """Of each thread its newest step: epoch, trace, span."""
        self._brought: OrderedDict[str, Brought] = OrderedDict()
        """By exchange."""

    def step(self, turn: TurnState, record: Record) -> StepState:
        """The step of a record, as far as it is known here."""
        id = record.step or ""
        step = turn.steps.get(id)
        if step is None:
            draft = Draft(
                "agent_step", turn.trace, span_of(turn.trace, "step", id), turn.root, record.time_ns
            )
            draft.put({**turn.common, "looptap.step.id": id, **names.step({})})
            step = turn.steps[id] = StepState(id, draft)
            if id in turn.done:  # only what comes late to it
                step.started = step.ended = draft.sent = True
        return step

    def start(self, turn: TurnState, record: Record) -> None:
        """Its request goes out."""
        turn.forget_done()
        step = self.step(turn, record)
        step.started = True
        step.draft.start_ns = record.time_ns
        step.draft.put(names.step(record.data))
        turn.step_count += 1
        turn.draft.start_ns = min(turn.draft.start_ns, record.time_ns)
        self._epoch(turn, step, record)
        system, tools = self._style.lens.around(record)
        if system or tools:
            brought = self._bring(str(record.data.get("exchange")))
            brought.system, brought.tools = system, tools
        waiting, step.waiting = step.waiting, []
        for happening in waiting:
            self.place(turn, step, happening)

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

    def end(self, turn: TurnState, record: Record) -> None:
        """All its results have been seen, or its turn is over."""
        step, began = self.step(turn, record), record.data.get("began_ns")
        if not (step.started or turn.stretch or turn.foreign) and isinstance(began, int):
            step.started = True  # the process that saw it go out went down before it could tell
            step.draft.start_ns = began
            step.draft.put(names.step(record.data))
        step.draft.put(names.step_end(record.data))
        self.end_step(turn, step, record.time_ns)

    def end_step(self, turn: TurnState, step: StepState, now_ns: int, *, elsewhere: bool = False) -> None:
        """All of it has been seen; what is still open of it ends here. ``elsewhere``: another instance
        has seen its results."""
        waiting, step.waiting = step.waiting, []
        if not step.started:
            for happening in waiting:
                tell_on(turn.draft, happening)
            return
        for happening in waiting:
            tell_on(step.draft, happening)
        for tool in step.tools.values():
            tool.put({"looptap.tool.outcome": "elsewhere" if elsewhere else "no_result"})
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

    def attempt(self, turn: TurnState, record: Record) -> None:
        """One try of its request is over."""
        data = record.data
        step = self.step(turn, record)
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
            self.place(turn, step, happening)
        step.draft.grow(chat)
        turn.draft.grow(chat)
        self._cool(chat)

    def _refused(self, turn: TurnState, step: StepState, record: Record) -> None:
        """A request that we answered ourselves is no step: an event on the turn."""
        if not step.started:
            turn.steps.pop(step.id, None)
            for happening in step.waiting:
                tell_on(turn.draft, happening)
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

    def item(self, turn: TurnState, record: Record) -> None:
        """Something that a request brings, or a reply holds."""
        data, exchange = record.data, str(record.data.get("exchange"))
        part = self._style.lens.part(record)
        if data.get("direction") == "in":
            if part is not None:
                self._bring(exchange).parts.append(part)
            if record.step is not None and data.get("kind") == "tool_result":
                self._result(turn, self.step(turn, record), record, part)
            return
        step, number = self.step(turn, record), int(data.get("attempt") or 0)
        said = step.said.setdefault(number, Said())
        if part is not None:
            said.parts.append(part)
        if data.get("kind") == "thinking":
            said.thinking += 1
        if data.get("call") is not None:
            said.calls[int(data["call"])] = self._tool(turn, step, record, part)

    def _bring(self, exchange: str) -> Brought:
        """What a request newly brings, to be added to."""
        brought = self._brought.setdefault(exchange, Brought())
        if len(self._brought) > MOST_BROUGHT:
            self._brought.popitem(last=False)
        return brought

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
                if isinstance(call_id := tool.attributes.get("gen_ai.tool.call.id"), str):
                    turn.add_tool(call_id, tool)
                turn.tool_calls += 1

    def _contents(
        self, turn: TurnState, step: StepState, chat: Draft, data: Mapping[str, Any], number: int
    ) -> None:
        said = step.said.get(number)
        if said is not None and said.thinking:
            chat.put({"looptap.thinking.blocks": said.thinking})
        if not self._style.lens.on:
            return
        brought = self._brought.pop(str(data.get("exchange")), Brought())
        stop = data.get("stop_reason")
        self._list(chat, "gen_ai.system_instructions", brought.system)
        self._list(chat, "gen_ai.tool.definitions", brought.tools)
        self.show(chat, "gen_ai.input.messages", brought.parts)
        if brought.parts:
            chat.put({"looptap.input.messages_delta": True})
        turn.asked = turn.asked or [part for part in brought.parts if part.role == "user"]
        if said is not None and said.parts:
            self.show(chat, "gen_ai.output.messages", said.parts, names.finish(stop) if stop else None)
            turn.answered = [part for part in said.parts if part.shape["type"] == "text"] or turn.answered

    def show(self, draft: Draft, name: str, parts: list[Part], finish: str | None = None) -> None:
        """Put content on a span; nothing where there is none."""
        text, cut = messages(parts, finish)
        draft.put({name: text, "looptap.content.truncated": True if cut else None})
        if self._style.dress.openinference and text is not None:
            draft.put(names.shown(name, text))

    def _list(self, draft: Draft, name: str, parts: list[Part]) -> None:
        text, cut = listed(parts)
        draft.put({name: text, "looptap.content.truncated": True if cut else None})

    def place(self, turn: TurnState, step: StepState, happening: Happening) -> None:
        """Put an event on the span that it concerns, or keep it until there is one."""
        for call_id in reversed(happening.tool_calls):
            tool = turn.tools.get(call_id)
            if tool is not None and not tool.sent:
                tell_on(tool, happening)
                return
        chat = step.chats.get(happening.exchange or "")
        if not step.started or (happening.of_call and chat is None and not step.ended):
            if len(step.waiting) < MOST_WAITING:
                step.waiting.append(happening)
            return
        places = (chat, step.draft, turn.draft) if happening.of_call else (step.draft, turn.draft)
        for draft in places:
            if draft is not None and not draft.sent:
                tell_on(draft, happening)
                break
        if not step.draft.sent:
            action = step.draft.attributes.get("looptap.policy.max_action")
            step.draft.put(
                {"looptap.policy.max_action": stronger(str(action or "observe"), happening.action)}
            )


def tell_on(draft: Draft, happening: Happening) -> None:
    """Put an event on a span, unless that is out."""
    if not draft.sent:
        draft.event(happening.name, happening.time_ns, happening.attributes)
