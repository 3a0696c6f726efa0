"""Telling equal histories apart: runs of one prompt whose words are the same, message by message.

A history's name leaves out call ids, so equal runs share it. The ids that the client sends then say
whose a request is; where there are none (text only), who is still waiting to go on says it. Pure
comparisons; the search itself stands in ``placing``.

The one invariant: a step whose request named other calls is never taken for this request's.
"""

from collections.abc import Sequence
from hashlib import blake2b

from proxy.model import Message, ModelRequest
from proxy.tracking.threads import Step, joins

_NEWEST_IDS = 8
_MOST_MESSAGES = 200


def newest_ids(messages: Sequence[Message]) -> set[str]:
    """The newest call ids that a history names, those that count from 0 left out."""
    ids: set[str] = set()
    for message in reversed(messages[-_MOST_MESSAGES:]):
        for item in reversed(message.items):
            if item.call_id is not None and joins(item.call_id):
                ids.add(item.call_id)
            if len(ids) >= _NEWEST_IDS:
                return ids
    return ids


def naming(request: ModelRequest, end: int | None = None) -> bytes:
    """Name of the ids that tell a history (or its first ``end`` messages) from its twins; empty where it
    names none, or is not all there."""
    ids = sorted(newest_ids(request.messages[:end])) if request.held is None else []
    return blake2b("\0".join(ids).encode("utf-8", "replace"), digest_size=16).digest() if ids else b""


def contradicts(step: Step, named: bytes) -> bool:
    """Whether what a step asked named other calls than this history of the same words."""
    return bool(step.named and named and step.named != named)


def asked_otherwise(step: Step, request: ModelRequest, named: bytes) -> bool:
    """Whether a step cannot have been this request: it named other calls, or came in another dialect."""
    return step.dialect != request.dialect or contradicts(step, named)


def shared_ids(step: Step, ids: set[str]) -> int:
    """1: the ids are of calls of this step; -1: they are none of its unmistakable ones; else 0."""
    names = {name for call in step.calls for name in (call.call_id, call.item_id) if name}
    if names & ids:
        return 1
    return -1 if ids and any(joins(name) for name in names) else 0


def waits(step: Step, vain: Step) -> bool:
    """Whether a run that stands at this reply is rather the one that asks than its twin, whose same request
    came to nothing.

    Who failed comes again, unless the other was heard of since; who was refused for good need not, so the
    other need only be at work beside it.
    """
    thread = step.thread
    if thread is vain.thread or not step.turn.open or thread.last is not step:
        return False
    since = vain.ended_ns
    if vain.outcome == "refused" and not vain.turn.open:
        before = [one for one in vain.thread.steps if one.whole and one.index < vain.index]
        since = before[-1].arrived_ns if before else since
    return step.ended_ns > since
