"""Exchanges as they lie in the record: a row each, header fields packed into one value; and their order."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain


@dataclass(frozen=True, slots=True)
class StoredExchange:
    """One exchange as recorded; its bodies are read on demand by their numbers."""

    id: str
    number: int
    session: str | None
    thread: str | None
    turn: str | None
    step: str | None
    time_ns: int
    provider: str
    upstream: str
    host: str
    """The upstream's base URL."""
    method: str
    target: str
    headers: list[tuple[bytes, bytes]]
    labels: Mapping[str, str]
    end_ns: int | None
    end: str | None
    status: int | None
    streaming: bool
    request_bytes: int | None
    response_bytes: int | None
    request_body: int | None
    response_body: int | None
    response_headers: list[tuple[bytes, bytes]]
    inserted: tuple[tuple[int, int] | tuple[int, int, str], ...] = ()
    """Offsets and lengths of what is ours in the decoded request body, which is what the model saw; and what
    of the client's it stands in place of, where it does."""
    verdict_ns: int | None = None
    """Until when it waited for an operator, where it did; 0: its client left before anybody answered."""


_AT_ONCE = 512
"""Exchanges that may have come between one's opening and its being recorded."""
_MEANWHILE = 65_536
"""The same for one that waited for an operator."""


def in_order(rows: Iterable[tuple[int, int, int, bool]]) -> list[int]:
    """Rows (their number, the exchange's number in its process, its arrival, whether it waited for an
    operator) as they were opened.

    They come as they were recorded, which is later for those that had to wait: such a one is brought
    before those of a higher number that arrived after it. No clock alone decides, since it may be set back.
    """
    found: list[tuple[int, int, int, bool]] = []
    for row in rows:
        _, number, time_ns, waited = row
        at, most = len(found), _MEANWHILE if waited else _AT_ONCE
        while at and len(found) - at <= most and found[at - 1][1] > number and found[at - 1][2] >= time_ns:
            at -= 1
        found.insert(at if len(found) - at <= most else len(found), row)
    return [no for no, _, _, _ in found]


def pack_headers(headers: Sequence[tuple[bytes, bytes]]) -> bytes:
    """Header fields as one value: names and values in turn, a line each (neither can hold a line end)."""
    packed = b"\n".join(chain.from_iterable(headers))
    if headers and packed.count(b"\n") != 2 * len(headers) - 1:
        packed = b"\n".join(part.replace(b"\n", b" ") for part in chain.from_iterable(headers))
    return packed


def unpack_headers(packed: bytes | None) -> list[tuple[bytes, bytes]]:
    """The fields of a packed header."""
    if not packed:
        return []
    flat = packed.split(b"\n")
    return list(zip(flat[::2], flat[1::2], strict=True))


def seconds(time_ns: int) -> str:
    """Nanoseconds as decimal seconds, every digit kept: a float would not hold them."""
    whole, rest = divmod(time_ns, 1_000_000_000)
    return f"{whole}.{rest:09d}".rstrip("0") + ("0" if rest == 0 else "")
