"""What is the case with each unit of a reply that came back, and what the rules call it.

``thinking_rules`` holds the rules, ``thinking_places`` has found the reply, ``thinking_marks`` looks at
what stands beside the units.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from policies.proofs import Piece, tells
from policies.replies import (
    Reply,
    followed,
    in_order,
    mode,
    next_present,
    paired,
    source,
)
from policies.thinking_marks import Sight, marks_seen, without_fallbacks
from policies.thinking_request import Asked
from policies.thinking_rules import OK, OMITTED, Verdict
from policies.thinking_words import Judged
from policies.transcript import assistant, place_of
from proxy.model import ModelRequest

_CARRIERS = frozenset({"text", "thinking", "part"})
"""What may bear a signature in Gemini beside calls."""


def judge(asked: Asked, reply: Reply, strays: Mapping[str, Piece]) -> list[Judged]:
    """What is the case with each unit of a reply, then with each of its marks."""
    stray = bool(strays) and any(proof in strays for unit in reply.units for proof in unit.proofs)
    if reply.fine and not stray and reply.place != (0, 0) and reply.place[1] <= asked.known:
        return [Judged("", OK, "", 0)] * len(reply.states)
    silent = _lawful(asked, reply)
    if silent is not None:
        return [Judged("", (silent, None), "", 0)] * len(reply.states)
    here = asked.pieces(reply.place)
    owned, ordered = asked.owned_by_others(reply, here), here
    sights: list[Sight] = []
    if reply.marks:
        sights = marks_seen(reply.marks, reply.ids, here)
        owned |= reply.left_behind
        if any(sight.situation == "fallback.moved" for sight in sights):
            ordered = without_fallbacks(here)
    pairs, likes = paired(asked.request, reply, here, owned)
    judged: list[Judged] = []
    missing = [index for index in range(len(reply.units)) if index not in pairs]
    for index, unit in enumerate(reply.units):
        piece = pairs.get(index)
        elsewhere = next((strays[proof] for proof in unit.proofs if proof in strays), None)
        if piece is None:
            judged.append(_missing(asked, reply, index, missing, elsewhere))
            continue
        situation = likes[index]
        if situation == "same":
            situation = _placed(asked, reply, index, pairs, ordered, elsewhere)
        where = elsewhere if situation == "twice" and elsewhere is not None else piece
        verdict = ("synthetic", None) if situation == "synthetic" else _verdict(asked, situation)
        judged.append(Judged(situation, verdict, asked.path(where), where.message))
    for sight in sights:
        judged.append(_marked(asked, sight))
    return judged


def _marked(asked: Asked, sight: Sight) -> Judged:
    """A mark of the reply. A phase is its message's: the message is where it is missing."""
    piece = sight.piece
    if piece is None:
        return Judged("", OK, "", 0)
    where = asked.path(piece)
    if piece.item.phase or sight.situation == "phase.gone":
        at = ("phase",) if piece.item.phase else ()
        where = place_of(asked.request, piece.message, at)
    return Judged(sight.situation, _verdict(asked, sight.situation), where, piece.message)


def _verdict(asked: Asked, situation: str) -> Verdict:
    table = asked.rules.table
    assert table is not None
    return table.get(situation, OK)


def _placed(
    asked: Asked,
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
    asked: Asked, reply: Reply, index: int, missing: Sequence[int], elsewhere: Piece | None
) -> Judged:
    """A unit that is not where it should be."""
    unit = reply.units[index]
    here = asked.pieces(reply.place)
    if elsewhere is not None:
        verdict = _verdict(asked, "moved")
        return Judged("moved", verdict, asked.path(elsewhere), elsewhere.message)
    told = next((p for p in here if p.item.kind == "text" and tells(p.item.text, unit)), None)
    if told is not None and "as_text" in (asked.rules.table or {}):
        verdict = _verdict(asked, "as_text")
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


def _lawful(asked: Asked, reply: Reply) -> Any:
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


def _missing_situation(asked: Asked, reply: Reply, index: int, missing: Sequence[int]) -> str:
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


def _is_hole(asked: Asked, reply: Reply, index: int) -> bool:
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


def _present(asked: Asked, reply: Reply) -> set[int]:
    if reply.fine and reply.place[1] <= asked.known:
        return set(range(len(reply.units)))
    proofs = {proof for p in asked.pieces(reply.place) if p.unit is not None for proof in p.unit.proofs}
    return {index for index, unit in enumerate(reply.units) if proofs & set(unit.proofs)}
