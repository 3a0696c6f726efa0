"""Direct against proxied, byte for byte on both sides, over whatever hypothesis comes up with."""

import contextlib
import socket
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.wire.raw_upstream import END, Message, Proxy, RawUpstream, Wire, frame, proxy_to

OWN_OR_HOP = {
    b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"proxy-connection", b"te",
    b"trailer", b"transfer-encoding", b"upgrade", b"host", b"content-length", b"expect",
}  # fmt: skip

tokens = st.text("abcxyzABCXYZ0189!#$%&'*+-.^_`|~", min_size=1, max_size=12).map(lambda s: s.encode())
names = st.one_of(
    tokens,
    st.sampled_from(
        [b"Cookie", b"cookie", b"ETag", b"Date", b"date", b"Server", b"Via", b"Content-Type", b"Accept"]
    ),
    st.sampled_from([b"content-encoding", b"User-Agent", b"authorization", b"anthropic-beta", b"x-api-key"]),
).filter(lambda n: n.lower() not in OWN_OR_HOP and not n.lower().startswith(b"x-looptap-"))
values = st.binary(max_size=20).map(
    lambda raw: bytes(b for b in raw if b >= 0x20 and b != 0x7F).strip(b" \t")
)
field_lists = st.lists(st.tuples(names, values), max_size=8)
targets = st.text("aZ09/%.-_~:@!$&'()*+,;=?\"<>|{}`^[]", max_size=30)
bodies = st.one_of(
    st.binary(max_size=400),
    st.sampled_from(
        [b'{ "a" : 1e2, "a": -0.0 }', b'{"x":"\\ud83d\xf0\x9f\x98\x80"}', b"[1.00000000000000000001]"]
    ),
    st.integers(60_000, 140_000).map(lambda n: bytes(range(256)) * (n // 256)),
)
splits = st.lists(st.integers(1, 70_000), max_size=6)


def pieces(body: bytes, sizes: list[int]) -> list[bytes]:
    cut, parts = 0, []
    for size in sizes:
        if body[cut : cut + size]:
            parts.append(body[cut : cut + size])
        cut += size
    return [*parts, body[cut:]] if body[cut:] else parts


def framed(body: bytes, sizes: list[int], chunked: bool) -> tuple[bytes, bytes]:
    """(framing field, body as sent)"""
    if chunked:
        return b"Transfer-Encoding: chunked\r\n", b"".join(map(frame, pieces(body, sizes))) + END
    return b"Content-Length: %d\r\n" % len(body), body


def lines(fields: list[tuple[bytes, bytes]]) -> bytes:
    return b"".join(name + b": " + value + b"\r\n" for name, value in fields)


@dataclass
class Case:
    method: str
    target: str
    fields: list[tuple[bytes, bytes]]
    body: bytes
    sizes: list[int]
    chunked: bool
    reads: list[int]
    """How the request is cut into writes."""
    status: int
    reason: bytes
    reply_fields: list[tuple[bytes, bytes]]
    reply_body: bytes
    reply_sizes: list[int]
    reply_framing: str
    reply_reads: list[int]

    def request(self, prefix: str) -> bytes:
        framing, body = framed(self.body, self.sizes, self.chunked)
        if not self.body and not self.chunked and self.method in ("GET", "HEAD", "OPTIONS", "DELETE"):
            framing = b""
        start = f"{self.method} {prefix}{self.target} HTTP/1.1\r\nHost: x\r\n".encode("latin-1")
        return start + lines(self.fields) + framing + b"\r\n" + body

    def reply(self) -> bytes:
        start = b"HTTP/1.1 %d %b\r\n" % (self.status, self.reason)
        if self.method == "HEAD" or self.status in (204, 304):
            return start + lines(self.reply_fields) + b"\r\n"
        if self.reply_framing == "close":
            return start + lines(self.reply_fields) + b"\r\n" + self.reply_body
        framing, body = framed(self.reply_body, self.reply_sizes, self.reply_framing == "chunked")
        return start + lines(self.reply_fields) + framing + b"\r\n" + body


cases = st.builds(
    Case,
    method=st.sampled_from(["POST", "POST", "GET", "PUT", "PATCH", "DELETE", "OPTIONS", "HEAD", "PROPFIND"]),
    target=st.one_of(
        targets.map(lambda t: "/" + t), st.sampled_from(["/v1/messages", "/v1/messages?beta=true"])
    ),
    fields=field_lists,
    body=bodies,
    sizes=splits,
    chunked=st.booleans(),
    reads=splits,
    status=st.sampled_from([200, 200, 200, 204, 299, 304, 400, 402, 429, 500, 529, 599]),
    reason=st.sampled_from([b"OK", b"", b"Very  odd \xe9\xff", b"I'm a teapot"]),
    reply_fields=field_lists,
    reply_body=bodies,
    reply_sizes=splits,
    reply_framing=st.sampled_from(["length", "chunked", "chunked", "close"]),
    reply_reads=splits,
)


def send_cut(wire: Wire, data: bytes, sizes: list[int]) -> None:
    for part in pieces(data, sizes):
        wire.send(part)


def run(port: int, prefix: str, case: Case, upstream: RawUpstream) -> tuple[Message | None, Message | None]:
    """One exchange: what the upstream saw and what the client got."""
    upstream.seen.clear()

    def script(wire: Wire, message: Message) -> bool:
        send_cut(wire, case.reply(), case.reply_reads)
        return case.reply_framing != "close"

    upstream.script = script
    with contextlib.closing(socket.create_connection(("127.0.0.1", port))) as sock:
        wire = Wire(sock)
        send_cut(wire, case.request(prefix), case.reads)
        answer = wire.response(case.method)
    return (upstream.seen[0] if upstream.seen else None), answer


def comparable(message: Message | None) -> object:
    if message is None:
        return None
    fields = [pair for pair in message.fields if pair[0].lower() not in OWN_OR_HOP]
    framing = (message.get(b"content-length"), message.get(b"transfer-encoding"))
    return message.start, fields, framing, message.body, message.whole


@pytest.fixture(scope="module")
def pair() -> Iterator[tuple[RawUpstream, Proxy]]:
    with RawUpstream() as upstream, proxy_to({"openai": upstream.url}) as proxy:
        yield upstream, proxy


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(case=cases)
def test_WIRE_12_a_proxied_exchange_is_the_direct_one(pair: tuple[RawUpstream, Proxy], case: Case) -> None:
    upstream, proxy = pair
    direct = run(upstream.port, "", case, upstream)
    proxied = run(proxy.port, "/openai", case, upstream)
    assert comparable(proxied[0]) == comparable(direct[0])
    assert comparable(proxied[1]) == comparable(direct[1])
    assert proxy.faults == []


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(sequence=st.lists(cases, min_size=2, max_size=6))
def test_exchanges_on_one_connection_do_not_mix(
    pair: tuple[RawUpstream, Proxy], sequence: list[Case]
) -> None:
    """Kept alive, whatever kinds follow each other: each answer is its own request's."""
    upstream, proxy = pair
    upstream.seen.clear()
    queue = [case for case in sequence if case.reply_framing != "close"]

    def script(wire: Wire, message: Message) -> bool:
        send_cut(wire, queue[len(upstream.seen) - 1].reply(), [])
        return True

    upstream.script = script
    client = proxy.connect()
    with contextlib.closing(client.sock):
        for case in queue:
            send_cut(client, case.request("/openai"), case.reads)
            answer = client.response(case.method)
            assert answer is not None
            assert answer.start == b"HTTP/1.1 %d %b" % (case.status, case.reason)
            if case.method != "HEAD" and case.status not in (204, 304):
                assert answer.body == case.reply_body
    assert [message.body for message in upstream.seen] == [case.body for case in queue]
    assert proxy.faults == []
