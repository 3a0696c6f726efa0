"""Errors as a dozen providers write them, read in any dialect of this envelope."""

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.dialects.chat_stream import ChatDecoder
from proxy.dialects.openai_errors import read_error
from proxy.model import ProviderError

CHUNK = b'data: {"choices":[{"index":0,"delta":{"content":"x"}}]}\n\n'
ERROR = b'{"error":{"message":"no","type":"t"}}'
OPENROUTER = (
    b'{"error":{"code":502,"message":"no"},"choices":[{"index":0,"delta":{},"finish_reason":"error"}]}'
)


@pytest.mark.parametrize(
    ("status", "body", "kind", "code"),
    [
        (400, b'{"error":{"message":"no","type":"invalid_request_error","param":null,"code":"x"}}',
         "invalid_request_error", "x"),
        (401, b'{"object":"error","message":"no","type":"bad","code":null}', "bad", None),
        (400, b'{"code":"bad","error":"no"}', "", "bad"),
        (400, b'{"error":"no"}', "", None),
        (422, b'{"detail":"no"}', "", None),
        (400, b'{"error_code":"BAD","message":"no"}', "", "BAD"),
        (400, b'{"success":false,"errors":[{"code":7,"message":"no"}]}', "", "7"),
        (400, b'[{"error":{"code":400,"message":"no","status":"INVALID"}}]', "INVALID", "400"),
        (429, b'{"error":{"code":429,"message":"no","metadata":{"error_type":"slow"}}}', "slow", "429"),
        (200, ERROR, "t", None),
        (200, b'{"choices":[{"index":0,"error":{"message":"no","code":502}}]}', "", "502"),
        (200, CHUNK + b"data: " + ERROR + b"\n\n", "t", None),
        (200, b"event: error\ndata: " + ERROR + b"\n\n", "t", None),
        (200, b'event: error\ndata: {"message":"no","type":"t"}\n\n', "t", None),
        (200, CHUNK + b"data: " + OPENROUTER + b"\n\n", "", "502"),
    ],
)  # fmt: skip
def test_errors_in_every_shape(status: int, body: bytes, kind: str, code: str | None) -> None:
    decoder = ChatDecoder(status)
    decoder.feed(body)
    assert decoder.finish().error == ProviderError(kind, "no", code)


@pytest.mark.parametrize("body", [b"<html>bad gateway</html>", b"", b'{"x":1}', b"null", b'"text"'])
def test_a_failing_status_is_an_error_whatever_the_body_says(body: bytes) -> None:
    decoder = ChatDecoder(502)
    decoder.feed(body)
    assert decoder.finish().error == ProviderError("http_error", "HTTP status 502", "502")


def test_a_message_alone_is_an_error_only_where_the_status_says_so() -> None:
    assert read_error({"message": "hello"}) is None
    assert read_error({"message": "hello"}, failed=True) == ProviderError("", "hello")
    assert read_error({"detail": [{"msg": "no"}]}, failed=True) == ProviderError("", '[{"msg":"no"}]')


def test_long_words_are_cut() -> None:
    error = read_error({"error": {"message": "x" * 10_000, "type": "y" * 10_000}})
    assert error is not None
    assert (len(error.message), len(error.type)) == (2_000, 200)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text(max_size=4),
        lambda inner: (
            st.lists(inner, max_size=2)
            | st.dictionaries(st.sampled_from(["error", "message", "code", "type", "choices"]), inner)
        ),
    ),
    st.booleans(),
)
def test_any_value_is_read_without_raising(value: object, failed: bool) -> None:
    error = read_error(value, failed=failed)
    assert error is None or orjson.dumps(error.message)
