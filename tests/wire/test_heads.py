"""Heads as bytes: what crosses a hop, what stays, what is put right."""

import pytest

from proxy.wire.heads import (
    Framing,
    chunk,
    connection_options,
    own_answer,
    request_head,
    response_framing,
    response_head,
)


def test_names_case_order_repeats_and_bytes_are_kept() -> None:
    fields = [
        (b"X-B", b"caf\xe9"),
        (b"x-a", b""),
        (b"X-b", b"2"),
        (b"User-Agent", b"u/1"),
        (b"User-Agent", b"u/2"),
    ]
    assert request_head("POST", "/a%2Fb//c?", b"api.test", [(b"hOST", b"127.0.0.1"), *fields]) == (
        b"POST /a%2Fb//c? HTTP/1.1\r\nhOST: api.test\r\nX-B: caf\xe9\r\nx-a: \r\nX-b: 2\r\n"
        b"User-Agent: u/1\r\nUser-Agent: u/2\r\n\r\n"
    )
    assert response_head(299, b"Od\xe9", fields, close=False) == (
        b"HTTP/1.1 299 Od\xe9\r\nX-B: caf\xe9\r\nx-a: \r\nX-b: 2\r\n"
        b"User-Agent: u/1\r\nUser-Agent: u/2\r\n\r\n"
    )


def test_WIRE_13_fields_named_in_connection_and_hop_by_hop_ones_stay_behind() -> None:
    fields = [
        (b"Connection", b"Keep-Alive, X-Secret"),
        (b"connection", b"x-other ,Content-Length"),
        (b"Keep-Alive", b"timeout=5"),
        (b"X-SECRET", b"1"),
        (b"X-Other", b"2"),
        (b"TE", b"trailers"),
        (b"Trailer", b"x"),
        (b"Upgrade", b"h2c"),
        (b"Proxy-Authorization", b"Basic x"),
        (b"Cookie", b"kept"),
        (b"Content-Length", b"0"),
    ]
    kept = b"Cookie: kept\r\nContent-Length: 0\r\n"
    assert request_head("GET", "/", b"h", fields) == b"GET / HTTP/1.1\r\nHost: h\r\n" + kept + b"\r\n"
    assert response_head(200, b"OK", fields, close=True) == (
        b"HTTP/1.1 200 OK\r\n" + kept + b"Connection: close\r\n\r\n"
    )


def test_an_edited_length_is_put_in_its_place() -> None:
    head = request_head("POST", "/", b"h", [(b"content-LENGTH", b"9"), (b"A", b"b")], length=12)
    assert head == b"POST / HTTP/1.1\r\nHost: h\r\ncontent-LENGTH: 12\r\nA: b\r\n\r\n"


def test_a_handshake_keeps_its_upgrade() -> None:
    fields = [
        (b"Connection", b"keep-alive, Upgrade"),
        (b"Upgrade", b"websocket"),
        (b"Sec-WebSocket-Key", b"k"),
    ]
    assert request_head("GET", "/", b"h", fields, upgrade=True) == (
        b"GET / HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        b"Sec-WebSocket-Key: k\r\n\r\n"
    )


def test_transfer_coding_goes_on_unless_the_client_cannot_read_it() -> None:
    fields = [(b"Transfer-encoding", b"Chunked"), (b"A", b"b")]
    assert b"Transfer-encoding: Chunked\r\n" in response_head(200, b"", fields, close=False)
    assert response_head(200, b"", fields, close=True, chunked=False) == (
        b"HTTP/1.1 200 \r\nA: b\r\nConnection: close\r\n\r\n"
    )


@pytest.mark.parametrize(
    ("method", "status", "length", "coding", "framing"),
    [
        ("GET", 200, b"3", None, Framing.LENGTH),
        ("GET", 200, None, b"chunked", Framing.CHUNKED),
        ("GET", 200, None, b"gzip, Chunked", Framing.CHUNKED),
        ("GET", 200, None, b"identity", Framing.UNTIL_CLOSE),
        ("GET", 200, None, None, Framing.UNTIL_CLOSE),
        ("HEAD", 200, b"3", None, Framing.NONE),
        ("GET", 204, None, None, Framing.NONE),
        ("GET", 304, b"9", None, Framing.NONE),
        ("GET", 101, None, None, Framing.NONE),
    ],
)
def test_how_a_response_ends(
    method: str, status: int, length: bytes | None, coding: bytes | None, framing: Framing
) -> None:
    assert response_framing(method, status, length, coding) is framing


def test_connection_options_and_chunks() -> None:
    assert connection_options([(b"Connection", b"close")]) == {b"close"}
    assert connection_options([(b"CONNECTION", b"A, b"), (b"Connection", b"keep-alive")]) == {
        b"a", b"b", b"keep-alive",
    }  # fmt: skip
    assert connection_options([(b"X", b"close")]) == frozenset()
    assert chunk(b"x" * 17) == b"11\r\n" + b"x" * 17 + b"\r\n"


def test_our_own_answer_is_plain_http() -> None:
    assert own_answer(404, b"Not Found", [(b"A", b"b")], b"no\n", close=True) == (
        b"HTTP/1.1 404 Not Found\r\nA: b\r\nContent-Length: 3\r\nConnection: close\r\n\r\nno\n"
    )
    assert own_answer(404, b"", [], b"no\n", close=False, bodiless=True).endswith(
        b"Content-Length: 3\r\n\r\n"
    )
