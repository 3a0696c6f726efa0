"""Whether reasoning that came out of a step comes back as its provider demands.

Each whole reply that holds bound units (signed thinking, encrypted reasoning, signed parts,
reasoning text) is remembered by fingerprints. Every later request of the thread is held against
that: where does the reply stand, which of its units came back, and how like are they. What that is
called and what it leads to is ``thinking_rules``' business, a table per model generation; what a
unit is in each dialect, ``proofs``'.

Only what differs from the thread's previous request is looked at; a reply that came back well
before and stands in the unchanged part costs one comparison. A fault is told when it appears and
when it changes, not at every step. Changes of system, tools and other messages are ``history``'s.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from policies.base import NOTHING, Policy
from policies.proofs import Piece, pieces, tells
from policies.replies import (
    Reply,
    Settled,
    answered,
    ask_of,
    followed,
    holding,
    in_order,
    mode,
    next_present,
    paired,
    remembered,
    rivalled,
    source,
    units_of,
    unsettled,
)
from policies.thinking_rules import GLM, GLM_KEEPS, OK, OMITTED, Generation, Verdict, generation
from policies.thinking_words import NAME, Judged, finding, terminal
from policies.transcript import (
    answers_calls,
    assistant,
    common,
    place_of,
    placed,
    run_end,
    runs,
    says_something,
)
from policies.verdicts import reported
from proxy.model import ModelRequest, Upstream
from proxy.ports import View
from proxy.verdict import Decision, Finding

_MOST_REPLIES = 48
"""Newest replies with reasoning that are remembered; older ones are `unseen` when they come back."""


@dataclass(slots=True)
class _Request:
    """The request under judgement, and what is found out about it on demand."""

    view: View
    request: ModelRequest
    rules: Generation
    known: int
    """Leading messages that are unchanged since the previous request was judged."""
    packed: Sequence[Sequence[Any]]
    """The replies as they are remembered, oldest first."""
    settled: Settled
    """Those of them at the beginning that need no look."""
    opened: dict[int, Reply] = field(default_factory=dict)
    """Those of them that are looked at, by their number."""
    read: dict[tuple[int, int], list[Piece]] = field(default_factory=dict)
    _turn: int | None = None

    @property
    def replies(self) -> list[Reply]:
        """All of them, unpacked."""
        return [self.reply(number) for number in range(len(self.packed))]

    @property
    def looked_at(self) -> list[Reply]:
        """Those that something may be said of, oldest first."""
        return [self.opened[number] for number in sorted(self.opened)]

    def reply(self, number: int) -> Reply:
        found = self.opened.get(number)
        return found if found is not None else Reply.unpack(self.packed[number])

    def pieces(self, place: tuple[int, int]) -> list[Piece]:
        found = self.read.get(place)
        if found is None:
            found = pieces(self.request.dialect, placed(self.request.messages, *place))
            self.read[place] = found
        return found

    def owned_by_others(self, reply: Reply, here: Sequence[Piece]) -> set[str]:
        """The fingerprints of other replies that hold one of these pieces."""
        proofs = {proof for piece in here if piece.unit is not None for proof in piece.unit.proofs}
        start = self.settled.count if proofs.isdisjoint(self.settled.proofs) else 0
        numbers = [start + number for number in holding(self.packed[start:], proofs)]
        others = [number for number in numbers if self.opened.get(number) is not reply]
        return {proof for n in others for unit in self.packed[n][9] for proof in unit[0]}

    def path(self, piece: Piece) -> str:
        return place_of(self.request, piece.message, piece.item.at)

    @property
    def turn(self) -> int:
        """The first message of the running tool loop (of the running turn, as the dialect sees it)."""
        if self._turn is None:
            self._turn = _turn_start(self.request)
        return self._turn

    def summed_up_behind(self, message: int) -> bool:
        """Whether a summary block of the provider's follows a message: what stands before is not read."""
        return any(
            item.kind == "compaction"
            for later in self.request.messages[message + 1 :]
            for item in later.items
        )


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
        if rules is None or rules.table is None or _held(request):
            return Decision(
                memory={**view.memory, "counts": {"not_applicable": len(packed)}, "predicted": []}
            )
        settled = Settled(*view.memory.get("settled", ()))
        asked = _Request(view, request, rules, common(view.previous, request), packed, settled)
        findings: list[Finding] = []
        counts: Counter[str] = Counter()
        hard: list[Judged] = []
        strays = self._locate(asked)
        replies = list(packed)
        for number in sorted(asked.opened):
            reply = asked.opened[number]
            judged = self._judge(asked, reply, strays)
            for index, one in enumerate(judged):
                kind, consequence = one.verdict
                counts[kind] += 1
                if consequence == "hard":
                    hard.append(one)
                state = kind if consequence is None else f"{kind}:{consequence}"
                if consequence is not None and reply.states[index] != state:
                    findings.append(finding(reply, index, one, rules))
                reply.states[index] = state
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
        }
        return Decision(findings=tuple(findings), terminal=terminal(hard[0]) if hard else None, memory=memory)

    def _locate(self, asked: _Request) -> dict[str, Piece]:
        """Find where each reply stands; answer units that stand where they were not born.

        A reply that came back well, in the part that did not change, stays packed: nothing is new in it,
        unless one of its units stands in the new part, too.
        """
        start = _run_start(asked.request, asked.known)
        fresh = list(runs(asked.request.messages, start))
        new = {
            proof
            for run in fresh
            for piece in asked.pieces(run)
            if piece.unit is not None and not piece.sentinel
            for proof in piece.unit.proofs
        }
        if not asked.settled.stand(start, new):
            asked.settled = Settled()
        first = asked.settled.count
        for number in unsettled(asked.packed[first:], start, new):
            asked.opened[first + number] = Reply.unpack(asked.packed[first + number])
        owners: dict[str, list[Reply]] = {}
        for reply in asked.looked_at:
            for unit in reply.units:
                for proof in unit.proofs:
                    owners.setdefault(proof, []).append(reply)
        taken: dict[tuple[int, int], list[Reply]] = {}
        lost: list[Reply] = []
        for reply in reversed(asked.looked_at):
            place = self._at_home(asked, reply)
            if place is None:
                lost.append(reply)
                continue
            reply.place = place
            taken.setdefault(place, []).append(reply)
        for reply in lost:
            reply.place = self._elsewhere(asked, reply, fresh, taken)
            if reply.place != (0, 0):
                taken.setdefault(reply.place, []).append(reply)
        strays: dict[str, Piece] = {}
        for run in fresh:
            for piece in asked.pieces(run):
                if piece.unit is None or piece.sentinel:
                    continue
                for proof in piece.unit.proofs:
                    known = owners.get(proof, ())
                    if known and not any(o.place[0] <= piece.message < o.place[1] for o in known):
                        strays[proof] = piece
        return strays

    def _at_home(self, asked: _Request, reply: Reply) -> tuple[int, int] | None:
        """The reply's place, if it is where it was, or where an untouched history has it."""
        if reply.place != (0, 0) and reply.place[1] <= asked.known:
            return reply.place
        messages = asked.request.messages
        for start in dict.fromkeys((reply.place[0], reply.at)):
            if 0 <= start < len(messages) and assistant(messages[start]):
                place = _span(asked, reply, _run_start(asked.request, start))
                if _resembles(asked, reply, place, by_words=bool(reply.ask)):
                    return place
        return None

    @staticmethod
    def _elsewhere(
        asked: _Request,
        reply: Reply,
        fresh: Sequence[tuple[int, int]],
        taken: Mapping[tuple[int, int], list[Reply]],
    ) -> tuple[int, int]:
        """A changed stretch that holds the reply's blocks or calls; (0, 0) where there is none."""
        for run in fresh:
            if run not in taken and _resembles(asked, reply, run, by_words=False):
                return _span(asked, reply, run[0])
        chain, messages = asked.request.chain, asked.request.messages
        at = reply.at
        rewritten = (
            0 < at < len(messages)
            and assistant(messages[at])
            and ask_of(chain[at - 1]) == reply.ask
            and (at, run_end(messages, at)) not in taken
        )
        return (at, run_end(messages, at)) if rewritten else (0, 0)

    # -- one reply

    def _judge(self, asked: _Request, reply: Reply, strays: Mapping[str, Piece]) -> list[Judged]:
        """What is the case with each unit of a reply."""
        stray = bool(strays) and any(proof in strays for unit in reply.units for proof in unit.proofs)
        if reply.fine and not stray and reply.place != (0, 0) and reply.place[1] <= asked.known:
            return [Judged("", OK, "", 0)] * len(reply.units)
        silent = _lawful(asked, reply)
        if silent is not None:
            return [Judged("", (silent, None), "", 0)] * len(reply.units)
        here = asked.pieces(reply.place)
        owned = asked.owned_by_others(reply, here)
        pairs, likes = paired(asked.request, reply, here, owned)
        judged: list[Judged] = []
        missing = [index for index in range(len(reply.units)) if index not in pairs]
        for index, unit in enumerate(reply.units):
            piece = pairs.get(index)
            elsewhere = next((strays[proof] for proof in unit.proofs if proof in strays), None)
            if piece is None:
                judged.append(self._missing(asked, reply, index, missing, elsewhere))
                continue
            situation = likes[index]
            if situation == "same":
                situation = self._placed(asked, reply, index, pairs, here, elsewhere)
            where = elsewhere if situation == "twice" and elsewhere is not None else piece
            verdict = ("synthetic", None) if situation == "synthetic" else self._verdict(asked, situation)
            judged.append(Judged(situation, verdict, asked.path(where), where.message))
        return judged

    @staticmethod
    def _verdict(asked: _Request, situation: str) -> Verdict:
        table = asked.rules.table
        assert table is not None
        return table.get(situation, OK)

    def _placed(
        self,
        asked: _Request,
        reply: Reply,
        index: int,
        pairs: Mapping[int, Piece],
        here: Sequence[Piece],
        elsewhere: Piece | None,
    ) -> str:
        """A unit that came back as it was: is it also where it was, once, and never left out before?"""
        unit, piece = reply.units[index], pairs[index]
        proofs = set(unit.proofs)
        copies = sum(
            p.unit is not None and bool(proofs & set(p.unit.proofs)) and p.unit.on == unit.on for p in here
        )
        given = sum(bool(proofs & set(u.proofs)) and u.on == unit.on for u in reply.units)
        if copies > max(1, given) or elsewhere is not None:
            return "twice"
        table = asked.rules.table
        assert table is not None
        if "present" in table:
            return "present"
        if index in reply.gone and "again" in table:
            return "again"
        if asked.request.dialect == "gemini":
            carrier = unit.on in _CARRIERS or any(p.anchor == unit.on for p in here)
            if piece.unit is not None and piece.unit.on != unit.on and carrier:
                return "moved.text" if unit.on in _CARRIERS else "moved"
            return "same"
        if not in_order(reply, index, pairs, here):
            return "order"
        if asked.request.dialect == "openai_responses" and not followed(reply, index, here):
            return "follower"
        return "same"

    def _missing(
        self, asked: _Request, reply: Reply, index: int, missing: Sequence[int], elsewhere: Piece | None
    ) -> Judged:
        """A unit that is not where it should be."""
        unit = reply.units[index]
        here = asked.pieces(reply.place)
        if elsewhere is not None:
            verdict = self._verdict(asked, "moved")
            return Judged("moved", verdict, asked.path(elsewhere), elsewhere.message)
        told = next((p for p in here if p.item.kind == "text" and tells(p.item.text, unit)), None)
        if told is not None and "as_text" in (asked.rules.table or {}):
            verdict = self._verdict(asked, "as_text")
            return Judged("as_text", verdict, asked.path(told), told.message)
        situation = _missing_situation(asked, reply, index, missing)
        verdict = (asked.rules.table or {}).get(situation, OMITTED)
        if verdict == OMITTED and not here:
            verdict = ("not_replayed", None)
        after = next_present(reply, index, here)
        if after is None or asked.request.dialect == "openai_responses":  # there each item is a message
            message = after.message if after is not None else reply.place[0]
            return Judged(situation, verdict, place_of(asked.request, message), message)
        return Judged(situation, verdict, asked.path(after), after.message)

    # -- when the reply has come

    def step_end(self, view: View) -> Decision:
        attempt, request, reply = view.attempt, view.request, view.outcome
        if attempt is None or request is None or reply is None or request.operation != "chat":
            return NOTHING
        said = reported(NAME, reply, view.memory.get("predicted", ()), of_prefix=False)
        findings = (said,) if said is not None else ()
        if attempt.outcome != "complete":
            return Decision(findings=findings)
        packed, settled = view.memory.get("replies", ()), Settled(*view.memory.get("settled", ()))
        others = [value for value in packed[settled.count :] if value[0] != view.step]
        replies = [*packed[: settled.count], *answered(others)]
        fresh = remembered(view, request, reply)
        if fresh is None and request.chain:
            replies = rivalled(replies, request.chain[-1])
        elif fresh is not None:
            replies.append(fresh.pack())
        if not replies:
            return Decision(findings=findings)
        settled = settled.grown(replies, _MOST_REPLIES)
        kept = {"replies": replies[-_MOST_REPLIES:], "settled": settled.pack()}
        return Decision(findings=findings, memory={**view.memory, **kept})


