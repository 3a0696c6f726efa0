"""What stands beside the reasoning of a reply and must come back with it: phases and fallback blocks.

A *phase* (Responses) says whether a message was said on the way or is the answer. A *fallback block*
(Anthropic) says where another model took over; it is a matter of proof only where thinking from both sides
of it comes back. Marks are remembered with their reply, by fingerprints, and sought where the reply
stands. A message that did not come back, or came back in other words, has no phase to miss.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from policies.proofs import Piece, fingerprint

FALLBACK = "fallback"
MOST_MARKS = 32
_MOST_NAMES = 64


@dataclass(frozen=True, slots=True)
class Mark:
    """One of them, as it was given."""

    kind: Literal["phase", "fallback"]
    value: str
    """Fingerprint of the phase."""
    anchor: str
    """Of the message, or of the fallback block."""
    block: int
    """Its number among the blocks of the reply."""
    before: tuple[str, ...] = ()
    """Names of what stood on one side of it alone: fingerprints of thinking, anchors of the rest."""
    behind: tuple[str, ...] = ()
    proofs: tuple[str, ...] = ()
    """Those of them that are thinking."""

    def pack(self) -> list[Any]:
        """As JSON values."""
        return [
            self.kind, self.value, self.anchor, self.block, list(self.before), list(self.behind),
            list(self.proofs),
        ]  # fmt: skip

    @staticmethod
    def unpack(value: Sequence[Any]) -> "Mark":
        """From ``pack``."""
        return Mark(*value[:4], *(tuple(names) for names in value[4:]))


@dataclass(frozen=True, slots=True)
class Sight:
    """What is the case with a mark, and the piece that shows it; nothing is where both are empty."""

    situation: str = ""
    piece: Piece | None = None


def marks_of(read: Sequence[Piece]) -> list[Mark]:
    """The marks of a reply."""
    found: list[Mark] = []
    for number, piece in enumerate(read):
        if piece.item.phase and piece.anchor:
            found.append(Mark("phase", fingerprint(piece.item.phase), piece.anchor, number))
        elif piece.item.form == FALLBACK:
            before, behind = read[:number], read[number + 1 :]
            if _proofs(before) and _proofs(behind):
                found.append(_dividing(number, piece, before, behind))
    return found[:MOST_MARKS]


def _dividing(number: int, piece: Piece, before: Sequence[Piece], behind: Sequence[Piece]) -> Mark:
    """A fallback block with the nearest things on either side of it."""
    near, far = before[-_MOST_NAMES:], behind[:_MOST_NAMES]
    names, others = _names(near), _names(far)
    return Mark(
        "fallback", "", piece.anchor, number, tuple(sorted(names - others)), tuple(sorted(others - names)),
        tuple(dict.fromkeys(_proofs([*near, *far]))),
    )  # fmt: skip


def marks_seen(marks: Sequence[Mark], ids: Mapping[str, str], here: Sequence[Piece]) -> list[Sight]:
    """What is the case with each mark where its reply stands.

    ``ids``: of the reply's calls and items, each with the anchor that bears it.
    """
    phases = [mark for mark in marks if mark.kind == "phase"]
    blocks = [mark for mark in marks if mark.kind == "fallback"]
    spoken = iter(_phases(phases, ids, here) if phases else ())
    dividing = iter(_fallbacks(blocks, here) if blocks else ())
    return [next(spoken if mark.kind == "phase" else dividing) for mark in marks]


def without_fallbacks(here: Iterable[Piece]) -> list[Piece]:
    """The same, for who asks after the order of the rest."""
    return [piece for piece in here if piece.item.form != FALLBACK]


# -- phases


def _phases(marks: Sequence[Mark], ids: Mapping[str, str], here: Sequence[Piece]) -> list[Sight]:
    free = [piece for piece in here if piece.item.kind == "text"]
    pairs: dict[int, Piece] = {}
    for fits in (_wholly, _by_words, _by_id):
        for number, mark in enumerate(marks):
            piece = next((p for p in free if fits(mark, p, ids)), None) if number not in pairs else None
            if piece is not None:
                pairs[number] = piece
                free.remove(piece)
    return [_phase(mark, pairs.get(number)) for number, mark in enumerate(marks)]


def _wholly(mark: Mark, piece: Piece, ids: Mapping[str, str]) -> bool:
    return piece.anchor == mark.anchor and fingerprint(piece.item.phase) == mark.value


def _by_words(mark: Mark, piece: Piece, ids: Mapping[str, str]) -> bool:
    return piece.anchor == mark.anchor


def _by_id(mark: Mark, piece: Piece, ids: Mapping[str, str]) -> bool:
    return any(ids.get(name) == mark.anchor for name in piece.ids)


def _phase(mark: Mark, piece: Piece | None) -> Sight:
    if piece is None or fingerprint(piece.item.phase) == mark.value:
        return Sight()
    return Sight("phase.other" if piece.item.phase else "phase.gone", piece)


# -- fallback blocks


def _fallbacks(marks: Sequence[Mark], here: Sequence[Piece]) -> list[Sight]:
    blocks = [number for number, piece in enumerate(here) if piece.item.form == FALLBACK]
    sights: list[Sight] = []
    for mark in marks:
        at = next((number for number in blocks if here[number].anchor == mark.anchor), None)
        if at is None and len(blocks) == 1:
            at = blocks[0]  # told anew: it is still a block that divides
        if at is not None:
            blocks.remove(at)
        sights.append(_fallback(mark, at, here))
    return sights


def _fallback(mark: Mark, at: int | None, here: Sequence[Piece]) -> Sight:
    sent = set(_proofs(here)) & set(mark.proofs)
    if sent.isdisjoint(mark.before) or sent.isdisjoint(mark.behind):
        return Sight()
    if at is None:
        after = next(p for p in here if not set(_proofs([p])).isdisjoint(mark.behind))
        return Sight("fallback.gone", after)
    if _names(here[:at]).isdisjoint(mark.behind) and _names(here[at + 1 :]).isdisjoint(mark.before):
        return Sight()
    return Sight("fallback.moved", here[at])


def _proofs(read: Iterable[Piece]) -> list[str]:
    return [
        proof
        for piece in read
        if piece.item.kind == "thinking" and piece.unit is not None
        for proof in piece.unit.proofs
    ]


def _names(read: Sequence[Piece]) -> set[str]:
    anchors = {piece.anchor for piece in read if piece.anchor and piece.item.form != FALLBACK}
    return anchors | set(_proofs(read))
