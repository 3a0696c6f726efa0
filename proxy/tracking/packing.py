"""What a thread at rest holds, in less room: the texts of its replies, and what policies remember.

The one invariant: what is unpacked equals what was packed; what would not is left as it is.
"""

import zlib
from collections.abc import Mapping
from typing import Any

import msgspec

Known = dict[str, Mapping[str, Any]]
"""What policies remember of one thread, by their names."""

_LEAST = 1_000
"""Characters of a text that is worth it."""
_LEAST_KNOWN = 1_000
"""Bytes of what policies remember that are worth it: most is gained by not keeping objects."""
_DEFLATED = 0x78
"""How what zlib compressed begins; a packed mapping never does."""


def pack_text(text: str) -> str | bytes:
    """The same text, compressed where that pays."""
    return zlib.compress(text.encode("utf-8", "surrogatepass"), 1) if len(text) >= _LEAST else text


def text_of(packed: bytes) -> str:
    """What ``pack_text`` was given."""
    return zlib.decompress(packed).decode("utf-8", "surrogatepass")


def pack_known(known: Known) -> Known | bytes:
    """The same, compressed if it comes back equal: policies may keep what no file can hold."""
    if not known:
        return known
    try:
        plain = msgspec.msgpack.encode(known)
        if msgspec.msgpack.decode(plain) == known:
            return zlib.compress(plain, 1) if len(plain) >= _LEAST_KNOWN else plain
    except (TypeError, ValueError, OverflowError, RecursionError):
        pass
    return known


def known_of(packed: bytes) -> Known:
    """What ``pack_known`` was given."""
    plain = zlib.decompress(packed) if packed[0] == _DEFLATED else packed
    known: Known = msgspec.msgpack.decode(plain)
    return known
