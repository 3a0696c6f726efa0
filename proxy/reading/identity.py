"""Item identity: what of an item stays the same when a client sends it back.

One module for all dialects, so that equal content has equal digests whichever wire form it came
in. Left out on purpose: key order, spelling of numbers, outer whitespace of text, call ids, cache
marks, citations, and everything that a caller does not hand in. Thinking and empty text have no
identity at all (``b""``).

Nothing here raises: values too deep for the fast writer are written by a slow one.
"""

from collections.abc import Iterable
from hashlib import blake2b
from typing import Any

import orjson

SIZE = 16
"""Bytes of a digest."""

KEPT = 1_000_000
"""Characters of one text that an item carries."""

_SAFE_INTEGER = 2.0**53
_SORTED = orjson.OPT_SORT_KEYS


# -- canonical JSON


def canonical(value: Any) -> str:
    """A JSON value as RFC 8785 would write it: keys sorted, no spaces, ``1.0`` and ``1e0`` as ``1``.

    Integers beyond 2**53 keep all their digits (the RFC would round them).
    """
    if isinstance(value, str):
        return orjson.dumps(value).decode() if _writable(value) else _write(value)
    try:
        if _has_float(value):
            return _write(value)
        return orjson.dumps(value, option=_SORTED).decode()
    except (TypeError, RecursionError):  # too deep, a huge integer, or a lone surrogate
        return _write(value)


def canonical_arguments(text: str) -> str:
    """A call's argument text as canonical JSON; the text itself where it is no JSON."""
    try:
        return canonical(orjson.loads(text))
    except ValueError:
        return text


def without_marks(value: Any, dropped: frozenset[str]) -> Any:
    """A copy of a JSON value less null members and members of these names, at any depth.

    A value nested deeper than the interpreter goes is given back as it is.
    """
    try:
        return _without(value, dropped)
    except RecursionError:
        return value


def _without(value: Any, dropped: frozenset[str]) -> Any:
    if isinstance(value, dict):
        return {
            name: _without(member, dropped)
            for name, member in value.items()
            if member is not None and name not in dropped
        }
    if isinstance(value, list):
        return [_without(member, dropped) for member in value]
    return value


def _writable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _has_float(value: Any) -> bool:
    todo = [value]
    while todo:
        one = todo.pop()
        kind = type(one)
        if kind is float:
            return True
        if kind is dict:
            todo.extend(one.values())
        elif kind is list:
            todo.extend(one)
    return False


def _write(value: Any) -> str:
    """The same without the fast writer: any depth, any number, any text."""
    out: list[str] = []
    todo: list[tuple[bool, Any]] = [(False, value)]
    while todo:
        verbatim, one = todo.pop()
        if verbatim:
            out.append(one)
        elif isinstance(one, dict):
            todo.append((True, "}"))
            members = sorted(one.items(), key=lambda member: str(member[0]))
            for index in range(len(members) - 1, -1, -1):
                name, member = members[index]
                todo.append((False, member))
                todo.append((True, ("," if index else "") + _scalar(str(name)) + ":"))
            out.append("{")
        elif isinstance(one, (list, tuple)):
            todo.append((True, "]"))
            for index in range(len(one) - 1, -1, -1):
                todo.append((False, one[index]))
                if index:
                    todo.append((True, ","))
            out.append("[")
        else:
            out.append(_scalar(one))
    return "".join(out)


def _scalar(value: Any) -> str:
    if isinstance(value, str):
        return orjson.dumps(value.encode("utf-8", "replace").decode()).decode()
    if value is None or isinstance(value, bool):
        return "null" if value is None else "true" if value else "false"
    if isinstance(value, float) and value.is_integer() and abs(value) < _SAFE_INTEGER:
        return str(int(value))
    if isinstance(value, (int, float)):
        return repr(value)
    return _scalar(str(value))


# -- digests


