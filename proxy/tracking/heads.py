"""Thread heads as JSON: what it takes to go on with a thread in another process.

A head holds a thread's identity, its running turn and its newest steps: enough that a restart in
mid-turn continues the same turn, and that another instance knows the thread when its next request
comes. It holds names (digests), ids, counters and the arguments of unanswered calls, no history.

``head`` and ``revive`` are each other's inverse as far as the look-ups are concerned.
"""

from collections.abc import Mapping
from dataclasses import fields
from decimal import Decimal
from typing import Any

from proxy.model import AttemptOutcome, Item
from proxy.tracking import nudges, repairs, waits
from proxy.tracking.shelf import Shelf
from proxy.tracking.threads import Agreed, Bill, Call, Scope, Session, Step, Thread, Turn

VERSION = 1
_STEPS = 6
"""Newest steps in a head: forks from further back need the process that saw them."""
_TEXT = 4_000


def kept_steps(thread: Thread) -> list[Step]:
    """The steps that a head holds: those that went out, or were refused and may be asked again."""
    kept = ("refused", "client_gone")
    return [step for step in thread.steps[-_STEPS:] if step.started or step.outcome in kept]


def head(thread: Thread, *, texts: bool = True) -> dict[str, Any]:
    """A thread as JSON values, with the look-up keys under which it will be searched for.

    Without ``texts`` it holds no content: names and counters alone find the thread again.
    """
    session, turn = thread.session, thread.turn
    steps = kept_steps(thread)
    keys = {name.hex() for step in steps for name in (step.ask, step.reply) if name}
    return {
        "version": VERSION,
        "id": thread.id,
        "rev": thread.agreed.rev,
        "keys": sorted(keys),
        "scope": thread.scope.name,
        "session": {
            "id": session.id,
            "by": session.by,
            "key": session.key,
            "client": session.client,
            "began_ns": session.began_ns,
        },
        "main": session.main is thread,
        "kind": thread.kind,
        "dialect": thread.dialect,
        "parent": thread.parent,
        "client_session": thread.client_session,
        "agent": thread.agent,
        "system": thread.system.hex(),
        "tools": sorted(thread.tools),
        "partial": thread.partial,
        "epoch": thread.epoch,
        "turns": thread.turns,
        "step_count": thread.step_count,
        "hint_turn": thread.hint_turn,
        "conversation": thread.conversation,
        "began_ns": thread.began_ns,
        "last_ns": thread.last_ns,
        "memories": {name: dict(memory) for name, memory in thread.memories.items()},
        "nudges": nudges.dump(thread.nudges),
        "nudging": thread.nudging,
        **_kept(thread, texts=texts),
        "ends": {name: list(end) for name, end in thread.ends.items()},
        "root": _root(thread),
        "waited": waited(thread),
        "turn": _turn(turn) if turn is not None else None,
        "steps": [_step(step, texts) for step in steps],
    }


def _kept(thread: Thread, *, texts: bool) -> dict[str, Any]:
    """What could be put back, where there is anything."""
    if not thread.kept and thread.mending:
        return {}
    return {"kept": repairs.dump(thread.kept) if texts else [], "mending": thread.mending}


