"""Where text of ours stands in a body: found by the message that it follows, put in as insertions.

Lives here: what is the same for every API. In which form text is lawful, each dialect says itself
(``nudge``, ``insertions``); what stands in which thread, ``tracking.nudges`` knows.

The one invariant: nothing but insertions. Every byte of the client's body stays, in its order; a
place that cannot be found gives None or is left out.
"""

import re
from collections.abc import Sequence
from typing import Literal

from proxy.dialects.splice import Span, added_to_list, append_to_list, span_of
from proxy.model import Attempt, Carrier, Insertion, ModelRequest, Nudge, Role
from proxy.ports import Dialect
from proxy.reading.insertions import inserted
from proxy.reading.library import Reading


def behind(message: bytes, carrier: Carrier) -> list[Insertion] | None:
    """An element of its own behind a message; None where the message is no element of a list."""
    return [(len(message), b"," + carrier.raw)] if message[:1] == b"{" else None


def follower(request: ModelRequest, index: int) -> Role | None:
    """Who speaks after a message; None where it is the last."""
    return request.messages[index + 1].role if index + 1 < len(request.messages) else None


def within(message: bytes, carrier: Carrier) -> list[Insertion] | None:
    """An element at the end of a list in the message."""
    added = added_to_list(message, (carrier.inside,), carrier.raw)
    return None if added is None else [added]


def nudged(dialect: Dialect, body: bytes, request: ModelRequest, text: str) -> bytes:
    """The body with a text behind everything that it says; as it is where that may not be."""
    carrier = dialect.nudge(request, text)
    if carrier is None:
        return body
    span = span_of(body, dialect.list_key)
    if span is not None and body[span[0] : span[0] + 1] == b"[":
        span = span_of(body, dialect.list_key, -1)
        if span is None and not carrier.inside:
            return append_to_list(body, (dialect.list_key,), carrier.raw) or body
    if span is None:
        return body
    last = len(request.messages) - 1
    found = dialect.insertions(body[span[0] : span[1]], carrier, request, last)
    return inserted(body, [(span[0] + at, raw) for at, raw in found]) if found else body


def put_back(
    dialect: Dialect, reading: Reading, nudges: Sequence[tuple[int, Nudge]]
) -> list[tuple[int, Nudge, tuple[Insertion, ...]]]:
    """What to insert for nudges, each behind the message of its index; those without a place are missing."""
    placed: list[tuple[int, Nudge, tuple[Insertion, ...]]] = []
    for index, nudge in nudges:
        span = span_of_message(dialect, reading, index)
        if span is None:
            continue
        found = dialect.insertions(reading.body[span[0] : span[1]], nudge.carrier, reading.request, index)
        if found:
            placed.append((index, nudge, tuple((span[0] + at, raw) for at, raw in found)))
    return placed


Blame = Literal["prefix", "role", "unsaid"]
"""What an answer holds against a request that carries nudges: the history is not what reasoning was
bound to; the model takes no such message; or it does not say."""


def blame(attempt: Attempt) -> Blame | None:
    """Whether the provider refused a request, or dropped reasoning of it, for what nudges can bring about."""
    reply = attempt.reply
    if attempt.status in (400, 422):
        words = f"{reply.error.code or ''} {reply.error.message}" if reply.error is not None else ""
        return next((name for name, pattern in _REFUSALS if pattern.search(words)), "unsaid")
    changes = reply.extra.get("input_transformations")
    for one in changes if isinstance(changes, list) else ():
        if isinstance(one, dict) and "prefix" in str(one.get("reason")):
            return "prefix"
    return None


_REFUSALS: tuple[tuple[Blame, re.Pattern[str]], ...] = (
    ("prefix", re.compile("bound to a different conversation", re.IGNORECASE)),
    (
        "role",
        re.compile(r"\brole\b.{0,40}(?:not supported|unexpected|invalid)|unexpected role", re.IGNORECASE),
    ),
)


def span_of_message(dialect: Dialect, reading: Reading, index: int) -> Span | None:
    """Where a message stands in a body."""
    if reading.list_start:
        return reading.starts[index], reading.ends[index]
    span = span_of(reading.body, dialect.list_key)
    if span is None or reading.body[span[0] : span[0] + 1] != b"[":
        return span if index == 0 else None
    return span_of(reading.body, dialect.list_key, index)
