"""HTTP/1.1 heads and framing as bytes: what may cross a hop, and how it is written.

Pure functions and constants, no IO. Names, case, order, repeats and latin-1 bytes of fields are
kept as they came; only hop-by-hop fields, the fields that ``Connection`` names, ``TE`` and
``Trailer`` stay behind, and nothing is ever added except ``Connection`` where this hop needs it.

The one invariant: a body leaves with the framing it came with (length, chunked, ended by close),
so neither side can read a message as longer or shorter than we did.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

Fields = Sequence[tuple[bytes, bytes]]

HOP_BY_HOP = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"upgrade",
    }
)
"""Never forwarded. ``Transfer-Encoding`` is not among them: it goes on with the same framing."""

OWN_PREFIX = b"x-looptap-"
"""Request fields meant for us (labels, a virtual key): read here, never forwarded."""

KEPT_WHATEVER_CONNECTION_SAYS = frozenset({b"content-length", b"transfer-encoding", b"host"})
"""``Connection: content-length`` must not unframe a message (a known smuggling trick)."""

SPECIAL = HOP_BY_HOP | {b"host", b"content-length", b"transfer-encoding", b"expect"}
"""What a hop acts on, beside our own fields."""

MAX_KNOWN_NAMES = 2048
plain_names: set[bytes] = set()
"""Field names, as spelled, that mean nothing to a hop: looked up instead of lowered and compared each
time. Bounded: what does not fit any more is only looked at again."""

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
LAST_CHUNK = b"0\r\n\r\n"


class Framing(Enum):
    """How the end of a body is told."""

    NONE = "no body"
    LENGTH = "content-length"
    CHUNKED = "chunked"
    UNTIL_CLOSE = "ended by close"


@dataclass(frozen=True, slots=True)
class WireLimits:
    """Sizes, counts and patience of the data port. Times in seconds."""

    max_target: int = 64 * 1024
    """Bytes of a request target; above: 414."""
    max_fields: int = 256 * 1024
    """Bytes of all fields of a request; above: 431."""
    max_field_count: int = 1000
    max_buffered: int = 512 * 1000 * 1000
    """Bytes of request bodies held whole at once; when reached, reading waits for room."""
    max_unclaimed: int = 64 * 1024
    """Bytes read ahead of the exchange that will take them (pipelining, bodies while connecting)."""
    max_connections: int = 10_000
    head_s: float = 30
    """From the first byte of a head to its end."""
    idle_s: float = 900
    """A client connection between requests."""
    silence_s: float = 3600
    """No byte from the upstream, or from a client that owes its body. Long thinking is silent for
    minutes, so this is far above any provider's own limit; dead peers are found by TCP keep-alive."""
    stalled_write_s: float = 900
    """A peer that does not read what we have for it."""
    linger_s: float = 10
    """How long the rest of a request is read and dropped after an early answer."""
    room_s: float = 30
    """How long bodies wait for room under ``max_buffered`` before the newest is refused."""
    drain_s: float = 60
    """``on_abort: drain``: how long a reply is read on after its client left."""
    drain_bytes: int = 64 * 1024 * 1024
    """And how much of it."""


def request_head(
    method: str,
    target: str,
    host: bytes,
    fields: Fields,
    *,
    length: int | None = None,
    upgrade: bool = False,
    proxy_authorization: bytes | None = None,
    named: frozenset[bytes] | None = None,
) -> bytes:
    """The head for the upstream: the client's own, with ``Host`` put right.

    ``length`` replaces the value of ``Content-Length`` in its place (an edited body);
    ``proxy_authorization`` is for a plain proxy on the way, which takes it off again. ``named`` are
    the fields that ``Connection`` names; found out here where it names any.
    """
    plain = plain_names if named is None else _NOTHING
    lines = [f"{method} {target} HTTP/1.1".encode("latin-1")]
    seen_host = False
    for name, value in fields:
        if name in plain:
            lines.append(name + b": " + value)
            continue
        low = name.lower()
        if low == b"host":
            seen_host = True
            lines.append(name + b": " + host)
        elif low in HOP_BY_HOP:
            if named is None and low == b"connection" and value not in _NAMES_NO_FIELD:
                return request_head(
                    method,
                    target,
                    host,
                    fields,
                    length=length,
                    upgrade=upgrade,
                    proxy_authorization=proxy_authorization,
                    named=connection_options(fields),
                )
            if upgrade and low == b"connection":
                lines.append(name + b": Upgrade")
            elif upgrade and low == b"upgrade":
                lines.append(name + b": " + value)
        elif named is not None and low in named and low not in KEPT_WHATEVER_CONNECTION_SAYS:
            continue
        elif length is not None and low == b"content-length":
            lines.append(b"%b: %d" % (name, length))
        else:
            note_plain(name, low)
            lines.append(name + b": " + value)
    if not seen_host:
        lines.insert(1, b"Host: " + host)
    if proxy_authorization is not None:
        lines.append(b"Proxy-Authorization: " + proxy_authorization)
    lines.append(b"\r\n")
    return b"\r\n".join(lines)