_CARRIERS = frozenset({"text", "thinking", "part"})
"""What may bear a signature in Gemini beside calls."""


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


def _held(request: ModelRequest) -> bool:
    """The provider holds the history, or parts of it."""
    if request.held is not None:
        return True
    return request.dialect == "openai_responses" and any(
        item.form == "item_reference" for message in request.messages for item in message.items
    )


def _lawful(asked: _Request, reply: Reply) -> Any:
    """Why nothing is demanded of a reply in this request; None where something is."""
    request = asked.request
    if reply.source != source(request, asked.view.upstream) or reply.model != request.model:
        return "not_applicable"
    if reply.place == (0, 0):
        return "not_replayed"
    if request.dialect == "anthropic":
        wanted = mode(request)
        if wanted == "disabled" or (not wanted and not reply.by_default):
            return "legally_omitted"
    if asked.summed_up_behind(reply.place[0]):
        return "legally_omitted"
    return None


def _turn_start(request: ModelRequest) -> int:
    """Where the running turn begins, by the rules of the dialect's provider.

    Gemini and Responses: behind the last content in which a user speaks and no result stands.
    Elsewhere a user's words beside results do not end the tool loop.
    """
    messages = request.messages
    at = len(messages)
    while at > 0:
        if assistant(messages[at - 1]):
            at -= 1
            continue
        end, speaks, answers = at, False, False
        while at > 0 and not assistant(messages[at - 1]):
            at -= 1
            answers = answers or answers_calls(messages[at])
            alone = says_something(messages[at]) and not answers_calls(messages[at])
            speaks = speaks or alone
            if alone and request.dialect in ("gemini", "openai_responses"):
                return at + 1
        if speaks and not answers:
            return end
    return 0


