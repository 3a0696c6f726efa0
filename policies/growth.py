"""Policy ``growth``: how fast a turn's requests grow, and where that leads.

An agent sends its whole history every step, so that the tokens read per step follow a line: start +
growth x step. From its fit come the share of the context window, the step at which it is full, and
the step at which a budget ends the turn (the next one must fit with its worst case). A history that
shrank (a compaction) begins a new line.
Forecasts are estimates and are told as such: ``info``, and ``warning`` only near the end.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from policies.base import Policy
from proxy.model import Usage
from proxy.ports import View
from proxy.verdict import Balance, Decision, Finding, Severity, public_amount, to_nano

WINDOWS: tuple[tuple[str, int], ...] = (
    ("claude-*", 200_000),
    ("gpt-4o*", 128_000),
    ("gpt-4.1*", 1_047_576),
    ("gpt-5*", 400_000),
    ("o[134]*", 200_000),
    ("gemini-*", 1_048_576),
)
"""Context windows as usually sold, first match wins. Longer ones exist by agreement or beta: a request
that read more shows it, and from then on the window is not known. Told as ``info`` only."""

_SHRANK = 0.7
_SCOPES = frozenset({"turn", "thread", "session"})
_FAR = 100_000
"""Steps beyond which a forecast says nothing."""


class GrowthOptions(BaseModel):
    """``policies.growth`` in the configuration."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    windows: Annotated[Mapping[str, int], Field(description="Context windows by model (globs).")] = {}
    window_at: Annotated[tuple[float, ...], Field(description="Shares of the window to tell.")] = (0.8, 0.95)
    within: Annotated[int, Field(ge=1, description="Steps before a budget's end to tell of it.")] = 10
    close: Annotated[int, Field(ge=0, description="Steps before it from which that is a warning.")] = 3
    least: Annotated[int, Field(ge=2, description="Steps that a fit needs.")] = 5
    fit_at: Annotated[
        int, Field(ge=0, description="Tell the fit at this step and its doubles; 0: never.")
    ] = 40


