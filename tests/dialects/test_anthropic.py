"""Anthropic Messages: requests, replies in both forms, edits and our own answers."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.dialects.anthropic import Anthropic, takes_system_messages
from proxy.model import Event, Head, Item, ModelRequest, Outcome, ProviderError
from proxy.ports import Unreadable
from proxy.verdict import Edit, Reply, Terminal

DIALECT = Anthropic()
WHY = Terminal(
    "deny",
    "budgets",
    "looptap_budget_exceeded",
    "Looptap: budget turn reached: $5.00 of $5.00, not a matter of rate limit. Ask the owner to raise it.",
    cause="spend",
    fields={"budget": "turn", "scope": "turn", "limit": "5.00", "used": "5.00"},
)


def read(body: Mapping[str, Any], path: str = "/v1/messages", **fields: str) -> ModelRequest:
    rest = {name: value for name, value in body.items() if name != "messages"}
    messages = tuple(DIALECT.read_message(raw) for raw in body.get("messages", []))
    pairs = tuple((name.replace("_", "-").encode(), value.encode()) for name, value in fields.items())
    return DIALECT.read_request(Head("POST", path, pairs), path, rest, messages)


def body(*messages: Mapping[str, Any], **fields: Any) -> dict[str, Any]:
    return {"model": "claude-opus-5-5", "max_tokens": 64, "messages": list(messages), **fields}


def user(*content: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(content)}


def assistant(*content: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": list(content)}


def text(said: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": said, **more}


def call(arguments: Any, call_id: str = "toolu_1", **more: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": call_id, "name": "bash", "input": arguments, **more}


def result(content: Any, **more: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": "toolu_1", "content": content, **more}


def items(message: Mapping[str, Any]) -> tuple[Item, ...]:
    return DIALECT.read_message(message).items


def digests(message: Mapping[str, Any]) -> list[bytes]:
    return [item.digest for item in items(message) if item.digest]


# -- identity


@pytest.mark.parametrize(
    ("sent", "back"),
    [
        ({"role": "user", "content": "hi"}, user(text("hi"))),
        (user(text("hi")), user(text("hi", cache_control={"type": "ephemeral"}, citations=None))),
        (user(text("hi")), {"content": [{"text": "hi\n", "type": "text"}], "role": "user"}),
        (assistant(text("hi")), assistant(text(" "), text("hi"), text(""))),
        (
            assistant({"type": "thinking", "thinking": "", "signature": "s"}, call({"a": 1, "b": [1.0]})),
            assistant(call({"b": [1], "a": 1}, "another", caller={"type": "direct"}, cache_control={})),
        ),
        (user(result("out")), user(result([text("out")], is_error=False))),
        (user(result([text("a"), text("b")])), user(result("a\nb", cache_control={"type": "ephemeral"}))),
        (user(result(None)), user({"type": "tool_result", "tool_use_id": "x"})),
    ],
)
def test_what_clients_change_by_the_way_does_not_count(sent: Any, back: Any) -> None:
    assert digests(sent) == digests(back)


IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aaaa"}}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (user(text("hi")), user(text("hi!"))),
        (user(text("hi")), assistant(text("hi"))),
        (user(text("hi")), {"role": "system", "content": "hi"}),
        (assistant(call({"a": 1})), assistant(call({"a": 2}))),
        (user(result("out")), user(result("out", is_error=True))),
        (user(result([text("out")])), user(result([text("out"), IMAGE]))),
        (user(IMAGE), user({**IMAGE, "source": {**IMAGE["source"], "data": "bbbb"}})),  # type: ignore[dict-item]
    ],
)
def test_what_was_said_counts(one: Any, other: Any) -> None:
    assert digests(one) != digests(other)


# -- requests


def test_blocks_become_typed_items() -> None:
    found = items(
        assistant(
            {"type": "thinking", "thinking": "hm", "signature": "sig"},
            {"type": "redacted_thinking", "data": "xyz"},
            text("I look."),
            call({"cmd": "ls"}),
            {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "q"}},
            {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": [{"url": "u"}]},
            {"type": "compaction", "content": "so far", "encrypted_content": "enc"},
            {"type": "fallback", "from": "a", "to": "b"},
            {"type": "container_upload", "file_id": "f"},
            "odd",
            17,
        )
    )
    assert [(item.kind, item.form, item.server) for item in found] == [
        ("thinking", "thinking", False),
        ("thinking", "redacted_thinking", False),
        ("text", "text", False),
        ("tool_call", "tool_use", False),
        ("tool_call", "server_tool_use", True),
        ("tool_result", "web_search_tool_result", True),
        ("compaction", "compaction", False),
        ("other", "fallback", False),
        ("other", "container_upload", False),
        ("text", "text", False),
        ("other", "", False),
    ]
    assert [item.signature for item in found[:2]] == ["sig", "xyz"]
    assert (found[3].tool, found[3].call_id, found[3].arguments) == ("bash", "toolu_1", '{"cmd":"ls"}')
    assert found[6].signature == "enc"
    assert [item.at for item in found[:2]] == [("content", 0), ("content", 1)]


def test_a_request_is_read() -> None:
    found = read(
        body(
            {"role": "user", "content": "hi"},
            {"role": "system", "content": "a reminder"},
            stream=True,
            system=[text("one", cache_control={"type": "ephemeral"}), text("two")],
            tools=[
                {"name": "bash", "input_schema": {}, "cache_control": {"type": "ephemeral"}},
                {"type": "web_search_20260101", "name": "web_search"},
                {"type": "bash_20250124", "name": "shell"},
            ],
            thinking={"type": "adaptive"},
            tool_choice={"type": "auto"},
            mcp_servers=[{"authorization_token": "secret"}],
            output_config={"format": {"type": "json_schema", "schema": {}}},
        ),
        anthropic_beta="a-1, b-2",
        x_stainless_retry_count="1",
    )
    assert (found.model, found.stream, found.operation, found.max_output_tokens) == (
        "claude-opus-5-5", True, "chat", 64,
    )  # fmt: skip
    assert [message.role for message in found.messages] == ["user", "system"]
    assert [item.text for item in found.system] == ["one", "two"]
    assert [(tool.name, tool.server) for tool in found.tools] == [
        ("bash", False),
        ("web_search", True),
        ("shell", False),
    ]
    assert found.output_schema
    assert found.options["thinking"] == {"type": "adaptive"}
    assert found.options["betas"] == ["a-1", "b-2"]
    assert "secret" not in repr(found)
    assert found.hints.retry == 1


def test_a_tool_is_the_same_without_its_cache_mark() -> None:
    plain, marked = {"name": "t", "input_schema": {"a": 1}}, {"cache_control": {}, "name": "t"}
    one = read(body(tools=[plain])).tools[0]
    assert one.digest == read(body(tools=[plain | marked])).tools[0].digest
    assert one.digest != read(body(tools=[plain | {"input_schema": {"a": 2}}])).tools[0].digest


@pytest.mark.parametrize(
    ("path", "operation"),
    [
        ("/v1/messages", "chat"),
        ("/messages", "chat"),
        ("/v1/messages/count_tokens", "count"),
        ("/v1/projects/p/locations/l/publishers/anthropic/models/claude-opus-5@x:rawPredict", "chat"),
    ],
)
def test_routes(path: str, operation: str) -> None:
    assert read(body(), path).operation == operation


def test_vertex_names_the_model_in_its_path_and_streams_by_its_verb() -> None:
    path = "/v1/projects/p/locations/l/publishers/anthropic/models/claude-opus-5:streamRawPredict"
    found = read({"anthropic_version": "vertex-2023-10-16", "messages": []}, path)
    assert (found.model, found.stream) == ("claude-opus-5", True)


@pytest.mark.parametrize("path", ["/v1/messages/batches", "/v1/models", "/v1/files"])
def test_other_routes_are_no_model_calls(path: str) -> None:
    with pytest.raises(Unreadable):
        read(body(), path)


def test_a_request_without_a_model_is_unreadable() -> None:
    with pytest.raises(Unreadable):
        read({"messages": []})


def test_a_prewarm_a_quota_probe_and_a_held_thread_are_told() -> None:
    assert read(body(max_tokens=0)).hints.kind == "prewarm"
    assert read(body(max_tokens=1), user_agent="claude-cli/2.1").hints.kind == "side"
    assert read(body(max_tokens=1), user_agent="curl/8").hints.kind == ""
    assert read(body(thread={"type": "continue", "previous_message_id": "msg_1"})).held == "msg_1"
    assert read(body(thread={"type": "create"})).held is None


# -- replies

USAGE = {
    "input_tokens": 10,
    "cache_read_input_tokens": 100,
    "cache_creation_input_tokens": 30,
    "cache_creation": {"ephemeral_5m_input_tokens": 10, "ephemeral_1h_input_tokens": 20},
    "output_tokens": 50,
    "output_tokens_details": {"thinking_tokens": 20},
    "server_tool_use": {"web_search_requests": 2},
    "service_tier": "priority",
}
CONTENT: list[dict[str, Any]] = [
    {"type": "thinking", "thinking": "let me see", "signature": "sig=="},
    {"type": "redacted_thinking", "data": "xyz"},
    text("Snow \u2603 \U0001f600 falls."),
    call({"cmd": "ls -l", "n": 3}),
    call({}, "toolu_2"),
    {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "q"}},
    {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": [{"url": "u"}]},
]


def reply(content: Sequence[Mapping[str, Any]] = CONTENT, **more: Any) -> dict[str, Any]:
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "claude-opus-5-5",
        "content": list(content),
        "stop_reason": "tool_use",
        "stop_sequence": None,
        "usage": USAGE,
        **more,
    }


def frames(whole: Mapping[str, Any], size: int = 7) -> list[bytes]:
    """The stream that brings a reply, text and arguments in pieces of a size."""
    first = {name: value for name, value in whole["usage"].items() if name != "output_tokens_details"}
    told: list[dict[str, Any]] = [
        {
            "type": "message_start",
            "message": {**whole, "content": [], "stop_reason": None, "usage": first | {"output_tokens": 1}},
        },
        {"type": "ping"},
    ]
    for index, block in enumerate(whole["content"]):
        start, deltas = dict(block), []
        if block["type"] == "text":
            start["text"] = ""
            deltas = [{"type": "text_delta", "text": piece} for piece in cut(block["text"], size)]
        elif block["type"] == "thinking":
            start["thinking"] = start["signature"] = ""
            deltas = [{"type": "thinking_delta", "thinking": piece} for piece in cut(block["thinking"], size)]
            deltas += [{"type": "signature_delta", "signature": block["signature"]}]
        elif "input" in block:
            start["input"] = {}
            written = json.dumps(block["input"]) if block["input"] else ""
            deltas = [
                {"type": "input_json_delta", "partial_json": piece} for piece in ["", *cut(written, size)]
            ]
        told.append({"type": "content_block_start", "index": index, "content_block": start})
        told += [{"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas]
        told.append({"type": "content_block_stop", "index": index})
    ending = {"stop_reason": whole["stop_reason"], "stop_sequence": None}
    told.append({"type": "message_delta", "delta": ending, "usage": whole["usage"]})
    told.append({"type": "message_stop"})
    return [b"event: %s\ndata: %s  }\n\n" % (one["type"].encode(), orjson.dumps(one)[:-1]) for one in told]


def cut(whole: str, size: int) -> list[str]:
    return [whole[at : at + size] for at in range(0, len(whole), size)]


def decode(data: bytes, cuts: Sequence[int] = (), status: int = 200) -> tuple[list[Event], Outcome]:
    decoder = DIALECT.decoder(read(body()), status, "text/event-stream")
    places = sorted({place % (len(data) + 1) for place in cuts})
    pieces = [data[a:b] for a, b in zip([0, *places], [*places, len(data)], strict=True)]
    events = [event for piece in pieces for event in decoder.feed(piece)]
    return events, decoder.finish()


def test_usage_is_inclusive_and_keeps_what_prices_need() -> None:
    _, found = decode(orjson.dumps(reply()))
    assert found.usage is not None
    assert found.usage.public() == {
        "input_tokens": 140,
        "cache_read_tokens": 100,
        "cache_write_tokens": 30,
        "output_tokens": 50,
        "reasoning_tokens": 20,
    }
    assert found.usage.cache_write_1h_tokens == 20
    assert found.usage.extra == {"web_searches": 2}
    assert found.extra["service_tier"] == "priority"
    assert found.whole


def test_usage_that_was_not_reported_is_absent() -> None:
    _, found = decode(orjson.dumps(reply(usage={"input_tokens": 3, "output_tokens": 4})))
    assert found.usage is not None
    assert found.usage.public() == {"input_tokens": 3, "output_tokens": 4}
    assert decode(orjson.dumps(reply(usage={})))[1].usage is None


@pytest.mark.parametrize("size", [1, 7, 1_000])
def test_COST_01_streamed_and_whole_forms_give_one_outcome(size: int) -> None:
    whole = reply()
    _, plain = decode(b" \n" + orjson.dumps(whole, option=orjson.OPT_INDENT_2))
    _, streamed = decode(b"".join(frames(whole, size)))
    assert replace(streamed, streamed_chars=0) == replace(plain, streamed_chars=0)
    assert plain.streamed_chars > 0
    assert streamed.streamed_chars > 0


@given(st.lists(st.integers(0, 100_000), max_size=20))
def test_WIRE_04_any_split_gives_the_same_events_and_outcome(cuts: list[int]) -> None:
    stream = b"".join(frames(reply(), 3))
    assert decode(stream, cuts) == decode(stream)
    assert "\ufffd" not in decode(stream, cuts)[1].items[2].text


BLOCKS = st.lists(
    st.builds(text, st.text(max_size=30))
    | st.builds(
        call, st.dictionaries(st.text(max_size=5), st.integers(-9, 2**53) | st.text(max_size=5), max_size=3)
    )
    | st.fixed_dictionaries(
        {
            "type": st.just("thinking"),
            "thinking": st.text(max_size=20),
            "signature": st.text("ab", min_size=1),
        }
    ),
    max_size=5,
)


@given(BLOCKS, st.integers(1, 9))
def test_a_reply_and_what_comes_back_of_it_are_the_same_items(
    content: list[dict[str, Any]], size: int
) -> None:
    whole = reply(content)
    _, streamed = decode(b"".join(frames(whole, size)))
    came_back = items(assistant(*content))
    assert streamed.items == decode(orjson.dumps(whole))[1].items == came_back


def test_events_tell_of_first_output_items_and_usage() -> None:
    events, found = decode(b"".join(frames(reply())))
    assert [event.kind for event in events[:2]] == ["usage", "first_output"]
    assert tuple(event.item for event in events if event.kind == "item") == found.items


def test_THK_02_a_signature_is_assigned_and_the_joined_one_is_kept_beside() -> None:
    block = {"type": "thinking", "thinking": "", "signature": "whole"}
    stream = b"".join(frames(reply([block]))).replace(
        b'"delta":{"type":"signature_delta","signature":"whole"}',
        b'"delta":{"type":"signature_delta","signature":"part"}  }\n\n'
        b'event: content_block_delta\ndata: {"type":"content_block_delta","index":0,'
        b'"delta":{"type":"signature_delta","signature":"whole"}',
    )
    (item,) = decode(stream)[1].items
    assert (item.signature, item.variants) == ("whole", ("partwhole",))


def test_a_reply_that_breaks_off_keeps_its_text_and_no_half_call() -> None:
    content = [text("done"), text("half a sentence"), call({"cmd": "ls"})]
    told = frames(reply(content), 5)
    stop = next(at for at, frame in enumerate(told) if b"input_json_delta" in frame) + 2
    _, found = decode(b"".join(told[:stop])[:-9])
    assert [item.text for item in found.items] == ["done", "half a sentence"]
    assert not found.whole
    assert found.stop_reason is None
    assert found.usage is not None
    assert found.usage.input_tokens == 140


def test_an_error_in_mid_stream_ends_the_reply() -> None:
    told = frames(reply([text("part")]))[:4]
    error = {"type": "error", "error": {"type": "overloaded_error", "message": "busy"}}
    events, found = decode(b"".join(told) + b"event: error\ndata: " + orjson.dumps(error) + b"\n\n")
    assert events[-1].kind == "error"
    assert found.error == ProviderError("overloaded_error", "busy")
    assert not found.whole


@pytest.mark.parametrize("status", [200, 400, 529])
def test_an_error_answer_is_read_whatever_its_content_type(status: int) -> None:
    error = {"type": "invalid_request_error", "message": "no", "details": {"error_code": "c"}}
    _, found = decode(orjson.dumps({"type": "error", "error": error, "request_id": "r"}), status=status)
    assert found.error == ProviderError("invalid_request_error", "no", "c")
    assert found.whole


def test_an_error_that_is_no_json_still_is_one() -> None:
    _, found = decode(b"", status=502)
    assert found.error is not None
    assert found.error.type == "http_502"


def test_iterations_are_the_bill() -> None:
    iterations = [
        {"type": "message", "input_tokens": 9, "output_tokens": 0},
        {"type": "compaction", "input_tokens": 1_000, "output_tokens": 100},
        {"type": "advisor_message", "model": "claude-haiku-5-5", "input_tokens": 5, "output_tokens": 6},
        {"type": "fallback_message", "model": "claude-sonnet-5-5", "input_tokens": 7, "output_tokens": 8},
        "odd",
    ]
    _, found = decode(orjson.dumps(reply(usage=USAGE | {"iterations": iterations})))
    assert [(line.model, line.usage.input_tokens, line.usage.output_tokens) for line in found.billing] == [
        ("claude-opus-5-5", 1_000, 100),
        ("claude-haiku-5-5", 5, 6),
        ("claude-sonnet-5-5", 7, 8),
    ]
    assert [line.usage.extra for line in found.billing] == [{"web_searches": 2}, {}, {}]
    assert found.usage is not None
    assert found.usage.output_tokens == 50


def test_what_policies_need_of_a_reply_is_kept() -> None:
    dropped = [{"type": "thinking_dropped", "path": "messages.1.content.0"}]
    more = {
        "stop_reason": "refusal",
        "stop_details": {"type": "refusal", "category": "cyber"},
        "input_transformations": dropped,
        "context_management": {"applied_edits": [{"type": "clear_thinking_20251015"}]},
    }
    _, found = decode(orjson.dumps(reply([], **more)))
    assert found.stop_reason == "refusal"
    assert found.extra["stop_details"]["category"] == "cyber"
    assert found.extra["input_transformations"] == dropped
    assert found.extra["applied_edits"] == [{"type": "clear_thinking_20251015"}]


@given(st.binary(max_size=300), st.sampled_from([200, 400]))
def test_garbage_raises_nothing(data: bytes, status: int) -> None:
    assert isinstance(decode(data, (5, 9), status)[1], Outcome)


ODD = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.sampled_from(["text", "tool_use", "x", "message"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["type", "content", "index", "delta", "usage", "message", "content_block", "error", "text",
                 "input", "source", "iterations", "cache_creation", "role", "system", "tools", "id", "thread",
                 "model", "metadata", "output_config", "partial_json", "signature", "thinking"]
            ),
            inner, max_size=5,
        )
    ),
    max_leaves=25,
)  # fmt: skip
KINDS = st.sampled_from(
    [
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "error",
    ]
)


@given(st.lists(st.tuples(KINDS, ODD), max_size=6))
def test_odd_frames_raise_nothing(told: list[tuple[str, Any]]) -> None:
    stream = b"".join(
        b"data: %s\n\n" % orjson.dumps({"index": 0, **(odd if isinstance(odd, dict) else {}), "type": kind})
        for kind, odd in told
    )
    assert isinstance(decode(stream)[1], Outcome)


@given(ODD, ODD)
def test_odd_requests_and_documents_raise_nothing_but_unreadable(fields: Any, document: Any) -> None:
    assert DIALECT.read_message(fields) is not None
    assert isinstance(decode(orjson.dumps(document))[1], Outcome)
    rest = fields if isinstance(fields, dict) else {}
    assert read({**rest, "model": "m", "messages": [document]}).model == "m"


def test_a_long_reply_is_bounded_and_keeps_its_identity() -> None:
    long = "word " * 300_000
    _, found = decode(b"".join(frames(reply([text(long)]), 50_000)))
    assert len(found.items[0].text) == 1_000_000
    assert found.items[0].digest == digests(assistant(text(long)))[0]


# -- edits


def edited(raw: bytes, *edits: Edit) -> bytes:
    return DIALECT.edit_request(raw, read(orjson.loads(raw)), edits)


def test_THK_01_a_clamp_changes_only_the_number() -> None:
    raw = (
        b'{ "model":"m" , "max_tokens" : 1e2,'
        b'"messages": [ {"content":"\\u2603 \xe2\x98\x83","role":"user"} ] }'
    )
    assert edited(raw, Edit("clamp", max_output_tokens=50)) == raw.replace(b"1e2", b"50")
    without = raw.replace(b'"max_tokens" : 1e2,', b"")
    assert orjson.loads(edited(without, Edit("clamp", max_output_tokens=50)))["max_tokens"] == 50


NUDGE = Edit("nudge", text='Wrap up "now".')


def test_a_nudge_is_a_system_message_where_the_model_takes_one() -> None:
    raw = b'{"model":"claude-opus-5-5", "messages":[ {"role":"user","content":"hi"} ],"max_tokens":1}'
    found = edited(raw, NUDGE)
    assert orjson.loads(found)["messages"][1] == {"role": "system", "content": 'Wrap up "now".'}
    at = found.index(b',{"role":"system"')
    assert found[:at] + found[at + len(found) - len(raw) :] == raw


def test_a_nudge_is_a_block_of_the_last_user_message_elsewhere() -> None:
    raw = orjson.dumps(body(user(result("out")), model="claude-sonnet-4-5"))
    assert orjson.loads(edited(raw, NUDGE))["messages"][0]["content"] == [
        result("out"),
        text('Wrap up "now".'),
    ]
    raw = orjson.dumps(body({"role": "user", "content": "hi \u2603"}, model="claude-sonnet-4-5"))
    assert orjson.loads(edited(raw, NUDGE))["messages"][0]["content"] == [
        text("hi \u2603"),
        text('Wrap up "now".'),
    ]


@pytest.mark.parametrize("model", ["claude-opus-5-5", "claude-sonnet-4-5"])
def test_LOOP_09_nothing_is_put_behind_an_assistant_message(model: str) -> None:
    raw = orjson.dumps(body(user(text("hi")), assistant(text("{")), model=model))
    assert edited(raw, NUDGE) == raw
    assert edited(orjson.dumps(body(model=model)), NUDGE) == orjson.dumps(body(model=model))


def test_a_landing_takes_the_tools_away_but_leaves_their_list() -> None:
    tools = [{"name": "bash", "input_schema": {}}]
    raw = orjson.dumps(body(user(result("out")), tools=tools, tool_choice={"type": "auto"}))
    found = orjson.loads(edited(raw, Edit("land", text="Sum up.")))
    assert found["tool_choice"] == {"type": "none"}
    assert found["tools"] == tools
    assert found["messages"][-1] == {"role": "system", "content": "Sum up."}


@pytest.mark.parametrize(
    ("model", "takes"),
    [
        ("claude-opus-4-8", True),
        ("claude-opus-4-7-20260101", False),
        ("claude-opus-4-20250514", False),
        ("claude-opus-5", True),
        ("claude-sonnet-5", False),
        ("claude-sonnet-5-5", True),
        ("claude-haiku-5-5-20261001", True),
        ("claude-haiku-4-5", False),
        ("claude-fable-5-2", True),
        ("claude-saga-6", True),
        ("claude-3-5-sonnet-20241022", False),
        ("deepseek-chat", False),
    ],
)
def test_models_that_take_system_messages(model: str, takes: bool) -> None:
    assert takes_system_messages(model) is takes


@given(ODD, st.sampled_from(["nudge", "land", "clamp"]))
def test_edits_of_odd_bodies_raise_nothing(odd: Any, kind: Any) -> None:
    raw = orjson.dumps(odd)
    request = read(body(user(text("hi")), tools=[{"name": "t"}]))
    found = DIALECT.edit_request(raw, request, [Edit(kind, text="x", max_output_tokens=3)])
    assert isinstance(found, bytes)


# -- our own answers


def field(answer: Reply, name: bytes) -> bytes | None:
    return next((value for key, value in answer.headers if key == name), None)


def test_ERR_06_BUD_19_a_refusal_is_json_that_names_what_was_reached() -> None:
    answer = DIALECT.refusal(read(body(stream=True)), WHY, "exc_1")
    assert answer.status == 402
    assert field(answer, b"content-type") == b"application/json"
    assert field(answer, b"x-should-retry") == b"false"
    assert field(answer, b"request-id") == b"exc_1"
    assert b"budget=turn" in (field(answer, b"x-looptap-refused") or b"")
    told = orjson.loads(answer.body)
    assert told["type"] == "error"
    assert told["error"]["type"] == "billing_error"
    assert told["error"]["details"] == {"error_code": "looptap_budget_exceeded"}
    assert told["error"]["looptap"]["limit"] == "5.00"
    assert "$5.00" in told["error"]["message"]
    assert "rate limit" not in told["error"]["message"]


def test_a_refusal_that_passes_by_itself_says_when() -> None:
    answer = DIALECT.refusal(read(body()), replace(WHY, retry_after_s=7), "exc_1")
    assert (answer.status, field(answer, b"retry-after")) == (429, b"7")
    assert field(answer, b"x-should-retry") is None


@pytest.mark.parametrize("stream", [True, False])
def test_a_message_is_a_whole_reply_in_the_form_asked_for(stream: bool) -> None:
    answer = DIALECT.refusal(read(body(stream=stream)), replace(WHY, kind="message"), "exc_1")
    _, found = decode(answer.body)
    assert answer.status == 200
    assert found.whole
    assert found.stop_reason == "end_turn"
    assert "$5.00" in found.items[0].text
    assert found.usage is not None
    assert found.usage.public() == {"input_tokens": 0, "output_tokens": 0}
    assert (field(answer, b"content-type") or b"").startswith(b"text/event-stream") is stream


def test_a_message_cannot_stand_in_for_a_history_that_the_provider_holds() -> None:
    held = read(body(thread={"type": "continue", "previous_message_id": "msg_1"}))
    assert DIALECT.refusal(held, replace(WHY, kind="message"), "exc_1").status == 402


def test_closing_frames_are_an_error_that_decoders_see() -> None:
    told = b"".join(frames(reply([text("part")]))[:4]) + DIALECT.closing_frames(read(body()), WHY)
    found = decode(told)[1]
    assert found.error is not None
    assert found.error.code == "looptap_budget_exceeded"
