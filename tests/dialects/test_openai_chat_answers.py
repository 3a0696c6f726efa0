"""Chat Completions: requests, edits by byte, and answers of our own."""

from collections.abc import Iterable
from typing import Any

import orjson
import pytest

from proxy.dialects.openai_chat import OpenAIChat
from proxy.model import Head, ModelRequest
from proxy.ports import Unreadable
from proxy.verdict import Edit, Terminal

DIALECT = OpenAIChat()
WHY = Terminal(
    "deny",
    "budgets",
    "looptap_budget_exceeded",
    "Looptap: this turn has spent $5.00 of $5.00.",
    cause="spend",
    fields={"budget": "turn", "limit": "5.00"},
)


def request(
    *, path: str = "/v1/chat/completions", messages: Iterable[Any] = (), **fields: Any
) -> ModelRequest:
    read = tuple(DIALECT.read_message(message) for message in messages)
    return DIALECT.read_request(Head("POST", path), path, {"model": "gpt-5.1", **fields}, read)


ASK = request(messages=[{"role": "user", "content": "Hi"}])


# -- requests


def test_a_request_in_full() -> None:
    found = request(
        messages=[{"role": "system", "content": "Be."}, {"role": "user", "content": "Hi"}],
        stream=True,
        max_completion_tokens=100,
        stream_options={"include_usage": True},
        tools=[call_tool("ls"), {"type": "web_search_options"}],
        functions=[{"name": "old"}],
        response_format={"type": "json_schema", "json_schema": {}},
    )
    assert (found.model, found.stream, found.max_output_tokens, found.output_schema) == (
        "gpt-5.1",
        True,
        100,
        True,
    )
    assert [(tool.name, tool.server) for tool in found.tools] == [
        ("ls", False),
        ("web_search_options", True),
        ("old", False),
    ]
    assert found.options["stream_options"] == {"include_usage": True}
    assert "tools" not in found.options


