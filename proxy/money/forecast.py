"""Where a turn is heading: the line that its requests grow along, and how long its budgets last.

The line and the arithmetic are those of policy ``growth``; here they are made from a turn's public
JSON, so that they can be told of any recorded turn.
"""

from collections.abc import Iterable, Mapping
from decimal import Decimal
from fnmatch import fnmatchcase
from typing import Any

from policies.growth import WINDOWS, Line, steps_left
from proxy.verdict import Balance, to_nano

Json = dict[str, Any]


def line_of(turn: Mapping[str, Any]) -> Line:
    """The line through what a turn's steps read."""
    line = Line(turn=str(turn.get("id")))
    for step in turn.get("steps", ()):
        read = step["usage"].get("input_tokens")
        if read is None:
            continue
        line.add(read)
        line.steps += 1
        line.read += read
        line.written += step["usage"].get("output_tokens", 0)
        cost = step.get("cost_usd")
        line.nano = line.nano + to_nano(Decimal(cost)) if cost is not None and line.nano is not None else None
    return line


def growth_of(turn: Mapping[str, Any]) -> Json | None:
    """The line in public words; None where two steps do not make one."""
    line = line_of(turn)
    if line.n < 2:
        return None
    model = str(turn["steps"][-1].get("model") or "").rpartition("/")[2]
    window = next((size for glob, size in WINDOWS if fnmatchcase(model, glob)), None)
    return {
        "start": round(line.start),
        "growth_per_step": round(line.growth, 1),
        "fitted_steps": line.n,
        "read": line.read,
        "window": window if window is None or line.last <= window else None,
    }


def lasting(turn: Mapping[str, Any], balances: Iterable[Balance]) -> list[Json]:
    """How many more steps each budget of this turn, its thread or session lasts, as it goes now."""
    subjects = {turn.get("id"), turn.get("thread"), turn.get("session")}
    line = line_of(turn)
    told: list[Json] = []
    for balance in balances:
        if balance.subject in subjects and line.n and (left := steps_left(line, balance)) is not None:
            told.append({
                "name": balance.name, "scope": balance.scope, "subject": balance.subject,
                "dimension": balance.dimension, "steps_left": left,
            })  # fmt: skip
    return told
