"""Policy ``repeats``: the same call again, with the same result.

Judged when a step's results arrive, before the request that brings them goes out: then it is
known whether the call brought anything new. What counts as the same is in ``fingerprints``, how it
is counted in ``loops``; here are thresholds, evidence, and the words for the model.

Invariant: equal calls with unlike results are progress and stay silent; a new turn begins anew.
"""

import difflib
import re
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from policies.base import Policy
from policies.calls import rounds
from policies.fingerprints import call_name, error_words, failed, fields, masked, named, waiting
from policies.loops import Counters, Likeness, Run, Seen, count
from proxy.model import Item
from proxy.ports import Answer, View
from proxy.verdict import Decision, Edit, Finding, Terminal

_MOST_CALLS = 64
"""Calls of one step that are looked at."""
_SHOWN = 200
"""Characters of arguments and differences in the evidence."""
_INFORMATIVE = 120
"""Characters from which an equal result says that unlike arguments brought nothing new."""
_MOST_PARSED = 200_000
"""Characters of arguments up to which the edited file is looked for."""
_COMPARED = 2_000
"""Characters of arguments that are compared with the last call's."""

_LIKE = 0.6
"""Share of equal characters from which arguments are nearly equal."""

_READER = re.compile(
    r"read|cat|grep|search|glob|find|list|^ls$|get|fetch|view|query|look_?up|browse|open|show|bash|shell|exec|command",
    re.IGNORECASE,
)
"""Tools that are asked for what they answer. Others do something, and say each time that it is done."""
_CONFIRMS = re.compile(
    r"\b(?:success\w*|updated|created|modified|saved|written|wrote|added|deleted|removed|sent|completed|applied|done|ok)\b",
    re.IGNORECASE,
)
_EDIT_TOOL = re.compile(
    r"edit|write|replace|patch|insert|create_?file|update_?file|delete_?file", re.IGNORECASE
)
_NO_EDIT = frozenset({"view", "read", "list", "show", "get"})
_PATHS = (
    "file_path",
    "filePath",
    "path",
    "absolute_path",
    "notebook_path",
    "target_file",
    "filename",
    "file",
    "uri",
)
_PATCHED = re.compile(r"\*\*\* (?:Update|Add|Delete) File: ([^\n\\]+)")
_SPOKEN = frozenset(
    {"description", "thought", "thoughts", "reason", "reasoning", "explanation", "justification", "rationale"}
    | {"purpose", "intent", "why", "timeout", "timeout_ms", "yield_time_ms", "max_output_tokens"}
)
"""Fields in which a model speaks to whoever reads along; they change without changing the call."""
_DRESS = re.compile(r"[\s'\"`\\]+|(?<![\w.])\./|/(?=[\s'\"]|$)")


class Limits(BaseModel):
    """From how many on something is told."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    consecutive: Annotated[int, Field(ge=2)] | None = None
    cycle: Annotated[int, Field(ge=2)] | None = None
    same_error: Annotated[int, Field(ge=2)] | None = None
    edits: Annotated[int, Field(ge=2)] | None = None
    near: Annotated[int, Field(ge=2)] | None = None
    blind: Annotated[int, Field(ge=2)] | None = None
    waiting: Annotated[int, Field(ge=2)] | None = None


class RepeatsOptions(BaseModel):
    """``policies.repeats`` in the configuration."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    consecutive: Annotated[int, Field(ge=2, description="Equal steps in a row.")] = 3
    cycle: Annotated[int, Field(ge=2, description="Rounds of a cycle of 2, 3 or 4 steps.")] = 3
    same_error: Annotated[int, Field(ge=2, description="The same error of one tool.")] = 3
    edits: Annotated[int, Field(ge=2, description="Edits of one file that changed nothing.")] = 5
    near: Annotated[int, Field(ge=2, description="Unlike arguments with equal long results.")] = 5
    blind: Annotated[int, Field(ge=2, description="Equal steps whose results nobody saw.")] = 5
    waiting: Annotated[int, Field(ge=2, description="Equal steps that wait for something.")] = 25
    again: Annotated[tuple[int, ...], Field(description="Counts at which to tell it again.")] = (5, 8)
    stop_at: Annotated[int, Field(ge=2, description="Count from which a refusing action refuses.")] = 9
    nudge: Annotated[bool, Field(description="Remind the model where the action allows it.")] = True
    ignore: Annotated[tuple[str, ...], Field(description="Volatile fields: NAME or TOOL.NAME.")] = ()
    exclude: Annotated[tuple[str, ...], Field(description="Tools to leave out (globs).")] = ()
    tools: Annotated[Mapping[str, Limits], Field(description="Limits by tool (globs, first match).")] = {}


