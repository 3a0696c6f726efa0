"""What our own answers share in every dialect: their words, their header fields, their details.

The one invariant: no client mistakes a refusal for something to repeat, to compact or to log in
for. Clients classify errors by fragments of their text, so such fragments never stand in ours.
"""

import re
from collections.abc import Mapping
from typing import Any

from proxy.verdict import Terminal

_TELLING: Mapping[str, str] = {
    "rate limit": "request pace",
    "overloaded": "over its load",
    "prompt is too long": "prompt has too many tokens",
    "context length": "context size",
    "context window": "context size",
    "maximum context": "largest context",
    "exceeds the limit of": "is above the cap of",
    "too large": "above the cap",
    "exhausted": "used up",
    "unavailable": "not to be had",
    "could not be verified": "was not verified",
    "content_policy_violation": "policy breach",
    "safety system": "guard",
    "invalid api key": "key not accepted",
    "capability_rejected": "not allowed",
    "thinking": "reasoning",
    "signature": "proof",
}
"""Fragments by which clients classify an error (retry it, compact, drop features), and other words."""
_TELLING_PATTERN = re.compile("|".join(map(re.escape, _TELLING)), re.IGNORECASE)
_BARE = re.compile(r"[A-Za-z][A-Za-z0-9_.:/-]*|-?[0-9]{1,15}|-?[0-9]{1,12}\.[0-9]{1,3}")
_PAIR = re.compile(r';\s*([a-z_]+)=("(?:[^"\\]|\\.)*"|[^;]*)')
_ESCAPED = re.compile(r"\\(.)")
_LONGEST_FIELD = 1_000
_SPEAKER = "Looptap: "


def plain_words(message: str) -> str:
    """A message that says who speaks, without the fragments that clients would act upon."""
    if not message.startswith(_SPEAKER):  # a policy's own words, which read like the provider's
        message = _SPEAKER + message
    lower = message.lower()
    if not any(fragment in lower for fragment in _TELLING):  # the pattern takes twenty times as long
        return message
    return _TELLING_PATTERN.sub(lambda match: _TELLING[match[0].lower()], message)


def shown(why: Terminal) -> dict[str, Any]:
    """The facts of a refusal in fields: which limit, of whom, how much, until when."""
    return {"code": why.code, "policy": why.policy, **why.fields}


def refusal_fields(
    why: Terminal, request_id: str, content_type: bytes, *, id_name: bytes = b"x-request-id"
) -> list[tuple[bytes, bytes]]:
    """Header fields of an answer of ours. ``id_name``: the field that bears the provider's request id."""
    fields = [
        (b"content-type", content_type),
        (id_name, _latin(request_id)),
        (b"x-looptap-refused", refused_field(why)),
    ]
    if why.kind == "message":
        return fields
    wait_s = why.resets_s if why.retry_after_s is None else why.retry_after_s
    if wait_s is not None:
        fields.append((b"retry-after", b"%d" % wait_s))
    if why.retry_after_s is None:
        fields.append((b"x-should-retry", b"false"))
    return fields


def refused_field(why: Terminal) -> bytes:
    """``x-looptap-refused``: a structured field (RFC 9651), the code with every field as a parameter.

    Names that hold nothing odd, numbers and booleans stand bare, everything else in quotes: what a client
    chose (a label, a model) can add no field of its own. A field that no longer fits is left out whole.
    """
    told = _bare(why.code) or "looptap"
    for name, value in {"policy": why.policy, **why.fields}.items():
        pair = "" if value is None else f"; {name}={_bare(value) or _quoted(value)}"
        if len(told) + len(pair) <= _LONGEST_FIELD:
            told += pair
    return told.encode("ascii")


def read_refused_field(value: bytes) -> tuple[str, dict[str, str]]:
    """The code and the fields of ``refused_field``, also as they were written before they were quoted."""
    text = value.decode("latin-1")
    fields = {
        pair[1]: _ESCAPED.sub(r"\1", pair[2][1:-1]) if pair[2].startswith('"') else pair[2]
        for pair in _PAIR.finditer(text)
    }
    return text.partition(";")[0].strip(), fields


def _bare(value: object) -> str:
    """A value that needs no quotes; nothing for one that does."""
    if isinstance(value, bool):
        return f"?{value:d}"
    return str(value) if _BARE.fullmatch(str(value)) else ""


def _quoted(value: object) -> str:
    plain = _latin(str(value)).decode("ascii")
    return '"' + plain.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _latin(text: str) -> bytes:
    return "".join(c if " " <= c <= "~" else "?" for c in text)[:1_000].encode("ascii")
