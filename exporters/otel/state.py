"""What is remembered of turns while their spans are in the making. State only; ``turns`` decides."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from exporters.otel.content import Part
from exporters.otel.draft import Draft
from exporters.otel.events import Happening

MOST_TOOLS = 256


@dataclass(slots=True, eq=False)
class Brought:
    """What a request newly brings, where content is shown."""

    parts: list[Part] = field(default_factory=list)
    system: list[Part] = field(default_factory=list)
    """Its instructions, where they are new."""
    tools: list[Part] = field(default_factory=list)
    """All its tools, where any of them is new."""


@dataclass(slots=True, eq=False)
class Said:
    """What an attempt under way has brought so far."""

    parts: list[Part] = field(default_factory=list)
    calls: dict[int, Draft] = field(default_factory=dict)
    """Tool calls by their place in the reply."""
    thinking: int = 0


@dataclass(slots=True, eq=False)
class StepState:
    """One step."""

    id: str
    draft: Draft
    started: bool = False
    """Its request went out: it becomes a span."""
    ended: bool = False
    whole: bool = False
    """An attempt of it brought a whole reply."""
    compacted: bool = False
    """It began a new stretch of its history."""
    failure: str | None = None
    """How its last attempt failed."""
    first: int | None = None
    """The span of its first attempt."""
    said: dict[int, Said] = field(default_factory=dict)
    """By attempt."""
    tools: dict[int, Draft] = field(default_factory=dict)
    """Tool calls that wait for their result, by their place in the reply."""
    chats: dict[str, Draft] = field(default_factory=dict)
    """Its model calls, by exchange."""
    waiting: list[Happening] = field(default_factory=list)
    """Events whose span is not there yet."""


@dataclass(slots=True, eq=False)
class TurnState:
    """One turn, from its first record in this process until its span is out."""

    id: str
    trace: int
    root: int
    """Id of the turn's own span, also where ``draft`` is only a stretch of it."""
    draft: Draft
    common: dict[str, Any] = field(default_factory=dict)
    """What every span of it bears."""
    stretch: bool = False
    """The turn's own span is out: ``draft`` is what was added to it later."""
    foreign: bool = False
    """It began at another instance, which tells the steps that it sent out."""
    known: bool = False
    """Its beginning, or its going on, was told in this process."""
    steps: dict[str, StepState] = field(default_factory=dict)
    """Those that may still change."""
    done: set[str] = field(default_factory=set)
    """Those whose span is out, by id."""
    models: set[str] = field(default_factory=set)
    step_count: int = 0
    tool_calls: int = 0
    usage: dict[str, int] = field(default_factory=dict)
    action: str | None = None
    """The strongest thing that anybody did, or would have done."""
    failure: str | None = None
    """How its last failed model call failed."""
    end: Mapping[str, Any] | None = None
    """What its end told; None while it is open."""
    ends: int = 0
    """How often it has ended: an end may be taken back."""
    tools: dict[str, Draft] = field(default_factory=dict)
    """Its newest tool calls that may still be changed, by the provider's id."""
    asked: list[Part] = field(default_factory=list)
    answered: list[Part] = field(default_factory=list)
    last_ns: int = 0

    def forget_done(self) -> None:
        """Let go of steps whose span is out: a turn may have thousands."""
        for id in [
            id for id, step in self.steps.items() if step.ended and step.draft.sent and not step.tools
        ]:
            del self.steps[id]
            self.done.add(id)
        self.tools = {id: tool for id, tool in self.tools.items() if not tool.sent}

    def add_tool(self, call_id: str, tool: Draft) -> None:
        """Remember a tool call, for what is found about it."""
        if len(self.tools) < MOST_TOOLS:
            self.tools[call_id] = tool

    def add(self, attempt: Mapping[str, Any]) -> None:
        """Add a model call to what the turn sums up."""
        if model := attempt.get("requested_model") or attempt.get("model"):
            self.models.add(str(model))
        for kind, count in (attempt.get("usage") or {}).items():
            self.usage[kind] = self.usage.get(kind, 0) + count