class Repeats(Policy):
    """See the module."""

    name = "repeats"
    Options = RepeatsOptions

    options: RepeatsOptions

    # -- the points

    def step_end(self, view: View) -> Decision:
        """Remember what was called, in case nobody sees what it brings."""
        if view.outcome is None or view.attempt is None or view.attempt.outcome != "complete":
            return Decision()
        calls = [
            [item.tool or "", self._name(item.tool or "", item.arguments or ""), _slow(item.arguments or "")]
            for item in view.outcome.tool_calls[:_MOST_CALLS]
            if not self._excluded(item.tool)
        ]
        if calls == view.memory.get("calls", []):
            return Decision()
        return Decision(memory={**view.memory, "calls": calls})

    def step_start(self, view: View) -> Decision:
        """Judge the step whose results this request brings."""
        memory = dict(view.memory)
        if view.attempt_index > 0:
            return self._stop_again(memory)
        unseen = memory.pop("calls", [])
        memory.pop("stop", None)
        if memory.get("turn", view.turn) != view.turn:
            return Decision(memory={"turn": view.turn})
        memory["turn"] = view.turn
        step = self._seen(view.answers)
        if not step and not view.answers:
            step = [Seen(tool, name, None, waits=waits) for tool, name, waits in unseen]
        if not step:
            return Decision(memory=memory)
        counters = Counters.load(memory.get("counters", {}))
        likeness, differs = self._likeness(view) if counters.may_be_near(step) else ("", None)
        runs = [run for run in count(counters, step, likeness) if run.count >= self._limit(run)]
        memory["counters"] = counters.dump()
        if not runs:
            return Decision(memory=memory)
        return self._decide(view, memory, min(runs, key=_plainness), differs)

    # -- what was seen

    def _name(self, tool: str, arguments: str) -> str:
        return call_name(tool, arguments, self.options.ignore)

    def _excluded(self, tool: str | None) -> bool:
        return any(fnmatchcase(tool or "", glob) for glob in self.options.exclude)

    def _seen(self, answers: Sequence[Answer]) -> list[Seen]:
        return [self._one(answer) for answer in answers[:_MOST_CALLS] if not self._excluded(answer.tool)]

    def _one(self, answer: Answer) -> Seen:
        result = answer.result
        bad = failed(result.text, result.is_error)
        words = error_words(result.text) if bad else ""
        file = edited(answer.tool, answer.arguments)
        return Seen(
            answer.tool,
            self._name(answer.tool, answer.arguments),
            result_name(result),
            named(words) if words else None,
            bad,
            named(file) if file is not None else None,
            waiting(answer.arguments, result.text),
        )

    def _likeness(self, view: View) -> tuple[Likeness, dict[str, Any] | None]:
        """How the newest call is like the one before, and in what they differ."""
        shown = rounds(view.request, 2)
        kept = [[item for item in calls if not self._excluded(item.tool)] for calls in shown]
        if len(kept) < 2 or len(kept[0]) != 1 or len(kept[1]) != 1:
            return "", None
        now, before = kept[0][0], kept[1][0]
        if before.tool != now.tool:
            return "", None
        likeness, differs = alike(before.arguments or "", now.arguments or "")
        informs = len(view.answers) == 1 and _informative(view.answers[0].result)
        if likeness == "part" and not (informs and _READER.search(now.tool or "")):
            return "", None
        return likeness, differs

    # -- what is told

    def _limit(self, run: Run) -> int:
        """From how many on a run is told."""
        name = "waiting" if run.waits else "blind" if run.blind else run.kind
        if run.kind == "near" and not run.loose and not run.waits:
            name = "consecutive"
        limit = 0
        for tool in run.tools:
            own = next((value for glob, value in self.options.tools.items() if fnmatchcase(tool, glob)), None)
            told = getattr(own, name) if own is not None else None
            limit = max(limit, told if told is not None else getattr(self.options, name))
        return limit

    def _level(self, run: Run) -> int:
        """Which telling this is: 0 none, 1 the first, 2 and more the later ones."""
        first = self._limit(run)
        marks = [first, *(mark for mark in sorted(self.options.again) if mark > first)]
        while marks[-1] < run.count:
            marks.append(2 * marks[-1])
        return marks.index(run.count) + 1 if run.count in marks else 0

    def _decide(self, view: View, memory: dict[str, Any], run: Run, differs: Any) -> Decision:
        level = self._level(run)
        terminal = None
        if run.count >= max(self.options.stop_at, self._limit(run)):
            terminal = self._terminal(run)
            memory["stop"] = [run.kind, run.count, list(run.tools), run.period]
        if not level:
            return Decision(memory=memory, terminal=terminal)
        answer = next((one for one in view.answers if one.tool in run.tools), None)
        finding = Finding(self.name, run.kind, "warning", self._evidence(view, run, answer, differs))
        reminds = self.options.nudge and run.count <= max((self._limit(run), *self.options.again))
        nudges = (_nudge(run, answer, detailed=level > 1),) if reminds else ()
        return Decision((finding,), nudges, terminal, memory)

    def _evidence(self, view: View, run: Run, answer: Answer | None, differs: Any) -> dict[str, Any]:
        evidence: dict[str, Any] = {"tool": run.tools[0], "count": run.count, "limit": self._limit(run)}
        if len(run.tools) > 1:
            evidence["tools"] = list(run.tools)
        if run.period > 1:
            evidence["period"] = run.period
        if run.blind:
            evidence["results"] = "not seen"
        if run.waits:
            evidence["waits"] = True
        ids = [one.call_id or one.result.call_id for one in view.answers if one.tool in run.tools]
        if any(ids):
            evidence["calls"] = [id for id in ids if id][:8]
        if run.kind == "near" and differs:
            evidence["differs_in"] = list(differs)
        quotes = _quotes(run, answer, differs)
        if quotes:
            evidence["quotes"] = quotes
        return evidence

    def _terminal(self, run: Run) -> Terminal:
        what = _what(run)
        return Terminal(
            "deny",
            self.name,
            "looptap_repeats",
            f"{what[0].upper()}{what[1:]}, {run.count} times in this turn: it brings nothing new. Another"
            " way is needed; a new message from the user starts the count again.",
            "policy",
            {"policy": self.name, "kind": run.kind, "count": run.count, "tool": run.tools[0]},
            any_form=True,
        )

    def _stop_again(self, memory: Mapping[str, Any]) -> Decision:
        """The client sends the very request again that was refused."""
        if not (stop := memory.get("stop")):
            return Decision()
        kind, times, tools, period = stop
        return Decision(terminal=self._terminal(Run(kind, times, tuple(tools), period)))


