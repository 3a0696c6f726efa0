"""Bytes of ours between a body's own, put in and taken out again.

A body that carries nudges is the client's body with stretches of ours in between; where reasoning is put
back that came changed, a stretch stands in place of some of the client's bytes, which are kept with it. So
both bodies can be told from one and the stretches.

The one invariant: ``without(changed(body, some), traces(some)) == body``.
"""

from collections.abc import Sequence

from proxy.model import Change, Insertion
from proxy.reading.layout import common_prefix

Stretch = tuple[int, int] | tuple[int, int, str]
"""Where something of ours stands in a body that has it: offset and length, and what it replaced."""


def inserted(body: bytes, insertions: Sequence[Insertion]) -> bytes:
    """The body with every insertion at its place; places ascend and are those of the body as it was."""
    parts: list[bytes] = []
    done = 0
    for at, text in insertions:
        parts += (body[done:at], text)
        done = at
    return b"".join((*parts, body[done:]))


def changed(body: bytes, changes: Sequence[Change]) -> bytes:
    """The body with every change at its place; places ascend and are those of the body as it was."""
    parts: list[bytes] = []
    done = 0
    for at, gone, text in changes:
        parts += (body[done:at], text)
        done = at + len(gone)
    return b"".join((*parts, body[done:]))


def moved(insertions: Sequence[Insertion], before: bytes, after: bytes) -> tuple[Insertion, ...]:
    """The same insertions once one stretch of the body was replaced that holds none of their places."""
    if before is after:
        return tuple(insertions)
    same = common_prefix(before, after)
    shift = len(after) - len(before)
    return tuple((at + shift if at > same else at, text) for at, text in insertions)


def shifted(changes: Sequence[Change], before: bytes, after: bytes) -> tuple[Change, ...] | None:
    """The same changes likewise; None where what they replace is not there."""
    places = moved([(at, text) for at, _, text in changes], before, after)
    there = tuple((at, gone, text) for (at, text), (_, gone, _) in zip(places, changes, strict=True))
    return there if all(after.startswith(gone, at) for at, gone, _ in there) else None


def stretches(insertions: Sequence[Insertion]) -> tuple[Stretch, ...]:
    """Where the insertions stand in the body that has them."""
    return traces([(at, b"", text) for at, text in insertions])


def traces(changes: Sequence[Change]) -> tuple[Stretch, ...]:
    """Where what is ours stands in the body that has it."""
    found: list[Stretch] = []
    before = 0
    for at, gone, text in changes:
        place = (at + before, len(text))
        found.append((*place, gone.decode()) if gone else place)
        before += len(text) - len(gone)
    return tuple(found)


def without(body: bytes, ours: Sequence[Stretch]) -> bytes:
    """The body less the stretches of ours, with what they replaced."""
    parts: list[bytes] = []
    done = 0
    for at, length, *gone in ours:
        parts += (body[done:at], *(text.encode() for text in gone))
        done = at + length
    return b"".join((*parts, body[done:]))
