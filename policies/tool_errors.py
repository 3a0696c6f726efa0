"""Policy ``tool_errors``: tools that keep failing, and calls that could not work.

A tool error is a result that is flagged or worded as one. A command that ran and ended with an exit
code is a result: a failing test is the agent's work, not the tool's failure. A call that the user
declined is none either.
"""

import difflib
import json
from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from policies.base import Policy
from policies.fingerprints import declined, error_words, exit_code, failed
from proxy.model import Item, ModelRequest
from proxy.ports import Answer, View
from proxy.verdict import Decision, Finding

_MOST_TOOLS = 64
_SHOWN = 200
_JSON_FORMS = frozenset({"tool_use", "function_call", "function", "functionCall"})
"""Calls whose arguments are JSON; custom tools take any text."""
_BRINGS_TOOLS = frozenset(
    {"additional_tools", "tool_search_output", "tool_search_tool_result", "mcp_list_tools"}
)
"""Items of a conversation that put further tools on offer."""
_CUT = frozenset({"max_tokens", "length", "max_output_tokens", "incomplete", "MAX_TOKENS"})


_MOST_LIKE = 200
_LONGEST_NAME = 128
"""Tools, and characters of their names, among which the one is looked for that was meant."""


class ToolErrorsOptions(BaseModel):
    """``policies.tool_errors`` in the configuration."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    retries: Annotated[int, Field(ge=2, description="Failing steps of a tool in a row, in one turn.")] = 5
    rate: Annotated[float, Field(gt=0, le=1, description="Share of a tool's calls that fail.")] = 0.5
    least: Annotated[int, Field(ge=1, description="Calls from which a rate says something.")] = 10


class ToolErrors(Policy):
    """See the module."""

    name = "tool_errors"
    Options = ToolErrorsOptions

    options: ToolErrorsOptions

    def step_start(self, view: View) -> Decision:
        """Count what the request's results say."""
        if view.attempt_index > 0 or not view.answers:
            return Decision()
        memory = _Memory.load(view.memory, view.turn)
        findings: list[Finding] = []
        answered: dict[str, list[Answer]] = {}
        for answer in view.answers:
            answered.setdefault(answer.tool, []).append(answer)
        for tool, mine in answered.items():
            bad = [answer for answer in mine if _tool_failed(answer.result)]
            memory.add(tool, len(mine), len(bad))
            findings += self._retries(memory, tool, mine, bad)
            findings += self._rate(memory, tool)
            findings += self._empty(memory, tool, bad)
        return Decision(tuple(findings), memory=memory.dump())

    def step_end(self, view: View) -> Decision:
        """Look at the calls themselves."""
        outcome, request = view.outcome, view.request
        if outcome is None or request is None or not outcome.tool_calls:
            return Decision()
        memory = _Memory.load(view.memory, view.turn)
        findings: list[Finding] = []
        unknown = _unknown(outcome.tool_calls, request)
        for item in outcome.tool_calls:
            problem = _not_json(item)
            if problem is not None:
                cut = outcome.stop_reason in _CUT
                evidence = {"tool": item.tool, "call": item.call_id, "problem": problem, "cut": cut}
                quotes = {"arguments": (item.arguments or "")[-_SHOWN:]}
                severity: Any = "info" if cut else "warning"
                findings.append(Finding(self.name, "bad_arguments", severity, {**evidence, "quotes": quotes}))
            if unknown.get(item.tool) is item and memory.first("unknown", item.tool or ""):
                findings.append(Finding(self.name, "unknown_tool", "warning", _offered(item, request)))
        return Decision(tuple(findings), memory=memory.dump()) if findings else Decision()

    def _retries(
        self, memory: "_Memory", tool: str, mine: Sequence[Answer], bad: Sequence[Answer]
    ) -> list[Finding]:
        streak = memory.streak(tool, failing=len(bad) == len(mine))
        times, rest = divmod(streak, self.options.retries)
        if not streak or rest or times & (times - 1):  # told at once, twice, four times … the limit
            return []
        evidence = {"tool": tool, "count": streak, "limit": self.options.retries, "calls": _ids(bad)}
        quotes = {"error": bad[-1].result.text.strip()[:_SHOWN]}
        return [Finding(self.name, "retries", "warning", {**evidence, "quotes": quotes})]

    def _rate(self, memory: "_Memory", tool: str) -> list[Finding]:
        calls, errors = memory.tools[tool]
        if calls < self.options.least or errors < self.options.rate * calls:
            return []
        if not memory.first("rate", tool):
            return []
        evidence = {"tool": tool, "calls": calls, "errors": errors, "rate": round(errors / calls, 3)}
        return [Finding(self.name, "error_rate", "warning", evidence)]

    def _empty(self, memory: "_Memory", tool: str, bad: Sequence[Answer]) -> list[Finding]:
        silent = [answer for answer in bad if not error_words(answer.result.text)]
        if not silent or not memory.first("empty", tool):
            return []
        quotes = {"error": silent[0].result.text.strip()[:_SHOWN]}
        return [
            Finding(self.name, "empty_error", "info", {"tool": tool, "calls": _ids(silent), "quotes": quotes})
        ]


