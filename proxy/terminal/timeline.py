"""What a tree is drawn from: the public JSON of sessions, read into spans of time.

The one reader of that JSON on the drawing side. Everything optional in it is optional here: a
tree without times (a log that had none) is still a tree. Times are microseconds since the epoch.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from proxy.terminal.wording import decimal, moment

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Attempt:
    """One try of a step: waited until ``first``, streamed until ``ended``."""

    outcome: str
    began: int | None
    first: int | None
    ended: int | None
    why: str
    """What failed, in the provider's words or the wire's; empty when nothing did."""
    refused: Json | None = None
    """What of ours ended it."""
    step: str = ""
    """Whose attempt it was, where it stands for itself."""
    waited: int = 0
    """How long for an operator, before it went out."""


@dataclass(frozen=True, slots=True)
class ToolRun:
    """A call the client answered (or owes): from the call's last byte to the result's arrival."""

    name: str
    arguments: str
    began: int | None
    ended: int | None
    answered: bool
    failed: bool


@dataclass(frozen=True, slots=True)
class Step:
    """A step with what it waited for, ready to be laid on a bar."""

    id: str
    json: Json
    began: int | None
    ended: int | None
    attempts: Sequence[Attempt]
    tools: Sequence[ToolRun]
    findings: Sequence[Json]

    @property
    def took(self) -> int | None:
        """From the request's arrival until the last result was in."""
        known = self.began is not None and self.ended is not None and self.ended != self.began
        return (self.ended or 0) - (self.began or 0) if known else None

    @property
    def cost(self) -> Decimal | None:
        """Known money only."""
        return decimal(self.json.get("cost_usd"))

    @property
    def failed(self) -> bool:
        """No attempt brought a whole reply."""
        return bool(self.attempts) and all(a.outcome != "complete" for a in self.attempts)


@dataclass(frozen=True, slots=True)
class Turn:
    """A turn and its steps."""

    id: str
    json: Json
    steps: Sequence[Step]
    began: int | None
    ended: int | None
    refusals: Sequence[Attempt] = ()
    """Attempts that we refused or cut, of steps that went out and of some that did not."""


@dataclass(slots=True)
class Thread:
    """A thread, with the threads that it started."""

    id: str
    json: Json
    turns: Sequence[Turn]
    children: "list[Thread]" = field(default_factory=list)

    @property
    def began(self) -> int | None:
        """When its first request came."""
        return next((t.began for t in self.turns if t.began is not None), None)


@dataclass(frozen=True, slots=True)
class Session:
    """A session and its root threads (the others hang below them)."""

    id: str
    json: Json
    roots: Sequence[Thread]
    threads: Sequence[Thread]


def read_session(session: Json, findings: Sequence[Json]) -> Session:
    """A session of the public tree; steps may name findings by their index into ``findings``."""
    threads = [read_thread(t, findings) for t in _objects(session.get("threads"))]
    by_id = {t.id: t for t in threads}
    roots = []
    for thread in threads:
        parent = by_id.get(str(thread.json.get("parent")))
        if parent is None or _is_below(parent, thread, by_id):
            roots.append(thread)
        else:
            parent.children.append(thread)
    return Session(str(session.get("id", "")), session, roots, threads)


def read_thread(thread: Json, findings: Sequence[Json]) -> Thread:
    """A thread of the public tree."""
    turns = [read_turn(t, findings) for t in _objects(thread.get("turns"))]
    return Thread(str(thread.get("id", "")), thread, turns)


def read_turn(turn: Json, findings: Sequence[Json]) -> Turn:
    """A turn of the public tree."""
    steps = [read_step(s, findings) for s in _objects(turn.get("steps"))]
    began = _first([moment(turn.get("started_at")), *(s.began for s in steps)])
    ended = _last([moment(turn.get("ended_at")), *(s.ended for s in steps)])
    refusals = [_attempt(a) for a in _objects(turn.get("refusals"))]
    return Turn(str(turn.get("id", "")), turn, steps, began, ended, refusals)


