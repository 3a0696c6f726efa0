"""The newest replies of a scope, of which later requests may quote one: newest first, a few at hand.

A request that begins a thread is held against all of them, so each is known by a few words. The one
invariant: ``within`` leaves out no reply that is repeated, whole, in one of the texts, nor one of
which the summary is.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Generic, TypeVar

T = TypeVar("T")

SUMMED_UP = "</summary>"
"""Behind a summary inside a reply: it may be quoted without what stands around it."""
_MOST = 64
_PEEK = 200
"""Characters of a reply in which its words are looked for."""
_MARKS = 4
_SHORT = 30_000
"""Characters of texts of which the words are looked at; in longer ones Python finds a text fast enough."""


class Newest(Generic[T]):
    """Whatever gave a reply, with words that find it."""

    def __init__(self) -> None:
        self._marked: deque[tuple[frozenset[str], T]] = deque(maxlen=_MOST)

    def __bool__(self) -> bool:
        return bool(self._marked)

    def __iter__(self) -> Iterator[T]:
        return iter([one for _, one in reversed(self._marked)])

    def add(self, one: T, reply: str) -> None:
        """Take in what was replied last."""
        self._marked.append((_marks(reply), one))

    def within(self, texts: Sequence[str]) -> Iterable[T]:
        """Those of which a text may repeat the reply."""
        if sum(map(len, texts)) >= _SHORT:
            return self
        heard = {word for text in texts for word in text.split()}
        return [one for marks, one in reversed(self._marked) if marks <= heard]


def _marks(reply: str) -> frozenset[str]:
    """Words that stand, as words, in whatever repeats a reply: its longest ones, as they are the rarest.

    All but its first and its last do: those may be glued to what stands around the quotation.
    """
    inner = () if SUMMED_UP in reply else reply.strip()[:_PEEK].split()[1:-1]
    return frozenset(sorted(set(inner), key=len)[-_MARKS:])
