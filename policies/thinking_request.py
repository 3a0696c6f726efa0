"""The request that ``thinking`` judges: its replies, its stretches read once, and where its turn begins.

Everything here is found out on demand and kept while one request is judged. What is looked at, and
what is called a fault, is decided elsewhere.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from policies.proofs import Piece, pieces
from policies.replies import Reply, Settled, holding
from policies.thinking_rules import Generation
from policies.transcript import answers_calls, assistant, place_of, placed, says_something
from proxy.model import ModelRequest
from proxy.ports import View


@dataclass(slots=True)
class Asked:
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
            self._turn = turn_start(self.request)
        return self._turn

    def summed_up_behind(self, message: int) -> bool:
        """Whether a summary block of the provider's follows a message: what stands before is not read."""
        return any(
            item.kind == "compaction"
            for later in self.request.messages[message + 1 :]
            for item in later.items
        )


def turn_start(request: ModelRequest) -> int:
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
