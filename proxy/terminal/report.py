"""What many turns have in common: per agent, model and tool, from Records alone. Pure.

``Report`` is fed record by record and keeps a few numbers per turn, so that ten thousand turns fit
easily. What it means by its words:

- A turn *completed* when the agent came to its own end. That says nothing about whether the work is
  right, so nothing in here is called a success.
- A turn *failed* when something ended it that it did not choose: an error, a limit of the provider,
  a budget, a policy. ``interrupted``, ``superseded`` and ``abandoned`` are the user's doing: such a
  turn counts with the steps that went well, not as a failure.
- *Failure rate per step*: failures / steps of all ended turns, the estimate for a constant hazard.
  *Half-life*: the number of steps after which half of all turns would have failed. Both say little where
  there were few failures, so their number is given, too.
- *Cost per completed turn*: everything the turns cost, also the failed ones, their sub-agents and
  side calls, divided by those that completed.
- *Predictions*: how often a provider did what a policy foresaw of reasoning that came back
  (``verdict.Agreement``).
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from proxy.model import QUALITIES, TOKENS, Record, rfc3339
from proxy.terminal.wording import decimal
from proxy.verdict import VERDICTS, Agreement

TYPES = (
    "session/start", "thread/start", "turn/start", "turn/resume", "step/start", "step/attempt", "item",
    "step/end", "turn/end", "finding", "intervention",
)  # fmt: skip
"""What it is made of."""
_LEFT = frozenset({"completed", "interrupted", "superseded", "abandoned"})
"""Ends that are no failure."""
_NO_FLAG = frozenset({"openai_chat", "openai_responses"})
"""Dialects in which a result has no mark for an error: only what is marked all the same is known."""


_Told = tuple[int, str, str | None, Mapping[str, Any]]


@dataclass(slots=True)
class Bill:
    """Money and tokens, summed up. What has no price is counted, not guessed."""

    usd: Decimal = Decimal(0)
    quality: int = 0
    """The worst among the priced parts."""
    priced: int = 0
    unpriced: int = 0
    tokens: Counter[str] = field(default_factory=Counter)

    def add(self, other: "Bill") -> None:
        """Take in another bill."""
        self.usd += other.usd
        self.quality = max(self.quality, other.quality)
        self.priced += other.priced
        self.unpriced += other.unpriced
        for name, number in other.tokens.items():
            self.tokens[name] += number

    def take(self, attempt: Mapping[str, Any]) -> None:
        """Take in what an attempt cost."""
        cost, quality = decimal(attempt.get("cost_usd")), attempt.get("cost_quality")
        if cost is None or quality not in QUALITIES or quality == "unpriced":
            self.unpriced += 1
        else:
            self.usd += cost
            self.priced += 1
            self.quality = max(self.quality, QUALITIES.index(quality))
        usage = attempt.get("usage") or {}
        for name in TOKENS:
            if isinstance(number := usage.get(name), int):
                self.tokens[name] += number


@dataclass(slots=True)
class _Turn:
    """What is kept of a turn."""

    started_ns: int
    thread: str
    session: str
    cause: str | None = None
    open: bool = True
    steps: int = 0
    models: Counter[str] = field(default_factory=Counter)
    own: Bill = field(default_factory=Bill)
    breaks: int = 0
    breaks_usd: Decimal | None = None
    tools: Counter[str] = field(default_factory=Counter)


@dataclass(slots=True)
class _Tool:
    """Counts of one tool over all turns."""

    calls: int = 0
    answered: int = 0
    errors: int = 0
    telling: int = 0
    """Answers whose wire says whether they are errors."""
    turns: list[int] = field(default_factory=list)
    """Calls per turn that used it."""
    findings: Counter[str] = field(default_factory=Counter)


class Report:
    """Feed it records, in order; then ask for the tables. ``since_ns`` leaves out older turns."""

    def __init__(self, since_ns: int = 0, records: Iterable[Record] = ()) -> None:
        self.since_ns = since_ns
        self._clients: dict[str, str] = {}
        self._threads: dict[str, Mapping[str, Any]] = {}
        self._turns: dict[str, _Turn] = {}
        self._results: dict[str, list[tuple[str | None, str | None, bool]]] = {}
        self._tools: dict[str, _Tool] = {}
        self._old: set[str] = set()
        self._agreement = Agreement()
        self._verdicts: dict[str, Counter[str]] = {}
        for record in records:
            self.add(record)

    # -- taking in

    def add(self, record: Record) -> None:
        """Take one record. What the report does not tell is passed over."""
        told = (record.time_ns, record.type, record.step, record.data)
        self.take(record.session, record.thread, record.turn, (told,))

    def take(
        self, session: str | None, thread: str | None, turn: str | None, events: Iterable[_Told]
    ) -> None:
        """Take what is told together of one turn: time, type, step and data of each event."""
        if turn is None:
            for _, kind, _, data in events:
                if kind == "session/start" and session is not None:
                    self._clients[session] = str(data.get("client") or "")
                elif kind == "thread/start" and thread is not None:
                    keep = ("kind", "dialect", "parent_turn")
                    self._threads[thread] = {name: data[name] for name in keep if data.get(name)}
        elif turn not in self._old:
            state = self._turns.get(turn)
            for time_ns, kind, step, data in events:
                if state is None:
                    if time_ns < self.since_ns:
                        self._old.add(turn)
                        return
                    state = self._turns[turn] = _Turn(time_ns, thread or "", session or "")
                self._of_turn(state, kind, step or "", data)

    def _of_turn(self, turn: _Turn, kind: str, step: str, data: Mapping[str, Any]) -> None:
        match kind:
            case "item":
                if data.get("kind") == "tool_result" and data.get("direction") == "in" and step:
                    found = (data.get("call_id"), data.get("tool"), bool(data.get("is_error")))
                    self._results.setdefault(step, []).append(found)
            case "step/start":
                turn.steps += 1
            case "step/attempt":
                turn.own.take(data)
                if data.get("outcome") == "complete" and data.get("model"):
                    turn.models[str(data["model"])] += 1
                self._compare(kind, data)
            case "step/end":
                self._calls(turn, step, data)
            case "turn/resume":
                turn.open, turn.cause = True, None
            case "turn/end":
                turn.open, turn.cause = False, data.get("cause")
            case "intervention":
                self._compare(kind, data)
            case "finding":
                self._compare(kind, data)
                self._finding(turn, data)

    def _compare(self, kind: str, data: Mapping[str, Any]) -> None:
        for policy, verdict in self._agreement.take(kind, data):
            self._verdicts.setdefault(policy, Counter())[verdict] += 1

    def _calls(self, turn: _Turn, step: str, data: Mapping[str, Any]) -> None:
        """The calls of a step that is over, with their results."""
        results = self._results.pop(step, [])
        telling = self._threads.get(turn.thread, {}).get("dialect") not in _NO_FLAG
        for call in data.get("tool_calls", ()):
            name = str(call.get("name") or "")
            tool = self._tools.setdefault(name, _Tool())
            tool.calls += 1
            turn.tools[name] += 1
            result = _take(results, call.get("id"), name)
            if result is None:
                continue
            tool.answered += 1
            tool.errors += result[2]
            tool.telling += telling or result[2]

    def _finding(self, turn: _Turn, data: Mapping[str, Any]) -> None:
        evidence = data.get("evidence") or {}
        if data.get("policy") == "history" and data.get("kind") == "cache_lost":
            turn.breaks += 1
            if (cost := decimal(evidence.get("cost_usd"))) is not None:
                turn.breaks_usd = (turn.breaks_usd or Decimal(0)) + cost
        if data.get("policy") in ("repeats", "tool_errors") and isinstance(evidence.get("tool"), str):
            tool = self._tools.setdefault(evidence["tool"], _Tool())
            tool.findings[f"{data['policy']}/{data.get('kind')}"] += 1

    # -- telling

    def tables(self) -> dict[str, Any]:
        """The object of ``looptap report --json``."""
        shown = [turn for turn in self._turns.values() if self._kind(turn) != "side"]
        whole, loose = self._rolled_up()
        agents: dict[tuple[str, str], list[str]] = {}
        models: dict[str, list[str]] = {}
        for id, turn in self._turns.items():
            if self._kind(turn) == "side":
                continue
            agents.setdefault((self._clients.get(turn.session, ""), self._kind(turn)), []).append(id)
            models.setdefault(_main_model(turn), []).append(id)
        total = Bill()
        for turn in self._turns.values():
            total.add(turn.own)
        return {
            **({"since": rfc3339(self.since_ns)} if self.since_ns else {}),
            "turns": len(shown),
            "steps": sum(turn.steps for turn in shown),
            **_bill(total),
            "side_calls": {"turns": len(self._turns) - len(shown), "without_a_turn": _bill(loose)},
            "agents": [
                {"agent": name or None, "kind": kind, **self._row(ids, whole)}
                for (name, kind), ids in _largest(agents)
            ],
            "models": [{"model": name or None, **self._row(ids, whole)} for name, ids in _largest(models)],
            "tools": self._tool_rows(shown),
            "predictions": [
                {"policy": policy, **{name: counts[name] for name in VERDICTS}}
                for policy, counts in sorted(self._verdicts.items())
            ],
        }

    def _kind(self, turn: _Turn) -> str:
        return str(self._threads.get(turn.thread, {}).get("kind", "unknown"))

    def _rolled_up(self) -> tuple[dict[str, Bill], Bill]:
        """What each turn cost with everything below it, and the side calls that belong to no turn."""
        whole: dict[str, Bill] = {}
        loose = Bill()
        for id, turn in self._turns.items():
            at: str | None = id
            for _ in range(32):  # sub-agents of sub-agents; a loop would be a fault of the record
                if at is None or at not in self._turns:
                    break
                if at != id or self._kind(turn) != "side":
                    whole.setdefault(at, Bill()).add(turn.own)
                at = self._threads.get(self._turns[at].thread, {}).get("parent_turn")
            parent = self._threads.get(turn.thread, {}).get("parent_turn")
            if self._kind(turn) == "side" and parent not in self._turns:
                loose.add(turn.own)
        return whole, loose

    def _row(self, ids: Sequence[str], whole: Mapping[str, Bill]) -> dict[str, Any]:
        turns = [self._turns[id] for id in ids]
        ended = [turn for turn in turns if not turn.open]
        completed = sum(turn.cause == "completed" for turn in ended)
        own, rolled = Bill(), Bill()
        for id in ids:
            own.add(self._turns[id].own)
            rolled.add(whole.get(id, Bill()))
        breaks = [turn.breaks_usd for turn in turns if turn.breaks_usd is not None]
        return {
            "turns": len(turns),
            "open": len(turns) - len(ended),
            "completed": completed,
            "steps": _spread([turn.steps for turn in ended if turn.steps]),
            **hazard([(turn.steps, turn.cause not in _LEFT) for turn in ended]),
            "causes": _shares([turn.cause or "unknown" for turn in ended]),
            **_bill(own),
            "cached_share": _share(own.tokens["cache_read_tokens"], own.tokens["input_tokens"]),
            "cost_per_completed_turn_usd": _per(rolled, completed),
            "cache_breaks": sum(turn.breaks for turn in turns),
            "cache_breaks_usd": format(sum(breaks, Decimal(0)), "f") if breaks else None,
        }

    def _tool_rows(self, turns: Sequence[_Turn]) -> list[dict[str, Any]]:
        per_turn: dict[str, list[int]] = {}
        for turn in turns:
            for name, calls in turn.tools.items():
                per_turn.setdefault(name, []).append(calls)
        rows = []
        for name, tool in sorted(self._tools.items(), key=lambda pair: (-pair[1].calls, pair[0])):
            rows.append(
                {
                    "tool": name or None,
                    "turns": len(per_turn.get(name, ())),
                    "calls": tool.calls,
                    "calls_per_turn": _spread(per_turn.get(name, [])),
                    "answered": tool.answered,
                    "errors": tool.errors if tool.telling else None,
                    "told": tool.telling,
                    "error_rate": _share(tool.errors, tool.telling),
                    "findings": dict(sorted(tool.findings.items())),
                }
            )
        return rows


def hazard(turns: Iterable[tuple[int, bool]]) -> dict[str, Any]:
    """Failures, their rate per step and the half-life in steps, of (steps, failed) pairs."""
    steps = failures = 0
    for length, failed in turns:
        if length:  # a turn that was refused before its first step says nothing about steps
            steps += length
            failures += failed
    rate = min(1.0, failures / steps) if steps else None
    half: float | None = None
    if rate:
        half = round(math.log(0.5) / math.log1p(-rate), 1) if rate < 1 else 0.0
    return {
        "failures": failures,
        "failure_rate_per_step": None if rate is None else float(f"{rate:.4g}"),
        "half_life_steps": half,
    }


def _take(
    results: list[tuple[str | None, str | None, bool]], id: str | None, tool: str
) -> tuple[str | None, str | None, bool] | None:
    """The result of a call, taken out: by id, else by name, else the next one."""
    found = next((one for one in results if id is not None and one[0] == id), None)
    if found is None and id is None:
        found = next((one for one in results if one[1] == tool), results[0] if results else None)
    if found is not None:
        results.remove(found)
    return found


def _spread(values: Sequence[int]) -> dict[str, Any]:
    """Median and 90th percentile by nearest rank, so that each is a value that occurred."""
    if not values:
        return {"median": None, "p90": None, "most": None}
    ranked = sorted(values)

    def rank(share: float) -> int:
        return ranked[max(0, math.ceil(share * len(ranked)) - 1)]

    return {"median": rank(0.5), "p90": rank(0.9), "most": ranked[-1]}


def _shares(causes: Sequence[str]) -> dict[str, float]:
    counts = Counter(causes)
    return {cause: round(number / len(causes), 4) for cause, number in counts.most_common()}


def _share(part: int, whole: int) -> float | None:
    return round(part / whole, 4) if whole else None


def _bill(bill: Bill) -> dict[str, Any]:
    known = bill.priced > 0 or not bill.unpriced
    return {
        "usage": {name: bill.tokens[name] for name in TOKENS if name in bill.tokens},
        "cost_usd": format(bill.usd, "f") if known else None,
        "cost_quality": QUALITIES[bill.quality] if known else "unpriced",
        "unpriced_attempts": bill.unpriced,
    }


def _per(bill: Bill, turns: int) -> str | None:
    """None too where a part of the cost is not known: an average of the rest would be too low."""
    if not turns or bill.unpriced:
        return None
    return format((bill.usd / turns).quantize(Decimal("0.000001")), "f")


def _main_model(turn: _Turn) -> str:
    """The model that answered most of a turn's steps."""
    return turn.models.most_common(1)[0][0] if turn.models else ""


def _largest(groups: Mapping[Any, list[str]]) -> list[tuple[Any, list[str]]]:
    return sorted(groups.items(), key=lambda pair: (-len(pair[1]), str(pair[0])))
