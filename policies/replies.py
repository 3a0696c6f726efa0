"""Replies with bound units or marks, remembered by fingerprints, and a reply beside what stands in its place.

Values and comparisons; what a difference is called is ``thinking``'s.
"""

from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

from policies.proofs import Piece, Unit, likeness, pieces
from policies.thinking_marks import FALLBACK, Mark, marks_of
from proxy.model import DialectName, ModelRequest, Outcome, Upstream
from proxy.ports import View

_MOST_ANCHORS = 64
_MOST_UNITS = 64


@dataclass(slots=True)
class Reply:
    """A reply with bound units or marks, as it is remembered, and how it came back last."""

    step: str
    number: int
    at: int
    """Messages of the request that it answered: where it stands in an untouched history."""
    ask: str
    """Name of that history; empty once it got another reply, too, which may stand in this one's place."""
    source: str
    """Dialect and upstream."""
    model: str
    by_default: bool
    """The request asked for no thinking, and got it."""
    stored: bool
    """The provider keeps the reply."""
    calls: bool
    """It left calls to the client."""
    units: list[Unit]
    order: list[str]
    """Units (``#0`` …) and anchors as they stood."""
    ids: dict[str, str]
    """Of its calls and items, each with the anchor that bears it."""
    states: list[str]
    """Of each unit, then of each mark: "", or what was last said of it."""
    gone: list[int]
    """Units that an answered request went without."""
    place: tuple[int, int] = (0, 0)
    """Where it stood last; (0, 0): nowhere."""
    marks: list[Mark] = field(default_factory=list)

    def pack(self) -> list[Any]:
        return [
            self.step, self.number, self.at, self.ask, self.source, self.model, self.by_default, self.stored,
            self.calls, [unit.pack() for unit in self.units], self.order, self.ids, self.states, self.gone,
            list(self.place), [mark.pack() for mark in self.marks] if self.marks else [],
        ]  # fmt: skip

    @staticmethod
    def unpack(value: Sequence[Any]) -> "Reply":
        units = [Unit.unpack(unit) for unit in value[9]]
        parts = [*value[:9], units, *value[10:12], list(value[12]), list(value[13]), tuple(value[14])]
        marked = value[15] if len(value) > 15 else ()
        parts.append([Mark.unpack(mark) for mark in marked] if marked else [])
        return Reply(*parts)

    @property
    def left_behind(self) -> set[str]:
        """Fingerprints of its thinking before a fallback, which need not come back."""
        told = {proof for mark in self.marks for proof in mark.proofs}
        return told - {proof for unit in self.units for proof in unit.proofs}

    @property
    def fine(self) -> bool:
        return all(state == "ok" for state in self.states)


# -- what can be said of packed replies, without asking dozens of them at every step


@dataclass(slots=True)
class Settled:
    """The oldest replies, as far as all of them came back well ever since: what is to be known of them."""

    count: int = 0
    end: int = 0
    """No message at or behind this one is theirs."""
    units: int = 0
    proofs: list[str] = field(default_factory=list)
    """Fingerprints of all their units."""

    def pack(self) -> list[Any]:
        return [self.count, self.end, self.units, self.proofs]

    def stand(self, known: int, new: Set[str]) -> bool:
        """Whether they are in the first ``known`` messages, and none of them is among what is new."""
        return self.end <= known and new.isdisjoint(self.proofs)

    def grown(self, packed: Sequence[Sequence[Any]], most: int) -> "Settled":
        """The same with those of all replies that follow and came back well, less what is beyond ``most``."""
        made = Settled(self.count, self.end, self.units, list(self.proofs))
        for value in packed[self.count :]:
            if not _flawless(value) or value[14][1] == 0:
                break
            made.count += 1
            made.end = max(made.end, value[14][1])
            made.units += len(value[9])
            made.proofs += _proofs_of(value)
        for value in packed[: min(made.count, max(0, len(packed) - most))]:
            made.count -= 1
            made.units -= len(value[9])
            del made.proofs[: len(_proofs_of(value))]
        return made


