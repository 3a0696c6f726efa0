"""A policy of one's own: no agent pushes with force. Told when called; refused where so configured."""

import re
from dataclasses import dataclass

from policies.base import NOTHING, Policy
from proxy.ports import View
from proxy.verdict import Decision, Finding, Terminal

_FORCED = re.compile(r"\bgit\s+push\b[^;&|]*(?:--force(?!-with-lease)|\s-f\b)")


@dataclass(frozen=True, slots=True)
class ForcePushOptions:
    """``policies.force_push`` in the configuration."""

    most: int = 0
    """So many are let pass in one turn."""


class ForcePush(Policy):
    """See the module."""

    name = "force_push"
    Options = ForcePushOptions

    def step_end(self, view: View) -> Decision:
        """The reply has come: look at its calls, and remember how many were forced in this turn."""
        calls = view.outcome.tool_calls if view.outcome is not None else ()
        forced = [call for call in calls if _FORCED.search(call.arguments or "")]
        if not forced:
            return NOTHING
        count = len(forced) + (view.memory.get("count", 0) if view.memory.get("turn") == view.turn else 0)
        evidence = {"count": count, "tool": forced[0].tool, "calls": [call.call_id for call in forced]}
        severity = "warning" if count <= self.options.most else "violation"
        finding = Finding(self.name, "forced", severity, evidence)
        return Decision((finding,), memory={"turn": view.turn, "count": count})

    def step_start(self, view: View) -> Decision:
        """Before the next request: too many in this turn, and it may not go out."""
        if view.memory.get("turn") != view.turn or view.memory.get("count", 0) <= self.options.most:
            return NOTHING
        words = "The agent pushed with force, which is not allowed here. Undo it by hand, then go on."
        terminal = Terminal("deny", self.name, "force_push", words, any_form=True)
        return Decision(terminal=terminal)
