"""Routing as a table: target and fields in; upstream, target, path and labels out."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.model import Head, Upstream
from proxy.wire.routes import RouteTable, Unroutable

UPSTREAMS = [
    Upstream("anthropic", "https://api.anthropic.com", "anthropic"),
    Upstream("openai", "https://api.openai.com", "openai"),
    Upstream("gemini", "https://generativelanguage.googleapis.com/", "gemini"),
    Upstream("openrouter", "https://openrouter.ai/api", "openai"),
    Upstream("groq", "https://api.groq.com/openai/v1/", "openai"),
]
TABLE = RouteTable(UPSTREAMS)
BEARER = (b"Authorization", b"Bearer k")


def head(target: str, *fields: tuple[bytes, bytes], method: str = "POST") -> Head:
    return Head(method, target, fields)


@pytest.mark.parametrize(
    ("target", "upstream", "sent", "path"),
    [
        # By name: the raw rest is joined to the upstream's URL.
        ("/anthropic/v1/messages?beta=true", "anthropic", "/v1/messages?beta=true", "/v1/messages"),
        ("/openai/v1/responses", "openai", "/v1/responses", "/v1/responses"),
        ("/openai", "openai", "/", "/"),
        ("/openai?x=1", "openai", "/?x=1", "/"),
        ("/openai/", "openai", "/", "/"),
        ("/openrouter/v1/chat/completions", "openrouter", "/api/v1/chat/completions", "/v1/chat/completions"),
        ("/openrouter", "openrouter", "/api", "/"),
        ("/openrouter?a", "openrouter", "/api?a", "/"),
        # A version segment that ends the URL is not written twice.
        ("/groq/v1/chat/completions", "groq", "/openai/v1/chat/completions", "/v1/chat/completions"),
        ("/groq/chat/completions", "groq", "/openai/v1/chat/completions", "/chat/completions"),
        ("/groq/v1?x", "groq", "/openai/v1?x", "/v1"),
        ("/groq/v10/x", "groq", "/openai/v1/v10/x", "/v10/x"),
        # By shape.
        ("/v1/messages", "anthropic", "/v1/messages", "/v1/messages"),
        ("/messages", "anthropic", "/messages", "/messages"),
        ("/v1/messages/count_tokens?beta=true", "anthropic", "/v1/messages/count_tokens?beta=true",
         "/v1/messages/count_tokens"),
        ("/v1/chat/completions", "openai", "/v1/chat/completions", "/v1/chat/completions"),
        ("/v1/responses/compact", "openai", "/v1/responses/compact", "/v1/responses/compact"),
        ("/v1beta/models/g:streamGenerateContent?alt=sse", "gemini",
         "/v1beta/models/g:streamGenerateContent?alt=sse", "/v1beta/models/g:streamGenerateContent"),
        ("/v1/models/g:generateContent", "gemini", "/v1/models/g:generateContent",
         "/v1/models/g:generateContent"),
        ("/v1beta/files", "gemini", "/v1beta/files", "/v1beta/files"),
        ("/upload/v1beta/files", "gemini", "/upload/v1beta/files", "/upload/v1beta/files"),
        # Raw rest, byte for byte.
        ("/openai//evil.com/x", "openai", "//evil.com/x", "//evil.com/x"),
        ("/openai/@evil.com/", "openai", "/@evil.com/", "/@evil.com/"),
        ("/openai/http://evil/", "openai", "/http://evil/", "/http://evil/"),
        ("/openai/../%2e%2e/a%2Fb//c?", "openai", "/../%2e%2e/a%2Fb//c?", "/../%2e%2e/a%2Fb//c"),
        ("/openai/\xe9\xff", "openai", "/\xe9\xff", "/\xe9\xff"),
        ("/openrouter//v1", "openrouter", "/api//v1", "//v1"),
    ],
)  # fmt: skip
def test_a_target_finds_its_upstream(target: str, upstream: str, sent: str, path: str) -> None:
    route = TABLE.route(head(target))
    assert (route.upstream.name, route.target, route.path) == (upstream, sent, path)
    assert route.labels == {}


@pytest.mark.parametrize(
    ("target", "method", "fields", "upstream"),
    [
        ("/v1/models", "GET", [(b"anthropic-version", b"2023-06-01"), BEARER], "anthropic"),
        ("/v1/models", "GET", [(b"X-Api-Key", b"k")], "anthropic"),
        ("/v1/models", "GET", [BEARER], "openai"),
        ("/v1/models/ft:gpt:acme::abc", "DELETE", [BEARER], "openai"),
        ("/v1/embeddings", "POST", [BEARER], "openai"),
        ("/v1/models", "GET", [(b"x-goog-api-key", b"k")], "gemini"),
        ("/v1/models?key=abc", "GET", [], "gemini"),
        ("/", "HEAD", [(b"x-api-key", b"k")], "anthropic"),
        ("/", "HEAD", [(b"user-agent", b"claude-cli/2"), BEARER], "anthropic"),
        ("/", "HEAD", [BEARER], "openai"),
        ("/api/hello", "HEAD", [], "anthropic"),
        ("/api/event_logging/batch", "POST", [(b"anthropic-beta", b"x")], "anthropic"),
    ],
)
def test_fields_decide_where_the_path_does_not(
    target: str, method: str, fields: list[tuple[bytes, bytes]], upstream: str
) -> None:
    assert TABLE.route(head(target, *fields, method=method)).upstream.name == upstream


@pytest.mark.parametrize(
    "target", ["/", "/nobody/v1/x", "/v1/models", "//evil.com/x", "/OPENAI/x", "/%6fpenai"]
)
def test_nowhere_to_go_names_the_upstreams(target: str) -> None:
    with pytest.raises(Unroutable) as refused:
        TABLE.route(head(target, method="GET"))
    assert refused.value.status == 404
    assert "anthropic, gemini, groq, openai, openrouter" in str(refused.value)


@pytest.mark.parametrize("target", ["http://evil.com/v1/messages", "*", "evil.com:443", "", "@evil"])
def test_a_target_that_is_no_path_is_refused(target: str) -> None:
    with pytest.raises(Unroutable) as refused:
        TABLE.route(head(target))
    assert refused.value.status == 400


def test_the_default_takes_what_nothing_else_does() -> None:
    table = RouteTable(UPSTREAMS, "openrouter")
    assert table.route(head("/foo?x", method="GET")).target == "/api/foo?x"
    assert table.route(head("/v1/messages")).upstream.name == "anthropic"
    with pytest.raises(ValueError, match="nobody"):
        RouteTable(UPSTREAMS, "nobody")


def test_an_api_without_an_upstream_of_its_name_uses_the_first_that_speaks_it() -> None:
    table = RouteTable([Upstream("acme", "http://a", "anthropic"), Upstream("b", "http://b", "anthropic")])
    assert table.route(head("/v1/messages")).upstream.name == "acme"


def test_labels_come_off_the_path_and_the_fields() -> None:
    route = TABLE.route(
        head("/@team=search,env=ci%2Feu/anthropic/v1/messages?x", (b"X-Looptap-Label-Team", b"ads"))
    )
    assert route.labels == {"team": "ads", "env": "ci/eu"}
    assert route.target == "/v1/messages?x"
    assert TABLE.route(head("/@session=n-42/v1/messages")).labels == {"session": "n-42"}


@pytest.mark.parametrize(
    "target",
    [
        "/@evil.com/anthropic/v1/messages",
        "/@/anthropic",
        "/@=x/anthropic",
        "/@a=/anthropic",
        "/@a b=x/anthropic",
        "/@" + ",".join(f"l{i}=x" for i in range(9)) + "/anthropic/",
        "/@a=" + "x" * 65 + "/anthropic",
        "/@" + "a" * 65 + "=x/anthropic",
        "/@a=%0a/anthropic",
    ],
)
def test_bad_labels_are_refused_in_plain_words(target: str) -> None:
    with pytest.raises(Unroutable, match="label") as refused:
        TABLE.route(head(target))
    assert refused.value.status == 400


def test_eight_labels_of_64_characters_are_taken() -> None:
    labels = {f"{'n' * 62}-{i}": "v" * 64 for i in range(8)}
    text = ",".join(f"{name}={value}" for name, value in labels.items())
    assert TABLE.route(head(f"/@{text}/anthropic/x")).labels == labels


@given(st.text(st.characters(max_codepoint=255, exclude_characters="\x00\r\n "), max_size=60))
def test_whatever_the_target_only_configured_upstreams_come_out(rest: str) -> None:
    try:
        route = TABLE.route(head("/openrouter/" + rest))
    except Unroutable:
        pytest.fail("a named upstream takes any rest")
    assert route.upstream in UPSTREAMS
    assert route.target == "/api/" + rest
    try:
        route = TABLE.route(head("/" + rest))
    except Unroutable:
        return
    assert route.upstream in UPSTREAMS
    assert route.target.startswith("/")
