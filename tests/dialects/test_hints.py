"""What known clients say about themselves, and what must not be taken for it."""

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.dialects.hints import MAX_ID, client_name, read_hints
from proxy.model import Head, Hints

UUID = "56c3d6c2-2b9d-4035-901b-83151c8a64fd"
OTHER = "01a22a63-633d-7e00-8afc-fe84d0d22d1b"
OLD_USER = f"user_{'0' * 64}_account_{OTHER}_session_{UUID}"
NEW_USER = orjson.dumps({"device_id": "0" * 64, "account_uuid": "", "session_id": UUID}).decode()


def head(**fields: str) -> Head:
    pairs = tuple((name.replace("_", "-").encode(), value.encode()) for name, value in fields.items())
    return Head("POST", "/v1/messages", pairs)


def raw_head(name: bytes, value: bytes) -> Head:
    return Head("POST", "/", ((name, value),))


@pytest.mark.parametrize(
    ("agent", "name"),
    [
        ("claude-cli/2.1.332 (external, sdk-py, agent-sdk/0.2.189)", "claude-code"),
        ("codex_exec/0.171.0 (Debian 12.0.0; x86_64) xterm-256color", "codex"),
        ("GeminiCLI-tui/0.61.0/gemini-3.1-pro-preview (linux; x64; terminal)", "gemini-cli"),
        ("opencode/1.18.33 ai-sdk/provider-utils/4.0", "opencode"),
        ("QwenCode/0.15.10 (linux; x64)", "qwen-code"),
        ("Anthropic/Python 2.14.0", "anthropic-python"),
        ("OpenAI/JS 6.26.0", "openai-js"),
        ("ai-sdk/anthropic/3.0.140 runtime/node.js/20", "ai-sdk"),
        ("google-genai-sdk/3.6.1 gl-python/3.11", "google-genai"),
        ("curl/8.5.0", "curl"),
        ("", ""),
    ],
)
def test_clients_are_named_by_their_user_agent(agent: str, name: str) -> None:
    assert client_name(agent) == name


@pytest.mark.parametrize(
    "given_by",
    [
        head(x_claude_code_session_id=UUID),
        head(session_id=UUID),
        raw_head(b"session_id", UUID.encode()),
        raw_head(b"conversation_id", UUID.encode()),
        head(x_session_affinity=UUID),
        head(X_Session_Id=UUID),
        head(x_opencode_session=UUID),
        head(x_litellm_session_id=UUID),
        head(x_deepseek_harness_session_id=UUID),
    ],
)
def test_SES_08_sessions_are_read_from_header_fields(given_by: Head) -> None:
    assert read_hints(given_by, {}).session == UUID


@pytest.mark.parametrize(
    "body",
    [
        {"metadata": {"user_id": NEW_USER}},
        {"metadata": {"user_id": OLD_USER}},
        {"metadata": {"session_id": UUID}},
        {"session_id": UUID},
        {"conversation": UUID},
        {"conversation": {"id": UUID}},
        {"prompt_cache_key": UUID},
        {"labels": {"Session": UUID}},
    ],
)
def test_SES_08_sessions_are_read_from_the_body(body: dict[str, Any]) -> None:
    assert read_hints(head(), body).session == UUID


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"metadata": {"user_id": "someone"}},
        {"metadata": {"user_id": "{not json"}},
        {"metadata": {"user_id": "{" + "x" * 100_000}},
        {"metadata": {"user_id": OLD_USER + "x" * 100_000}},
        {"metadata": {"user_id": '{"session_id":["a"]}'}},
        {"metadata": [UUID]},
        {"session_id": ""},
        {"session_id": "x" * (MAX_ID + 1)},
        {"session_id": "line\nbreak"},
        {"session_id": 7},
        {"prompt_cache_key": "my-agent"},
        {"conversation": {"id": None}},
    ],
)
def test_SES_08_what_is_no_session_is_none(body: dict[str, Any]) -> None:
    assert read_hints(head(), body).session is None
    assert read_hints(head(x_session_id="x" * 5_000), body).session is None


