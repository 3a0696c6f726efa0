"""From records to the public tree: sessions, threads, turns, steps, findings.

The only place that knows the JSON of ``looptap replay --json``. Reads nothing but ``Record``s, in
their order, so that a tree of a live run (records from the store) and of a replay (records in
memory) are built by the same code. ``Forest`` is fed record by record and may be asked for its
tree at any time; it holds what the tree says and no content.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from proxy.model import QUALITIES, TOKENS, Record, rfc3339

_EVIDENCE = ("prefix", "content", "call_ids", "hint")
"""Strongest first: a thread is reported with the weakest that any of its requests needed."""


@dataclass(slots=True)
class _Step:
    id: str
    model: str | None = None
    started_ns: int = 0
    ended_ns: int = 0
    started: bool = False
    attempts: dict[int, dict[str, Any]] = field(default_factory=dict)
    calls: dict[int, list[dict[str, Any]]] = field(default_factory=dict)
    results: list[dict[str, Any]] = field(default_factory=list)
    findings: list[int] = field(default_factory=list)


@dataclass(slots=True)
class _Turn:
    id: str
    cause: str | None = None
    by: str | None = None
    open: bool = True
    started_ns: int = 0
    ended_ns: int = 0
    steps: dict[str, _Step] = field(default_factory=dict)


@dataclass(slots=True)
class _Thread:
    id: str
    facts: dict[str, Any] = field(default_factory=dict)
    matched_by: str = "prefix"
    turns: dict[str, _Turn] = field(default_factory=dict)


@dataclass(slots=True)
class _Session:
    id: str
    facts: dict[str, Any] = field(default_factory=dict)
    started_ns: int = 0
    threads: dict[str, _Thread] = field(default_factory=dict)


class Forest:
    """The sessions of some records. Feed it, ask it."""

    def __init__(self, records: Iterable[Record] = ()) -> None:
        self.sessions: dict[str, _Session] = {}
        self.findings: list[dict[str, Any]] = []
        self.feed(records)

    def feed(self, records: Iterable[Record]) -> None:
        """Take further records, in order."""
        for record in records:
            self.add(record)

    def add(self, record: Record) -> None:
        """Take one record. What the tree does not show is passed over."""
        if record.session is None:
            return
        session = self.sessions.get(record.session)
        if session is None:
            session = self.sessions[record.session] = _Session(record.session, started_ns=record.time_ns)
        if record.type == "session/start":
            session.facts = dict(record.data)
        if record.thread is None:
            return
        thread = session.threads.setdefault(record.thread, _Thread(record.thread))
        if record.type == "thread/start":
            thread.facts.update(record.data)
            thread.matched_by = str(record.data.get("matched_by", "prefix"))
        if record.turn is None:
            return
        turn = thread.turns.setdefault(record.turn, _Turn(record.turn, started_ns=record.time_ns))
        turn.ended_ns = max(turn.ended_ns, record.time_ns)
        if record.type == "turn/resume":
            turn.open, turn.cause, turn.by = True, None, None
        elif record.type == "turn/end":
            turn.open = False
            turn.cause, turn.by = record.data.get("cause"), record.data.get("by")
        if record.type == "finding":
            self._finding(record, turn)
        elif record.step is not None:
            self._step(record, thread, turn)

    def _step(self, record: Record, thread: _Thread, turn: _Turn) -> None:
        assert record.step is not None
        step = turn.steps.get(record.step)
        if step is None:
            step = turn.steps[record.step] = _Step(record.step, started_ns=record.time_ns)
        data = record.data
        if record.type == "step/start":
            step.started, step.started_ns = True, record.time_ns
            step.model = data.get("model")
            by = str(data.get("matched_by", "prefix"))
            if by in _EVIDENCE and _EVIDENCE.index(by) > _EVIDENCE.index(thread.matched_by):
                thread.matched_by = by
        elif record.type == "step/attempt":
            step.attempts[int(data["attempt"])] = dict(data)
            step.ended_ns = max(step.ended_ns, record.time_ns)
        elif record.type == "item":
            self._item(step, data)

    @staticmethod
    def _item(step: _Step, data: Any) -> None:
        if data.get("direction") == "out":
            if data.get("kind") == "tool_call" and not data.get("server"):
                call = {"id": data.get("call_id"), "name": data.get("tool")}
                step.calls.setdefault(int(data.get("attempt", 0)), []).append(call)
        elif data.get("kind") == "tool_result" and not data.get("server"):
            step.results.append({"id": data.get("call_id"), "is_error": bool(data.get("is_error"))})

    def _finding(self, record: Record, turn: _Turn) -> None:
        data = record.data
        finding: dict[str, Any] = {key: data.get(key) for key in ("policy", "kind", "severity")}
        if data.get("consequence") is not None:
            finding["consequence"] = data["consequence"]
        finding["exchange"] = data.get("number")
        finding["step"] = record.step
        finding["path"] = data.get("path")
        finding["evidence"] = data.get("evidence", {})
        if record.step is not None:
            step = turn.steps.get(record.step)
            if step is None:
                step = turn.steps[record.step] = _Step(record.step, started_ns=record.time_ns)
            step.findings.append(len(self.findings))
        self.findings.append(finding)

    def tree(self, unmodelled: Iterable[int] = ()) -> dict[str, Any]:
        """The object of ``looptap replay --json``."""
        return {
            "sessions": [self.session(id) for id in self.sessions],
            "findings": self.findings,
            "unmodelled": sorted(unmodelled),
        }

    def session(self, id: str, *, more: bool = False) -> dict[str, Any]:
        """One session; ``more`` adds what the reading commands show beside the contract's keys."""
        session = self.sessions[id]
        tree: dict[str, Any] = {
            "id": id,
            "threads": [_thread(session, thread, more) for thread in session.threads.values()],
        }
        if more:
            tree["started_at"] = rfc3339(session.started_ns)
            tree["client"] = session.facts.get("client") or None
            tree["labels"] = session.facts.get("labels", {})
        return tree

    def turns(self) -> list[dict[str, Any]]:
        """All turns with where and when they ran, newest first (``looptap turns --json``)."""
        found = [
            (turn.started_ns, _turn(session, thread, turn, True))
            for session in self.sessions.values()
            for thread in session.threads.values()
            for turn in thread.turns.values()
        ]
        return [tree for _, tree in sorted(found, key=lambda pair: pair[0], reverse=True)]

    def turn(self, id: str) -> dict[str, Any] | None:
        """One turn by its id, with where and when it ran."""
        for session in self.sessions.values():
            for thread in session.threads.values():
                if id in thread.turns:
                    return _turn(session, thread, thread.turns[id], True)
        return None