def read_step(step: Json, findings: Sequence[Json]) -> Step:
    """A step of the public tree."""
    attempts = [_attempt(a) for a in _objects(step.get("attempts"))]
    tools = _tools(step, attempts)
    times = [moment(step.get("ended_at")), *(a.ended for a in attempts), *(t.ended for t in tools)]
    went_out = [a for a in attempts if a.outcome != "refused"]  # between a refusal and a top-up nothing ran
    began = _first([moment(step.get("started_at")), *(a.began for a in went_out or attempts)])
    return Step(
        id=str(step.get("id", "")),
        json=step,
        began=began,
        ended=_last(times),
        attempts=attempts,
        tools=tools,
        findings=_findings(step, findings),
    )


def _attempt(attempt: Json) -> Attempt:
    error = attempt.get("error")
    status = attempt.get("status")
    words = [str(status)] if isinstance(status, int) and status >= 400 else []
    if isinstance(error, Mapping):
        said = [str(error[k]) for k in ("type", "message") if error.get(k)]
        words.append(": ".join(said))
    elif error:
        words.append(str(error))
    elif attempt.get("failure"):
        words.append(str(attempt["failure"]))
    return Attempt(
        outcome=str(attempt.get("outcome", "")),
        began=moment(attempt.get("started_at")),
        first=moment(attempt.get("first_output_at")),
        ended=moment(attempt.get("ended_at")),
        why=" ".join(w for w in words if w),
        refused=refused if isinstance(refused := attempt.get("refused"), Mapping) else None,
        step=str(attempt.get("step") or ""),
        waited=round(waited * 1e6) if isinstance(waited := attempt.get("waited_s"), (int, float)) else 0,
    )


def _tools(step: Json, attempts: Sequence[Attempt]) -> list[ToolRun]:
    """Calls with their results, paired by id; what is left (ids that a client made up) in order."""
    calls = list(_objects(step.get("tool_calls")))
    results = list(_objects(step.get("tool_results")))
    answers: dict[int, Json] = {}
    for place, call in enumerate(calls):
        result = next((r for r in results if call.get("id") and r.get("id") == call.get("id")), None)
        if result is not None:
            results.remove(result)
            answers[place] = result
    waiting = [place for place in range(len(calls)) if place not in answers]
    answers.update(zip(waiting, results, strict=False))
    replied = _last(a.ended for a in attempts)
    return [_tool(call, answers.get(place), replied) for place, call in enumerate(calls)]


def _tool(call: Json, result: Json | None, replied: int | None) -> ToolRun:
    said = moment(call.get("completed_at"))
    return ToolRun(
        name=str(call.get("name") or ""),
        arguments=str(call.get("arguments") or ""),
        began=said if said is not None else replied,
        ended=moment(result.get("arrived_at")) if result is not None else None,
        answered=result is not None,
        failed=bool(result is not None and result.get("is_error")),
    )


def _findings(step: Json, findings: Sequence[Json]) -> list[Json]:
    out: list[Json] = []
    for entry in step.get("findings") or ():
        if isinstance(entry, Mapping):
            out.append(entry)
        elif isinstance(entry, int) and 0 <= entry < len(findings):
            out.append(findings[entry])
    return out


def _is_below(thread: Thread, above: Thread, by_id: Mapping[str, Thread]) -> bool:
    """Whether ``thread`` hangs below ``above``: a circle in the input must not hide a session."""
    seen: set[str] = set()
    at: Thread | None = thread
    while at is not None and at.id not in seen:
        if at is above:
            return True
        seen.add(at.id)
        at = by_id.get(str(at.json.get("parent")))
    return at is not None


def _objects(value: Any) -> Iterable[Json]:
    return (v for v in value if isinstance(v, Mapping)) if isinstance(value, (list, tuple)) else ()


def _first(times: Iterable[int | None]) -> int | None:
    return min((t for t in times if t is not None), default=None)


def _last(times: Iterable[int | None]) -> int | None:
    return max((t for t in times if t is not None), default=None)