def revive(value: Mapping[str, Any], shelf: Shelf, *, foreign: bool = False) -> Thread | None:
    """Put a head back into memory; None where it is there already or of another version.

    ``foreign``: it comes from another instance, which may still be at work on it (``alive``).
    """
    if value.get("version") != VERSION or value["id"] in shelf.threads:
        return None
    scope = shelf.scope(value["scope"])
    session = _session(value, scope, foreign)
    thread = Thread(
        id=value["id"],
        scope=scope,
        session=session,
        kind=value["kind"],
        dialect=value["dialect"],
        parent=value["parent"],
        client_session=value["client_session"],
        agent=value["agent"],
        system=bytes.fromhex(value["system"]),
        tools=frozenset(value["tools"]),
        partial=value["partial"],
        epoch=value["epoch"],
        turns=value["turns"],
        hint_turn=value["hint_turn"],
        conversation=value["conversation"],
        began_ns=value.get("began_ns", value["last_ns"]),
        last_ns=value["last_ns"],
        remembered=dict(value["memories"]),
        nudges=nudges.load(value.get("nudges", ())),
        nudging=value.get("nudging", True),
        kept=repairs.load(value.get("kept", ())),
        mending=value.get("mending", True),
        ends={name: (end[0], end[1]) for name, end in value.get("ends", {}).items()},
        foreign=foreign,
    )
    if value["main"]:
        session.main = thread
    if thread.client_session is not None and thread.kind != "side":
        scope.agents[thread.client_session, thread.agent] = thread
    shelf.add(thread)
    if value["turn"] is not None:
        thread.turn = revive_turn(value["turn"], thread, foreign)
    _take_root(value, thread, shelf)
    for told in value["steps"]:
        revive_step(told, thread, foreign=foreign, alive=bool(value.get("alive")))
    take_waited(value, thread)
    thread.agreed = agreed_in(value)
    thread.step_count = value["step_count"]
    if thread.conversation is not None and thread.last is not None:
        scope.held[thread.conversation] = thread.last
    shelf.weigh(thread)
    return thread


def agreed_in(value: Mapping[str, Any]) -> Agreed:
    """The counters of a head."""
    turn = value["turn"]
    return Agreed(
        rev=value.get("rev", 0),
        turn=turn["id"] if turn is not None else None,
        turn_steps=turn["steps"] if turn is not None else 0,
        tokens=dict(turn["bill"]["tokens"]) if turn is not None else {},
        usd=Decimal(turn["bill"]["usd"]) if turn is not None else Decimal(0),
        step_count=value["step_count"],
    )


def waited(thread: Thread) -> dict[str, int]:
    """How long requests waited for an operator, by what they belong to."""
    turn, root = thread.turn, thread.root_turn()
    known: dict[str, waits.Waiting | None] = {
        "session": thread.session,
        "thread": thread,
        "turn": turn,
        "root": root,
    }
    return {name: ns for name, one in known.items() if (ns := waits.told(one))}


def take_waited(value: Mapping[str, Any], thread: Thread) -> None:
    """The same out of a head; of a turn only where it is this thread's still."""
    told = value.get("waited") or {}
    waits.take(thread.session, told.get("session", 0))
    waits.take(thread, told.get("thread", 0))
    turn, root = value["turn"], value.get("root")
    if turn is not None and thread.turn is not None and thread.turn.id == turn["id"]:
        waits.take(thread.turn, told.get("turn", 0))
    near = thread.root_turn()
    if root is not None and near is not None and near.id == root["id"]:
        waits.take(near, told.get("root", 0))


def _root(thread: Thread) -> dict[str, Any] | None:
    """The turn that pays, where it is another thread's."""
    root = thread.root_turn()
    if root is None or root is thread.turn:
        return None
    branch = thread.parent_turn is None
    return {"id": root.id, "thread": root.thread.id, "began_ns": root.began_ns, "branch": branch}


def _take_root(value: Mapping[str, Any], thread: Thread, shelf: Shelf) -> None:
    told = value.get("root")
    if told is None:
        return
    near = shelf.threads.get(told["thread"])
    turn = near.turn if near is not None else None
    if turn is None or turn.id != told["id"]:
        stand_in = Thread(told["thread"], thread.scope, thread.session, "unknown", thread.dialect)
        turn = Turn(told["id"], -1, stand_in, open=False, began_ns=told["began_ns"])
    if not told["branch"]:
        thread.parent_turn = turn
    elif thread.turn is not None:
        thread.turn.charged_to = turn


def _session(value: Mapping[str, Any], scope: Scope, foreign: bool) -> Session:
    told = value["session"]
    key = (told["key"][0], told["key"][1]) if told["key"] is not None else None
    known = scope.sessions.get(key) if key is not None else None
    known = known or next((t.session for t in scope.threads.values() if t.session.id == told["id"]), None)
    if known is not None:
        return known
    session = Session(told["id"], told["by"], key, told["client"], value["last_ns"])
    session.began_ns = told.get("began_ns", value["last_ns"])
    session.foreign = foreign
    if key is not None:
        scope.sessions[key] = session
    return session


