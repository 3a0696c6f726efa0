"""Counts repetition: the state of one turn's steps, fed step by step. No wire, no words.

Each step is one entry, however many calls it made. State is small JSON (digests and counters, no
content), so that it lives in the thread's memory, survives restarts and replays the same.

============  ==============================================================================
detector      counts
============  ==============================================================================
consecutive   steps in a row with the same calls and the same results
cycle         whole rounds of 2, 3 or 4 steps that came again with the same results
same_error    failing steps of one tool with the same error, whatever the arguments, with no
              success of that tool and no successful edit between
edits         edits to one file that all failed, or that left the same failing check as it was
near          steps in a row whose one call differs a little from the last and brings the same
============  ==============================================================================

A result that nobody saw (a compaction took it) leaves a step *blind*: it is compared by its calls
alone and needs a higher count. A call that waits for something else needs a much higher one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Kind = Literal["consecutive", "cycle", "same_error", "edits", "near"]
Likeness = Literal["", "dress", "part"]
"""How a call's arguments are like the last one's: not, but for their dress (white space, a spoken
reason), or in the greater part."""
LONGEST_CYCLE = 4
_MOST_NAMES = 64
"""Tools, files and checks remembered at once in a turn."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A call with its result, reduced to names."""

    tool: str
    call: str
    """Name of tool and arguments."""
    result: str | None
    """Name of the masked result; None: not seen."""
    error: str | None = None
    """Name of the error's words, where it is one and says something."""
    failed: bool = False
    edits: str | None = None
    """Name of the file that it edits."""
    waits: bool = False


@dataclass(frozen=True, slots=True)
class Run:
    """Something that has come ``count`` times."""

    kind: Kind
    count: int
    tools: tuple[str, ...]
    period: int = 1
    blind: bool = False
    waits: bool = False
    loose: bool = False
    """Near: the arguments differ in more than their dress."""
    name: str = ""
    """Name of what repeats: the call, the error, the file."""


@dataclass(slots=True)
class Counters:
    """Everything remembered of a turn. ``dump`` and ``load`` are its JSON."""

    last: list[list[Any]] = field(default_factory=list)
    """The newest steps: [calls, results or None, waits, tools], newest last."""
    runs: list[int] = field(default_factory=lambda: [0] * LONGEST_CYCLE)
    """Steps that the newest stretch of period 1, 2, 3, 4 is long."""
    blind: list[bool] = field(default_factory=lambda: [False] * LONGEST_CYCLE)
    waits: list[bool] = field(default_factory=lambda: [False] * LONGEST_CYCLE)
    errors: dict[str, list[Any]] = field(default_factory=dict)
    """By tool: the error's name, and in how many steps running."""
    checks: dict[str, str] = field(default_factory=dict)
    """By failing call: its newest result."""
    stuck: dict[str, int] = field(default_factory=dict)
    """By file: edits after which a failing check came out as before."""
    touched: list[str] = field(default_factory=list)
    """Files edited since the last check."""
    misses: dict[str, int] = field(default_factory=dict)
    """By file: failed edits in a row."""
    near: list[Any] = field(default_factory=list)
    """[tool, result, steps, of them with other arguments, waits, loose]."""

    @classmethod
    def load(cls, value: Mapping[str, Any]) -> "Counters":
        """From memory; what is missing begins empty."""
        counters = cls()
        for name in cls.__dataclass_fields__:
            if name in value:
                old = value[name]
                setattr(counters, name, dict(old) if isinstance(old, Mapping) else list(old))
        counters.errors = {tool: list(pair) for tool, pair in counters.errors.items()}
        return counters

    def may_be_near(self, step: Sequence[Seen]) -> bool:
        """Whether a step's one call brought what the last one did, so that their arguments matter."""
        return len(step) == 1 and self.near[:2] == [step[0].tool, step[0].result]

    def dump(self) -> dict[str, Any]:
        """As JSON values; what is empty is left out."""
        values = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return {name: value for name, value in values.items() if value and any(_flat(value))}


def _flat(value: Any) -> Sequence[Any]:
    return list(value.values()) if isinstance(value, dict) else value


def count(counters: Counters, step: Sequence[Seen], likeness: Likeness = "") -> list[Run]:
    """Take a step with what its calls brought; answers everything that repeats by now.

    ``likeness``: of the step's one call to the one before.
    """
    if not step:
        return []
    found = _periodic(counters, step)
    found += _errors(counters, step)
    found += _edits(counters, step)
    found += _near(counters, step, likeness, same=counters.runs[0] >= 2)
    return found