_ORDER = ("consecutive", "cycle", "near", "edits", "same_error")


def _plainness(run: Run) -> tuple[int, int]:
    """One telling a step: the plainest of what was found."""
    return _ORDER.index(run.kind), run.period


def _quotes(run: Run, answer: Answer | None, differs: Any) -> dict[str, Any]:
    """The part of the evidence that is content."""
    if answer is None:
        return {}
    quotes: dict[str, Any] = {"arguments": answer.arguments[:_SHOWN]}
    if run.kind == "near" and differs:
        quotes["differs"] = differs
    if run.kind == "same_error":
        quotes["error"] = answer.result.text.strip()[:_SHOWN]
    file = edited(answer.tool, answer.arguments)
    if run.kind == "edits" and file is not None:
        quotes["file"] = file[:_SHOWN]
    return quotes


def _what(run: Run) -> str:
    tools = ", ".join(run.tools)
    match run.kind:
        case "consecutive":
            return f"the same call of {tools} with the same result"
        case "cycle":
            return f"the same {run.period} steps ({tools}) with the same results"
        case "same_error":
            return f"the same error from {tools}"
        case "edits":
            return f"edits to one file ({tools}) that changed nothing"
        case "near":
            return f"nearly the same call of {tools} with the same result"


def _nudge(run: Run, answer: Answer | None, *, detailed: bool) -> Edit:
    """What the model reads where nudging is on."""
    what = _what(run)
    if not detailed:
        text = f"Note: {what}, {run.count} times in a row. It will not change by itself; try another way."
        return Edit("nudge", text)
    begin = f"Stop and reconsider: {what}, {run.count} times by now."
    arguments = f" Arguments: {answer.arguments[:_SHOWN]}." if answer is not None else ""
    end = (
        " Repeating it brings nothing new. Say what you know and what is missing, then choose a different"
        " step, or finish and report what blocks you."
    )
    return Edit("nudge", begin + arguments + end, data={"unquoted": begin + end})


