"""Content encodings undone on the copy: gzip, br, zstd, deflate, one upon the other.

Lives here: bytes as sent in, plain bytes out, whole or piece by piece. What goes over the wire is
never touched. A body that is plain although its field says otherwise (recorders and some
gateways undo the encoding and keep the field) is taken as it is.

The one invariant: output comes in pieces of bounded size (``PIECE``; zstd, which knows no such bound,
a few megabytes at worst), so whoever collects them can count and stop before a bomb goes off.
"""

import gzip
import re
import zlib
from collections.abc import Callable, Iterator
from typing import Protocol

import brotli
import zstandard

PIECE = 256 * 1024
"""Most bytes that one step of a decoder puts out."""
_ZSTD_SLICE = 256
"""Bytes that go into a zstd decoder at once: at 4 bytes and 128 KB a block, 8 MB come out at worst."""
_ZSTD_WINDOW = 32 * 1024 * 1024
_MAX_LAYERS = 4
_PLAIN = re.compile(rb"\s*(?:\{\s*[\"}]|\[\s*[\[{\"\]]|(?:event|data|id|retry):|: )")
_PERHAPS = re.compile(
    rb"\s*(?:[\[{]\s*|:|e|ev|eve|even|event|d|da|dat|data|i|id|r|re|ret|retr|retry)?", re.DOTALL
)
"""Beginnings of plain replies, and what may still become one."""
_SNIFFED = 1_024


class Undecodable(Exception):
    """The body is not what its content-encoding says, or too big once decoded."""


class _Layer(Protocol):
    @property
    def whole(self) -> bool:
        """The encoded data has come to its own end."""
        ...

    def pieces(self, data: bytes) -> Iterator[bytes]: ...


class Decoding:
    """Undoes the encodings of one body, as it comes. Yields nothing more after a failure."""

    def __init__(self, content_encoding: bytes | None) -> None:
        names = encodings(content_encoding)
        if len(names) > _MAX_LAYERS:
            raise Undecodable(f"{len(names)} content encodings one upon the other")
        self._layers = [_layer(name) for name in reversed(names)]
        self._begin: bytes | None = b""
        """The first bytes, until they tell plain text from encoded."""

    @property
    def plain(self) -> bool:
        """The body needs no decoding."""
        return not self._layers

    @property
    def whole(self) -> bool:
        """Every encoding has come to its own end."""
        return all(layer.whole for layer in self._layers)

    def pieces(self, data: bytes) -> Iterator[bytes]:
        """The plain bytes that these bytes give. Raises Undecodable."""
        if self._begin is not None and self._layers:
            data = self._begin + data
            if len(data) < _SNIFFED and _PERHAPS.fullmatch(data) is not None:
                self._begin = data
                return
            self._begin = None
            if _PLAIN.match(data) is not None:
                self._layers = []
        if not data:
            return
        if not self._layers:
            yield data
            return
        try:
            yield from _through(self._layers, data)
        except (zlib.error, zstandard.ZstdError, brotli.error, MemoryError) as error:
            raise Undecodable(f"the content encoding does not hold: {error}") from None


def decode_body(body: bytes, content_encoding: bytes | None, limit: int) -> bytes:
    """A whole body, plain; the very same object where there is nothing to undo. Raises Undecodable."""
    if not content_encoding or not body:
        return body
    decoding = Decoding(content_encoding)
    if decoding.plain:
        return body
    found: list[bytes] = []
    size = 0
    for piece in decoding.pieces(body):
        size += len(piece)
        if size > limit:
            raise Undecodable(f"the body has more than {limit} bytes once decoded")
        found.append(piece)
    if not decoding.whole:
        raise Undecodable("the encoded body is cut short")
    return found[0] if len(found) == 1 else b"".join(found)


def encode_body(body: bytes, content_encoding: bytes | None) -> bytes:
    """A whole body under the encodings that ``decode_body`` undid."""
    for name in encodings(content_encoding):
        body = _ENCODERS[name](body)
    return body