def test_a_session_under_another_is_a_sub_agent_of_it() -> None:
    # Kilo's sub-agents have sessions of their own and name that of their parent.
    named = read_hints(head(x_session_id=OTHER, x_parent_session_id=UUID), {})
    assert (named.session, named.agent, named.kind) == (UUID, OTHER, "subagent")
    assert read_hints(head(x_session_id=UUID, x_parent_session_id=UUID), {}).agent is None


def test_SES_01_claude_code_names_its_sub_agents() -> None:
    given_by = head(
        User_Agent="claude-cli/2.1.332 (external, sdk-cli)",
        X_Claude_Code_Session_Id=UUID,
        x_claude_code_agent_id="a1aed2786cdf579e8",
        x_claude_code_parent_agent_id="ad3c06b63adb090b4",
        X_Stainless_Retry_Count="2",
    )
    assert read_hints(given_by, {}) == Hints(
        client="claude-code",
        session=UUID,
        agent="a1aed2786cdf579e8",
        parent_agent="ad3c06b63adb090b4",
        kind="subagent",
        retry=2,
    )


def codex(thread: str, **told: Any) -> Head:
    metadata = {"session_id": UUID, "thread_id": thread, "turn_id": "t-9", **told}
    return head(
        user_agent="codex_exec/0.171.0",
        session_id=UUID,
        thread_id=thread,
        x_codex_turn_metadata=orjson.dumps(metadata).decode(),
    )


def test_codex_main_thread() -> None:
    found = read_hints(codex(UUID, request_kind="turn"), {"prompt_cache_key": UUID})
    assert found == Hints(client="codex", session=UUID, turn="t-9", kind="main")


def test_codex_sub_agents_have_a_thread_of_their_own() -> None:
    found = read_hints(codex(OTHER, request_kind="turn", parent_thread_id=UUID), {})
    assert (found.session, found.agent, found.parent_agent, found.kind) == (UUID, OTHER, None, "subagent")


@pytest.mark.parametrize("kind", ["compaction", "prewarm"])
def test_codex_tells_compactions_and_prewarms(kind: str) -> None:
    assert read_hints(codex(UUID, request_kind=kind), {}).kind == kind


def test_codex_without_its_fields_is_read_from_the_body() -> None:
    body = {"client_metadata": {"session_id": UUID, "thread_id": OTHER, "turn_id": "t-1"}}
    found = read_hints(head(user_agent="codex_exec/0.1", thread_id=OTHER), body)
    assert (found.session, found.agent, found.turn) == (UUID, OTHER, "t-1")


@pytest.mark.parametrize(
    "system",
    [
        "You are Claude Code.\nYou are naming a coding session so the user can pick it out",
        "\nYou are a specialized Task Routing AI. Your sole function is",
        "You are an expert software engineer that generates concise, one-line Git commit messages",
    ],
)
def test_SES_10_side_calls_show_in_their_instructions(system: str) -> None:
    assert read_hints(head(x_claude_code_session_id=UUID), {}, system=system).kind == "side"


@given(
    st.lists(
        st.tuples(st.sampled_from([b"thread-id", b"X-Codex-Turn-Metadata", b"session-id"]), st.binary())
    ),
    st.dictionaries(
        st.sampled_from(["metadata", "client_metadata", "conversation", "prompt_cache_key"]),
        st.none() | st.text() | st.integers() | st.dictionaries(st.text(), st.text() | st.integers()),
    ),
)
def test_any_fields_give_hints(fields: list[tuple[bytes, bytes]], body: dict[str, Any]) -> None:
    found = read_hints(Head("POST", "/", tuple(fields)), body)
    for value in (found.session, found.agent, found.parent_agent, found.turn):
        assert value is None or 0 < len(value) <= MAX_ID
