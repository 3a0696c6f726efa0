"""Insertions: bytes of ours between a body's own, put in and taken out again.

A body that carries nudges is the client's body with stretches of ours in between; all of the
client's bytes are there, in order. So both bodies can be told from one and the stretches.

The one invariant: ``without(inserted(body, some), stretches(some)) == body``.
"""

from collections.abc import Sequence

from proxy.model import Insertion
from proxy.reading.layout import common_prefix

Stretch = tuple[int, int]
"""Where something of ours stands in a body that has it: offset and length."""


def inserted(body: bytes, insertions: Sequence[Insertion]) -> bytes:
    """The body with every insertion at its place; places ascend and are those of the body as it was."""
    parts: list[bytes] = []
    done = 0
    for at, text in insertions:
        parts += (body[done:at], text)
        done = at
    return b"".join((*parts, body[done:]))


def moved(insertions: Sequence[Insertion], before: bytes, after: bytes) -> tuple[Insertion, ...]:
    """The same insertions once one stretch of the body was replaced that holds none of their places."""
    if before is after:
        return tuple(insertions)
    same = common_prefix(before, after)
    shift = len(after) - len(before)
    return tuple((at + shift if at > same else at, text) for at, text in insertions)


def stretches(insertions: Sequence[Insertion]) -> tuple[Stretch, ...]:
    """Where the insertions stand in the body that has them."""
    found: list[Stretch] = []
    before = 0
    for at, text in insertions:
        found.append((at + before, len(text)))
        before += len(text)
    return tuple(found)


def without(body: bytes, ours: Sequence[Stretch]) -> bytes:
    """The body less the stretches of ours."""
    parts: list[bytes] = []
    done = 0
    for at, length in ours:
        parts.append(body[done:at])
        done = at + length
    return b"".join((*parts, body[done:]))
