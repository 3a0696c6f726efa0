"""Answers of the wire itself: what a client is told when no upstream could answer it.

Shaped like the provider's own errors where the API is known, so that SDKs show the words and
decide on a retry as they would for the provider; one line of text elsewhere. Refusals by policy
and budget are the dialects', not made here.
"""

import json
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

from proxy.model import Api
from proxy.verdict import Reply

_ANTHROPIC_TYPES = {
    400: "invalid_request_error",
    404: "not_found_error",
    413: "request_too_large",
    503: "overloaded_error",
    504: "timeout_error",
}
_GEMINI_STATUS = {
    400: "INVALID_ARGUMENT",
    404: "NOT_FOUND",
    413: "INVALID_ARGUMENT",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}


def failure(api: Api | None, status: int, code: str, message: str, exchange_id: str) -> Reply:
    """An error in the shape of ``api``; ``code`` is stable for machines."""
    if api is None:
        return text(status, message)
    body: dict[str, Any]
    if api == "anthropic":
        kind = _ANTHROPIC_TYPES.get(status, "api_error")
        detail = {"type": kind, "message": message, "details": {"error_code": code}}
        body = {"type": "error", "error": detail, "request_id": exchange_id}
        request_id = b"request-id"
    elif api == "openai":
        kind = "invalid_request_error" if status < 500 else "server_error"
        body = {"error": {"message": message, "type": kind, "param": None, "code": code}}
        request_id = b"x-request-id"
    else:
        if status == 502:  # what Google's own front ends say
            status = 503
        info = {
            "@type": "type.googleapis.com/google.rpc.ErrorInfo",
            "reason": code.upper(),
            "domain": "looptap",
        }
        name = _GEMINI_STATUS.get(status, "INTERNAL")
        body = {"error": {"code": status, "message": message, "status": name, "details": [info]}}
        request_id = b"x-request-id"
    headers = [(b"content-type", b"application/json"), (request_id, exchange_id.encode("ascii"))]
    return Reply(status, headers, json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode())


def text(status: int, message: str, headers: Sequence[tuple[bytes, bytes]] = ()) -> Reply:
    """One line in plain words."""
    plain = (b"content-type", b"text/plain; charset=utf-8")
    return Reply(status, [plain, *headers], f"looptap: {message}\n".encode())


def reason(status: int) -> bytes:
    """The usual reason phrase of a status."""
    try:
        return HTTPStatus(status).phrase.encode("ascii")
    except ValueError:
        return b""
