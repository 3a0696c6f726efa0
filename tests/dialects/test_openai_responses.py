"""Responses: items read alike from requests, documents and streams."""

import re
from collections.abc import Iterable
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.dialects.openai_responses import OpenAIResponses
from proxy.model import Event, Head, Item, ModelRequest, Outcome

DIALECT = OpenAIResponses()


def request(*, path: str = "/v1/responses", messages: Iterable[Any] = (), **fields: Any) -> ModelRequest:
    read = tuple(DIALECT.read_message(message) for message in messages)
    return DIALECT.read_request(Head("POST", path), path, {"model": "gpt-5.1", **fields}, read)


ASK = request(messages=[{"role": "user", "content": "Hi"}])


def reply(body: bytes, *, status: int = 200, step: int = 0) -> Outcome:
    decoder = DIALECT.decoder(ASK, status, "application/json")
    for at in range(0, len(body), step or len(body) or 1):
        decoder.feed(body[at : at + (step or len(body))])
    return decoder.finish()


def response(output: list[Any], status: str = "completed", **more: Any) -> dict[str, Any]:
    return {
        "id": "resp_1",
        "object": "response",
        "model": "m",
        "status": status,
        "error": None,
        "incomplete_details": None,
        "output": output,
        **more,
    }


def document(output: list[Any], status: str = "completed", **more: Any) -> bytes:
    return orjson.dumps(response(output, status, **more), option=orjson.OPT_INDENT_2)


def frame(kind: str, **data: Any) -> bytes:
    return b"event: " + kind.encode() + b"\ndata: " + orjson.dumps({"type": kind, **data}) + b"\n\n"


def begun(index: int, item: dict[str, Any]) -> bytes:
    return frame("response.output_item.added", output_index=index, item=item)


def done(index: int, item: dict[str, Any]) -> bytes:
    return frame("response.output_item.done", output_index=index, item=item)


def ended(output: list[Any], kind: str = "completed", **more: Any) -> bytes:
    return frame(f"response.{kind}", response=response(output, kind, **more))


def said(text: str, item_id: str = "msg_1") -> dict[str, Any]:
    part = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    return {"id": item_id, "type": "message", "status": "completed", "role": "assistant", "content": [part]}


def called(arguments: str = '{"a":1}', **more: Any) -> dict[str, Any]:
    return {
        "id": "fc_1",
        "type": "function_call",
        "status": "completed",
        "call_id": "call_1",
        "name": "ls",
        "arguments": arguments,
        **more,
    }


def thought(sealed: str | None = "ENC", item_id: str = "rs_1", text: str = "Hm.") -> dict[str, Any]:
    summary = [{"type": "summary_text", "text": text}] if text else []
    return {"id": item_id, "type": "reasoning", "summary": summary, "encrypted_content": sealed}


def back(*items: Any) -> list[bytes]:
    return digests(item for raw in items for item in DIALECT.read_message(raw).items)


def digests(items: Iterable[Item]) -> list[bytes]:
    return [item.digest for item in items if item.digest]


# -- identity


@pytest.mark.parametrize(
    "returned",
    [
        [thought(), said("Ok"), called()],
        [said("Ok"), called()],
        [{**thought(), "content": None}, {"role": "assistant", "content": "Ok"}, called('{"a": 1}')],
        [
            {"role": "assistant", "content": [{"type": "output_text", "text": "Ok"}], "phase": "commentary"},
            {"type": "function_call", "call_id": "fc_1", "name": "ls", "arguments": '{ "a" : 1 }'},
        ],
        [
            {
                "type": "message",
                "role": "assistant",
                "content": [{"type": "output_text", "text": "O"}, {"type": "output_text", "text": "k"}],
            },
            called(namespace=None),
        ],
    ],
)
def test_what_clients_change_is_no_part_of_identity(returned: list[Any]) -> None:
    assert digests(reply(document([thought(), said("Ok"), called()])).items) == back(*returned)


def test_both_ids_of_a_call_are_kept() -> None:
    item = reply(document([called()])).tool_calls[0]
    assert (item.call_id, item.item_id, item.tool, item.arguments) == ("call_1", "fc_1", "ls", '{"a":1}')