def _thread(session: _Session, thread: _Thread, more: bool) -> dict[str, Any]:
    tree: dict[str, Any] = {"id": thread.id}
    if thread.facts.get("parent") is not None:
        tree["parent"] = thread.facts["parent"]
    tree["kind"] = thread.facts.get("kind", "unknown")
    tree["partial"] = bool(thread.facts.get("partial"))
    tree["matched_by"] = thread.matched_by
    if more and thread.facts.get("agent") is not None:
        tree["agent"] = thread.facts["agent"]
    tree["turns"] = [_turn(session, thread, turn, more) for turn in thread.turns.values()]
    return tree


def _turn(session: _Session, thread: _Thread, turn: _Turn, more: bool) -> dict[str, Any]:
    usage: dict[str, int] = {}
    costs: list[dict[str, Any]] = []
    for step in turn.steps.values():
        for attempt in step.attempts.values():
            _add(usage, attempt.get("usage", {}))
            costs.append(attempt)
    cost, quality = _cost(costs)
    tree: dict[str, Any] = {
        "id": turn.id,
        "cause": turn.cause,
        "open": turn.open,
        "usage": usage,
        "cost_usd": cost,
        "cost_quality": quality,
    }
    if turn.by is not None:
        tree["by"] = turn.by
    if more:
        tree["session"], tree["thread"] = session.id, thread.id
        tree["started_at"] = rfc3339(turn.started_ns)
        if not turn.open:
            tree["ended_at"] = rfc3339(turn.ended_ns)
        tree["agent"] = thread.facts.get("agent") or session.facts.get("client") or None
        tree["labels"] = session.facts.get("labels", {})
    tree["steps"] = [_step(step) for step in turn.steps.values() if step.started]
    return tree


def _step(step: _Step) -> dict[str, Any]:
    usage: dict[str, int] = {}
    attempts = [step.attempts[number] for number in sorted(step.attempts)]
    for attempt in attempts:
        _add(usage, attempt.get("usage", {}))
    good = [attempt for attempt in attempts if attempt.get("outcome") == "complete"]
    told = (good or attempts or [{}])[-1]
    cost, quality = _cost(attempts)
    return {
        "id": step.id,
        "exchanges": [attempt.get("number") for attempt in attempts],
        "model": told.get("model") or step.model,
        "stop_reason": told.get("stop_reason"),
        "tool_calls": step.calls.get(int(told.get("attempt", 0)), []),
        "tool_results": step.results,
        "usage": usage,
        "cost_usd": cost,
        "cost_quality": quality,
        "findings": step.findings,
    }


def _add(total: dict[str, int], usage: Any) -> None:
    for key in TOKENS:
        if usage.get(key) is not None:
            total[key] = total.get(key, 0) + int(usage[key])


def _cost(attempts: Iterable[dict[str, Any]]) -> tuple[str | None, str]:
    """The exact sum, and the worst quality among its parts; null where a part is not known."""
    total, worst = Decimal(0), 0
    for attempt in attempts:
        worst = max(worst, QUALITIES.index(attempt.get("cost_quality") or "unpriced"))
        if attempt.get("cost_usd") is not None:
            total += Decimal(attempt["cost_usd"])
    quality = QUALITIES[worst]
    return (None if quality == "unpriced" else format(total, "f")), quality
