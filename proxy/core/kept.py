"""A reply's bytes on their way to the record, in less room than they have.

A stream says some 150 to 400 bytes around every few letters, again and again; while hundreds of streams
run, that is most of what the process holds. So chunks that were read in one go are compressed at once.

The one invariant: ``bytes`` of what is kept are the bytes that came.
"""

import zstandard

from proxy.structs import struct

_LEAST = 1_000
"""Bytes that are worth it: what differs in them must outweigh a frame and an object."""
_WORTH = 2
"""How much smaller they must get: what is compressed already does not."""
_QUICK = zstandard.ZstdCompressor(level=-3, write_checksum=False)
"""Some 0.4 us for each chunk of a stream, down to an eighth; level 1 takes twice that, down to a tenth."""


@struct(frozen=True, slots=True)
class Packed:
    """Some bytes, compressed."""

    data: bytes

    def __bytes__(self) -> bytes:
        return zstandard.decompress(self.data)


Piece = bytes | Packed


def packed(data: bytes) -> Piece:
    """The same bytes, compressed where that pays."""
    if len(data) < _LEAST:
        return data
    small = _QUICK.compress(data)
    return Packed(small) if len(small) * _WORTH < len(data) else data


@struct(frozen=True, slots=True)
class Kept:
    """All of a body. Its length is that of its bytes, whatever it takes meanwhile."""

    pieces: tuple[Piece, ...]
    size: int

    def __len__(self) -> int:
        return self.size

    def __bytes__(self) -> bytes:
        return b"".join([bytes(piece) for piece in self.pieces])
