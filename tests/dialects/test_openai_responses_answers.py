"""Responses: requests, edits by byte, and answers of our own."""

from collections.abc import Iterable
from typing import Any

import orjson
import pytest

from proxy.dialects.openai_responses import OpenAIResponses
from proxy.model import Head, ModelRequest
from proxy.ports import Unreadable
from proxy.verdict import Edit, Terminal

DIALECT = OpenAIResponses()
WHY = Terminal(
    "deny",
    "budgets",
    "looptap_step_limit",
    "Looptap: this turn has made 60 of 60 steps.",
    cause="steps",
    fields={"budget": "turn", "limit": 60, "used": 60},
)


def request(*, path: str = "/v1/responses", messages: Iterable[Any] = (), **fields: Any) -> ModelRequest:
    read = tuple(DIALECT.read_message(message) for message in messages)
    return DIALECT.read_request(Head("POST", path), path, {"model": "gpt-5.1", **fields}, read)


ASK = request(messages=["Hi"])
STREAMED = request(messages=["Hi"], stream=True)


# -- requests


def test_a_request_in_full() -> None:
    tools = [
        {"type": "function", "name": "ls", "parameters": {}},
        {"type": "web_search"},
        {"type": "local_shell"},
        {"type": "namespace", "name": "n", "tools": [{"type": "function", "name": "inner"}]},
        {"type": "mcp", "server_label": "git"},
    ]
    found = request(
        messages=["Hi"],
        instructions="Be brief.",
        stream=True,
        max_output_tokens=9,
        tools=tools,
        store=False,
        text={"format": {"type": "json_schema"}},
    )
    assert (found.model, found.stream, found.max_output_tokens, found.held) == ("gpt-5.1", True, 9, None)
    assert ([item.text for item in found.system], found.output_schema) == (["Be brief."], True)
    assert [(tool.name, tool.server) for tool in found.tools] == [
        ("ls", False),
        ("web_search", True),
        ("local_shell", False),
        ("inner", False),
        ("git", True),
    ]
    assert found.options["store"] is False
    assert "instructions" not in found.options


@pytest.mark.parametrize(
    ("path", "operation"),
    [
        ("/v1/responses", "chat"),
        ("/v1/responses/", "chat"),
        ("/v1/responses/compact", "compact"),
        ("/v1/responses/input_tokens", "count"),
    ],
)
def test_operations(path: str, operation: str) -> None:
    assert request(path=path, messages=["Hi"]).operation == operation


@pytest.mark.parametrize(
    ("fields", "held"),
    [
        ({"previous_response_id": "resp_1"}, "resp_1"),
        ({"conversation": "conv_1"}, "conv_1"),
        ({"conversation": {"id": "conv_1"}}, "conv_1"),
        ({"previous_response_id": None, "conversation": None}, None),
    ],
)
def test_history_that_the_provider_holds(fields: dict[str, Any], held: str | None) -> None:
    assert request(messages=["Hi"], **fields).held == held


def test_neither_model_nor_input_is_unreadable() -> None:
    with pytest.raises(Unreadable):
        DIALECT.read_request(Head("POST", "/x"), "/responses", {}, ())
    assert (
        DIALECT.read_request(Head("POST", "/x"), "/responses", {"prompt": {"id": "pmpt_1"}}, ()).model == ""
    )


# -- edits


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b'{"input": "x", "max_output_tokens" : 900}', b'{"input": "x", "max_output_tokens" : 50}'),
        (b'{"max_output_tokens":20}', b'{"max_output_tokens":20}'),
        (b'{"max_output_tokens":null}', b'{"max_output_tokens":50}'),
        (b'{"r":{"max_output_tokens":900} }', b'{"r":{"max_output_tokens":900},"max_output_tokens":50 }'),
    ],
)
def test_clamp_changes_the_number_and_nothing_else(body: bytes, expected: bytes) -> None:
    assert DIALECT.edit_request(body, ASK, [Edit("clamp", max_output_tokens=50)]) == expected