def _flawless(value: Sequence[Any]) -> bool:
    """Whether all of it came back well, now and ever before."""
    return not value[13] and bool(value[12].count("ok") == len(value[12]))


def _proofs_of(value: Sequence[Any]) -> list[str]:
    return [proof for unit in value[9] for proof in unit[0]]


def units_of(packed: Sequence[Sequence[Any]]) -> int:
    """How many units they hold."""
    return sum([len(value[9]) for value in packed])


def holding(packed: Sequence[Sequence[Any]], proofs: Set[str]) -> list[int]:
    """The numbers of those that hold one of some fingerprints."""
    return [number for number, value in enumerate(packed) if not proofs.isdisjoint(_proofs_of(value))]


def unsettled(packed: Sequence[Sequence[Any]], known: int, new: Set[str]) -> list[int]:
    """The numbers of those that did not come back well before message ``known``, or hold something new."""
    return [
        number
        for number, value in enumerate(packed)
        if not 0 < value[14][1] <= known
        or value[12].count("ok") < len(value[12])
        or not new.isdisjoint(_proofs_of(value))
    ]


def answered(packed: Sequence[Sequence[Any]], repaired: Set[str] = frozenset()) -> list[Sequence[Any]]:
    """The same now that a request has gone well without some of their units, or with all of them.

    ``repaired``: the steps of those that were made whole before it went out.
    """
    return [value if _flawless(value) or value[0] in repaired else _answered(value) for value in packed]


def _answered(value: Sequence[Any]) -> Sequence[Any]:
    left_out = [i for i, state in enumerate(value[12]) if state.partition(":")[0] in _LEFT_OUT]
    return value if left_out == value[13] else [*value[:13], left_out, *value[14:]]


_LEFT_OUT = frozenset({"dropped", "legally_omitted", "converted"})


def ask_of(name: bytes) -> str:
    """A history's name, as replies remember what they answered."""
    return name.hex()[:16]


def rivalled(packed: Sequence[Sequence[Any]], name: bytes) -> list[Sequence[Any]]:
    """The same now that a history of this name has got a reply without anything bound (after a rewind)."""
    ask = ask_of(name)
    return [[*value[:3], "", *value[4:]] if value[3] == ask else value for value in packed]