def _missing_situation(asked: _Request, reply: Reply, index: int, missing: Sequence[int]) -> str:
    """Which row of the table a missing unit falls under."""
    request, unit = asked.request, reply.units[index]
    if request.dialect == "openai_chat":
        if not request.tools:
            return "missing.no_tools"
        if "missing.older" in (asked.rules.table or {}) and reply.place[0] < asked.turn:
            return "missing.older"
        return "missing.with_call" if reply.calls else "missing.without_call"
    in_turn = reply.place[0] >= asked.turn
    if request.dialect == "gemini":
        if not in_turn:
            return "missing.older"
        calls = [p for p in asked.pieces(reply.place) if p.item.kind == "tool_call" and not p.item.server]
        return "missing.first_call" if calls and calls[0].anchor == unit.on else "missing.elsewhere"
    if request.dialect == "openai_responses":
        if not unit.proofs and not reply.stored:
            return "missing.nothing"  # an empty item without content: there is nothing to return
        if not in_turn:
            return "missing.older"
        after = next_present(reply, index, asked.pieces(reply.place))
        named = after is not None and after.item.item_id is not None
        return "missing.stored" if reply.stored and named and _same_name(reply, after) else "missing.in_turn"
    if in_turn and reply.calls and _is_last(request, reply):
        if len(missing) < len(reply.units):
            return "missing.some"
        return "missing.all_manual" if mode(request) == "enabled" else "missing.all"
    if asked.rules.bound and _is_hole(asked, reply, index):
        return "missing.middle"
    return "missing.in_loop" if in_turn else "missing.older"