NUDGE = b'{"type":"message","role":"developer","content":"Sum up."}'


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b'{"input":[ {"a":1} ],"model":"m"}', b'{"input":[ {"a":1},' + NUDGE + b' ],"model":"m"}'),
        (b'{"input":[]}', b'{"input":[' + NUDGE + b"]}"),
        (
            b'{"input": "\\u00e9", "s":1}',
            b'{"input": [{"role":"user","content":"\\u00e9"},' + NUDGE + b'], "s":1}',
        ),
    ],
)
def test_a_nudge_is_the_last_item(body: bytes, expected: bytes) -> None:
    assert DIALECT.edit_request(body, ASK, [Edit("nudge", text="Sum up.")]) == expected


def test_landing_forbids_calls_where_there_are_tools() -> None:
    armed = request(messages=["Hi"], tools=[{"type": "web_search"}])
    landed = DIALECT.edit_request(b'{"input":[]}', armed, [Edit("land", text="Sum up.")])
    assert landed == b'{"input":[' + NUDGE + b'],"tool_choice":"none"}'
    assert b"tool_choice" not in DIALECT.edit_request(b'{"input":[]}', ASK, [Edit("land", text="Sum up.")])


def test_edits_that_find_no_place_change_nothing() -> None:
    nudge = [Edit("nudge", text="x")]
    prefill = request(messages=[{"role": "assistant", "content": "I"}])
    compact = request(path="/v1/responses/compact", messages=["Hi"])
    assert DIALECT.edit_request(b'{"input":[]}', prefill, nudge) == b'{"input":[]}'
    assert DIALECT.edit_request(b'{"input":[]}', compact, nudge) == b'{"input":[]}'
    assert (
        DIALECT.edit_request(b"junk", ASK, [*nudge, Edit("clamp", max_output_tokens=1), Edit("repair")])
        == b"junk"
    )


# -- our own answers


def test_deny_is_a_400_that_no_client_repeats() -> None:
    for asked in (ASK, STREAMED, None):
        answer = DIALECT.refusal(asked, WHY, "exc_1")
        fields = dict(answer.headers)
        assert (answer.status, fields[b"content-type"], fields[b"x-should-retry"]) == (
            400,
            b"application/json",
            b"false",
        )
        error = orjson.loads(answer.body)["error"]
        assert (error["type"], error["code"], error["looptap"]["used"]) == (
            "invalid_request_error",
            WHY.code,
            60,
        )


@pytest.mark.parametrize("asked", [ASK, STREAMED])
def test_message_is_a_whole_reply(asked: ModelRequest) -> None:
    answer = DIALECT.refusal(
        asked, Terminal("message", "budgets", "c", "Looptap: the budget is spent."), "exc_1"
    )
    decoder = DIALECT.decoder(asked, answer.status, "")
    decoder.feed(answer.body)
    outcome = decoder.finish()
    assert (answer.status, outcome.stop_reason, outcome.whole) == (200, "completed", True)
    assert [item.text for item in outcome.items] == ["Looptap: the budget is spent."]
    assert outcome.usage is not None
    assert set(outcome.usage.public().values()) == {0}


def test_a_streamed_message_numbers_its_events() -> None:
    answer = DIALECT.refusal(STREAMED, Terminal("message", "budgets", "c", "Spent."), "exc_1")
    frames = answer.body.decode().strip().split("\n\n")
    events = [orjson.loads(frame.partition("\ndata: ")[2]) for frame in frames]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert [frame.partition("\n")[0] for frame in frames] == [f"event: {event['type']}" for event in events]
    assert (events[0]["type"], events[-1]["type"]) == ("response.created", "response.completed")


def test_a_history_at_the_provider_takes_no_message_of_ours() -> None:
    held = request(messages=["Hi"], previous_response_id="resp_1")
    assert DIALECT.refusal(held, Terminal("message", "budgets", "c", "Spent."), "x").status == 400


def test_closing_frames_are_final_for_codex_and_show_the_words() -> None:
    decoder = DIALECT.decoder(STREAMED, 200, "text/event-stream")
    decoder.feed(DIALECT.closing_frames(STREAMED, WHY))
    outcome = decoder.finish()
    assert outcome.error is not None
    assert (outcome.stop_reason, outcome.error.code, outcome.error.message) == (
        "failed",
        "invalid_prompt",
        WHY.message,
    )
    assert DIALECT.closing_frames(ASK, WHY) == b""