class _Memory:
    """Counters of a thread's tools, and what was told already."""

    def __init__(
        self, turn: str, tools: dict[str, list[int]], streaks: dict[str, int], told: list[str]
    ) -> None:
        self.turn = turn
        self.tools = tools
        self.streaks = streaks
        self.told = told

    @classmethod
    def load(cls, memory: Any, turn: str) -> "_Memory":
        told = list(memory.get("told", []))
        streaks = dict(memory.get("streaks", {}))
        if memory.get("turn") != turn:
            streaks, told = {}, [key for key in told if key.startswith("rate ")]
        return cls(turn, {tool: list(pair) for tool, pair in memory.get("tools", {}).items()}, streaks, told)

    def dump(self) -> dict[str, Any]:
        return {"turn": self.turn, "tools": self.tools, "streaks": self.streaks, "told": self.told}

    def add(self, tool: str, calls: int, errors: int) -> None:
        """Count calls; the tool used longest ago goes when there are too many."""
        before = self.tools.pop(tool, [0, 0])
        self.tools[tool] = [before[0] + calls, before[1] + errors]
        if len(self.tools) > _MOST_TOOLS:
            gone = next(iter(self.tools))
            del self.tools[gone]
            self.streaks.pop(gone, None)

    def streak(self, tool: str, *, failing: bool) -> int:
        """In how many steps running the tool has only failed."""
        times = self.streaks.pop(tool, 0) + 1 if failing else 0
        self.streaks.pop(tool, None)
        if times:
            self.streaks[tool] = times
        return times

    def first(self, kind: str, tool: str) -> bool:
        """Whether this is told for the first time: in this turn, a rate in the whole thread (``load``)."""
        key = f"{kind} {tool[:64]}"
        if key in self.told:
            return False
        self.told = [*self.told, key][-_MOST_TOOLS:]
        return True


def _tool_failed(result: Item) -> bool:
    text = result.text
    return failed(text, result.is_error) and exit_code(text) is None and not declined(text)


def _not_json(item: Item) -> str | None:
    """Why a call's arguments cannot be read; None where they can, or need not."""
    if item.form not in _JSON_FORMS or not (item.arguments or "").strip():
        return None
    try:
        value = json.loads(item.arguments or "")
    except ValueError:
        return "no JSON"
    except RecursionError:
        return "too deep"
    return None if isinstance(value, dict) else "no object"


def _unknown(calls: Sequence[Item], request: ModelRequest) -> dict[str | None, Item]:
    """The first call of each tool that was not on offer, in the list or by something in the conversation."""
    names = {tool.name for tool in request.tools}
    found: dict[str | None, Item] = {}
    for item in calls:
        if item.form in _JSON_FORMS and item.tool not in names:
            found.setdefault(item.tool, item)
    if not found or all(tool.server for tool in request.tools):
        return {}
    forms = (old.form for message in request.messages for old in message.items)
    return {} if any(form in _BRINGS_TOOLS for form in forms) else found


def _offered(item: Item, request: ModelRequest) -> dict[str, Any]:
    names = [tool.name for tool in request.tools]
    evidence: dict[str, Any] = {"tool": item.tool, "call": item.call_id, "offered": len(names)}
    likely = [name for name in names[:_MOST_LIKE] if len(name) <= _LONGEST_NAME]
    close = difflib.get_close_matches((item.tool or "")[:_LONGEST_NAME], likely, 1)
    return {**evidence, "like": close[0]} if close else evidence


def _ids(answers: Sequence[Answer]) -> list[str]:
    return [id for answer in answers[:8] if (id := answer.call_id or answer.result.call_id) is not None]
