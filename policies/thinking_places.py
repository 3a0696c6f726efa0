"""Where the replies that ``thinking`` remembers stand in a request: at home, elsewhere, nowhere.

A reply that came back well, in the part that did not change, is not looked for again. Nothing in here
judges.
"""

from collections.abc import Mapping, Sequence

from policies.proofs import Piece
from policies.replies import Reply, Settled, ask_of, unsettled
from policies.thinking_request import Asked
from policies.transcript import answers_calls, assistant, run_end, runs
from proxy.model import ModelRequest


def locate(asked: Asked) -> dict[str, Piece]:
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
        place = _at_home(asked, reply)
        if place is None:
            lost.append(reply)
            continue
        reply.place = place
        taken.setdefault(place, []).append(reply)
    for reply in lost:
        reply.place = _elsewhere(asked, reply, fresh, taken)
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


def _at_home(asked: Asked, reply: Reply) -> tuple[int, int] | None:
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


def _elsewhere(
    asked: Asked,
    reply: Reply,
    fresh: Sequence[tuple[int, int]],
    taken: Mapping[tuple[int, int], list[Reply]],
) -> tuple[int, int]:
    """A changed stretch that holds the reply's blocks or calls; (0, 0) where there is none."""
    for run in fresh:
        known = (
            _named(asked, reply, run) if not reply.units else _resembles(asked, reply, run, by_words=False)
        )
        if known and run not in taken:
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


def _run_start(request: ModelRequest, known: int) -> int:
    """The first message of the stretch in which the unchanged part ends."""
    messages = request.messages
    at = min(known, len(messages))
    while 0 < at < len(messages) and assistant(messages[at]) and assistant(messages[at - 1]):
        at -= 1
    return at


def _span(asked: Asked, reply: Reply, start: int) -> tuple[int, int]:
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


def _named(asked: Asked, reply: Reply, run: tuple[int, int]) -> bool:
    """Whether a stretch holds something of a reply by its id: words alone are said more than once."""
    return any(name in reply.ids for piece in asked.pieces(run) for name in piece.ids)


def _resembles(asked: Asked, reply: Reply, place: tuple[int, int], *, by_words: bool) -> bool:
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
