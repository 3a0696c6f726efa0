"""Reasoning of a thread's replies in the bytes in which it goes back, should its client lose it.

A reply is kept with the name of the history that it ends, so that it is found only where that history and
the reply's own words and calls are what they were. What was put back once stands there in every later
request, as a nudge does: it is never let go of while its thread is known.

A reply's ``shape`` has a letter for each of its items: ``t`` reasoning that goes back, ``i`` what has an
identity (by these it is found in a request), ``o`` what has none and yet counts, ``-`` what does not.

The one invariant: never more than ``MOST_BYTES`` of one thread, and nothing put back is lost to make room.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b
from typing import Any

from proxy.model import Carrier, Item, Kept, ModelRequest, Thought
from proxy.tracking.threads import instructions

MOST = 48
"""Newest replies that nothing of was put back yet."""
MOST_BYTES = 1_000_000
"""Bytes of one thread's reasoning; a head holds all of it."""

At = tuple[int, Kept]
"""A kept reply, and the index of the message in which it ends."""


def letter(item: Item, *, goes_back: bool) -> str:
    """What an item is in a reply's shape."""
    if goes_back:
        return "t"
    if item.digest:
        return "i"
    return "-" if item.kind == "text" or item.kind == "thinking" else "o"


def around(request: ModelRequest) -> bytes:
    """Name of what stands around the messages; reasoning of some models is bound to it."""
    digests = (tool.digest for tool in request.tools)
    return blake2b(b"".join((instructions(request), *digests)), digest_size=16).digest()


def ends(request: ModelRequest) -> dict[bytes, int]:
    """Where each history of a request ends."""
    places: dict[bytes, int] = {}
    for index, name in enumerate(request.chain):
        places.setdefault(name, index)
    return places


def standing(kept: Sequence[Kept], request: ModelRequest, source: str) -> list[At]:
    """The replies of which something was put back, as far as a request's history still holds them."""
    back = [one for one in kept if one.back and one.source == source and one.model == request.model]
    if not back or request.held is not None:
        return []
    places = ends(request)
    name = around(request) if any(one.bound for one in back) else b""
    back = [one for one in back if not one.bound or one.around == name]
    found = {places[one.after]: one for one in back if one.after in places}
    return sorted(found.items(), key=lambda one: one[0])


def with_reply(kept: Sequence[Kept], reply: Kept) -> list[Kept]:
    """The same with one more; the oldest of which nothing was put back give way."""
    others = [one for one in kept if one.step != reply.step]
    room = MOST_BYTES - sum(one.size for one in others if one.back) - reply.size
    if room < 0:
        return others
    left: list[Kept] = [reply]
    count = 1
    for one in reversed(others):
        if not one.back:
            count, room = count + 1, room - one.size
            if count > MOST or room < 0:
                room = -1
                continue
        left.append(one)
    return left[::-1]


def marked(kept: Sequence[Kept], bound: Mapping[str, bool], *, back: bool) -> list[Kept]:
    """The same with some of them put back, or not; ``bound``: by step, whether it is bound."""
    return [replace(one, back=back, bound=bound[one.step]) if one.step in bound else one for one in kept]


def joined(mine: Sequence[Kept], theirs: Sequence[Kept]) -> list[Kept]:
    """What two instances know of one thread."""
    found = {one.step: one for one in theirs}
    for one in mine:
        other = found.get(one.step)
        found[one.step] = one if other is None or one.back else other
    made: list[Kept] = []
    for one in sorted(found.values(), key=lambda one: not one.back):
        made = [*made, one] if one.back else with_reply(made, one)
    return made


# -- as part of a thread's head


def dump(kept: Sequence[Kept]) -> list[dict[str, Any]]:
    """Kept replies as JSON values."""
    return [
        {
            "step": one.step,
            "after": one.after.hex(),
            "source": one.source,
            "model": one.model,
            "around": one.around.hex(),
            "shape": one.shape,
            "back": one.back,
            "bound": one.bound,
            "thoughts": [
                [t.place, t.carrier.raw.decode(), t.carrier.inside, [name.hex() for name in t.names]]
                for t in one.thoughts
            ],
        }
        for one in kept
    ]


def load(values: Sequence[Mapping[str, Any]]) -> list[Kept]:
    """Kept replies from JSON values."""
    return [
        Kept(
            value["step"],
            bytes.fromhex(value["after"]),
            value["source"],
            value["model"],
            bytes.fromhex(value["around"]),
            value["shape"],
            tuple(
                Thought(place, Carrier(raw.encode(), inside), tuple(bytes.fromhex(name) for name in names))
                for place, raw, inside, names in value["thoughts"]
            ),
            value["back"],
            value["bound"],
        )
        for value in values
    ]