def encodings(content_encoding: bytes | None) -> list[str]:
    """The names in a content-encoding field, in the order of their application."""
    if not content_encoding:
        return []
    names = [name.strip().lower() for name in content_encoding.decode("latin-1").split(",")]
    return [name for name in names if name not in ("", "identity")]


def _through(layers: list[_Layer], data: bytes) -> Iterator[bytes]:
    first, rest = layers[0], layers[1:]
    for piece in first.pieces(data):
        if rest:
            yield from _through(rest, piece)
        else:
            yield piece


def _layer(name: str) -> _Layer:
    make = _LAYERS.get(name)
    if make is None:
        raise Undecodable(f"unknown content encoding {name[:40]!r}")
    return make()


class _Zlib:
    """gzip (also of several members) and deflate (with and without its zlib head)."""

    def __init__(self, *, gzip: bool) -> None:
        self.whole = False
        self._gzip = gzip
        self._begin = b""
        self._inflate = zlib.decompressobj(31) if gzip else None

    def pieces(self, data: bytes) -> Iterator[bytes]:
        if self._inflate is None:
            data = self._begin + data
            if len(data) < 2:
                self._begin = data
                return
            headed = data[0] & 0x0F == 8 and int.from_bytes(data[:2], "big") % 31 == 0
            self._inflate = zlib.decompressobj(15 if headed else -15)
        while True:
            if self.whole:
                if not self._gzip or data[:1] != b"\x1f":
                    return  # padding behind the last member
                self._inflate = zlib.decompressobj(31)
                self.whole = False
            piece = self._inflate.decompress(data, PIECE)
            ended: bool = self._inflate.eof
            self.whole = ended
            data = self._inflate.unused_data if ended else self._inflate.unconsumed_tail
            if piece:
                yield piece
            if not data and (ended or len(piece) < PIECE):
                return


class _Brotli:
    def __init__(self) -> None:
        self._decompress = brotli.Decompressor()

    @property
    def whole(self) -> bool:
        return bool(self._decompress.is_finished())

    def pieces(self, data: bytes) -> Iterator[bytes]:
        if self.whole:
            return
        piece = self._decompress.process(data, output_buffer_limit=PIECE)
        while piece:
            yield piece
            if self._decompress.is_finished():
                return
            piece = self._decompress.process(b"", output_buffer_limit=PIECE)


class _Zstd:
    """zstd has no bound on output, but a block holds 128 KB at most: so small slices go in."""

    def __init__(self) -> None:
        self.whole = False
        decompressor = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW)
        self._decompress = decompressor.decompressobj(read_across_frames=False)
        self._make = decompressor

    def pieces(self, data: bytes) -> Iterator[bytes]:
        view = memoryview(data)
        for at in range(0, len(data), _ZSTD_SLICE):
            rest = bytes(view[at : at + _ZSTD_SLICE])
            while rest:
                if self.whole:
                    self._decompress = self._make.decompressobj(read_across_frames=False)
                    self.whole = False
                piece = self._decompress.decompress(rest)
                rest = b""
                if self._decompress.eof:
                    self.whole = True
                    rest = self._decompress.unused_data
                if piece:
                    yield piece


_ENCODERS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": lambda body: gzip.compress(body, 5, mtime=0),
    "x-gzip": lambda body: gzip.compress(body, 5, mtime=0),
    "deflate": lambda body: zlib.compress(body, 5),
    "br": lambda body: bytes(brotli.compress(body, quality=4)),
    "zstd": lambda body: zstandard.ZstdCompressor(level=3).compress(body),
}
_LAYERS: dict[str, Callable[[], _Layer]] = {
    "gzip": lambda: _Zlib(gzip=True),
    "x-gzip": lambda: _Zlib(gzip=True),
    "deflate": lambda: _Zlib(gzip=False),
    "br": _Brotli,
    "zstd": _Zstd,
}
