"""Credentials become dots before a header or a target is recorded, logged or told.

The data port carries credentials as they come; whoever makes a copy for the record calls this
first. Names are matched with a wide net, since a header too many hidden costs little; lengths and
beginnings of secrets are not kept. Only the scheme word of an authorization (``Bearer``) stays.
Bodies are not touched: they are stored as sent.
"""

import re
from collections.abc import Sequence
from functools import lru_cache

DOTS = "…"
_DOTS = b"..."
"""Headers are latin-1 wherever they are told again, where the other dots would come out as three letters."""

_HEADER = re.compile(
    rb"auth|token|secret|passw|credential|cookie|signature|session-key|"
    rb"(?:^|[-_])(?:key|jwt|sig)$|api[-_]?key|access[-_]?key|private[-_]?key",
    re.IGNORECASE,
)
_HARMLESS = re.compile(
    rb"^(?:sec-websocket-key|www-authenticate|proxy-authenticate|idempotency-key|x-idempotency-key|"
    rb"[a-z-]*rate-?limit[a-z-]*tokens?[a-z-]*|[a-z-]*max-tokens?|[a-z-]*token-(?:count|usage)|"
    rb"access-control-[a-z-]+)$",
    re.IGNORECASE,
)
"""Fields that match the net and hold no secret: limits and counts of tokens, handshakes, retries."""
_LONGEST_NAME = 100
"""Characters of a name that may be harmless: in a longer one the patterns above would search for minutes."""
_SCHEME = re.compile(rb"^([A-Za-z][A-Za-z0-9_-]{1,19})[ \t]+(?=\S)")
_SCHEMED = frozenset({b"authorization", b"proxy-authorization"})

_QUERY_NAME = re.compile(
    r"^(?:key|k|sig|code|jwt|awsaccesskeyid|x-goog-credential|x-amz-credential)$|"
    r"auth|token|secret|passw|credential|signature|api[-_.]?key|access[-_.]?key|(?:^|[-_.])key$",
    re.IGNORECASE,
)
_QUERY_HARMLESS = re.compile(
    r"(?:^|[-_.])(?:max|count|page|next|limit)[-_.]?\w*tokens?$|^page_?token$", re.IGNORECASE
)
_QUERY = re.compile(r"[?#]")
_PAIRS = re.compile(r"[^&;?#]+(?:[;?#][^&;?#=]*(?=[&;?#]|$))*")
"""A pair ends where another begins, in the query or behind a ``#``: a secret may hold the marks itself."""
_USERINFO = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]*://)[^/?#]*@")
_PERCENT = re.compile(r"%([0-9A-Fa-f]{2})")


def redact_headers(headers: Sequence[tuple[bytes, bytes]]) -> tuple[tuple[bytes, bytes], ...]:
    """The same fields in the same order, secrets replaced by dots."""
    places = _secret_places(tuple([name for name, _ in headers]))
    if not places:
        return tuple(headers)
    kept = list(headers)
    for at in places:
        name, value = kept[at]
        kept[at] = (name, _value(name, value))
    return tuple(kept)


def redact_target(target: str) -> str:
    """A target with the secrets of its query, and behind a ``#``, replaced; all else stays to the byte."""
    if "@" in target and "://" in target:
        target = _USERINFO.sub(rf"\1{DOTS}@", target)
    begin = _QUERY.search(target)
    if begin is None:
        return target
    return target[: begin.end()] + _PAIRS.sub(_pair, target[begin.end() :])


@lru_cache(maxsize=128)
def _secret_places(names: tuple[bytes, ...]) -> tuple[int, ...]:
    """Where secrets may stand; a client names the same fields in every request."""
    return tuple(at for at, name in enumerate(names) if is_secret_header(name))


@lru_cache(maxsize=4096)
def is_secret_header(name: bytes) -> bool:
    """Whether a field of this name may carry a credential."""
    if _HEADER.search(name) is None:
        return False
    return len(name) > _LONGEST_NAME or _HARMLESS.match(name) is None


def _value(name: bytes, value: bytes) -> bytes:
    if not value.strip():
        return value
    lower = name.lower()
    if lower in _SCHEMED or lower.endswith(b"-authorization"):
        scheme = _SCHEME.match(value)
        return scheme.group(1) + b" " + _DOTS if scheme is not None else _DOTS
    return _DOTS


def _pair(match: re.Match[str]) -> str:
    name, equals, value = match.group().partition("=")
    if not equals or not value:
        return match.group()
    plain = _PERCENT.sub(lambda hit: chr(int(hit.group(1), 16)), name)
    if _QUERY_NAME.search(plain) is None:
        return match.group()
    if len(plain) <= _LONGEST_NAME and _QUERY_HARMLESS.search(plain) is not None:
        return match.group()
    return f"{name}={DOTS}"