def text_digest(kind: str, role: str, text: str) -> bytes:
    """Identity of a piece of text; none if it is empty. Clients trim a reply's outer whitespace."""
    plain = text.strip()
    return item_digest(kind, role, plain) if plain else b""


def call_digest(name: str, arguments: str) -> bytes:
    """Identity of a tool call: the tool and its canonical arguments, not its id."""
    return item_digest("tool_call", "assistant", name, arguments)


def result_digest(text: str, media: Iterable[bytes] = (), *, is_error: bool = False) -> bytes:
    """Identity of a tool result: what the model reads of it, joined over all blocks, and the flag."""
    return item_digest("tool_result", "tool", text.strip(), "error" if is_error else "", *media)


def media_digest(role: str, data: str | bytes) -> bytes:
    """Identity of an image, audio or file: its data, or the place where it lies."""
    return item_digest("media", role, data)


def item_digest(kind: str, role: str, *parts: str | bytes) -> bytes:
    """Identity made of some parts; no two lists of parts share one."""
    hasher = _begin(kind, role)
    for part in parts:
        raw = part if isinstance(part, bytes) else part.encode("utf-8", "replace")
        hasher.update(raw)
        hasher.update(b"\0%d\0" % len(raw))
    return hasher.digest()


def clip(text: str) -> str:
    """The part of a text that an item carries; its digest covers all of it."""
    return text if len(text) <= KEPT else text[:KEPT]


_PIECES = 64
"""Pieces of a text that wait singly: a word of six letters takes ten times its size."""


class RunningText:
    """A text that arrives in pieces: its beginning, its length, and the identity of all of it.

    ``digest`` equals ``text_digest`` of the joined pieces; memory stays within a few times ``KEPT``.
    """

    __slots__ = ("_hashed", "_hasher", "_head", "_kind", "_pieces", "_role", "_waiting", "chars")

    def __init__(self, kind: str, role: str) -> None:
        self._kind = kind
        self._role = role
        self._pieces: list[str] = []
        self._waiting = 0
        """Characters in the pieces."""
        self._head: str | None = None
        self._hasher: blake2b | None = None
        self._hashed = 0
        """Bytes of text that the hasher has taken."""
        self.chars = 0

    def add(self, piece: str) -> None:
        """Take the next piece."""
        size = len(piece)
        self.chars += size
        self._waiting += size
        self._pieces.append(piece)
        if self._waiting > KEPT:
            self._settle()
        elif len(self._pieces) > _PIECES:
            self._pieces = ["".join(self._pieces)]

    def text(self) -> str:
        """The text, as much of it as is kept."""
        return self._head if self._head is not None else clip("".join(self._pieces))

    def digest(self) -> bytes:
        """Identity of the whole text."""
        if self._hasher is None:
            return text_digest(self._kind, self._role, "".join(self._pieces))
        hasher, hashed = self._hasher.copy(), self._hashed
        last = "".join(self._pieces)
        raw = (last.strip() if hashed == 0 else last.rstrip()).encode("utf-8", "replace")
        if hashed + len(raw) == 0:
            return b""
        hasher.update(raw)
        hasher.update(b"\0%d\0" % (hashed + len(raw)))
        return hasher.digest()

    def _settle(self) -> None:
        """Hash what has come; white space at its end waits, since it may be the end of all."""
        text = "".join(self._pieces)
        if self._hasher is None:
            self._hasher = _begin(self._kind, self._role)
            self._head = clip(text)
        if self._hashed == 0:
            text = text.lstrip()
        body = text.rstrip()
        if len(text) - len(body) > KEPT:
            body = text  # nobody means so much white space
        raw = body.encode("utf-8", "replace")
        self._hasher.update(raw)
        self._hashed += len(raw)
        self._pieces = [text[len(body) :]]
        self._waiting = len(text) - len(body)


def _begin(kind: str, role: str) -> blake2b:
    return blake2b(f"{kind}\0{role}\0".encode(), digest_size=SIZE)