def remembered(view: View, request: ModelRequest, reply: Outcome) -> Reply | None:
    """A whole reply by fingerprints; None where it holds nothing that is bound or marked."""
    read = pieces(request.dialect, ((0, item) for item in reply.items))
    last = max((n for n, piece in enumerate(read) if piece.item.form == FALLBACK), default=-1)
    units: list[Unit] = []
    order: list[str] = []
    for number, piece in enumerate(read):
        if piece.unit is not None and number > last and len(units) < _MOST_UNITS:
            order.append(f"#{len(units)}")
            units.append(piece.unit)
        if piece.anchor and len(order) < _MOST_ANCHORS + len(units):
            order.append(piece.anchor)
    marks = marks_of(read)
    if not units and not marks:
        return None
    return Reply(
        step=view.step,
        number=view.number,
        at=len(request.messages),
        ask=ask_of(request.chain[-1]) if request.chain else "",
        source=source(request, view.upstream),
        model=request.model,
        by_default=not mode(request),
        stored=request.options.get("store") is not False,
        calls=bool(reply.tool_calls),
        units=units,
        order=order,
        ids={name: piece.anchor for piece in read[: _MOST_ANCHORS // 2] for name in piece.ids},
        states=[""] * (len(units) + len(marks)),
        gone=[],
        marks=marks,
    )


def source(request: ModelRequest, upstream: Upstream | None) -> str:
    return f"{request.dialect} {upstream.name if upstream is not None else ''}"


def mode(request: ModelRequest) -> str:
    thinking = request.options.get("thinking")
    kind = thinking.get("type") if isinstance(thinking, dict) else None
    return kind if isinstance(kind, str) else ""


# -- comparing


def paired(
    request: ModelRequest, reply: Reply, here: Sequence[Piece], owned: set[str]
) -> tuple[dict[int, Piece], dict[int, str]]:
    """Which piece is which unit, and how like they are: the like ones first, the rest by order."""
    dialect = request.dialect
    stored = reply.stored and request.options.get("store") is not False
    pairs: dict[int, Piece] = {}
    likes: dict[int, str] = {}
    free = [piece for piece in here if piece.unit is not None]
    for wanted, strict in ((("same",), True), (_PARTLY, True), (("same",), False)):
        for index, unit in enumerate(reply.units):
            if index in pairs:
                continue
            for piece in free:
                if piece.unit is None or (strict and piece.unit.on != unit.on):
                    continue
                like = likeness(dialect, unit, piece, by_id=stored)
                if like in wanted and (like == "same" or not set(_proofs(piece)) & owned):
                    pairs[index], likes[index] = piece, like
                    free.remove(piece)
                    break
    if dialect == "gemini":
        return pairs, likes
    known = owned | {proof for unit in reply.units for proof in unit.proofs}
    strangers = [piece for piece in free if not set(_proofs(piece)) & known]
    for index, piece in zip(
        [i for i in range(len(reply.units)) if i not in pairs and _demanded(reply.units[i], dialect)],
        strangers,
        strict=False,
    ):
        pairs[index], likes[index] = piece, "other"
    return pairs, likes


_PARTLY = ("synthetic", "text", "proof", "bare", "order")


def _proofs(piece: Piece) -> tuple[str, ...]:
    return piece.unit.proofs if piece.unit is not None else ()


def _demanded(unit: Unit, dialect: DialectName) -> bool:
    return bool(unit.proofs) or dialect == "openai_chat"


def in_order(reply: Reply, index: int, pairs: Mapping[int, Piece], here: Sequence[Piece]) -> bool:
    """Whether the same blocks, texts and calls precede a unit as in the reply, of those that are there."""
    ours = {id(piece): f"#{number}" for number, piece in pairs.items()}
    there = [token for piece in here if (token := ours.get(id(piece)) or _anchor(reply, piece))]
    if there == reply.order:
        return True
    now = _unique(there)
    then = _unique(reply.order)
    token = f"#{index}"
    if token not in then or token not in now:
        return True
    shared = set(now) & set(then)
    return {t for t in then[: then.index(token)] if t in shared} == {
        t for t in now[: now.index(token)] if t in shared
    }


def _anchor(reply: Reply, piece: Piece) -> str:
    """The anchor that a piece is, also where the client rewrote a call's arguments and kept its id."""
    return next((reply.ids[name] for name in piece.ids if reply.ids.get(name)), piece.anchor)


def _unique(tokens: Sequence[str]) -> list[str]:
    """The tokens, later ones of equal name told apart by their number."""
    seen: Counter[str] = Counter()
    told: list[str] = []
    for token in tokens:
        told.append(f"{token}/{seen[token]}" if seen[token] else token)
        seen[token] += 1
    return told


def followed(reply: Reply, index: int, here: Sequence[Piece]) -> bool:
    """Whether what a reasoning item led to is there, by content or by id."""
    at = reply.order.index(f"#{index}") if f"#{index}" in reply.order else -1
    after = next((token for token in reply.order[at + 1 :] if not token.startswith("#")), None)
    if at < 0 or after is None:
        return True
    return any(
        piece.anchor == after or set(piece.ids) & set(reply.ids) for piece in here if piece.unit is None
    )


def next_present(reply: Reply, index: int, here: Sequence[Piece]) -> Piece | None:
    """What stands now where a missing unit stood: the next thing of the reply that came back."""
    token = f"#{index}"
    bearer = next((piece for piece in here if piece.anchor and piece.anchor == reply.units[index].on), None)
    if bearer is not None:
        return bearer
    if reply.order[:1] == [token]:
        return next((piece for piece in here if piece.unit is None), None)
    others = [piece for piece in here if piece.unit is None]
    names = _unique([_anchor(reply, piece) for piece in others])
    then = _unique(reply.order)
    later = then[then.index(token) + 1 :] if token in then else []
    for wanted in later:
        if wanted in names:
            return others[names.index(wanted)]
    return others[0] if others else None