def _same_name(reply: Reply, piece: Piece | None) -> bool:
    return piece is not None and any(name in reply.ids for name in piece.ids[-1:])


def _is_last(request: ModelRequest, reply: Reply) -> bool:
    """Whether no assistant message follows a reply: its calls are what is being answered."""
    return not any(assistant(message) for message in request.messages[reply.place[1] :])


def _is_hole(asked: _Request, reply: Reply, index: int) -> bool:
    """Whether blocks before and after a missing one are there."""
    before = after = False
    passed = False
    for other in sorted((r for r in asked.replies if r.place != (0, 0)), key=lambda r: r.place):
        if other is reply:
            there = _present(asked, other)
            before = before or any(i in there for i in range(index))
            after = any(i in there for i in range(index + 1, len(other.units)))
            passed = True
        elif _present(asked, other):
            if passed:
                after = True
            else:
                before = True
    return before and after


def _present(asked: _Request, reply: Reply) -> set[int]:
    if reply.fine and reply.place[1] <= asked.known:
        return set(range(len(reply.units)))
    proofs = {proof for p in asked.pieces(reply.place) if p.unit is not None for proof in p.unit.proofs}
    return {index for index, unit in enumerate(reply.units) if proofs & set(unit.proofs)}


# -- comparing a reply with what stands in its place


