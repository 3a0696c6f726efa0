"""Byte-exact JSON surgery: find a value in a body and change it, leaving every other byte alone.

Lives here: where a member or element stands, and cutting there. Lives elsewhere: what to change.
Paths are keys and indexes from the top of the body (``"messages", -1, "content"``); where a key
stands twice the last one counts, as for every JSON parser in use.

The one invariant: outside the span that a function names, its result has the very bytes of its
input. A place that does not exist (or a body that is no JSON) gives None, never an exception.
"""

import re
from typing import TypeAlias

import msgspec
import orjson

from proxy.model import Change, Insertion
from proxy.reading.insertions import inserted

Span: TypeAlias = tuple[int, int]
Path: TypeAlias = tuple[str | int, ...]

_GAP = re.compile(rb"[ \t\n\r]*")
_STRING = rb'"[^"\\]*(?:\\.[^"\\]*)*"'
_KEY = re.compile(rb"[ \t\n\r]*(" + _STRING + rb")[ \t\n\r]*:[ \t\n\r]*", re.DOTALL)
_PLAIN = re.compile(_STRING + rb"|[^\s,\]}\[{]+", re.DOTALL)
_TOKEN = re.compile(_STRING + rb"|[\[{]|[\]}]", re.DOTALL)
_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])
_LIST = msgspec.json.Decoder(list[msgspec.Raw])


def span_of(body: bytes, *path: str | int) -> Span | None:
    """Where the value at a path stands; the whole value for an empty path."""
    gap = _GAP.match(body)
    start = gap.end() if gap is not None else 0
    span: Span = (start, len(body.rstrip(b" \t\n\r")))
    try:
        for step in path:
            found = _member(body, span, step) if isinstance(step, str) else _element(body, span, step)
            if found is None:
                return None
            span = found
    except (ValueError, RecursionError):
        return None
    return span if span[0] < span[1] else None


def replace_value(body: bytes, path: Path, raw: bytes) -> bytes | None:
    """The body with another value at a path that exists."""
    span = span_of(body, *path)
    return None if span is None else body[: span[0]] + raw + body[span[1] :]


def replace_number(body: bytes, path: Path, number: int) -> bytes | None:
    """The body with another number at a path that exists."""
    return replace_value(body, path, b"%d" % number)


def lower_number(body: bytes, path: Path, most: int) -> bytes:
    """The body with the number at a path lowered to ``most`` where it is above; else as it is."""
    span = span_of(body, *path)
    if span is None:
        return body
    try:
        value = orjson.loads(body[span[0] : span[1]])
    except ValueError:
        return body
    above = isinstance(value, (int, float)) and not isinstance(value, bool) and value > most
    return body[: span[0]] + b"%d" % most + body[span[1] :] if above else body


def insert_field(body: bytes, path: Path, key: str, raw: bytes) -> bytes | None:
    """The body with one more member at the end of the object at ``path`` (``()``: of the body)."""
    span = span_of(body, *path)
    if span is None or body[span[0] : span[0] + 1] != b"{" or body[span[1] - 1 : span[1]] != b"}":
        return None
    return _before_end(body, span, orjson.dumps(key) + b":" + raw)


def set_field(body: bytes, path: Path, key: str, raw: bytes) -> bytes | None:
    """The member's value replaced where it stands, else the member inserted at the end."""
    return replace_value(body, (*path, key), raw) or insert_field(body, path, key, raw)


def set_member(body: bytes, path: Path, key: str, raw: bytes) -> Change | None:
    """What to change for a member of the object at ``path`` to have this value."""
    at = span_of(body, *path, key)
    if at is not None:
        return at[0], body[at[0] : at[1]], raw
    span = span_of(body, *path)
    if span is None or body[span[0] : span[0] + 1] != b"{" or body[span[1] - 1 : span[1]] != b"}":
        return None
    place, text = _at_end(body, span, orjson.dumps(key) + b":" + raw)
    return place, b"", text


