"""Nudges of a thread: which text of ours stands where in its history.

A nudge is kept with the name of the history that it follows, so that it is found again in every later
request of the thread, whatever else the client changes in how it writes that history. Where the
history no longer holds that place (a summary, a rewrite) it is left out, and stays known: a client
that goes back to the old history gets it back.

The one invariant: never two nudges at one place, and none that moves.
"""

import base64
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from proxy.model import Carrier, ModelRequest, Nudge
from proxy.tracking.threads import Step, Thread

MOST = 64
"""Nudges of one thread at most: a model that has read this many is not helped by another."""

Placed = tuple[int, Nudge]
"""A nudge, and the index of the message behind which it stands."""


def standing(nudges: Sequence[Nudge], request: ModelRequest, ask: bytes) -> list[Placed]:
    """The nudges whose place a request's history holds, in the order of their places."""
    nudges = [nudge for nudge in nudges if not nudge.withdrawn]
    if not nudges or not request.messages:
        return []
    last = len(request.messages) - 1
    if request.held is not None:  # what lies before, the provider keeps, with the nudges in it
        return [(last, nudge) for nudge in nudges if nudge.after == ask]
    places: dict[bytes, int] = {}
    for index, name in enumerate(request.chain):
        places.setdefault(name, index)
    found: list[Placed] = []
    for nudge in nudges:
        first = places.get(nudge.after)
        index = first + nudge.beyond if first is not None else len(request.chain)
        if index <= last and request.chain[index] == nudge.after:
            found.append((index, nudge))
    return sorted(found, key=lambda one: one[0])


def at_the_end(request: ModelRequest, ask: bytes, policy: str, carrier: Carrier) -> Nudge:
    """A new nudge behind all that a request says."""
    if request.held is not None:
        return Nudge(policy, ask, 0, carrier)
    name = request.chain[-1]
    return Nudge(policy, name, len(request.chain) - 1 - request.chain.index(name), carrier)


def may_begin(thread: Thread, request: ModelRequest, there: Sequence[Placed]) -> bool:
    """Whether a thread may get another nudge, behind the last message of this request."""
    last = len(request.messages) - 1
    return (
        thread.nudging
        and last >= 0
        and thread.kind != "side"
        and request.operation == "chat"
        and len(thread.nudges) < MOST
        and all(index < last for index, _ in there)
    )


def may_end(step: Step, request: ModelRequest) -> bool:
    """Whether a step that has not gone out yet may be given words of ours to end with."""
    thread = step.thread
    return (
        thread.nudging
        and not step.started
        and bool(request.messages)
        and thread.kind != "side"
        and request.operation == "chat"
        and len(thread.nudges) <= MOST
    )


def same_place(one: Nudge, other: Nudge) -> bool:
    """Whether two nudges follow the same history."""
    return (one.after, one.beyond) == (other.after, other.beyond)


def joined(mine: Sequence[Nudge], theirs: Sequence[Nudge]) -> list[Nudge]:
    """What two instances know of one thread; a place that both filled is as the other has it."""
    found = {(nudge.after, nudge.beyond): nudge for nudge in mine}
    for nudge in theirs:
        place = (nudge.after, nudge.beyond)
        gone = nudge.withdrawn or (place in found and found[place].withdrawn)
        found[place] = replace(nudge, withdrawn=gone)
    return list(found.values())


# -- as part of a thread's head


def dump(nudges: Sequence[Nudge]) -> list[dict[str, Any]]:
    """Nudges as JSON values."""
    return [
        {
            "policy": nudge.policy,
            "after": nudge.after.hex(),
            "beyond": nudge.beyond,
            "inside": nudge.carrier.inside,
            "raw": base64.b64encode(nudge.carrier.raw).decode("ascii"),
            "withdrawn": nudge.withdrawn,
        }
        for nudge in nudges
    ]


def load(values: Sequence[Mapping[str, Any]]) -> list[Nudge]:
    """Nudges from JSON values."""
    return [
        Nudge(
            value["policy"],
            bytes.fromhex(value["after"]),
            value["beyond"],
            Carrier(base64.b64decode(value["raw"]), value["inside"]),
            value["withdrawn"],
        )
        for value in values
    ]
