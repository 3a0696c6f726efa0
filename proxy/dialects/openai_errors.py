"""Errors in OpenAI's envelope: reading the many shapes in use, and writing our own refusals.

Shared by Chat Completions and Responses, whose errors are the same object. Lives here: nine error
shapes of compatible providers, the refusal that every measured client takes as final (status 400,
``invalid_request_error``), and the words that must not stand in it because clients act on them.

The one invariant: reading never raises and never invents; what names no error is None.
"""

import re
from collections.abc import Mapping
from typing import Any

import orjson

from proxy.model import ProviderError
from proxy.verdict import Reply, Terminal

_MAX_MESSAGE = 2_000
_MAX_CODE = 200

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


def read_error(value: Any, *, failed: bool = False) -> ProviderError | None:
    """The error that a document is or carries.

    ``failed``: the status says that it is one, so that a bare ``message`` counts too.
    """
    if isinstance(value, list):
        value = value[0] if value else None
    if not isinstance(value, dict):
        return None
    inner = value.get("error")
    if inner:
        return _of_member(inner, value)
    choices = value.get("choices")
    if isinstance(choices, list) and choices and isinstance(choices[0], dict) and choices[0].get("error"):
        return _of_member(choices[0]["error"], value)
    if value.get("object") == "error" or (failed and isinstance(value.get("message"), str)):
        return _error(value, value)
    if not failed:
        return None
    listed = value.get("errors")
    if isinstance(listed, list) and listed and isinstance(listed[0], dict):
        return _error(listed[0], value)
    detail = value.get("detail")
    if detail:
        return ProviderError("", _text(detail))
    return None


def http_error(status: int) -> ProviderError:
    """An error answer whose body says nothing that we can read."""
    return ProviderError("http_error", f"HTTP status {status}", str(status))


def _of_member(inner: Any, outer: Mapping[str, Any]) -> ProviderError:
    if isinstance(inner, dict):
        return _error(inner, outer)
    return ProviderError(_word(outer.get("type")), _text(inner), _word(outer.get("code")) or None)


def _error(inner: Mapping[str, Any], outer: Mapping[str, Any]) -> ProviderError:
    metadata = inner.get("metadata")
    kind = _word(inner.get("type")) or _word(inner.get("status")) or _word(outer.get("error_type"))
    if not kind and isinstance(metadata, dict):
        kind = _word(metadata.get("error_type"))
    code = _word(inner.get("code")) or _word(inner.get("error_code")) or None
    return ProviderError(kind, _text(inner.get("message") or inner.get("detail") or ""), code)


def _word(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        return ""
    return str(value)[:_MAX_CODE]


def _text(value: Any) -> str:
    if not isinstance(value, str):
        try:
            value = orjson.dumps(value).decode()
        except (TypeError, ValueError, RecursionError):
            value = ""
    return str(value)[:_MAX_MESSAGE]


# -- our own


def plain_words(message: str) -> str:
    """A message without the fragments that clients would act upon."""
    return _TELLING_PATTERN.sub(lambda match: _TELLING[match[0].lower()], message)


def error_object(why: Terminal) -> dict[str, Any]:
    """What stands under ``error`` in a body or frame of ours."""
    waits = why.retry_after_s is not None
    return {
        "message": plain_words(why.message),
        "type": "requests" if waits else "invalid_request_error",
        "param": None,
        "code": why.code,
        "looptap": {"code": why.code, "policy": why.policy, **why.fields},
    }


def refusal_fields(why: Terminal, request_id: str, content_type: bytes) -> list[tuple[bytes, bytes]]:
    """Header fields of an answer of ours."""
    fields = [
        (b"content-type", content_type),
        (b"x-request-id", _latin(request_id)),
        (b"x-looptap-refused", refused_field(why)),
    ]
    if why.kind == "message":
        return fields
    if why.retry_after_s is not None:
        fields.append((b"retry-after", b"%d" % why.retry_after_s))
    else:
        fields.append((b"x-should-retry", b"false"))
    return fields


def refused_field(why: Terminal) -> bytes:
    """``x-looptap-refused``: the code, then every field as ``; name=value``."""
    parts = [why.code, f"policy={why.policy}", *(f"{name}={value}" for name, value in why.fields.items())]
    return _latin("; ".join(part for part in parts if part))


def refuse(why: Terminal, request_id: str) -> Reply:
    """The plain JSON error: 400, or 429 with the time to wait where waiting helps."""
    body = orjson.dumps({"error": error_object(why)}, default=str)
    status = 429 if why.retry_after_s is not None else 400
    return Reply(status, refusal_fields(why, request_id, b"application/json"), body)


def _latin(text: str) -> bytes:
    return "".join(c if " " <= c <= "~" else "?" for c in text)[:1_000].encode("ascii")
