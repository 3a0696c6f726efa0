"""A reply's bytes in less room than they have: of an event that comes again and again, what differs.

A stream says some 150 to 400 bytes around every few letters, and they are kept until the record has them.

The one invariant: ``bytes`` of a folded body are the bytes that came.
"""

from proxy.structs import struct


@struct(frozen=True, slots=True)
class Repeated:
    """One text again and again, each time around another string."""

    before: bytes
    joint: bytes
    """Between two of the strings."""
    after: bytes
    strings: bytes
    """As they stand in JSON; a line feed, which none of them can have, is where the joint was."""

    def __bytes__(self) -> bytes:
        return b"%b%b%b" % (self.before, self.strings.replace(b"\n", self.joint), self.after)


Piece = bytes | Repeated


@struct(frozen=True, slots=True)
class Folded:
    """A whole body; its length is that of its bytes, whatever it takes meanwhile."""

    pieces: tuple[Piece, ...]
    size: int

    def __len__(self) -> int:
        return self.size

    def __bytes__(self) -> bytes:
        return b"".join([bytes(piece) for piece in self.pieces])
