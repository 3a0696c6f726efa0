"""That a turn was given its last step: kept in the memory of its thread, and so by restarts and instances.

The one invariant: what is written here is of one turn, and says nothing of the next.
"""

from collections.abc import Mapping
from typing import Any

from proxy.tracking.threads import Step
from proxy.verdict import Terminal

MEMORY = "landing"
"""Under this name a thread remembers the last step of its turn."""
_GIVEN = "This turn was given its last step, to sum up."


def given(step: Step) -> Mapping[str, Any] | None:
    """What is known of the last step of this step's turn; None where it was given none."""
    told = step.thread.memories.get(MEMORY)
    return told if told and told.get("turn") == step.turn.id else None


def is_last(step: Step, told: Mapping[str, Any]) -> bool:
    """Whether this is that last step, perhaps in another attempt."""
    return bool(told["step"] == step.id)


def cause_of(step: Step) -> str | None:
    """Why a turn ends with this step, where it is the last that it was given."""
    told = given(step)
    return str(told["cause"]) if told is not None and is_last(step, told) else None


def written(step: Step, why: Terminal, *, recorded: bool = False) -> Mapping[str, Mapping[str, Any]]:
    """The thread's memory of a last step. ``recorded``: a log tells of it, and of all that followed."""
    told = {
        "turn": step.turn.id,
        "step": step.id,
        "policy": why.policy,
        "code": why.code,
        "message": why.message,
        "cause": why.cause,
        "fields": dict(why.fields),
        "recorded": recorded,
    }
    return {MEMORY: told}


def reason(told: Mapping[str, Any]) -> Terminal:
    """Why nothing more goes out in a turn that was given its last step."""
    message = f"{told['message']} {_GIVEN}"
    fields = {**told["fields"], "landed": True}
    return Terminal("deny", told["policy"], told["code"], message, told["cause"], fields)