def _periodic(counters: Counters, step: Sequence[Seen]) -> list[Run]:
    tools = tuple(dict.fromkeys(seen.tool for seen in step))
    calls = "+".join(sorted({seen.call for seen in step}))
    known = all(seen.result is not None for seen in step)
    results = "+".join(sorted({f"{seen.call}={seen.result}" for seen in step})) if known else None
    waits = any(seen.waits for seen in step)
    now = [calls, results, waits, list(tools)]
    found: list[Run] = []
    for period in range(1, LONGEST_CYCLE + 1):
        at = period - 1
        if len(counters.last) >= period and _equal(counters.last[-period], now):
            counters.runs[at] = max(counters.runs[at], period) + 1
            fresh = counters.runs[at] == period + 1
            newest = [*counters.last[-period:], now] if fresh else [now]
            counters.blind[at] = (counters.blind[at] and not fresh) or any(one[1] is None for one in newest)
            counters.waits[at] = (counters.waits[at] and not fresh) or any(one[2] for one in newest)
        else:
            counters.runs[at] = min(period, len(counters.last) + 1)
            counters.blind[at] = counters.waits[at] = False
    counters.last = [*counters.last, now][-LONGEST_CYCLE:]
    for period in range(1, LONGEST_CYCLE + 1):
        length = counters.runs[period - 1]
        if length < 2 * period or length % period or _shorter(counters.runs, period):
            continue
        names = tuple(dict.fromkeys(tool for one in counters.last[-period:] for tool in one[3]))
        kind: Kind = "consecutive" if period == 1 else "cycle"
        blind, slow = counters.blind[period - 1], counters.waits[period - 1]
        found.append(Run(kind, length // period, names, period, blind, slow, name=calls))
    return found


def _equal(one: Sequence[Any], other: Sequence[Any]) -> bool:
    if one[0] != other[0]:
        return False
    return one[1] is None or other[1] is None or one[1] == other[1]


def _shorter(runs: Sequence[int], period: int) -> bool:
    """Whether a stretch of this period is really one of a shorter."""
    return any(period % p == 0 and runs[p - 1] >= period for p in range(1, period))


def _errors(counters: Counters, step: Sequence[Seen]) -> list[Run]:
    if any(seen.edits and not seen.failed for seen in step):
        counters.errors.clear()
    found: list[Run] = []
    for tool in dict.fromkeys(seen.tool for seen in step):
        mine = [seen for seen in step if seen.tool == tool and seen.result is not None]
        errors = {seen.error for seen in mine if seen.failed}
        if not mine:
            continue
        if not all(seen.failed for seen in mine) or len(errors) != 1 or None in errors:
            counters.errors.pop(tool, None)
            continue
        (error,) = errors
        old = counters.errors.get(tool)
        times = old[1] + 1 if old is not None and old[0] == error else 1
        _put(counters.errors, tool, [error, times])
        if times > 1:
            waits = any(seen.waits for seen in mine)
            found.append(Run("same_error", times, (tool,), waits=waits, name=str(error)))
    return found


def _edits(counters: Counters, step: Sequence[Seen]) -> list[Run]:
    found: list[Run] = []
    for seen in step:
        if seen.edits is not None and seen.result is not None and not seen.failed:
            counters.misses.pop(seen.edits, None)
            if seen.edits not in counters.touched:
                counters.touched = [*counters.touched, seen.edits][-_MOST_NAMES:]
    for file, tool in {seen.edits: seen.tool for seen in step if seen.edits and seen.failed}.items():
        if any(seen.edits == file and not seen.failed for seen in step):
            continue
        _put(counters.misses, file, counters.misses.get(file, 0) + 1)
        found.append(Run("edits", counters.misses[file], (tool,), name=file))
    checks = [seen for seen in step if seen.edits is None and seen.result is not None]
    if not checks:
        return found
    if any(_moved(counters, seen) for seen in checks):
        counters.stuck.clear()
        counters.touched = []
    elif any(seen.failed and counters.checks.get(seen.call) == seen.result for seen in checks):
        for file in counters.touched:
            _put(counters.stuck, file, counters.stuck.get(file, 0) + 1)
            found.append(Run("edits", counters.stuck[file], tuple(s.tool for s in checks[:1]), name=file))
        counters.touched = []
    elif any(seen.failed for seen in checks):
        counters.touched = []
    for seen in checks:
        if seen.failed:
            _put(counters.checks, seen.call, str(seen.result))
    return found


def _moved(counters: Counters, seen: Seen) -> bool:
    """Whether a check came out other than before."""
    before = counters.checks.get(seen.call)
    if before is None or before == seen.result:
        return False
    if not seen.failed:
        del counters.checks[seen.call]
    return True


def _near(counters: Counters, step: Sequence[Seen], likeness: Likeness, *, same: bool) -> list[Run]:
    one = step[0]
    if len(step) != 1 or one.result is None or one.edits is not None:
        counters.near = []
        return []
    old = counters.near
    if not old or old[:2] != [one.tool, one.result] or not (same or likeness):
        counters.near = [one.tool, one.result, 1, 0, one.waits, False]
        return []
    others = old[3] + (not same)
    waits, loose = old[4] or one.waits, old[5] or (not same and likeness == "part")
    counters.near = [*old[:2], old[2] + 1, others, waits, loose]
    if not others:
        return []
    return [Run("near", old[2] + 1, (one.tool,), waits=waits, loose=loose, name=one.result)]


def _put(table: dict[str, Any], name: str, value: Any) -> None:
    """Keep a value as the newest; the oldest goes when there are too many."""
    table.pop(name, None)
    table[name] = value
    if len(table) > _MOST_NAMES:
        del table[next(iter(table))]
