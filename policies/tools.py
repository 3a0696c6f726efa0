"""Policy ``tools``: which tools an agent may call.

Two lists of names (globs): what is on ``deny`` may not be called, and where ``allow`` is given
nothing else may. Without lists the policy says nothing. A forbidden call is told when the reply that
makes it has come; by then the client may run it, so what a refusing action stops is the next request
of that turn, which would bring its result. ``refuse: offered`` refuses earlier, whatever request so
much as offers such a tool; ``action: cut`` ends the stream that brings the call.
"""

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from policies.base import Policy
from proxy.model import Event, Item
from proxy.ports import View
from proxy.verdict import Decision, Finding, Terminal

_MOST_TOLD = 64


class ToolsOptions(BaseModel):
    """``policies.tools`` in the configuration."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    allow: Annotated[tuple[str, ...] | None, Field(description="Only these (globs).")] = None
    deny: Annotated[tuple[str, ...], Field(description="None of these (globs); goes before allow.")] = ()
    refuse: Annotated[Literal["called", "offered"], Field(description="What a refusing action refuses.")] = (
        "called"
    )


class Tools(Policy):
    """See the module."""

    name = "tools"
    Options = ToolsOptions

    options: ToolsOptions

    def __init__(self, options: ToolsOptions | None = None) -> None:
        super().__init__(options)
        self._idle = self.options.allow is None and not self.options.deny
        self.wants_deltas = not self._idle

    def step_start(self, view: View) -> Decision:
        """What is offered, and what was called before."""
        if self._idle or view.request is None:
            return Decision()
        called, turn = view.memory.get("called", []), view.memory.get("turn")
        if turn != view.turn:
            called = []
        told = list(view.memory.get("told", []))
        offered = self._forbidden(tool.name for tool in view.request.tools)
        news = [name for name in offered if name not in told]
        findings = [
            Finding(self.name, "offered", "info", {"tool": name, "by": self._by(name)}) for name in news
        ]
        terminal = self._terminal(called, "was called") if called else None
        if terminal is None and offered and self.options.refuse == "offered":
            terminal = self._terminal(offered, "is offered")
        memory = {"turn": view.turn, "called": called, "told": [*told, *news][-_MOST_TOLD:]}
        changed = memory != dict(view.memory)
        return Decision(tuple(findings), (), terminal, memory if changed else None)

    def delta(self, view: View, event: Event) -> Decision:
        """A call has just been read to its end."""
        item = event.item
        if item is None or item.kind != "tool_call" or not self._forbidden([item.tool or ""]):
            return Decision()
        why = self._terminal([item.tool or ""], "was called")
        return Decision(terminal=Terminal("cut", why.policy, why.code, why.message, why.cause, why.fields))

    def step_end(self, view: View) -> Decision:
        """What the model called."""
        if self._idle or view.outcome is None:
            return Decision()
        calls = [item for item in view.outcome.items if item.kind == "tool_call"]
        names = self._forbidden(item.tool or "" for item in calls)
        if not names:
            return Decision()
        findings = [
            Finding(
                self.name, "called", "violation", {"tool": name, "by": self._by(name), **_ids(calls, name)}
            )
            for name in names
        ]
        memory = {**view.memory, "turn": view.turn, "called": names[:_MOST_TOLD]}
        return Decision(tuple(findings), memory=memory)

    def _forbidden(self, names: Iterable[str]) -> list[str]:
        return [name for name in dict.fromkeys(names) if self._by(name) is not None]

    def _by(self, name: str) -> str | None:
        """Which rule forbids a tool."""
        denied = next((glob for glob in self.options.deny if fnmatchcase(name, glob)), None)
        if denied is not None:
            return f"deny: {denied}"
        allow = self.options.allow
        if allow is None or any(fnmatchcase(name, glob) for glob in allow):
            return None
        return "not in allow"

    def _terminal(self, names: Sequence[str], what: str) -> Terminal:
        told = ", ".join(names[:8])
        return Terminal(
            "deny",
            self.name,
            "looptap_tool_denied",
            f"The tool {told} {what}, and the proxy's settings do not allow it. Go on without it.",
            "policy",
            {"policy": self.name, "tool": told},
            any_form=True,
        )


def _ids(calls: Sequence[Item], name: str) -> dict[str, list[str]]:
    ids = [item.call_id for item in calls if item.tool == name and item.call_id is not None]
    return {"calls": ids[:8]} if ids else {}