def response_head(
    status: int,
    reason: bytes,
    fields: Fields,
    *,
    close: bool,
    chunked: bool = True,
    upgrade: bool = False,
    named: frozenset[bytes] | None = None,
) -> bytes:
    """The head for the client. ``chunked=False`` leaves the transfer coding out (HTTP/1.0 clients)."""
    plain = plain_names if named is None else _NOTHING
    lines = [b"HTTP/1.1 %d %b" % (status, reason)]
    for name, value in fields:
        if name in plain:
            lines.append(name + b": " + value)
            continue
        low = name.lower()
        if low in HOP_BY_HOP:
            if named is None and low == b"connection" and value not in _NAMES_NO_FIELD:
                return response_head(
                    status,
                    reason,
                    fields,
                    close=close,
                    chunked=chunked,
                    upgrade=upgrade,
                    named=connection_options(fields),
                )
            if upgrade and low in (b"connection", b"upgrade"):
                lines.append(name + b": " + value)
        elif low == b"transfer-encoding":
            if chunked:
                lines.append(name + b": " + value)
        elif named is None or low not in named or low in KEPT_WHATEVER_CONNECTION_SAYS:
            note_plain(name, low)
            lines.append(name + b": " + value)
    if close:
        lines.append(b"Connection: close")
    lines.append(b"\r\n")
    return b"\r\n".join(lines)


def note_plain(name: bytes, low: bytes) -> None:
    """Remember a spelling of a field name that no hop acts on."""
    if low not in SPECIAL and not low.startswith(OWN_PREFIX) and len(plain_names) < MAX_KNOWN_NAMES:
        plain_names.add(name)


_NAMES_NO_FIELD = frozenset({b"keep-alive", b"close", b"Keep-Alive", b"Close", b"Upgrade", b"upgrade"})
_NOTHING: frozenset[bytes] = frozenset()


def connection_options(fields: Fields) -> frozenset[bytes]:
    """What the ``Connection`` fields name, in lower case."""
    values = [value for name, value in fields if name.lower() == b"connection"]
    return frozenset(option.strip(b" \t").lower() for value in values for option in value.split(b","))


def without_own_fields(fields: Fields) -> tuple[tuple[bytes, bytes], ...]:
    """The fields without those that were meant for us."""
    return tuple(field for field in fields if not field[0].lower().startswith(OWN_PREFIX))


def chunk(data: bytes) -> bytes:
    """One frame of a chunked body; ``data`` is never empty (that would end the body)."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def response_framing(method: str, status: int, length: bytes | None, coding: bytes | None) -> Framing:
    """How a response's body ends, by RFC 9112 section 6.3."""
    if method == "HEAD" or status in (204, 304) or status < 200:
        return Framing.NONE
    if coding is not None:
        last = coding.rpartition(b",")[2].strip(b" \t").lower()
        return Framing.CHUNKED if last == b"chunked" else Framing.UNTIL_CLOSE
    return Framing.LENGTH if length is not None else Framing.UNTIL_CLOSE


def own_answer(
    status: int, reason: bytes, fields: Fields, body: bytes, *, close: bool, bodiless: bool = False
) -> bytes:
    """A whole answer that no upstream gave; ``bodiless`` for HEAD."""
    lines = [b"HTTP/1.1 %d %b" % (status, reason)]
    lines += [name + b": " + value for name, value in fields if name.lower() != b"content-length"]
    lines.append(b"Content-Length: %d" % len(body))
    if close:
        lines.append(b"Connection: close")
    return b"\r\n".join(lines) + b"\r\n\r\n" + (b"" if bodiless else body)
