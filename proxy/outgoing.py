"""A request's body on its way: the client's own, and what of ours was put into it.

Holds both, and where they differ: the client's bytes are what is read, compared and replayed; the
bytes that go upstream are what the model sees. A coded body is coded again after an edit, so that its
header stays true.

The one invariant: ``body`` is the very object that came, unless something edited it.
"""

from array import array
from collections.abc import Sequence

from proxy.dialects.nudges import put_back
from proxy.model import Change, Insertion, ModelRequest, Nudge
from proxy.ports import Dialect
from proxy.reading.codings import decode_body, encode_body
from proxy.reading.insertions import Stretch, changed, moved, shifted, traces
from proxy.reading.library import Reading
from proxy.verdict import Edit


class Outgoing:
    """One per exchange."""

    __slots__ = ("_carried", "_coding", "_mended", "body", "plain", "unread")

    def __init__(self, body: bytes, coding: bytes | None) -> None:
        self.body = body
        self.plain = body
        """The client's body without its content coding, as far as that is undone."""
        self.unread: Nudge | None = None
        """The nudge behind which no reply stands."""
        self._carried: list[tuple[Nudge, tuple[Insertion, ...]]] = []
        self._mended: dict[str, tuple[Change, ...]] = {}
        """What was put back of replies, by their steps."""
        self._coding = coding

    @property
    def nudges(self) -> tuple[Nudge, ...]:
        """Those that it carries."""
        return tuple(nudge for nudge, _ in self._carried)

    @property
    def mended(self) -> frozenset[str]:
        """The steps of whose replies it carries something that the client lost."""
        return frozenset(self._mended)

    @property
    def changes(self) -> list[Change]:
        """What of ours stands between the client's bytes, or in the place of some."""
        found = [(at, b"", text) for _, some in self._carried for at, text in some]
        if self._mended:
            found = sorted((*found, *(one for some in self._mended.values() for one in some)), key=_place)
        return found

    @property
    def coded(self) -> bool:
        """A content coding lies over what the client sent."""
        return self._coding is not None

    @property
    def added(self) -> int:
        """Bytes of ours, at the most as many tokens."""
        return sum(len(text) - len(gone) for _, gone, text in self.changes)

    @property
    def said(self) -> int:
        """Bytes that the model gets to read, whatever coding they travel in."""
        return len(self.plain) + self.added

    @property
    def ours(self) -> tuple[Stretch, ...]:
        """Where they stand in the decoded body."""
        return traces(self.changes)

    def read(self, limit: int) -> bytes:
        """Undo the content coding. Raises Undecodable."""
        self.plain = decode_body(self.body, self._coding, limit)
        if self.plain is self.body:
            self._coding = None
        return self.plain

    def end_with(self, dialect: Dialect, request: ModelRequest, there: Sequence[tuple[int, Nudge]]) -> None:
        """Put nudges in once more, with one at the end that came late: when the reading is gone."""
        none: array[int] = array("q")
        self.carry(dialect, Reading("", self.plain, request, {}, {}, 0, 0, none, none), there)

    def carry(self, dialect: Dialect, reading: Reading, there: Sequence[tuple[int, Nudge]]) -> None:
        """Put nudges in, each behind the message of its index; what may not stand there is left out."""
        if not there:
            return
        found = put_back(dialect, reading, there)
        last = len(reading.request.messages) - 1
        self.unread = next((nudge for at, nudge, _ in found if at == last), None)
        self._carried = [(nudge, moved(some, reading.body, self.plain)) for _, nudge, some in found]
        self._write()

    def mend(self, reading: Reading, step: str, changes: Sequence[Change]) -> bool:
        """Put back what a reply lost. False: it has no place in the body."""
        there = shifted(changes, reading.body, self.plain)
        if not there:
            return False
        self._mended[step] = there
        self._write()
        return True

    def unmend(self, steps: frozenset[str]) -> None:
        """Take out again what was put back of some replies."""
        self._mended = {step: some for step, some in self._mended.items() if step not in steps}
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
        self._take(edited)
        return True

    def forbid_calls(self, dialect: Dialect, request: ModelRequest) -> bool:
        """Have the model call no tool this time. False: the body could not be edited."""
        if not request.tools:
            return True
        if self.coded:
            return False
        edited = dialect.edit_request(self.plain, request, [Edit("land")])
        if edited is self.plain:
            return False
        self._take(edited)
        return True

    def _take(self, edited: bytes) -> None:
        """Go on with the client's body as edited."""
        self._carried = [(nudge, moved(some, self.plain, edited)) for nudge, some in self._carried]
        mended = {step: shifted(some, self.plain, edited) for step, some in self._mended.items()}
        self._mended = {step: some for step, some in mended.items() if some}
        self.plain = edited
        self._write()

    def _write(self) -> None:
        body = changed(self.plain, self.changes) if self._carried or self._mended else self.plain
        self.body = encode_body(body, self._coding) if self._coding is not None else body


def _place(change: Change) -> int:
    return change[0]