def call_tool(name: str, **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": {}}, **more}


def test_a_cache_mark_is_no_other_tool() -> None:
    plain, marked = (
        request(tools=[call_tool("ls")]),
        request(tools=[call_tool("ls", cache_control={"type": "ephemeral"})]),
    )
    assert plain.tools == marked.tools


def test_the_model_in_the_path() -> None:
    path = "/openai/deployments/my-gpt/chat/completions"
    found = DIALECT.read_request(Head("POST", path), path, {}, ASK.messages)
    assert found.model == "my-gpt"


def test_no_model_and_no_messages_are_unreadable() -> None:
    with pytest.raises(Unreadable):
        DIALECT.read_request(Head("POST", "/x"), "/chat/completions", {"prompt": "x"}, ())


# -- edits

CLAMP = Edit("clamp", max_output_tokens=50)


@pytest.mark.parametrize(
    ("model", "body", "expected"),
    [
        ("gpt-5.1", b'{"a": 1, "max_tokens": 100 }', b'{"a": 1, "max_tokens": 50 }'),
        (
            "gpt-5.1",
            b'{"max_completion_tokens":100,"max_tokens":30}',
            b'{"max_completion_tokens":50,"max_tokens":30}',
        ),
        ("gpt-5.1", b'{"max_tokens":20}', b'{"max_tokens":20}'),
        ("gpt-5.1", b'{"max_tokens":1e2}', b'{"max_tokens":50}'),
        ("gpt-5.1", b'{"m":{"max_tokens":99}}', b'{"m":{"max_tokens":99},"max_completion_tokens":50}'),
        ("deepseek-chat", b'{"m":[]}', b'{"m":[],"max_tokens":50}'),
        ("openai/gpt-oss-120b", b"{}", b'{"max_tokens":50}'),
        ("deepseek-chat", b'{"max_tokens":null}', b'{"max_tokens":50}'),
    ],
)
def test_clamp_changes_the_number_and_nothing_else(model: str, body: bytes, expected: bytes) -> None:
    assert DIALECT.edit_request(body, request(model=model), [CLAMP]) == expected


def test_a_nudge_is_the_last_message() -> None:
    body = b'{"messages": [{"role":"user"} ], "model":"gpt-5.1"}'
    edited = DIALECT.edit_request(body, ASK, [Edit("nudge", text='Sum "up".')])
    assert edited == (
        b'{"messages": [{"role":"user"},{"role":"developer","content":"Sum \\"up\\"."} ], "model":"gpt-5.1"}'
    )
    other = request(model="deepseek-chat", messages=[{"role": "tool", "content": "x"}])
    assert orjson.loads(DIALECT.edit_request(b'{"messages":[]}', other, [Edit("nudge", text="x")]))[
        "messages"
    ] == [{"role": "user", "content": "x"}]


def test_landing_forbids_calls_where_there_are_tools() -> None:
    body = b'{"tool_choice":"auto","messages":[]}'
    landed = DIALECT.edit_request(body, request(tools=[call_tool("ls")]), [Edit("land", text="Sum up.")])
    assert landed == b'{"tool_choice":"none","messages":[{"role":"developer","content":"Sum up."}]}'
    assert b'"auto"' in DIALECT.edit_request(body, ASK, [Edit("land", text="Sum up.")])
    old = b'{"functions":[{"name":"ls"}],"messages":[]}'
    landed = DIALECT.edit_request(old, request(tools=[call_tool("ls")]), [Edit("land")])
    assert landed == b'{"functions":[{"name":"ls"}],"messages":[],"function_call":"none"}'


def test_edits_that_find_no_place_change_nothing() -> None:
    prefill = request(messages=[{"role": "assistant", "content": "I"}])
    body = b'{"messages":[]}'
    assert DIALECT.edit_request(body, prefill, [Edit("nudge", text="x")]) == body
    assert DIALECT.edit_request(body, ASK, [Edit("repair"), Edit("land")]) == body
    assert DIALECT.edit_request(b"junk", ASK, [CLAMP, Edit("nudge", text="x")]) == b"junk"


# -- our own answers


def test_deny_is_a_400_that_no_client_repeats() -> None:
    answer = DIALECT.refusal(ASK, WHY, "exc_1")
    fields = dict(answer.headers)
    body = orjson.loads(answer.body)
    assert (answer.status, fields[b"x-should-retry"], fields[b"x-request-id"]) == (400, b"false", b"exc_1")
    assert b"retry-after" not in fields
    assert fields[b"x-looptap-refused"].startswith(b"looptap_budget_exceeded; policy=budgets; budget=turn")
    error = body["error"]
    assert (error["type"], error["code"], error["param"]) == ("invalid_request_error", WHY.code, None)
    assert error["looptap"]["limit"] == "5.00"
    assert DIALECT.refusal(None, WHY, "exc_1").status == 400


def test_words_that_clients_act_upon_are_not_said() -> None:
    why = Terminal("deny", "p", "c", "Rate limit: the context window is exhausted, thinking too large")
    message = orjson.loads(DIALECT.refusal(ASK, why, "x").body)["error"]["message"].lower()
    for word in ("rate limit", "context window", "exhausted", "thinking", "too large"):
        assert word not in message


@pytest.mark.parametrize("said", ["The same call 9 times.", "Looptap: the same call 9 times."])
def test_a_refusal_says_who_speaks_once(said: str) -> None:
    why = Terminal("deny", "p", "c", said)
    message = orjson.loads(DIALECT.refusal(ASK, why, "x").body)["error"]["message"]
    assert (message.startswith("Looptap: "), message.count("Looptap")) == (True, 1)


def test_a_pace_that_can_be_waited_for_is_a_429() -> None:
    answer = DIALECT.refusal(ASK, Terminal("deny", "p", "c", "Wait.", retry_after_s=7), "x")
    assert (answer.status, dict(answer.headers)[b"retry-after"]) == (429, b"7")
    assert b"x-should-retry" not in dict(answer.headers)


@pytest.mark.parametrize("streaming", [False, True])
def test_message_is_a_whole_reply(streaming: bool) -> None:
    why = Terminal("message", "budgets", "c", "Looptap: the budget is spent.")
    asked = request(
        messages=[{"role": "user", "content": "Hi"}],
        stream=streaming,
        n=2,
        stream_options={"include_usage": True},
    )
    answer = DIALECT.refusal(asked, why, "exc_1")
    decoder = DIALECT.decoder(asked, answer.status, "")
    decoder.feed(answer.body)
    outcome = decoder.finish()
    assert answer.status == 200
    assert dict(answer.headers)[b"content-type"].startswith(
        b"text/event-stream" if streaming else b"application/json"
    )
    assert b"x-should-retry" not in dict(answer.headers)
    assert (outcome.items[0].text, outcome.stop_reason, outcome.whole) == (
        "Looptap: the budget is spent.",
        "stop",
        True,
    )
    assert outcome.usage is not None
    assert outcome.usage.public() == {"input_tokens": 0, "output_tokens": 0}
    assert answer.body.count(b'"index":1') >= 1


def test_closing_frames_are_an_error_chunk() -> None:
    asked = request(messages=[{"role": "user", "content": "Hi"}], stream=True)
    body = b'data: {"choices":[{"index":0,"delta":{"content":"Hel"}}]}\n\n' + DIALECT.closing_frames(
        asked, WHY
    )
    decoder = DIALECT.decoder(asked, 200, "text/event-stream")
    decoder.feed(body)
    outcome = decoder.finish()
    assert outcome.error is not None
    assert outcome.error.code == "looptap_budget_exceeded"
    assert body.endswith(b"data: [DONE]\n\n")
    assert DIALECT.closing_frames(ASK, WHY) == b""
