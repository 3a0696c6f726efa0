"""Writes recorded exchanges as an exchange log: JSON Lines that ``looptap replay`` reads.

One line an exchange, in order of arrival. Bodies are exact: text where they are UTF-8, base64
where they are not. Credentials were made dots before they reached the record. Labels and the
upstream's name, which only this proxy understands, are taken off the path.

``t_verdict`` stands where a request waited for an operator: until when, or null where its client left
before anybody answered. ``request_body`` is what the client sent; where the model read more, ``inserted``
says what and where (``[[offset, text], …]``, with a third text where it stands in that one's place), for who
wants the bytes that went upstream. A replay begins with the client's and decides anew. ``landed`` stands
where a request was its turn's last step: the cause.
"""

import base64
from collections.abc import Iterable, Iterator
from typing import Any
from urllib.parse import urlsplit

import orjson

from proxy.reading.codings import decode_body
from proxy.reading.insertions import without
from proxy.record import Reader, StoredExchange

_LARGEST = 1 << 30


def write_log(reader: Reader, exchanges: Iterable[StoredExchange]) -> Iterator[bytes]:
    """The lines of some exchanges, bodies read one by one."""
    landed = _Landed(reader)
    for stored in exchanges:
        sent = reader.body(stored.request_body)
        line = log_line(stored, _clients(stored, sent), reader.body(stored.response_body))
        if (cause := landed.cause(stored)) is not None:
            line |= {"landed": cause}
        if sent is not None and stored.inserted:
            line |= {"inserted": _ours(stored, sent)}
        yield orjson.dumps(line) + b"\n"


class _Landed:
    """Which exchanges were their turn's last step, and why; asked turn by turn."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._turn: str | None = None
        self._causes: dict[str, str] = {}

    def cause(self, stored: StoredExchange) -> str | None:
        """Why it was one; None where it was none."""
        if stored.turn is None:
            return None
        if stored.turn != self._turn:
            self._turn = stored.turn
            told = self._reader.events(types=("intervention",), turn=stored.turn)
            self._causes = {
                str(record.data.get("exchange")): str(record.data.get("cause"))
                for _, record in told
                if record.data.get("kind") == "land"
            }
        return self._causes.get(stored.id)


def _clients(stored: StoredExchange, sent: bytes | None) -> bytes | None:
    """The body as the client sent it: less what is ours (and then without its content coding)."""
    if sent is None or not stored.inserted:
        return sent
    return without(_decoded(stored, sent), stored.inserted)


def _ours(stored: StoredExchange, sent: bytes) -> list[list[Any]]:
    """What was put into the client's body: offset in it, text, and the client's text that it replaced."""
    plain, before, found = _decoded(stored, sent), 0, []
    for at, length, *gone in stored.inserted:
        found.append([at - before, plain[at : at + length].decode(), *gone])
        before += length - sum(len(text.encode()) for text in gone)
    return found


def _decoded(stored: StoredExchange, sent: bytes) -> bytes:
    coding = next((value for name, value in stored.headers if name.lower() == b"content-encoding"), None)
    return decode_body(sent, coding, _LARGEST)


def log_line(stored: StoredExchange, request: bytes | None, response: bytes | None) -> dict[str, Any]:
    """One exchange as a line."""
    line: dict[str, Any] = {
        "provider": stored.provider or None,
        "upstream": stored.upstream or None,
        "host": urlsplit(stored.host).netloc or stored.host or None,
        "t": _seconds(stored.time_ns),
        "t_end": _seconds(stored.end_ns),
    }
    line = {key: value for key, value in line.items() if value is not None}
    line |= {
        "method": stored.method,
        "path": below_upstream(stored.target, stored.upstream),
        "request_headers": _headers(stored.headers),
        **_body("request_body", request),
        "status": stored.status,
        "response_headers": _headers(stored.response_headers),
        **_body("response_body", response),
    }
    if stored.end is not None:
        line["end"] = "client_gone" if stored.end == "shutdown" else stored.end
    if stored.end == "shutdown":
        line["stopped"] = True
    if stored.verdict_ns is not None:
        line["t_verdict"] = _seconds(stored.verdict_ns or None)
    if stored.labels:
        line["labels"] = dict(stored.labels)
    if stored.streaming:
        line["streaming"] = True
    return line


def below_upstream(target: str, upstream: str) -> str:
    """``/@team=a/anthropic/v1/messages`` as ``/v1/messages``."""
    if target.startswith("/@"):
        target = target[target.find("/", 1) :] if "/" in target[1:] else "/"
    prefix = f"/{upstream}"
    if upstream and target.startswith(prefix) and target[len(prefix) : len(prefix) + 1] in ("/", "?", ""):
        target = target[len(prefix) :]
    return target if target.startswith("/") else "/" + target


def _seconds(time_ns: int | None) -> float | None:
    return None if time_ns is None else round(time_ns / 1e9, 6)


def _headers(headers: list[tuple[bytes, bytes]]) -> list[list[str]]:
    return [[name.decode("latin-1"), value.decode("latin-1")] for name, value in headers]


def _body(key: str, body: bytes | None) -> dict[str, str]:
    if body is None:
        return {}
    try:
        return {key: body.decode()}
    except UnicodeDecodeError:
        return {key + "_b64": base64.b64encode(body).decode("ascii")}