def _turn(turn: Turn) -> dict[str, Any]:
    return {
        "id": turn.id,
        "index": turn.index,
        "open": turn.open,
        "cause": turn.cause,
        "by": turn.by,
        "steps": turn.steps,
        "bill": _bill(turn.bill),
        "began_ns": turn.began_ns,
        "last_ns": turn.last_ns,
        "refused_ns": turn.refused_ns,
    }


def revive_turn(value: Mapping[str, Any], thread: Thread, foreign: bool) -> Turn:
    """A turn out of a head."""
    return Turn(thread=thread, foreign=foreign, **{**value, "bill": revive_bill(value["bill"])})


def _bill(bill: Bill) -> dict[str, Any]:
    return {"tokens": dict(bill.tokens), "usd": format(bill.usd, "f"), "quality": bill.quality}


def revive_bill(value: Mapping[str, Any]) -> Bill:
    """Sums out of a head."""
    return Bill(dict(value["tokens"]), Decimal(value["usd"]), value["quality"])


_STEP_FACTS = (
    "id", "index", "epoch", "matched_by", "place", "exchange", "number", "arrived_ns", "started", "attempts",
    "outcome", "whole", "response_id", "stop_reason", "model", "ended_ns", "closed",
)  # fmt: skip


def _step(step: Step, texts: bool) -> dict[str, Any]:
    return {
        **{name: getattr(step, name) for name in _STEP_FACTS},
        "ask": step.ask.hex(),
        "named": step.named.hex(),
        "dialect": step.dialect,
        "reply": step.reply.hex() if step.reply is not None else None,
        "said": step.said.hex(),
        "text": step.text[:_TEXT] if texts else "",
        "running": step.turn is step.thread.turn,
        "busy": step.under_way,
        "early": [[item.tool, item.call_id, item.is_error] for item in step.early],
        "bill": _bill(step.bill),
        "calls": [
            {
                **{field.name: getattr(call, field.name) for field in fields(Call) if field.name != "digest"},
                "arguments": call.arguments[:_TEXT] if texts and not call.answered else "",
                "digest": call.digest.hex(),
            }
            for call in step.calls
        ],
    }


def revive_step(
    value: Mapping[str, Any], thread: Thread, *, foreign: bool = False, alive: bool = False
) -> Step:
    """Put a step of a head behind those of its thread."""
    turn = thread.turn
    if turn is None or not value["running"]:
        turn = Turn("", -1, thread, open=False)
    step = Step(
        thread=thread,
        turn=turn,
        ask=bytes.fromhex(value["ask"]),
        named=bytes.fromhex(value.get("named", "")),
        dialect=value.get("dialect", thread.dialect),
        reply=bytes.fromhex(value["reply"]) if value["reply"] is not None else None,
        said=bytes.fromhex(value["said"]),
        words=value["text"],
        bill=revive_bill(value["bill"]),
        calls=revive_calls(value),
        foreign=foreign,
        **{name: value[name] for name in _STEP_FACTS},
    )
    step.early = revive_early(value)
    step.outcome = outcome_of(value, alive)
    thread.scope.add_step(step)
    if step.whole or step.deferred:
        thread.scope.add_reply(step)
    return step


def revive_calls(value: Mapping[str, Any]) -> list[Call]:
    """A step's calls out of a head."""
    return [Call(**{**call, "digest": bytes.fromhex(call["digest"])}) for call in value["calls"]]


def revive_early(value: Mapping[str, Any]) -> list[Item]:
    """Results that another instance got before the reply had been read to its end."""
    return [
        Item("tool_result", "tool", tool=tool, call_id=call_id, is_error=is_error)
        for tool, call_id, is_error in value.get("early", ())
    ]


def outcome_of(value: Mapping[str, Any], alive: bool) -> AttemptOutcome | None:
    """How a step's last attempt ended: not known while an instance that lives is at work on it; what went
    down with its instance was cut."""
    if value.get("busy") and alive:
        return None
    outcome: AttemptOutcome | None = value["outcome"]
    return outcome or "cut"