def edited(tool: str, arguments: str) -> str | None:
    """The file that a call changes; None where it changes none (or does not say which)."""
    if "*** " in arguments and (patched := _PATCHED.search(arguments)) is not None:
        return patched.group(1).strip()
    if not _EDIT_TOOL.search(tool) or len(arguments) > _MOST_PARSED:
        return None
    values = fields(arguments)
    if values.get("command") in _NO_EDIT:
        return None
    return next((values[key] for key in _PATHS if isinstance(values.get(key), str) and values[key]), None)


def alike(one: str, other: str) -> tuple[Likeness, dict[str, Any] | None]:
    """How one call's arguments are like another's, and where they differ: field → both values."""
    before, now = fields(one), fields(other)
    if one == other or not before or before.keys() - _SPOKEN != now.keys() - _SPOKEN:
        return "", None
    unlike = [key for key in sorted(before.keys() | now.keys()) if before.get(key) != now.get(key)]
    differs = {key: [_short(before.get(key)), _short(now.get(key))] for key in unlike[:8]}
    real = [key for key in unlike if key not in _SPOKEN and _bare(before.get(key)) != _bare(now.get(key))]
    if not real:
        same = [value for key, value in before.items() if key not in unlike and key not in _SPOKEN]
        solid = any(isinstance(value, str) and len(value) >= 2 for value in same)
        return ("dress", differs) if solid or set(unlike) - _SPOKEN else ("", None)
    pairs = difflib.SequenceMatcher(None, one[:_COMPARED], other[:_COMPARED], autojunk=False)
    near = pairs.real_quick_ratio() >= _LIKE and pairs.quick_ratio() >= _LIKE
    return ("part", differs) if near else ("", None)


def result_name(result: Item) -> str:
    """Name of a result, volatile parts apart. Its digest also covers images, which are no text."""
    text = masked(result.text)
    if text == result.text.strip() and result.digest:
        return result.digest.hex()[:16]
    return named(text, "error" if result.is_error else "")


def _informative(result: Item) -> bool:
    """Whether a result tells something, rather than that it was done."""
    text = result.text.strip()
    return len(text) >= _INFORMATIVE and not result.is_error and _CONFIRMS.search(text[:400]) is None


def _slow(arguments: str) -> bool:
    return waiting(arguments, "")


def _bare(value: Any) -> str:
    return _DRESS.sub("", str(value)) if isinstance(value, str) else repr(value)


def _short(value: Any) -> Any:
    return (
        value[:_SHOWN]
        if isinstance(value, str)
        else value
        if isinstance(value, int | float)
        else str(value)[:_SHOWN]
    )
