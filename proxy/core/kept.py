"""A reply's bytes on their way to the record, in less room than they have.

A stream says some 150 to 400 bytes around every few letters, again and again; while hundreds of streams
run, that is most of what the process holds. So small chunks are compressed, some of them at a time.

The one invariant: ``bytes`` of what is kept are the bytes that came, in their order.
"""

import zstandard

from proxy.model import Body
from proxy.structs import struct

TOGETHER = 16
"""Small chunks that are compressed in one go."""
LARGE = 4_096
"""Bytes of a chunk that is kept as it is: it repeats little, and takes the loop's time."""
_WORTH = 2
"""How much smaller they must get: what is compressed already does not."""
_QUICK = zstandard.ZstdCompressor(level=-3, write_checksum=False)
"""Some 0.4 us for each chunk of a stream, down to an eighth; level 1 takes twice that, down to a tenth."""


@struct(frozen=True, slots=True)
class Packed:
    """Some bytes, compressed."""

    data: bytes


@struct(frozen=True, slots=True)
class Folded:
    """A whole body. Its length is that of its bytes, whatever it takes meanwhile."""

    pieces: tuple[bytes | Packed, ...]
    size: int

    def __len__(self) -> int:
        return self.size

    def __bytes__(self) -> bytes:
        unpack = zstandard.ZstdDecompressor().decompress  # one for all: making it takes eight times its use
        return b"".join([unpack(p.data) if isinstance(p, Packed) else p for p in self.pieces])


class Kept:
    """What has come of one reply."""

    __slots__ = ("_loose", "_pieces", "_size")

    def __init__(self) -> None:
        self._pieces: list[bytes | Packed] = []
        self._loose: list[bytes] = []
        """Small chunks behind the pieces."""
        self._size = 0

    def add(self, data: bytes) -> None:
        """Take the next chunk."""
        if len(data) > LARGE:
            self._settle()
            self._size += len(data)
            self._pieces.append(data)
            return
        self._size += len(data)
        self._loose.append(data)
        if len(self._loose) >= TOGETHER:
            self._settle()

    def add_several(self, data: bytes) -> None:
        """Take the next ``TOGETHER`` small chunks, joined."""
        self._settle()
        self._size += len(data)
        self._pieces.append(_packed(data))

    def _settle(self) -> None:
        if self._loose:
            self._pieces.append(_packed(b"".join(self._loose)))
            self._loose.clear()

    @property
    def body(self) -> Body:
        """All of it, as the record takes it."""
        pieces = (*self._pieces, *self._loose)
        loose = [piece for piece in pieces if not isinstance(piece, Packed)]
        return b"".join(loose) if len(loose) == len(pieces) else Folded(pieces, self._size)


def _packed(data: bytes) -> bytes | Packed:
    small = memoryview(_QUICK.compress(data))
    # copied: what the compressor hands out still has the room of the worst case behind it
    return Packed(small.tobytes()) if len(small) * _WORTH < len(data) else data
