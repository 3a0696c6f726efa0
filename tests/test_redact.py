"""Credentials must not survive in copies of headers and targets, however they are spelled."""

import pytest

from proxy.reading.redact import redact_headers, redact_target

SECRET = "s3cr3t-VALUE-0123456789"


@pytest.mark.parametrize(
    "name",
    [
        "Authorization", "AUTHORIZATION", "x-api-key", "X-Api-Key", "api-key", "apikey", "x-goog-api-key",
        "Cookie", "set-cookie", "proxy-authorization", "x-looptap-key", "x-auth-token",
        "X-Amz-Security-Token",
        "openai-secret", "my_api_key", "x-client-secret", "x-subscription-key", "x-jwt", "x-csrf-token",
        "x-forwarded-access-token", "cf-access-jwt", "x-hub-signature", "x-password", "x-credential",
    ],
)  # fmt: skip
def test_a_credential_header_becomes_dots(name: str) -> None:
    (field,) = redact_headers([(name.encode(), SECRET.encode())])
    assert field[0] == name.encode()
    assert field[1] == b"..."


@pytest.mark.parametrize(
    ("sent", "kept"),
    [
        (b"Bearer sk-ant-oat01-abc", b"Bearer "),
        (b"bearer   sk-x", b"bearer "),
        (b"Basic dXNlcjpwYXNz", b"Basic "),
        (b"AWS4-HMAC-SHA256 Credential=AKIA/2024, Signature=ff", b"AWS4-HMAC-SHA256 "),
        (b"sk-no-scheme-at-all", b""),
        (b"\xff\xfe binary", b""),
    ],
)
def test_only_the_scheme_word_stays(sent: bytes, kept: bytes) -> None:
    ((_, value),) = redact_headers([(b"authorization", sent)])
    assert value == kept + b"..."


@pytest.mark.parametrize(
    "name",
    [
        "content-type", "anthropic-version", "anthropic-ratelimit-tokens-remaining",
        "x-ratelimit-limit-tokens",
        "idempotency-key", "x-stainless-retry-count", "user-agent", "x-request-id", "sec-websocket-key",
        "access-control-allow-headers", "www-authenticate", "anthropic-beta", "x-max-tokens",
    ],
)  # fmt: skip
def test_fields_that_only_sound_like_it_stay(name: str) -> None:
    assert redact_headers([(name.encode(), b"value")]) == ((name.encode(), b"value"),)


def test_a_name_too_long_to_be_looked_at_closely_counts_as_a_secrets() -> None:
    assert redact_headers([(b"ratelimit" * 20_000 + b"token1", SECRET.encode())])[0][1] == b"..."
    assert redact_headers([(b"ratelimittokens" * 2_000, SECRET.encode())])[0][1] == b"..."
    assert SECRET not in redact_target(f"/v1/x?{'max_' * 16_000}token_={SECRET}&a=b")


def test_order_repeats_and_empty_values_stay() -> None:
    fields = [(b"A", b"1"), (b"Cookie", b"a=b"), (b"A", b"2"), (b"cookie", b""), (b"x-api-key", b"  ")]
    assert [name for name, _ in redact_headers(fields)] == [name for name, _ in fields]
    assert redact_headers(fields)[3:] == ((b"cookie", b""), (b"x-api-key", b"  "))


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("/v1beta/models/m:generateContent?key=SECRET", "/v1beta/models/m:generateContent?key=…"),
        ("/x?alt=sse&key=SECRET&b=2", "/x?alt=sse&key=…&b=2"),
        ("/x?api_key=SECRET", "/x?api_key=…"),
        ("/x?API-Key=SECRET;y=1", "/x?API-Key=…;y=1"),
        ("/x?access_token=SECRET#frag", "/x?access_token=…"),
        ("/x?%6bey=SECRET", "/x?%6bey=…"),
        ("/x?X-Amz-Signature=SECRET&X-Amz-Credential=SECRET", "/x?X-Amz-Signature=…&X-Amz-Credential=…"),
        ("/x?sig=SECRET&sv=1", "/x?sig=…&sv=1"),
        ("/x?key=SE=CR=ET", "/x?key=…"),
        ("/x?a=1#access_token=SECRET&b=2", "/x?a=1#access_token=…&b=2"),
        ("/x#key=SECRET", "/x#key=…"),
        ("/x?a=1?key=SECRET", "/x?a=1?key=…"),
        ("/x?key=SE;CR?E#T&b=2", "/x?key=…&b=2"),
        ("/x?a=1?b=2#c", "/x?a=1?b=2#c"),
        ("/x?key=", "/x?key="),
        ("/x?key", "/x?key"),
        ("/x?", "/x?"),
        ("/key=abc/y", "/key=abc/y"),
        ("/x?pageToken=p2&max_tokens=5", "/x?pageToken=p2&max_tokens=5"),
        ("http://user:SECRET@host/x?y=1", "http://…@host/x?y=1"),
        ("/x?monkey=1&keyboard=2", "/x?monkey=1&keyboard=2"),
        ("*", "*"),
    ],
)
def test_the_query_loses_its_secrets_and_nothing_else(target: str, expected: str) -> None:
    assert redact_target(target) == expected
