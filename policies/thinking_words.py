"""What ``thinking`` says: findings, and the refusal.

Evidence is ids, paths, counts and fingerprints; never a signature, never text.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from policies.proofs import Unit
from policies.replies import Reply
from policies.thinking_rules import Generation, Verdict
from proxy.verdict import Finding, Terminal

NAME = "thinking"

_CAUSES: Mapping[str, str] = {
    "text": "the text of the block was changed (trimmed, re-wrapped, filled in)",
    "proof": "the proof was changed: cut short, re-encoded, or taken from another moment of the stream",
    "bare": "the block was kept without its proof: a field that the client's message type lacks",
    "other": "another block stands in its place",
    "order": "the reply was put together in another order, or its blocks were sorted by type",
    "moved": "it was moved to another message or part when messages were merged or split",
    "twice": "it was taken over twice, often once from the stream and once from the whole reply",
    "as_text": "the reasoning was turned into ordinary text, as for a provider without reasoning",
    "again": "a block that an answered request had left out was put back",
    "present": "this model generation takes no reasoning back",
    "follower": "the reasoning came back and what it led to was removed or rewritten",
    "missing": "the client (or a converter before it) does not carry reasoning from reply to request",
    "empty": "a block with empty text was taken for junk; its signature is the content",
    "some": "some of the reply's blocks were filtered out",
    "phase.gone": "the client's message type lacks the phase, or the message was built anew from its text",
    "phase.other": "the phase was filled in for all messages alike, or taken from another message",
    "fallback.gone": "a block of unknown type was filtered out",
    "fallback.moved": "the blocks were sorted by type, or the reply was put together in another order",
}


@dataclass(slots=True)
class Judged:
    """What is the case with one unit."""

    situation: str
    verdict: Verdict
    path: str
    message: int


def finding(reply: Reply, index: int, one: Judged, rules: Generation, why: str = "") -> Finding:
    """``index``: of the reply's units, then of its marks. ``why``: it is not to be put back."""
    kind, consequence = one.verdict
    if index < len(reply.units):
        unit = reply.units[index]
        block, name, cause = unit.block, next(iter(unit.proofs), unit.text), _cause(one.situation, unit)
    else:
        mark = reply.marks[index - len(reply.units)]
        block, name, cause = mark.block, mark.anchor, _CAUSES.get(one.situation, "")
    return Finding(
        policy=NAME,
        kind=kind,
        severity="violation" if consequence == "hard" else "warning",
        consequence=consequence,
        path=one.path,
        evidence={
            "reply": reply.step,
            "of_exchange": reply.number,
            "block": block,
            "fingerprint": name,
            "message": one.message,
            "situation": one.situation,
            "rule": rules.name,
            "cause": cause,
            **({"unmended": why} if why else {}),
        },
    )


def _cause(situation: str, unit: Unit) -> str:
    if situation.startswith("missing"):
        if unit.proofs and not unit.text and not unit.on and "some" not in situation:
            return _CAUSES["empty"]
        return _CAUSES["some" if situation in ("missing.some", "missing.middle") else "missing"]
    return _CAUSES.get(situation.partition(".")[0], "")


def terminal(one: Judged) -> Terminal:
    kind, _ = one.verdict
    return Terminal(
        "deny",
        NAME,
        "looptap_policy_denied",
        f"Reasoning of an earlier reply did not come back as it was: {kind} ({one.path}). The provider "
        "would refuse this request. Send the reply back as it came, or begin a new conversation.",
        fields={"kind": kind, "path": one.path},
        any_form=True,
    )
