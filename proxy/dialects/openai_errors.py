"""Errors in OpenAI's envelope: reading the many shapes in use, and writing our own refusals.

Shared by Chat Completions and Responses, whose errors are the same object. Lives here: nine error
shapes of compatible providers, the refusal that every measured client takes as final (status 400,
``invalid_request_error``). Words and fields that all dialects' refusals share are ``refusals``.

The one invariant: reading never raises and never invents; what names no error is None.
"""

from collections.abc import Mapping
from typing import Any

import orjson

from proxy.dialects.refusals import plain_words, refusal_fields, shown
from proxy.model import ProviderError
from proxy.verdict import Reply, Terminal

_MAX_MESSAGE = 2_000
_MAX_CODE = 200


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


def error_object(why: Terminal) -> dict[str, Any]:
    """What stands under ``error`` in a body or frame of ours."""
    waits = why.retry_after_s is not None
    return {
        "message": plain_words(why.message),
        "type": "requests" if waits else "invalid_request_error",
        "param": None,
        "code": why.code,
        "looptap": shown(why),
    }


def refuse(why: Terminal, request_id: str) -> Reply:
    """The plain JSON error: 400, or 429 with the time to wait where waiting helps."""
    body = orjson.dumps({"error": error_object(why)}, default=str)
    status = 429 if why.retry_after_s is not None else 400
    return Reply(status, refusal_fields(why, request_id, b"application/json"), body)
