"""Bound units of a reply (thinking, reasoning, signed parts) and the same as they come back.

Lives here: what a unit is in each dialect, its fingerprints, and how like two units are. Nothing of
a unit but fingerprints is kept: no text, no signature. ``thinking`` decides what a likeness means.

The one invariant: a reply and the same reply sent back lawfully (other base64 alphabet, another of
the proofs that a stream told, ids left out, an id instead of the content) give like units.
"""

import base64
import binascii
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Literal

from policies.thinking_rules import SENTINELS
from proxy.model import DialectName, Item

Likeness = Literal["", "same", "synthetic", "text", "proof", "bare", "order"]

_ALPHABET = str.maketrans("-_", "+/")


def fingerprint(value: str | bytes) -> str:
    """Twelve characters that name a value and tell nothing of it."""
    raw = value if isinstance(value, bytes) else value.encode("utf-8", "replace")
    return blake2b(raw, digest_size=6).hexdigest()


@dataclass(frozen=True, slots=True)
class Unit:
    """One bound thing, by fingerprints."""

    proofs: tuple[str, ...]
    """Of its signature, redacted data or encrypted content; each of them is as good."""
    text: str = ""
    """Of its text, exact; empty where it has none."""
    size: int = 0
    """Characters of the text."""
    id: str = ""
    """Of the provider's id; in Chat Completions of the pieces of reasoning in any order."""
    on: str = ""
    """The anchor that it is a part of (Gemini signs parts)."""
    block: int = 0
    """Its number among the blocks of the reply."""

    def pack(self) -> list[Any]:
        """As JSON values."""
        return [list(self.proofs), self.text, self.size, self.id, self.on, self.block]

    @staticmethod
    def unpack(value: Sequence[Any]) -> "Unit":
        """From ``pack``."""
        return Unit(tuple(value[0]), *value[1:])


@dataclass(frozen=True, slots=True)
class Piece:
    """An item of an assistant message: a unit, or an anchor that units stand between."""

    item: Item
    message: int
    unit: Unit | None = None
    anchor: str = ""
    """Of the item's identity; empty where it has none."""
    ids: tuple[str, ...] = ()
    """Of its call id and item id."""
    sentinel: bool = False


def pieces(dialect: DialectName, items: Iterable[tuple[int, Item]]) -> list[Piece]:
    """Items of an assistant as pieces; ``(message number, item)`` each."""
    found: list[Piece] = []
    for block, (message, item) in enumerate(items):
        if item.kind == "tool_result" and not item.server:
            continue
        anchor = item.digest.hex()[:12] if item.digest else ""
        ids = tuple(fingerprint(name) for name in (item.call_id, item.item_id) if name)
        unit = _unit(dialect, item, anchor, block)
        sentinel = unit is not None and dialect == "gemini" and _is_sentinel(item.signature or "")
        if item.kind == "thinking":
            anchor = ""
        found.append(Piece(item, message, unit, anchor, ids, sentinel))
    return found


def _unit(dialect: DialectName, item: Item, anchor: str, block: int) -> Unit | None:
    if dialect == "gemini":
        if item.signature is None:
            return None
        return Unit((fingerprint(_bytes_of(item.signature)),), on=_carrier(item, anchor), block=block)
    if item.kind != "thinking":
        return None
    text = fingerprint(item.text) if item.text else ""
    if dialect == "openai_chat":
        proofs, id = _pieces_of(item.signature or "")
        return Unit(proofs, text, len(item.text), id, block=block)
    seen = dict.fromkeys(fingerprint(proof) for proof in (item.signature, *item.variants) if proof)
    if not seen and not text and not item.item_id:
        return None
    id = fingerprint(item.item_id) if item.item_id else ""
    return Unit(tuple(seen), text, len(item.text), id, block=block)


_SUBSTANCE = ("text", "summary", "thinking", "signature", "data")


def _pieces_of(proof: str) -> tuple[tuple[str, ...], str]:
    """Names of the listed pieces of reasoning, in their order and in any order.

    ``proof`` is their list as JSON. Only what they say and prove counts: clients fill in formats, ids,
    and pieces without content.
    """
    try:
        listed = json.loads(proof) if proof else []
    except (ValueError, RecursionError):
        return (fingerprint(proof),), ""
    parts = [
        "\0".join(f"{name}\0{piece[name]}" for name in _SUBSTANCE if piece.get(name))
        for piece in (listed if isinstance(listed, list) else [listed])
        if isinstance(piece, dict)
    ]
    parts = [part for part in parts if part]
    if not parts:
        return (), ""
    return (fingerprint("\1".join(parts)),), fingerprint("\1".join(sorted(parts)))


def _carrier(item: Item, anchor: str) -> str:
    """The part that bears a signature. Texts are cut and joined on their way, so all of them are one."""
    return anchor if item.kind == "tool_call" else item.kind if item.kind in ("text", "thinking") else "part"


def _bytes_of(signature: str) -> bytes:
    """A base64 signature decoded: clients write it in the other alphabet, with or without padding."""
    plain = signature.translate(_ALPHABET).rstrip("=")
    try:
        return base64.b64decode(plain + "=" * (-len(plain) % 4), validate=True)
    except (binascii.Error, ValueError):
        return signature.encode("utf-8", "replace")


def _is_sentinel(signature: str) -> bool:
    return signature in SENTINELS or _bytes_of(signature).decode("latin-1") in SENTINELS


def likeness(dialect: DialectName, ours: Unit, theirs: Piece, *, by_id: bool) -> Likeness:
    """How like a unit of a reply is to one that stands in a request.

    ``by_id``: the provider keeps its replies, so that an id alone is as good as the content.
    """
    other = theirs.unit
    if other is None:
        return ""
    proven = bool(set(ours.proofs) & set(other.proofs))
    if dialect == "gemini":
        return _like_part(ours, theirs, other, proven=proven)
    worded = bool(ours.text) and ours.text == other.text
    if dialect == "openai_responses":
        named = bool(ours.id) and ours.id == other.id
        if proven or (not ours.proofs and (named or worded)):
            return "same"
        if not (named or worded):
            return ""
        return "proof" if other.proofs else "same" if named and by_id else "bare"
    if dialect == "openai_chat":
        if proven or (worded and not ours.proofs):
            return "same"
        if worded and not other.proofs:
            return "bare"  # the same reasoning as text; whether that will do is the provider's to say
        if ours.id and ours.id == other.id:
            return "order"
        return "proof" if worded else ""
    if proven:
        return "same" if not ours.text or worded else "text"
    if worded and ours.proofs:
        return "proof" if other.proofs else "bare"
    return "same" if worded else ""


def _like_part(ours: Unit, theirs: Piece, other: Unit, *, proven: bool) -> Likeness:
    if proven:
        return "same"
    if ours.on != other.on:
        return ""
    return "synthetic" if theirs.sentinel else "proof"


def tells(text: str, unit: Unit) -> bool:
    """Whether a plain text holds a unit's text: as its beginning, in tags, or as whole lines of it."""
    size = unit.size
    if not size or not unit.text or len(text) < size:
        return False
    starts = {0, len(text) - size}
    at = 0
    for _ in range(_STARTS):
        found = text.find("\n", at)
        if found < 0:
            break
        starts.add(found + 1)
        at = found + 1
    for tag in ("<think>", "<thinking>", "<reasoning>"):
        found = text.find(tag)
        if found >= 0:
            starts.add(found + len(tag))
    return any(fingerprint(text[start : start + size]) == unit.text for start in starts if start >= 0)


_STARTS = 32
"""Line beginnings at which a text that was moved is looked for."""
