"""Takes in what other instances did to a thread that is at hand here.

Two instances that add to one thread at the same time both keep what they added: what this one did
since both last agreed (``Thread.agreed``) is put on top of the newer head. Sums are added up, steps
joined by their ids, flags only move forward; of two words for the same thing the later counts. A step
whose answer is coming here is never overwritten.

Pure, and safe to repeat: the same head taken in twice changes nothing the second time.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any

from proxy.tracking import nudges, repairs
from proxy.tracking.heads import (
    VERSION,
    agreed_in,
    outcome_of,
    revive,
    revive_bill,
    revive_calls,
    revive_early,
    revive_step,
    revive_turn,
    take_waited,
)
from proxy.tracking.shelf import Shelf
from proxy.tracking.threads import Step, Thread, Turn
from proxy.tracking.turns import pair


@dataclass(slots=True)
class Taken:
    """A thread as it stands now, and what of it came to an end elsewhere."""

    thread: Thread
    ended: list[Turn] = field(default_factory=list)
    closed: list[Step] = field(default_factory=list)


def absorb(value: Mapping[str, Any], shelf: Shelf) -> Taken | None:
    """Take in a head of another instance; None where it says nothing new."""
    if value.get("version") != VERSION:
        return None
    thread = shelf.threads.get(value["id"])
    if thread is None:
        new = revive(value, shelf, foreign=True)
        return Taken(new) if new is not None else None
    if value["rev"] < thread.agreed.rev:
        return None
    taken = Taken(thread)
    base = thread.agreed
    memories = {n: m for n, m in thread.memories.items() if m is not base.memories.get(n)}
    _turn(value, taken)
    _steps(value, taken)
    take_waited(value, thread)
    thread.memories = {**value["memories"], **memories}
    thread.nudges = nudges.joined(thread.nudges, nudges.load(value.get("nudges", ())))
    thread.nudging = thread.nudging and value.get("nudging", True)
    if thread.kept or "kept" in value:
        thread.kept = repairs.joined(thread.kept, repairs.load(value.get("kept", ())))
        thread.mending = thread.mending and value.get("mending", True)
    thread.epoch = max(thread.epoch, value["epoch"])
    thread.turns = max(thread.turns, value["turns"])
    thread.hint_turn = value["hint_turn"] or thread.hint_turn
    thread.conversation = value["conversation"] or thread.conversation
    thread.last_ns = max(thread.last_ns, value["last_ns"])
    thread.session.last_ns = max(thread.session.last_ns, thread.last_ns)
    thread.agreed = replace(agreed_in(value), memories=dict(value["memories"]))
    if thread.conversation is not None and thread.last is not None:
        thread.scope.held[thread.conversation] = thread.last
    shelf.weigh(thread)
    shelf.touch(thread)
    return taken


# -- turns


def _turn(value: Mapping[str, Any], taken: Taken) -> None:
    thread, told = taken.thread, value["turn"]
    mine = thread.turn
    ends = {name: (end[0], end[1]) for name, end in value["ends"].items()}
    if told is not None and (mine is None or told["id"] != mine.id):
        if mine is None or (told["index"], told["began_ns"]) > (mine.index, mine.began_ns):
            if mine is not None and mine.open:
                mine.open = False
                mine.cause, mine.by = ends.get(mine.id, ("superseded", None))
                taken.ended.append(mine)
            thread.turn = revive_turn(told, thread, True)
            thread.turn.charged_to = mine.charged_to if mine is not None else None
    elif told is not None and mine is not None:
        _same_turn(told, mine, taken)
    thread.ends = {**ends, **thread.ends}


def _same_turn(told: Mapping[str, Any], mine: Turn, taken: Taken) -> None:
    base = taken.thread.agreed
    bill = revive_bill(told["bill"])
    before = base.turn == mine.id
    mine.steps = told["steps"] + mine.steps - (base.turn_steps if before else 0)
    for name, tokens in mine.bill.tokens.items():
        bill.tokens[name] = bill.tokens.get(name, 0) + tokens - (base.tokens.get(name, 0) if before else 0)
    bill.usd += mine.bill.usd - (base.usd if before else Decimal(0))
    bill.add({}, None, mine.bill.quality)
    mine.bill = bill
    if told["last_ns"] >= mine.last_ns and not any(s.running for s in taken.thread.steps if s.turn is mine):
        if mine.open and not told["open"]:
            taken.ended.append(mine)
        mine.open, mine.cause, mine.by = told["open"], told["cause"], told["by"]
    mine.last_ns = max(mine.last_ns, told["last_ns"])
    mine.refused_ns = max(mine.refused_ns or 0, told["refused_ns"] or 0) or None


# -- steps


def _steps(value: Mapping[str, Any], taken: Taken) -> None:
    thread, base = taken.thread, taken.thread.agreed
    alive = bool(value.get("alive"))
    mine = {step.id: step for step in thread.steps}
    told = [step["id"] for step in value["steps"]]
    fresh = [s for s in thread.steps if s.id not in told and s.index >= base.step_count]
    joined = []
    for facts in value["steps"]:
        step = mine.get(facts["id"])
        if step is None:
            step = revive_step(facts, thread, foreign=True, alive=alive)
        else:
            _same_step(facts, step, alive, taken)
        joined.append(step)
    for step in fresh:
        step.index += value["step_count"] - base.step_count
    apart = {id(step) for step in (*joined, *fresh)}
    thread.steps = [*(s for s in thread.steps if id(s) not in apart), *joined, *fresh]
    thread.step_count = value["step_count"] + len(fresh)


def _same_step(facts: Mapping[str, Any], step: Step, alive: bool, taken: Taken) -> None:
    scope = step.thread.scope
    if not step.running and _ahead(facts, step):
        scope.drop_reply(step)
        for name in ("whole", "attempts", "response_id", "stop_reason", "model", "ended_ns", "place"):
            setattr(step, name, facts[name])
        step.started = step.started or facts["started"]
        step.reply = bytes.fromhex(facts["reply"]) if facts["reply"] is not None else None
        step.said = bytes.fromhex(facts["said"])
        step.text = facts["text"] or step.text
        step.bill = revive_bill(facts["bill"])
        step.calls = revive_calls(facts)
        step.outcome = outcome_of(facts, alive)
        scope.add_ask(step, bytes.fromhex(facts["ask"]))
        if (step.whole or step.deferred) and not step.forgotten:
            scope.add_reply(step)
    step.attempts = max(step.attempts, facts["attempts"])
    for call, other in zip(step.calls, facts["calls"], strict=False):
        call.answered = call.answered or other["answered"]
    _take_early(facts, step)
    if not step.closed and not step.running and (facts["closed"] or _answered(step)):
        step.closed = True
        scope.answered(step)
        if step.started:
            taken.closed.append(step)


def _ahead(facts: Mapping[str, Any], step: Step) -> bool:
    """Whether the other instance knows more of a step."""
    if step.whole:
        return bool(facts["whole"]) and facts["ended_ns"] > step.ended_ns
    return bool(facts["whole"]) or step.outcome is None or facts["attempts"] > step.attempts


def _take_early(facts: Mapping[str, Any], step: Step) -> None:
    """Results that came elsewhere while their calls were still being read here."""
    early = revive_early(facts)
    if not early:
        return
    if step.whole:
        for _, _, call in pair(early, [(step, call) for call in step.pending], {}, guess=True).answers:
            call.answered = True
    elif not step.early:
        step.early = early


def _answered(step: Step) -> bool:
    return step.whole and bool(step.calls) and not step.pending
