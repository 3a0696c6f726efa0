"""How an attempt ended and what it took, from the wire's end and what the reply says. Pure functions."""

from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal

from proxy.model import AttemptOutcome, Cost, EndKind, Outcome, ResponseHead, Usage

NOTHING = Cost(Decimal(0), "measured")
"""An attempt that the provider answered with an error, or never took: it bills nothing."""


def attempt_outcome(
    end: EndKind, response: ResponseHead | None, reply: Outcome, *, cut: bool = False, held: bool = False
) -> AttemptOutcome:
    """How an attempt ended, from the wire's end and what the reply says.

    A reply that was whole when its reader left is complete: several SDKs close the connection at
    the terminal event without waiting for the end of the body. ``cut``: we ended it under way. ``held``: its
    client left while it waited for an operator.
    """
    if held:
        return "refused"
    if end == "refused":
        return "cut" if cut else "refused"
    gone = end in ("client_gone", "shutdown")
    if response is None:
        return "client_gone" if gone else "failed"
    if response.status >= 400 or reply.error is not None:
        return "failed"
    if reply.whole:
        return "complete"
    return "client_gone" if gone else "cut"


WRITTEN_PER_S = 100
"""Output tokens a second that a model is taken to write while nobody hears it: the speed of large models."""


def unheard(estimate: Usage, waited_ns: int, most: int | None) -> Usage:
    """An estimate for a reply whose client left before any of it came, so that leaving early is not free.

    Providers bill what was written until the connection closed. Counted in whole seconds, which a log keeps.
    """
    written = waited_ns // 1_000_000_000 * WRITTEN_PER_S
    if most is not None:
        written = min(written, most)
    return replace(estimate, output_tokens=max(written, estimate.output_tokens or 0))


def usage_of(
    outcome: AttemptOutcome, reply: Outcome, *, billed: bool, estimate: Callable[[], Usage]
) -> tuple[Usage | None, bool]:
    """The tokens to book, and whether they are a guess (a reply whose usage never came whole).

    ``billed``: the upstream has begun to answer, or has the request and may go on without us.
    """
    if reply.deferred:
        return None, False  # the fetch that brings the reply brings them
    if outcome in ("failed", "refused") and reply.usage is None:
        return None, False
    if reply.usage is not None and (reply.whole or outcome == "complete"):
        return reply.usage, False
    return (estimate(), True) if billed else (None, False)
