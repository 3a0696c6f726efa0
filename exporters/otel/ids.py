"""Ids of traces and spans, made from what they stand for: the same record gives the same ids.

So a span may name a parent that is sent later, by another process, or was sent long ago. Nothing
is random, nothing is remembered; ids are never zero, which the standard forbids.
"""

from hashlib import blake2b

SAMPLED = 1


def trace_of(turn: str) -> int:
    """The trace of a turn."""
    return int.from_bytes(blake2b(turn.encode(), digest_size=16, person=b"looptap trace").digest()) or 1


def span_of(trace: int, role: str, index: str = "") -> int:
    """A span of a trace by what it is (``turn``, ``step``, ``chat``, ``tool``) and which one."""
    seed = f"{trace:032x}/{role}/{index}".encode()
    return int.from_bytes(blake2b(seed, digest_size=8, person=b"looptap span").digest()) or 1


def client_span(traceparent: str) -> tuple[int, int, bool]:
    """Trace, span and whether it is sampled, from a header that was checked when it came."""
    _, trace, span, flags = traceparent.split("-")
    return int(trace, 16), int(span, 16), bool(int(flags, 16) & SAMPLED)