def test_what_the_provider_did_itself_may_be_left_out() -> None:
    search = {"id": "ws_1", "type": "web_search_call", "status": "completed", "action": {"type": "search"}}
    listed = {"id": "ml_1", "type": "mcp_list_tools", "server_label": "x", "tools": []}
    outcome = reply(document([search, listed, said("Ok")]))
    assert digests(outcome.items) == back(said("Ok"))
    assert outcome.tool_calls == ()
    assert [(item.kind, item.tool, item.server) for item in outcome.items[:2]] == [
        ("tool_call", "web_search", True),
        ("other", None, True),
    ]


@pytest.mark.parametrize(
    ("raw", "tool"),
    [
        (
            {
                "type": "custom_tool_call",
                "id": "ctc_1",
                "call_id": "c",
                "name": "apply",
                "input": "*** Begin",
            },
            "apply",
        ),
        (
            {
                "type": "local_shell_call",
                "id": "lsh",
                "call_id": "c",
                "action": {"type": "exec", "command": ["ls"]},
            },
            "local_shell",
        ),
        ({"type": "shell_call", "id": "sh", "call_id": "c", "action": {"commands": ["ls"]}}, "shell"),
        (
            {"type": "apply_patch_call", "id": "ap", "call_id": "c", "operation": {"type": "update_file"}},
            "apply_patch",
        ),
        ({"type": "computer_call", "id": "cu", "call_id": "c", "action": {"type": "click"}}, "computer"),
        (
            {
                "type": "tool_search_call",
                "id": "ts",
                "call_id": "c",
                "execution": "client",
                "arguments": {"q": "x"},
            },
            "tool_search",
        ),
        ({"type": "brand_new_call", "id": "bn", "call_id": "c", "action": {}}, "brand_new"),
        ({"type": "mcp_approval_request", "id": "c", "name": "rm", "arguments": "{}"}, "rm"),
    ],
)
def test_calls_that_the_client_owes(raw: dict[str, Any], tool: str) -> None:
    outcome = reply(document([raw]))
    assert [(item.tool, item.call_id, item.form) for item in outcome.tool_calls] == [(tool, "c", raw["type"])]
    assert digests(outcome.items) == back({**raw, "status": "completed"}) != []


@pytest.mark.parametrize(
    "raw",
    [
        {"type": "file_search_call", "id": "fs", "queries": ["x"]},
        {"type": "code_interpreter_call", "id": "ci", "code": "print(1)", "outputs": None},
        {"type": "image_generation_call", "id": "ig", "result": "AAAA"},
        {"type": "mcp_call", "id": "m", "name": "rm", "arguments": "{}", "output": "done"},
        {"type": "tool_search_call", "id": "ts", "call_id": None, "execution": "server", "arguments": {}},
        {
            "type": "shell_call",
            "id": "s",
            "call_id": "c",
            "action": {},
            "environment": {"type": "container_reference"},
        },
        {"type": "x_search_call", "id": "xs"},
    ],
)
def test_calls_that_the_provider_executes(raw: dict[str, Any]) -> None:
    outcome = reply(document([raw]))
    assert (outcome.tool_calls, [item.kind for item in outcome.items]) == ((), ["tool_call"])


@pytest.mark.parametrize(
    ("raw", "text", "call_id"),
    [
        ({"type": "function_call_output", "call_id": "c", "output": "done"}, "done", "c"),
        (
            {
                "type": "function_call_output",
                "call_id": "c",
                "output": [{"type": "input_text", "text": "done"}],
                "id": "fco_1",
            },
            "done",
            "c",
        ),
        ({"type": "custom_tool_call_output", "call_id": "c", "output": "done"}, "done", "c"),
        ({"type": "local_shell_call_output", "id": "c", "output": "done"}, "done", "c"),
        ({"type": "shell_call_output", "call_id": "c", "output": [{"stdout": "x"}]}, '[{"stdout":"x"}]', "c"),
        ({"type": "brand_new_call_output", "call_id": "c", "output": "done"}, "done", "c"),
    ],
)
def test_results(raw: dict[str, Any], text: str, call_id: str) -> None:
    (item,) = DIALECT.read_message(raw).items
    assert (item.kind, item.role, item.text, item.call_id, item.server) == (
        "tool_result",
        "tool",
        text,
        call_id,
        False,
    )


def test_the_same_result_in_two_forms_is_one() -> None:
    base = {"type": "function_call_output", "call_id": "c"}
    parts = [{"type": "input_text", "text": "done"}]
    assert back({**base, "output": "done"}) == back({**base, "output": parts, "call_id": "fc_9", "id": "fco"})
    picture = {"type": "input_image", "image_url": "data:image/png;base64,AA", "detail": "auto"}
    assert back({**base, "output": [*parts, picture]}) != back({**base, "output": parts})
    failed = DIALECT.read_message(
        {"type": "apply_patch_call_output", "call_id": "c", "status": "failed", "output": "no"}
    )
    assert failed.items[0].is_error