def _run_start(request: ModelRequest, known: int) -> int:
    """The first message of the stretch in which the unchanged part ends."""
    messages = request.messages
    at = min(known, len(messages))
    while 0 < at < len(messages) and assistant(messages[at]) and assistant(messages[at - 1]):
        at -= 1
    return at


def _span(asked: _Request, reply: Reply, start: int) -> tuple[int, int]:
    """The messages that a reply takes up. In Responses results may stand between its calls."""
    messages = asked.request.messages
    end = run_end(messages, start)
    if asked.request.dialect != "openai_responses" or not reply.calls:
        return start, end
    at = end
    while at < len(messages) and answers_calls(messages[at]):
        at += 1
        if at < len(messages) and assistant(messages[at]) and not answers_calls(messages[at]):
            piece = next(iter(asked.pieces((at, at + 1))), None)
            if piece is None or not set(piece.ids) & set(reply.ids):
                break
            at = end = at + 1
    return start, end


def _resembles(asked: _Request, reply: Reply, place: tuple[int, int], *, by_words: bool) -> bool:
    """Whether a stretch holds something of a reply: a proof, a call by its id, a text or call by content.

    ``by_words``: also a call by its content that bears another id, as where the reply was itself. Elsewhere
    an agent has often made the same call before.
    """
    proofs = {proof for unit in reply.units for proof in unit.proofs}
    texts = {unit.text for unit in reply.units if unit.text}
    for piece in asked.pieces(place):
        if piece.unit is not None and (proofs & set(piece.unit.proofs) or piece.unit.text in texts):
            return True
        if any(name in reply.ids for name in piece.ids):
            return True
        named = bool(piece.ids) and piece.anchor in reply.ids.values()
        if piece.anchor and piece.anchor in reply.order and (by_words or not named):
            return True
    return False
