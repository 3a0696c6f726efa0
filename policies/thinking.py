"""Policy ``thinking``: whether reasoning that came out of a step comes back as its provider demands.

Each whole reply that holds bound units (signed thinking, encrypted reasoning, signed parts,
reasoning text) is remembered by fingerprints. Every later request of the thread is held against
that: where does the reply stand (``thinking_places``), which of its units came back, and how like are
they (``thinking_faults``). What that is called and what it leads to is ``thinking_rules``' business, a
table per model generation; what a unit is in each dialect, ``proofs``'; what else of a reply must come
back with them, ``thinking_marks``', and what may be put back ``thinking_repair``'s.

Only what differs from the thread's previous request is looked at; a reply that came back well
before and stands in the unchanged part costs one comparison. A fault is told when it appears and
when it changes, not at every step. Changes of system, tools and other messages are ``history``'s.
"""

from collections import Counter
from typing import Any

from policies.base import NOTHING, Policy
from policies.replies import Settled, answered, remembered, rivalled, units_of
from policies.thinking_faults import judge
from policies.thinking_places import locate
from policies.thinking_repair import edits, unmended, wish
from policies.thinking_request import Asked
from policies.thinking_rules import GLM, GLM_KEEPS, Generation, generation
from policies.thinking_words import NAME, Judged, finding, terminal
from policies.transcript import common
from policies.verdicts import reported
from proxy.model import ModelRequest, Upstream
from proxy.ports import View
from proxy.verdict import Decision, Finding

_MOST_REPLIES = 48
"""Newest replies with reasoning or marks that are remembered; older ones are `unseen` when they come back."""


class Thinking(Policy):
    """See the module."""

    name = NAME

    # -- before a request goes out

    def step_start(self, view: View) -> Decision:
        request = view.request
        if request is None or request.operation != "chat":
            return NOTHING
        packed = view.memory.get("replies", ())
        if not packed:
            return NOTHING
        rules = rules_for(request, view.upstream)
        known, whole = common(view.previous, request), view.memory.get("whole", 0)
        if rules is None or rules.table is None or _held(request, whole if whole <= known else 0):
            return Decision(
                memory={**view.memory, "counts": {"not_applicable": len(packed)}, "predicted": []}
            )
        settled = Settled(*view.memory.get("settled", ()))
        asked = Asked(view, request, rules, known, packed, settled)
        findings: list[Finding] = []
        counts: Counter[str] = Counter()
        hard: list[Judged] = []
        refused: set[str] = set()
        wishes: list[dict[str, Any]] = []
        strays = locate(asked)
        replies = list(packed)
        for number in sorted(asked.opened):
            reply = asked.opened[number]
            judged = judge(asked, reply, strays)
            why: str | None = None
            for index, one in enumerate(judged):
                kind, consequence = one.verdict
                if index < len(reply.units) or consequence is not None:
                    counts[kind] += 1
                if consequence == "hard":
                    hard.append(one)
                    refused.add(reply.step)
                state = kind if consequence is None else f"{kind}:{consequence}"
                if consequence is not None and reply.states[index] != state:
                    why = unmended(reply, judged) if why is None else why
                    findings.append(finding(reply, index, one, rules, why))
                reply.states[index] = state
            if why == "":
                wishes.append(wish(reply, judged))
            replies[number] = reply.pack()
        settled = asked.settled
        well = settled.units + units_of(packed[settled.count :])
        well -= units_of([packed[number] for number in asked.opened])
        if well:
            counts["ok"] += well
        predicted = sorted({one.verdict[0] for one in hard})
        memory = {
            "replies": replies,
            "settled": settled.pack(),
            "counts": dict(counts),
            "predicted": predicted,
            **({"refused": sorted(refused)} if refused else {}),
            "whole": len(request.messages),
        }
        return Decision(
            findings=tuple(findings),
            edits=edits(wishes, rules),
            terminal=terminal(hard[0]) if hard else None,
            memory=memory,
        )

    # -- when the reply has come

    def step_end(self, view: View) -> Decision:
        attempt, request, reply = view.attempt, view.request, view.outcome
        if attempt is None or request is None or reply is None or request.operation != "chat":
            return NOTHING
        predicted = view.memory.get("predicted", ())
        if predicted and view.repaired.issuperset(view.memory.get("refused", ("",))):
            predicted = ()  # of what went out, nothing was
        said = reported(NAME, reply, predicted, of_prefix=False)
        findings = (said,) if said is not None else ()
        if attempt.outcome != "complete":
            return Decision(findings=findings)
        packed, settled = view.memory.get("replies", ()), Settled(*view.memory.get("settled", ()))
        others = [value for value in packed[settled.count :] if value[0] != view.step]
        replies = [*packed[: settled.count], *answered(others, view.repaired)]
        fresh = remembered(view, request, reply)
        if (fresh is None or not fresh.units) and request.chain:
            replies = rivalled(replies, request.chain[-1])
        if fresh is not None:
            replies.append(fresh.pack())
        if not replies:
            return Decision(findings=findings)
        settled = settled.grown(replies, _MOST_REPLIES)
        kept = {"replies": replies[-_MOST_REPLIES:], "settled": settled.pack()}
        return Decision(findings=findings, memory={**view.memory, **kept})


# -- which rules, and whether they apply


def rules_for(request: ModelRequest, upstream: Upstream | None) -> Generation | None:
    """The row of the decision tables that a request falls under."""
    where = f"{upstream.name} {upstream.provider} {upstream.url}" if upstream is not None else ""
    row = generation(request.dialect, request.model, where)
    thinking = request.options.get("thinking")
    keeps = isinstance(thinking, dict) and thinking.get("clear_thinking") is False
    if row is not None and row.dialect == "openai_chat" and keeps and GLM.search(request.model):
        return GLM_KEEPS
    return row


def _held(request: ModelRequest, whole: int) -> bool:
    """The provider holds the history, or parts of it; ``whole``: how many messages are known to be here."""
    if request.held is not None:
        return True
    return request.dialect == "openai_responses" and any(
        item.form == "item_reference" for message in request.messages[whole:] for item in message.items
    )