def test_messages_of_all_roles() -> None:
    developer = DIALECT.read_message(
        {"role": "developer", "content": [{"type": "input_text", "text": "Be."}]}
    )
    user = DIALECT.read_message(
        {
            "type": "message",
            "role": "user",
            "content": [
                {"type": "input_text", "text": "See"},
                {"type": "input_image", "image_url": "u"},
                {"type": "new_part", "x": 1},
            ],
        }
    )
    assert (developer.role, developer.items[0].kind) == ("system", "system")
    assert [item.kind for item in user.items] == ["user", "media", "other"]
    assert DIALECT.read_message("Hi").items == DIALECT.read_message("Hi").items
    assert (
        back("Hi")
        == back({"role": "user", "content": "Hi"})
        == back({"role": "user", "content": [{"type": "input_text", "text": "Hi"}]})
    )
    tools = DIALECT.read_message({"type": "additional_tools", "role": "developer", "tools": []})
    assert (tools.role, tools.items[0].kind) == ("system", "system")
    reference = DIALECT.read_message({"type": "item_reference", "id": "rs_1"}).items[0]
    assert (reference.item_id, reference.digest) == ("rs_1", b"")


def test_compaction_items_are_known_by_what_they_seal() -> None:
    raw = {"id": "cmp_1", "type": "compaction", "encrypted_content": "SEALED"}
    outcome = reply(
        orjson.dumps(
            {
                "id": "resp_1",
                "object": "response.compaction",
                "output": [
                    {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
                    raw,
                ],
                "usage": {"input_tokens": 9, "output_tokens": 3},
            }
        )
    )
    assert [item.kind for item in outcome.items] == ["user", "compaction"]
    assert (outcome.whole, outcome.stop_reason, outcome.items[1].signature) == (True, None, "SEALED")
    assert outcome.items[1].digest == back({"type": "compaction", "encrypted_content": "SEALED"})[0]
    assert outcome.usage is not None
    assert outcome.usage.public() == {"input_tokens": 9, "output_tokens": 3}


# -- streams


def test_of_three_spellings_of_one_proof_the_first_may_be_cut() -> None:
    body = (
        begun(0, thought("ADDED"))
        + done(0, thought("DONE"))
        + begun(1, said(""))
        + done(1, said("Ok"))
        + ended([thought("FINAL"), said("Ok")])
    )
    first, second = reply(body).items
    assert (first.kind, first.item_id, first.signature) == ("thinking", "rs_1", "DONE")
    assert first.variants == ("FINAL",)
    assert (second.text, second.variants) == ("Ok", ())


def test_the_final_response_adds_what_was_never_streamed_and_may_list_nothing() -> None:
    listed = {"id": "ml_1", "type": "mcp_list_tools", "tools": []}
    more = reply(done(0, said("Ok")) + ended([listed, said("Ok"), called()]))
    assert [item.form for item in more.items] == ["mcp_list_tools", "output_text", "function_call"]
    nothing = reply(done(0, thought()) + done(1, said("Ok")) + ended([]))
    assert [item.kind for item in nothing.items] == ["thinking", "text"]
    renamed = reply(
        done(0, thought(item_id="rs_a")) + done(1, said("Ok")) + ended([thought(item_id="rs_b"), said("Ok")])
    )
    assert [(item.kind, item.item_id) for item in renamed.items] == [("thinking", "rs_a"), ("text", "msg_1")]


@pytest.mark.parametrize("gone", [rb'"output_index":\d+,', rb'"(?:output_index|item_id)":(?:\d+|"\w+"),'])
def test_items_without_an_index_are_told_apart_by_their_ids_or_their_order(gone: bytes) -> None:
    def said_so(item: dict[str, Any], index: int, *pieces: str) -> bytes:
        kind = "function_call_arguments" if item["type"] == "function_call" else "output_text"
        deltas = [
            frame(f"response.{kind}.delta", output_index=index, item_id=item["id"], delta=piece)
            for piece in pieces
        ]
        return b"".join(deltas)

    body = begun(0, said("")) + said_so(said(""), 0, "Hel", "lo") + done(0, said("Hello"))
    body += begun(1, called("")) + said_so(called(""), 1, '{"a"', ":1}")
    cut = reply(re.sub(gone, b"", body))
    assert [(item.kind, item.text, item.arguments) for item in cut.items] == [
        ("text", "Hello", None),
        ("tool_call", "", '{"a":1}'),
    ]
    whole = body + done(1, called('{"a":1}')) + frame("response.completed", response={"status": "completed"})
    assert reply(re.sub(gone, b"", whole)).items == reply(whole).items


def test_a_stream_cut_short_is_read_from_its_deltas() -> None:
    body = (
        frame("response.created", response=response([], "in_progress"))
        + done(0, thought())
        + begun(1, said(""))
        + frame("response.output_text.delta", output_index=1, item_id="msg_1", delta="Hel")
        + frame("response.output_text.delta", output_index=1, item_id="msg_1", delta="lo")
        + begun(2, called(""))
        + frame("response.function_call_arguments.delta", output_index=2, item_id="fc_1", delta='{"a"')
    )
    outcome = reply(body)
    assert [(item.kind, item.text, item.arguments) for item in outcome.items] == [
        ("thinking", "Hm.", None),
        ("text", "Hello", None),
        ("tool_call", "", '{"a"'),
    ]
    assert (outcome.whole, outcome.stop_reason, outcome.streamed_chars) == (False, None, 9)
    assert (outcome.response_id, outcome.model) == ("resp_1", "m")


def test_events_tell_items_as_they_finish_and_the_outcome_has_the_same() -> None:
    decoder = DIALECT.decoder(ASK, 200, "text/event-stream")
    seen: list[Event] = []
    for part in (
        begun(0, thought("DONE")),
        done(0, thought("DONE")),
        begun(1, called("")),
        done(1, called()),
        ended([thought("DONE"), called()], usage={"input_tokens": 1, "output_tokens": 1}),
    ):
        seen.extend(decoder.feed(part))
    assert [event.kind for event in seen] == ["first_output", "item", "item", "usage"]
    told = [event.item for event in seen if event.item is not None]
    assert [id(item) for item in decoder.finish().items] == [id(item) for item in told]


@pytest.mark.parametrize("kind", ["failed", "incomplete", "completed"])
def test_terminal_events(kind: str) -> None:
    more: dict[str, Any] = {"usage": {"input_tokens": 5, "output_tokens": 1}}
    if kind == "failed":
        more["error"] = {"code": "server_error", "message": "no"}
    if kind == "incomplete":
        more["incomplete_details"] = {"reason": "max_output_tokens"}
    streamed, whole = reply(ended([said("Ok")], kind, **more)), reply(document([said("Ok")], kind, **more))
    assert (streamed.stop_reason, streamed.whole) == (kind, True)
    assert (streamed.error is not None) == (kind == "failed")
    if streamed.error is not None:
        assert (streamed.error.type, streamed.error.code) == ("server_error", "server_error")
    assert streamed.extra.get("incomplete_reason") == ("max_output_tokens" if kind == "incomplete" else None)
    assert (streamed.items, streamed.usage, streamed.error) == (whole.items, whole.usage, whole.error)


@pytest.mark.parametrize(
    "body",
    [
        frame("error", code="rate_limit_exceeded", message="slow", param=None, sequence_number=3),
        frame("error", error={"code": "rate_limit_exceeded", "message": "slow"}),
        b'data: {"error":{"code":"rate_limit_exceeded","message":"slow"}}\n\n',
        orjson.dumps({"error": {"code": "rate_limit_exceeded", "message": "slow"}}),
    ],
)
def test_errors_flat_and_nested(body: bytes) -> None:
    outcome = reply(body)
    assert outcome.error is not None
    assert (outcome.error.code, outcome.error.message, outcome.whole) == (
        "rate_limit_exceeded",
        "slow",
        False,
    )


def test_background_replies_are_whole_and_unfinished() -> None:
    outcome = reply(document([], "queued", background=True))
    assert (outcome.stop_reason, outcome.whole, outcome.items, outcome.usage) == ("queued", True, (), None)


def test_usage_in_full() -> None:
    usage = {
        "input_tokens": 100,
        "input_tokens_details": {
            "cached_tokens": 60,
            "cache_write_tokens": 20,
            "cache_write_tokens_details": {"ttl_30m_tokens": 5, "ttl_12h_tokens": 15},
        },
        "output_tokens": 30,
        "output_tokens_details": {"reasoning_tokens": 10},
        "total_tokens": 130,
    }
    search = {"id": "ws", "type": "web_search_call", "action": {"type": "search"}}
    outcome = reply(
        document([search, said("Ok")], usage=usage, service_tier="flex", input_transformations=[{"id": "rs"}])
    )
    assert outcome.usage is not None
    assert outcome.usage.public() == {
        "input_tokens": 100,
        "cache_read_tokens": 60,
        "cache_write_tokens": 20,
        "output_tokens": 30,
        "reasoning_tokens": 10,
    }
    assert (outcome.usage.cache_write_1h_tokens, outcome.usage.extra) == (15, {"web_searches": 1})
    assert outcome.extra == {"service_tier": "flex", "input_transformations": [{"id": "rs"}]}
    counted = reply(document([search], usage=usage, tool_usage={"web_search": {"num_requests": 3}}))
    assert counted.usage is not None
    assert counted.usage.extra == {"web_searches": 3}


# -- properties

WORDS = st.text(alphabet='ab \n\r{}[]"é😀\u2028:', max_size=8)
OUTPUTS = st.lists(
    st.tuples(st.just("said"), WORDS)
    | st.tuples(st.just("called"), WORDS)
    | st.tuples(st.just("thought"), WORDS),
    max_size=4,
)


def cut(data: st.DataObject, text: str) -> list[str]:
    ends = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=4)))
    return [text[a:b] for a, b in zip([0, *ends], [*ends, len(text)], strict=True)]


