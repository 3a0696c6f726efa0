"""Which of the faults that ``thinking`` tells may be mended: the original put back in its place.

A reply is wished for as a whole. It is left alone where that would be a fault itself (a request without it
was answered already), or where what came back cannot be told from what the client meant. Whether the
original's bytes and its place are still there is for the core to find out.
"""

from collections.abc import Sequence
from typing import Any

from policies.replies import Reply
from policies.thinking_rules import Generation
from policies.thinking_words import Judged
from proxy.verdict import Edit

_NEVER = {
    "moved": "it stands elsewhere",
    "twice": "it stands there twice",
    "as_text": "its text stands in its place",
    "again": "it was left out before",
    "present": "it must not come back",
    "follower": "what it led to is gone",
    "order": "it stands in another place",
}
"""Why some faults are left as they are, by their situation."""


def unmended(reply: Reply, judged: Sequence[Judged]) -> str:
    """Why a reply with faults is left as it is; empty where it may be made whole."""
    faulty = [number for number, one in enumerate(judged[: len(reply.units)]) if one.verdict[1] is not None]
    if not faulty:
        return "it is no piece of reasoning"
    if any(number in reply.gone for number in faulty):
        return "a request without it was answered"
    words = (_NEVER.get(judged[number].situation.partition(".")[0]) for number in faulty)
    return next((word for word in words if word is not None), "")


def wish(reply: Reply, judged: Sequence[Judged]) -> dict[str, Any]:
    """What is asked for, as it is recorded: the reply, its lost blocks, and where they are missed."""
    units = [(unit, one) for unit, one in zip(reply.units, judged, strict=False) if one.verdict[1]]
    return {
        "reply": reply.step,
        "of_exchange": reply.number,
        "blocks": [unit.block for unit, _ in units],
        "paths": [one.path for _, one in units],
    }


def edits(wishes: Sequence[dict[str, Any]], rules: Generation) -> tuple[Edit, ...]:
    """The one edit that asks for all of them."""
    return (Edit("repair", data={"replies": list(wishes), "bound": rules.bound}),) if wishes else ()
