"""A request's body on its way: the client's own, and what of ours was put into it.

Holds both, and where they differ: the client's bytes are what is read, compared and replayed; the
bytes that go upstream are what the model sees. A coded body is coded again after an edit, so that its
header stays true.

The one invariant: ``body`` is the very object that came, unless something edited it.
"""

from collections.abc import Sequence

from proxy.dialects.nudges import put_back
from proxy.model import Insertion, ModelRequest, Nudge
from proxy.ports import Dialect
from proxy.reading.codings import decode_body, encode_body
from proxy.reading.insertions import Stretch, inserted, moved, stretches
from proxy.reading.library import Reading
from proxy.verdict import Edit


class Outgoing:
    """One per exchange."""

    __slots__ = ("_carried", "_coding", "body", "plain", "unread")

    def __init__(self, body: bytes, coding: bytes | None) -> None:
        self.body = body
        self.plain = body
        """The client's body without its content coding, as far as that is undone."""
        self.unread: Nudge | None = None
        """The nudge behind which no reply stands."""
        self._carried: list[tuple[Nudge, tuple[Insertion, ...]]] = []
        self._coding = coding

    @property
    def nudges(self) -> tuple[Nudge, ...]:
        """Those that it carries."""
        return tuple(nudge for nudge, _ in self._carried)

    @property
    def insertions(self) -> list[Insertion]:
        """What of ours stands between the client's bytes."""
        return [one for _, some in self._carried for one in some]

    @property
    def coded(self) -> bool:
        """A content coding lies over what the client sent."""
        return self._coding is not None

    @property
    def added(self) -> int:
        """Bytes of ours, at the most as many tokens."""
        return sum(len(text) for _, text in self.insertions)

    @property
    def said(self) -> int:
        """Bytes that the model gets to read, whatever coding they travel in."""
        return len(self.plain) + self.added

    @property
    def ours(self) -> tuple[Stretch, ...]:
        """Where they stand in the decoded body."""
        return stretches(self.insertions)

    def read(self, limit: int) -> bytes:
        """Undo the content coding. Raises Undecodable."""
        self.plain = decode_body(self.body, self._coding, limit)
        if self.plain is self.body:
            self._coding = None
        return self.plain

    def carry(self, dialect: Dialect, reading: Reading, there: Sequence[tuple[int, Nudge]]) -> None:
        """Put nudges in, each behind the message of its index; what may not stand there is left out."""
        if not there:
            return
        found = put_back(dialect, reading, there)
        last = len(reading.request.messages) - 1
        self.unread = next((nudge for at, nudge, _ in found if at == last), None)
        self._carried = [(nudge, moved(some, reading.body, self.plain)) for _, nudge, some in found]
        self._write()

    def leave_out(self, nudge: Nudge) -> None:
        """Take a nudge out again."""
        self._carried = [one for one in self._carried if one[0] is not nudge]
        self.unread = None if self.unread is nudge else self.unread
        self._write()

    def clamp(self, dialect: Dialect, request: ModelRequest, most: int) -> bool:
        """Lower the limit on output. False: the body could not be edited."""
        if self.coded:
            return False
        edited = dialect.edit_request(self.plain, request, [Edit("clamp", max_output_tokens=most)])
        if edited == self.plain:
            return False
        self._carried = [(nudge, moved(some, self.plain, edited)) for nudge, some in self._carried]
        self.plain = edited
        self._write()
        return True

    def _write(self) -> None:
        body = inserted(self.plain, self.insertions) if self._carried else self.plain
        self.body = encode_body(body, self._coding) if self._coding is not None else body