@given(OUTPUTS, st.data())
@settings(max_examples=150, deadline=None)
def test_streamed_and_whole_forms_give_one_outcome_however_split(
    parts: list[Any], data: st.DataObject
) -> None:
    output: list[dict[str, Any]] = []
    frames = [frame("response.created", response=response([], "in_progress"))]
    for index, (kind, words) in enumerate(parts):
        if kind == "said":
            item, event, text = said(words, f"msg_{index}"), "response.output_text.delta", words
        elif kind == "called":
            text = orjson.dumps({"x": words}).decode()
            item, event = called(text, id=f"fc_{index}"), "response.function_call_arguments.delta"
        else:
            item, event, text = (
                thought("E", f"rs_{index}", words),
                "response.reasoning_summary_text.delta",
                words,
            )
        output.append(item)
        frames.append(begun(index, item))
        frames += [
            frame(event, output_index=index, item_id=item["id"], delta=piece) for piece in cut(data, text)
        ]
        frames.append(done(index, item))
    usage = {"input_tokens": 5, "output_tokens": 2}
    body = b"".join([*frames, ended(output, usage=usage)])
    whole = reply(document(output, usage=usage))
    assert reply(body) == whole
    assert reply(body, step=data.draw(st.integers(1, 80))) == whole
    assert digests(whole.items) == back(*output)


