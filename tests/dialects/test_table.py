"""The table: which routes are model calls, and of which dialect."""

import orjson
import pytest

from proxy.dialects import ANTHROPIC, GEMINI, OPENAI_CHAT, OPENAI_RESPONSES, match
from proxy.model import Api, Head, Upstream
from proxy.ports import Dialect

CALLS = [
    ("/v1/chat/completions", "openai_chat"),
    ("/chat/completions", "openai_chat"),
    ("/api/v1/chat/completions", "openai_chat"),
    ("/beta/chat/completions", "openai_chat"),
    ("/openai/v1/chat/completions", "openai_chat"),
    ("/openai/deployments/gpt-5-nano/chat/completions", "openai_chat"),
    ("/models/chat/completions", "openai_chat"),
    ("/v1beta/openai/chat/completions", "openai_chat"),
    ("/serving-endpoints/my-model/invocations", "openai_chat"),
    ("/v1/responses", "openai_responses"),
    ("/responses", "openai_responses"),
    ("/responses/", "openai_responses"),
    ("/openai/v1/responses", "openai_responses"),
    ("/v1/responses/compact", "openai_responses"),
    ("/v1/responses/input_tokens", "openai_responses"),
    ("/v1/messages", "anthropic"),
    ("/anthropic/v1/messages", "anthropic"),
    ("/v1/messages/count_tokens", "anthropic"),
    ("/v1/projects/p/locations/l/publishers/anthropic/models/claude-x:streamRawPredict", "anthropic"),
    ("/v1beta/models/gemini-3-pro:generateContent", "gemini"),
    ("/v1/models/gemini-3-pro:streamGenerateContent", "gemini"),
    ("/v1/projects/p/locations/l/publishers/google/models/gemini-3-pro:countTokens", "gemini"),
]
NO_CALLS = [
    "/", "", "/v1/models", "/v1/embeddings", "/v1/files", "/v1/batches", "/v1/images/generations",
    "/v1/audio/speech", "/v1/completions", "/v1/chat/completions/chatcmpl-1", "/v1/responses/resp_1/cancel",
    "/v1/responses/resp_1", "/v1/conversations", "/v1/conversations/conv_1/items", "/v1/threads/t/messages",
    "/v1/messages/batches", "/v1/messages/batches/b/results", "/v2/chat", "/api/chat", "/api/hello",
    "/v1beta/models/gemini-3-pro:batchGenerateContent", "/v1beta/models/m:embedContent", "/model/m/invoke",
    "/xchat/completionsx", "/v1/my-responses", "/v1/moderations",
]  # fmt: skip
APIS: tuple[Api, ...] = ("openai", "anthropic", "gemini")


def found(method: str, path: str, api: Api = "openai") -> str | None:
    dialect = match(method, path, Upstream("u", "https://u.example/base", api), Head(method, path))
    return dialect.name if dialect is not None else None


@pytest.mark.parametrize(("path", "name"), CALLS)
@pytest.mark.parametrize("api", APIS)
def test_the_tail_of_the_path_tells_the_dialect(path: str, name: str, api: Api) -> None:
    assert found("POST", path, api) == name


@pytest.mark.parametrize("path", NO_CALLS)
def test_everything_else_is_no_model_call(path: str) -> None:
    assert found("POST", path) is None


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS", "DELETE", "PUT", "post"])
@pytest.mark.parametrize("path", ["/v1/responses", "/v1/messages", "/v1/chat/completions"])
def test_only_posts_call_a_model(method: str, path: str) -> None:
    assert found(method, path) is None


def test_the_one_get_fetches_a_reply_made_in_the_background() -> None:
    assert found("GET", "/v1/responses/resp_1") == "openai_responses"
    assert found("GET", "/v1/responses/resp_1/input_items") is None
    assert found("DELETE", "/v1/responses/resp_1") is None


def test_list_keys_are_those_of_the_wire() -> None:
    keys = [dialect.list_key for dialect in (ANTHROPIC, OPENAI_CHAT, OPENAI_RESPONSES, GEMINI)]
    assert keys == ["messages", "messages", "input", "contents"]


@pytest.mark.parametrize("dialect", [ANTHROPIC, OPENAI_CHAT, OPENAI_RESPONSES, GEMINI])
def test_values_of_any_depth_are_read(dialect: Dialect) -> None:
    deep = orjson.loads("[" * 1_000 + "]" * 1_000)
    odd = {"type": "x", "y": deep}
    for raw in (
        {"role": "user", "content": [odd], "parts": [{"new": deep}]},
        {
            "role": "assistant",
            "content": [odd],
            "tool_calls": [{"function": {"name": "a", "arguments": deep}}],
        },
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "x", "content": [odd]}]},
        {"type": "function_call_output", "call_id": "c", "output": deep},
        {"type": "shell_call", "call_id": "c", "action": deep},
    ):
        assert dialect.read_message(raw) == dialect.read_message(raw)