def append_to_list(body: bytes, path: Path, raw: bytes) -> bytes | None:
    """The body with one more element at the end of the list at ``path``."""
    added = added_to_list(body, path, raw)
    return None if added is None else inserted(body, [added])


def added_to_list(body: bytes, path: Path, raw: bytes) -> Insertion | None:
    """What to insert for one more element at the end of the list at ``path``."""
    span = span_of(body, *path)
    if span is None or body[span[0] : span[0] + 1] != b"[" or body[span[1] - 1 : span[1]] != b"]":
        return None
    return _at_end(body, span, raw)


def _before_end(body: bytes, span: Span, raw: bytes) -> bytes:
    return inserted(body, [_at_end(body, span, raw)])


def _at_end(body: bytes, span: Span, raw: bytes) -> Insertion:
    """Text behind the last entry of an object or list, in front of its closing white space."""
    start, end = span
    inside = body[start + 1 : end - 1].rstrip(b" \t\n\r")
    comma = b"," if inside.strip(b" \t\n\r") else b""
    return start + 1 + len(inside), comma + raw


# -- one level down


def _member(body: bytes, span: Span, key: str) -> Span | None:
    if body[span[0] : span[0] + 1] != b"{":
        return None
    spans = _members_by_length(body, span)
    if spans is None:
        spans = _members(body, span)
    return spans.get(key)


def _members_by_length(body: bytes, span: Span) -> dict[str, Span] | None:
    """Walk an object with the parser's own lengths; None where a key stands twice."""
    raws = _OBJECT.decode(memoryview(body)[span[0] : span[1]])
    spans: dict[str, Span] = {}
    at = span[0] + 1
    for _ in raws:
        match = _KEY.match(body, at, span[1])
        if match is None:
            return None
        name = orjson.loads(match[1])
        raw = raws.get(name)
        if raw is None or name in spans:
            return None
        start = match.end()
        end = start + memoryview(raw).nbytes
        if body[start:end] != bytes(raw):
            return None
        spans[name] = (start, end)
        at = _skip(body, end)
        if body[at : at + 1] not in (b",", b"}"):
            return None
        at += 1
    whole = not raws or at == span[1]
    return spans if whole else None


def _members(body: bytes, span: Span) -> dict[str, Span]:
    """Walk an object token by token."""
    spans: dict[str, Span] = {}
    at = span[0] + 1
    while (match := _KEY.match(body, at, span[1])) is not None:
        end = _value_end(body, match.end(), span[1])
        spans[orjson.loads(match[1])] = (match.end(), end)
        at = _skip(body, end) + 1
    return spans


def _element(body: bytes, span: Span, index: int) -> Span | None:
    if body[span[0] : span[0] + 1] != b"[":
        return None
    raws = _LIST.decode(memoryview(body)[span[0] : span[1]])
    if not -len(raws) <= index < len(raws):
        return None
    start = end = comma = span[0]
    for raw in raws[: index % len(raws) + 1]:
        start = _skip(body, comma + 1)
        plain = body[start] not in b"{["
        end = _value_end(body, start, span[1]) if plain else start + memoryview(raw).nbytes
        comma = _skip(body, end)
    return start, end


def _skip(body: bytes, at: int) -> int:
    gap = _GAP.match(body, at)
    return gap.end() if gap is not None else at


def _value_end(body: bytes, start: int, stop: int) -> int:
    """End of the value that begins at a place."""
    if body[start] not in b"{[":
        match = _PLAIN.match(body, start, stop)
        if match is None:
            raise ValueError("no value")
        return match.end()
    depth = 0
    for token in _TOKEN.finditer(body, start, stop):
        first = body[token.start()]
        if first in b"{[":
            depth += 1
        elif first in b"]}":
            depth -= 1
            if depth == 0:
                return token.end()
    raise ValueError("an open end")