@dataclass(slots=True)
class Line:
    """Least squares over the steps since the last compaction, and sums of the turn. JSON-ready."""

    turn: str = ""
    n: int = 0
    sum_x: float = 0.0
    sum_y: float = 0.0
    sum_xx: float = 0.0
    sum_xy: float = 0.0
    last: int = 0
    steps: int = 0
    """Of the turn, as the next ones."""
    read: int = 0
    written: int = 0
    nano: int | None = 0
    """What the turn cost; None once a part of it is not known."""
    told: list[str] = field(default_factory=list)

    def dump(self) -> dict[str, Any]:
        """As JSON values."""
        return {name: getattr(self, name) for name in self.__slots__}

    def add(self, tokens: int) -> None:
        """One more step that read so many tokens."""
        if self.n and tokens < _SHRANK * self.last:
            self.n, self.sum_x, self.sum_y, self.sum_xx, self.sum_xy = 0, 0.0, 0.0, 0.0, 0.0
            self.told = [key for key in self.told if not key.startswith("window ")]
        x = self.n
        self.n += 1
        self.sum_x += x
        self.sum_y += tokens
        self.sum_xx += x * x
        self.sum_xy += x * tokens
        self.last = tokens

    @property
    def growth(self) -> float:
        """Tokens by which each step reads more than the one before."""
        spread = self.n * self.sum_xx - self.sum_x * self.sum_x
        return (self.n * self.sum_xy - self.sum_x * self.sum_y) / spread if spread else 0.0

    @property
    def start(self) -> float:
        """Tokens that the line begins with."""
        return (self.sum_y - self.growth * self.sum_x) / self.n if self.n else 0.0

    def ahead(self, steps: int) -> float:
        """Tokens that the next ``steps`` steps will read together."""
        growth = max(0.0, self.growth)
        return steps * self.last + growth * steps * (steps + 1) / 2

    def until(self, tokens: float) -> int:
        """How many more steps read no more than this together."""
        growth = max(0.0, self.growth)
        if tokens <= 0:
            return 0
        if growth < 1e-9:
            return min(_FAR, int(tokens // self.last)) if self.last else _FAR
        half = self.last + growth / 2
        return min(_FAR, int((math.sqrt(half * half + 2 * growth * tokens) - half) / growth + 1e-9))

    def first(self, key: str) -> bool:
        """Whether something is told for the first time."""
        if key in self.told:
            return False
        self.told = [*self.told, key][-64:]
        return True


class Growth(Policy):
    """See the module."""

    name = "growth"
    Options = GrowthOptions

    options: GrowthOptions

    def step_end(self, view: View) -> Decision:
        """Take in what the step read, and look ahead."""
        attempt = view.attempt
        usage = attempt.usage if attempt is not None else None
        if attempt is None or usage is None or usage.input_tokens is None or view.kind == "side":
            return Decision()
        if attempt.outcome != "complete":
            return Decision()
        line = Line(**view.memory) if view.memory else Line()
        if line.turn != view.turn:
            line = Line(turn=view.turn)
        line.add(usage.input_tokens)
        line.steps = view.step_index + 1
        line.read += usage.input_tokens
        line.written += usage.output_tokens or 0
        known = attempt.cost.usd is not None and line.nano is not None
        line.nano = (
            (line.nano or 0) + to_nano(attempt.cost.usd) if known and attempt.cost.usd is not None else None
        )
        model = view.request.model if view.request is not None else ""
        findings = [*self._fit(line), *self._window(line, model, usage.output_tokens or 0)]
        if line.n >= self.options.least:
            for balance in (one for one in view.balances.values() if one.scope in _SCOPES):
                findings += self._budget(line, balance, held_on_top(view, line, balance.dimension))
        return Decision(tuple(findings), memory=line.dump())

    def _fit(self, line: Line) -> Iterator[Finding]:
        times, rest = divmod(line.steps, self.options.fit_at) if self.options.fit_at else (0, 0)
        if not times or rest or times & (times - 1) or line.n < self.options.least:
            return
        yield Finding(
            self.name, "fit", "info", {**_line(line), f"read_by_step_{2 * line.steps}": _total(line)}
        )

    def _window(self, line: Line, model: str, written: int) -> Iterator[Finding]:
        window, measured = self._size(model)
        if not window or line.last > window:
            return
        share = (line.last + written) / window
        reached = [mark for mark in sorted(self.options.window_at) if share >= mark]
        if not reached or not line.first(f"window {reached[-1]}"):
            return
        worst = reached[-1] == max(self.options.window_at)
        severity: Severity = "warning" if measured and worst else "info"
        evidence = {"model": model, "window": window, "window_from": "settings" if measured else "table"}
        evidence |= {"tokens": line.last + written, "share": round(share, 3), **_line(line)}
        if line.n >= self.options.least and line.growth > 0:
            evidence["steps_until_full"] = int(max(0, window - line.last - written) / line.growth)
        yield Finding(self.name, "window", severity, evidence)

    def _size(self, model: str) -> tuple[int | None, bool]:
        """The model's context window, and whether the settings say so."""
        own = next((size for glob, size in self.options.windows.items() if fnmatchcase(model, glob)), None)
        if own is not None:
            return own, True
        name = model.rpartition("/")[2]
        return next((size for glob, size in WINDOWS if fnmatchcase(name, glob)), None), False

    def _budget(self, line: Line, balance: Balance, on_top: int) -> Iterator[Finding]:
        steps = steps_left(line, balance, on_top)
        if steps is None or steps > self.options.within:
            return
        near = steps <= self.options.close
        if not line.first(f"{'near' if near else 'end'} {balance.name} {balance.dimension}"):
            return
        evidence = {
            "budget": balance.name,
            "scope": balance.scope,
            "dimension": balance.dimension,
            "limit": public_amount(balance.dimension, balance.limit),
            "used": public_amount(balance.dimension, balance.used),
            "steps_left": steps,
            "last_step": line.steps + steps,
            "read_by_then": line.read + round(line.ahead(steps)),
            "quality": "estimated",
        }
        yield Finding(self.name, "budget", "warning" if near else "info", {**evidence, **_line(line)})


def held_on_top(view: View, line: Line, dimension: str) -> int:
    """What the next step will have held beyond what steps took so far: its worst case must fit, too."""
    request, steps = view.request, max(1, line.steps)
    most = request.max_output_tokens if request is not None else None
    unwritten = max(0, most - line.written // steps) if most is not None else 0
    if dimension in ("output_tokens", "total_tokens"):
        return unwritten
    usage = view.attempt.usage if view.attempt is not None else None
    if dimension != "spend_usd" or view.price is None or usage is None or line.nano is None:
        return 0
    writes = line.last if usage.cache_write_tokens is not None else None
    output = most if most is not None else line.written // steps
    worst = view.price(Usage(input_tokens=line.last, cache_write_tokens=writes, output_tokens=output)).usd
    return max(0, to_nano(worst) - line.nano // steps) if worst is not None else 0


def steps_left(line: Line, balance: Balance, on_top: int = 0) -> int | None:
    """How many more steps a budget lasts; None where it does not depend on this turn's steps.

    None too where more was used than the limit: somebody raised it, and to what is not known.
    """
    if balance.scope not in _SCOPES or balance.used > balance.hard:
        return None
    left, steps = max(0, balance.left - on_top), max(1, line.steps)
    match balance.dimension:
        case "steps":
            return left
        case "input_tokens":
            return line.until(left)
        case "output_tokens":
            return left * steps // line.written if line.written else None
        case "total_tokens":
            return line.until(left * line.read / max(1, line.read + line.written))
        case "spend_usd":
            return line.until(left * line.read / line.nano) if line.nano else None
        case _:
            return None


def _line(line: Line) -> dict[str, Any]:
    return {
        "start": round(line.start),
        "growth_per_step": round(line.growth, 1),
        "fitted_steps": line.n,
        "read": line.read,
    }


def _total(line: Line) -> int:
    return line.read + round(line.ahead(line.steps))
