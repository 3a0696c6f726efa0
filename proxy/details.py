"""What a drawing shows beside the public tree: attempts, times, arguments, epochs.

``trees`` builds the contract's JSON; this adds to the very same objects what ``looptap show``
wants and the contract leaves open. Fed with the same ``Record``s in the same order. Previews are
there only where the record may hold content.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from proxy.model import Record, rfc3339

Json = dict[str, Any]


@dataclass(slots=True)
class _Step:
    facts: Json = field(default_factory=dict)
    started: bool = False
    attempts: dict[int, Json] = field(default_factory=dict)
    calls: dict[int, list[Json]] = field(default_factory=dict)
    results: list[Json] = field(default_factory=list)
    nudges: list[Json] = field(default_factory=list)
    repairs: list[Json] = field(default_factory=list)
    ends: dict[str, Json] = field(default_factory=dict)
    """What a policy wanted to end, by the exchange that it was asked about."""
    passed: set[str] = field(default_factory=set)
    """Exchanges that were over and that nothing of ours had ended."""
    last_ns: int = 0


class Details:
    """Collects from records, then completes trees."""

    def __init__(self, records: Iterable[Record] = ()) -> None:
        self._steps: dict[str, _Step] = {}
        self._refusals: dict[str, list[Json]] = {}
        self._threads: dict[str, Json] = {}
        for record in records:
            self.add(record)

    def add(self, record: Record) -> None:
        """Take one record; what no drawing shows is passed over."""
        data = record.data
        if record.type == "thread/start" and record.thread is not None:
            self._threads[record.thread] = {k: data[k] for k in ("parent_turn", "agent") if data.get(k)}
        if record.step is None:
            return
        step = self._steps.setdefault(record.step, _Step())
        if record.type == "step/start":
            step.started = True
            step.facts = {k: data[k] for k in ("index", "epoch") if data.get(k) is not None}
            step.facts["started_at"] = rfc3339(record.time_ns)
        elif record.type == "step/attempt":
            attempt = _attempt(data)
            step.attempts[int(data["attempt"])] = attempt
            step.last_ns = max(step.last_ns, record.time_ns)
            if data.get("outcome") != "refused" and "refused" not in attempt:
                step.passed.add(str(data.get("exchange")))
            elif record.turn is not None:
                self._refusals.setdefault(record.turn, []).append({"step": record.step, **attempt})
        elif record.type == "intervention" and data.get("kind") in ("deny", "message", "cut"):
            step.ends[str(data.get("exchange"))] = {
                **{k: v for k, v in data.items() if k not in ("exchange", "number", "kind")},
                "action": data["kind"],
            }
        elif record.type == "intervention" and data.get("kind") in ("nudge", "land"):
            text = (data.get("quotes") or {}).get("text")
            last = {"last": dict(data)} if data["kind"] == "land" else {}
            step.nudges.append({"policy": data.get("policy"), **({"text": text} if text else {}), **last})
        elif record.type == "intervention" and data.get("kind") == "repair":
            step.repairs.append({k: data[k] for k in ("policy", "reply", "blocks", "paths") if k in data})
        elif record.type == "item":
            _item(step, record)

    def complete(self, session: Json) -> Json:
        """Add the details to a session's tree, in place; the tree, for chaining."""
        for thread in session.get("threads", ()):
            for key, value in self._threads.get(thread["id"], {}).items():
                thread.setdefault(key, value)
            for turn in thread["turns"]:
                self.complete_turn(turn)
        return session

    def complete_turn(self, turn: Json) -> Json:
        """The same for a turn alone."""
        for step in turn["steps"]:
            self._complete_step(step)
        if turn["id"] in self._refusals:
            turn["refusals"] = self._refusals[turn["id"]]
        return turn

    def _complete_step(self, step: Json) -> None:
        known = self._steps.get(step["id"])
        if known is None:
            return
        step.update(known.facts)
        if known.nudges:
            step["nudges"] = known.nudges
        if known.repairs:
            step["repairs"] = known.repairs
        if would := [why for exchange, why in known.ends.items() if exchange in known.passed]:
            step["would_end"] = would  # a replay under other settings: the answer was there already
        step["attempts"] = [known.attempts[n] for n in sorted(known.attempts)]
        if known.last_ns:
            step["ended_at"] = rfc3339(known.last_ns)
        good = [n for n, a in known.attempts.items() if a["outcome"] == "complete"]
        told = max(good or known.attempts or [0])
        for call, more in zip(step["tool_calls"], known.calls.get(told, ()), strict=False):
            call.update(more)
        arrived = list(known.results)
        for result in step["tool_results"]:
            match = next((r for r in arrived if r["id"] == result["id"]), None)
            if match is not None:
                arrived.remove(match)
                result["arrived_at"] = match["arrived_at"]


def _attempt(data: Any) -> Json:
    attempt = {
        k: data[k] for k in ("outcome", "status", "error", "failure", "refused") if data.get(k) is not None
    }
    attempt["cost_usd"], attempt["cost_quality"] = data.get("cost_usd"), data.get("cost_quality")
    for key, time in (
        ("started_at", "arrived_ns"),
        ("first_output_at", "first_output_ns"),
        ("ended_at", "ended_ns"),
    ):
        if data.get(time) is not None:
            attempt[key] = rfc3339(data[time])
    if data.get("waited_ns"):
        attempt["waited_s"] = round(data["waited_ns"] / 1e9, 3)
    return attempt


def _item(step: _Step, record: Record) -> None:
    data = record.data
    if data.get("server"):
        return
    if data.get("kind") == "tool_call" and data.get("direction") == "out":
        call: Json = {"completed_at": rfc3339(record.time_ns)}
        if data.get("preview"):
            call["arguments"] = data["preview"]
        step.calls.setdefault(int(data.get("attempt", 0)), []).append(call)
    elif data.get("kind") == "tool_result" and data.get("direction") == "in":
        step.results.append({"id": data.get("call_id"), "arrived_at": rfc3339(record.time_ns)})
        step.last_ns = max(step.last_ns, record.time_ns)
