"""What the provider itself says of reasoning that came back, beside what was predicted of it.

Two ways of saying it: a refusal (words of ``thinking_rules.REFUSALS``) and ``input_transformations`` in
a reply that was given all the same. Each belongs to the policy that can foresee it: what hangs on the
prefix to ``history``, what hangs on the blocks to ``thinking``. A finding ``reported`` holds both sides
and the ``verdict``: ``agreed`` where a fault was predicted, ``missed`` where none was. What nobody can
foresee (another model, another organisation) is reported without one. A refusal that was predicted and
did not come is no finding; ``proxy.verdict.Agreement`` counts it, too.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from policies.thinking_rules import REFUSALS
from proxy.model import Outcome
from proxy.verdict import Finding

_MOST = 20
"""Entries of one reply that are kept."""
_TOLD = ("type", "path", "id", "action", "reason")
_OF_THE_PREFIX = ("prefix", "end_user")
_UNFORESEEN = ("model", "organization", "turn_boundary")


def reported(policy: str, reply: Outcome, predicted: Sequence[str], *, of_prefix: bool) -> Finding | None:
    """What the provider says in this policy's matter; None where it says nothing."""
    told = {"predicted": list(predicted)}
    says = _refusal(reply)
    if says is not None and (says == "prefix") is of_prefix:
        verdict = "agreed" if predicted else "missed"
        return Finding(policy, "reported", "info", {"by": "error", "says": says, **told, "verdict": verdict})
    entries = [one for one in _entries(reply) if _of_prefix(one) is of_prefix]
    if entries:
        evidence: dict[str, Any] = {"by": "input_transformations", "entries": entries, **told}
        if not all(str(one.get("reason", "")).startswith(_UNFORESEEN) for one in entries):
            evidence["verdict"] = "agreed" if predicted else "missed"
        return Finding(policy, "reported", "info", evidence)
    return None


def _refusal(reply: Outcome) -> str | None:
    """Which fault an error names."""
    if reply.error is None:
        return None
    words = f"{reply.error.code or ''} {reply.error.message}"
    return next((name for name, pattern in REFUSALS if pattern.search(words)), None)


def _entries(reply: Outcome) -> list[dict[str, str]]:
    changed = reply.extra.get("input_transformations")
    return [
        {key: one[key] for key in _TOLD if isinstance(one.get(key), str)}
        for one in (changed[:_MOST] if isinstance(changed, list) else ())
        if isinstance(one, dict)
    ]


def _of_prefix(entry: Mapping[str, str]) -> bool:
    return entry.get("reason", "").startswith(_OF_THE_PREFIX)
