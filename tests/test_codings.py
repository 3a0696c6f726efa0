"""Content encodings undone on the copy: every coding, any split, no bombs, no lies taken badly."""

import gzip
import zlib
from collections.abc import Callable
from contextlib import suppress
from random import Random

import brotli
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from proxy.reading.codings import Decoding, Undecodable, decode_body, encode_body, encodings


def raw_deflate(data: bytes) -> bytes:
    compressor = zlib.compressobj(9, zlib.DEFLATED, -15)
    return compressor.compress(data) + compressor.flush()


CODINGS: list[tuple[str, Callable[[bytes], bytes]]] = [
    ("gzip", gzip.compress),
    ("x-gzip", gzip.compress),
    ("deflate", zlib.compress),
    ("deflate", raw_deflate),
    ("br", brotli.compress),
    ("zstd", zstandard.compress),
]
BODY = ('{"text":"' + "snow \u2603 and more of it, " * 3_000 + '"}').encode()
each = pytest.mark.parametrize(
    ("name", "encode"), CODINGS, ids=["gzip", "x-gzip", "zlib", "deflate", "br", "zstd"]
)


@each
def test_a_body_is_coded_again_as_it_came(name: str, encode: Callable[[bytes], bytes]) -> None:
    for field in (name.encode(), f"gzip, {name}".encode()):
        assert encode_body(BODY, field) != BODY
        assert decode_body(encode_body(BODY, field), field, 10**6) == BODY
    assert encode_body(BODY, b"identity") is BODY


@each
def test_WIRE_01_whole_bodies_are_decoded(name: str, encode: Callable[[bytes], bytes]) -> None:
    assert decode_body(encode(BODY), name.upper().encode(), 10**6) == BODY


@each
@pytest.mark.parametrize("step", [1, 7, 1_000])
def test_WIRE_01_any_split_decodes_alike(name: str, encode: Callable[[bytes], bytes], step: int) -> None:
    encoded, decoding = encode(BODY), Decoding(name.encode())
    pieces = [
        piece for at in range(0, len(encoded), step) for piece in decoding.pieces(encoded[at : at + step])
    ]
    assert b"".join(pieces) == BODY
    assert decoding.whole


@each
def test_bytes_come_out_before_the_body_has_ended(name: str, encode: Callable[[bytes], bytes]) -> None:
    noise = Random(0).randbytes(600_000)
    encoded, decoding = encode(noise), Decoding(name.encode())
    assert sum(map(len, decoding.pieces(encoded[: len(encoded) // 2]))) > 0


@each
def test_a_bomb_is_refused_and_never_comes_out_in_one_piece(
    name: str, encode: Callable[[bytes], bytes]
) -> None:
    bomb = encode(bytes(50_000_000))
    assert max(map(len, Decoding(name.encode()).pieces(bomb))) <= 9_000_000
    with pytest.raises(Undecodable, match="more than 1000000 bytes"):
        decode_body(bomb, name.encode(), 1_000_000)


@each
def test_cut_and_broken_bodies_say_so(name: str, encode: Callable[[bytes], bytes]) -> None:
    with pytest.raises(Undecodable):
        decode_body(encode(BODY)[:-9], name.encode(), 10**6)
    with pytest.raises(Undecodable):
        decode_body(b"\x01no such encoding", name.encode(), 10**6)


@each
@pytest.mark.parametrize("plain", [BODY, b"event: ping\ndata: {}\n\n", b" \n[{}]", b": hello\n\n"])
def test_a_plain_body_under_an_encoded_name_is_taken_as_it_is(
    name: str, encode: Callable[[bytes], bytes], plain: bytes
) -> None:
    assert encode(plain) != plain
    assert decode_body(plain, name.encode(), 10**6) == plain
    decoding = Decoding(name.encode())
    assert b"".join(b for at in range(len(plain)) for b in decoding.pieces(plain[at : at + 1])) == plain


def test_WIRE_02_a_body_without_encoding_is_the_very_same_object() -> None:
    assert decode_body(BODY, None, 10) is BODY
    assert decode_body(BODY, b"identity", 10) is BODY
    assert decode_body(b"", b"gzip", 10) == b""


def test_layers_are_undone_in_reverse_order() -> None:
    assert decode_body(gzip.compress(brotli.compress(BODY)), b"br, gzip", 10**6) == BODY


def test_members_and_frames_in_a_row_are_one_body() -> None:
    assert decode_body(gzip.compress(b"a") + gzip.compress(b"b"), b"gzip", 10) == b"ab"
    assert decode_body(zstandard.compress(b"a") + zstandard.compress(b"b"), b"zstd", 10) == b"ab"
    assert decode_body(gzip.compress(b"a") + bytes(8), b"gzip", 10) == b"a"


def test_unknown_and_piled_up_encodings_are_undecodable() -> None:
    with pytest.raises(Undecodable, match="aws-chunked"):
        decode_body(BODY, b"aws-chunked", 10**6)
    with pytest.raises(Undecodable, match="one upon the other"):
        decode_body(BODY, b"gzip,gzip,gzip,gzip,gzip", 10**6)


def test_names_are_read_in_any_case_and_spacing() -> None:
    assert encodings(b" GZip ,identity,, br") == ["gzip", "br"]


@given(st.binary(max_size=400), st.sampled_from(["gzip", "deflate", "br", "zstd"]))
def test_garbage_is_decoded_or_undecodable_and_nothing_else(data: bytes, name: str) -> None:
    with suppress(Undecodable):
        assert len(decode_body(data, name.encode(), 10_000)) <= 10_000