@given(st.binary(max_size=200), st.integers(1, 9))
@settings(max_examples=100, deadline=None)
def test_garbage_never_raises(body: bytes, step: int) -> None:
    assert reply(body, step=step) == reply(body)
    reply(b"data: " + body + b"\n\n")


NAMES = [
    "id",
    "type",
    "role",
    "content",
    "text",
    "output",
    "response",
    "item",
    "output_index",
    "delta",
    "status",
    "encrypted_content",
    "summary",
    "arguments",
    "name",
    "call_id",
    "error",
    "usage",
    "input_tokens",
    "action",
]
TYPES = [
    "message",
    "reasoning",
    "function_call",
    "function_call_output",
    "compaction",
    "web_search_call",
    "output_text",
    "response.completed",
    "response.output_item.done",
    "response.output_item.added",
    "error",
    "shell_call",
    "response.output_text.delta",
    "item_reference",
    "mcp_approval_request",
    "tool_search_output",
    "x_call",
]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 2**40) | st.text(max_size=4) | st.sampled_from(TYPES),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=5),
    max_leaves=25,
)


@given(JSON)
@settings(max_examples=120, deadline=None)
def test_json_of_any_shape_never_raises(value: Any) -> None:
    reply(orjson.dumps(value))
    reply(orjson.dumps({"output": [value], "usage": value}))
    for kind in ("response.completed", "response.output_item.done", "response.output_item.added", "error"):
        reply(frame(kind, **(dict.fromkeys(("item", "response", "output_index", "error"), value))))
    DIALECT.read_message(value)
    if isinstance(value, dict):
        request(
            messages=[value], tools=[value], text=value, **{k: v for k, v in value.items() if k != "text"}
        )
