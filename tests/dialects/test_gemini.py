"""Gemini generateContent: parts, replies in three forms, edits and our own answers."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.dialects.elements import Elements
from proxy.dialects.gemini import Gemini
from proxy.model import Event, Head, Item, ModelRequest, Outcome, ProviderError
from proxy.ports import Unreadable
from proxy.pricing import output_bound
from proxy.verdict import Edit, Reply, Terminal

DIALECT = Gemini()
PLAIN = "/v1beta/models/gemini-3-pro:generateContent"
STREAM = "/v1beta/models/gemini-3-pro:streamGenerateContent"
WHY = Terminal(
    "deny",
    "budgets",
    "looptap_budget_exceeded",
    "Looptap: budget turn reached: $5.00 of $5.00.",
    fields={"budget": "turn", "limit": "5.00"},
)


def read(body: Mapping[str, Any], target: str = PLAIN) -> ModelRequest:
    rest = {name: value for name, value in body.items() if name != "contents"}
    messages = tuple(DIALECT.read_message(raw) for raw in body.get("contents", []))
    path = target.partition("?")[0]
    return DIALECT.read_request(Head("POST", target), path, rest, messages)


def user(*parts: Any) -> dict[str, Any]:
    return {"role": "user", "parts": list(parts)}


def model(*parts: Any) -> dict[str, Any]:
    return {"role": "model", "parts": list(parts)}


def call(args: Any, **more: Any) -> dict[str, Any]:
    return {"functionCall": {"name": "run", "args": args}, **more}


def answer(response: Any, **more: Any) -> dict[str, Any]:
    return {"functionResponse": {"name": "run", "response": response, **more}}


def items(message: Mapping[str, Any]) -> tuple[Item, ...]:
    return DIALECT.read_message(message).items


def digests(message: Mapping[str, Any]) -> list[bytes]:
    return [item.digest for item in items(message) if item.digest]


BODY = {"contents": [user({"text": "hi"})]}


# -- identity


@pytest.mark.parametrize(
    ("sent", "back"),
    [
        (model({"text": "a"}, {"text": "b"}), model({"text": "ab"})),
        (
            model({"text": "ab", "thoughtSignature": "s"}),
            model({"text": "ab"}, {"text": "", "thoughtSignature": "s"}),
        ),
        (model({"text": "hm", "thought": True}, {"text": "ab"}), model({"text": "ab"})),
        (
            model(call({"a": 1, "b": 2.0}, thoughtSignature="a+/")),
            {
                "parts": [{"function_call": {"id": "x", "args": {"b": 2, "a": 1}, "name": "run"}}],
                "role": "model",
            },
        ),
        (
            user(answer({"output": "x"})),
            user({"function_response": {"response": {"output": "x"}, "name": "run"}}),
        ),
        (user({"text": "hi"}), {"parts": {"text": "hi "}}),
        (
            user({"inlineData": {"mimeType": "image/png", "data": "a+/="}}),
            user({"inline_data": {"mime_type": "image/png", "data": "a-_"}}),
        ),
    ],
)
def test_what_clients_change_by_the_way_does_not_count(sent: Any, back: Any) -> None:
    assert digests(sent) == digests(back)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (model({"text": "a"}), model({"text": "b"})),
        (model({"text": "a"}), user({"text": "a"})),
        (model(call({"a": 1})), model(call({"a": 2}))),
        (user(answer({"output": "x"})), user(answer({"error": "x"}))),
    ],
)
def test_what_was_said_counts(one: Any, other: Any) -> None:
    assert digests(one) != digests(other)


# -- requests


def test_parts_become_typed_items() -> None:
    found = items(
        model(
            {"text": "I think", "thought": True},
            {"text": " so.", "thought": True},
            {"text": "Snow"},
            {"text": "", "thoughtSignature": "sig1"},
            call({"cmd": "ls"}, thoughtSignature="sig2"),
            call({}),
            {"executableCode": {"language": "PYTHON", "code": "1+1"}},
            {"codeExecutionResult": {"outcome": "OUTCOME_OK", "output": "2"}},
            {
                "toolCall": {"toolType": "GOOGLE_SEARCH", "args": {"q": 1}, "id": "t1"},
                "thoughtSignature": "s3",
            },
            {"toolResponse": {"id": "t1", "response": {}}},
            {"fileData": {"fileUri": "gs://a"}},
            {"novelty": 1},
            7,
        )
    )
    assert [(item.kind, item.text, item.tool, item.signature, item.server) for item in found] == [
        ("thinking", "I think so.", None, None, False),
        ("text", "Snow", None, "sig1", False),
        ("tool_call", "", "run", "sig2", False),
        ("tool_call", "", "run", None, False),
        ("tool_call", "", "code_execution", None, True),
        ("tool_result", "2", None, None, True),
        ("tool_call", "", "GOOGLE_SEARCH", "s3", True),
        ("tool_result", '{"response":{}}', None, None, True),
        ("media", "", None, None, False),
        ("other", "", None, None, False),
        ("other", "", None, None, False),
    ]
    assert [item.at for item in found[:3]] == [("parts", 0), ("parts", 2), ("parts", 4)]
    assert found[2].call_id is None


def test_results_name_their_tool_and_tell_errors() -> None:
    (good, bad) = items(user(answer({"output": "fine"}, id="c1"), answer({"error": "broken"})))
    assert (good.kind, good.role, good.tool, good.call_id, good.text, good.is_error) == (
        "tool_result", "tool", "run", "c1", "fine", False,
    )  # fmt: skip
    assert (bad.call_id, bad.text, bad.is_error) == (None, "broken", True)


def test_THK_11_a_request_is_read_in_either_spelling() -> None:
    camel = {
        **BODY,
        "systemInstruction": {"parts": [{"text": "be brief"}]},
        "generationConfig": {"maxOutputTokens": 9, "responseSchema": {"type": "OBJECT"}},
        "tools": [{"functionDeclarations": [{"name": "run"}, {"name": "see"}]}, {"googleSearch": {}}],
        "toolConfig": {"functionCallingConfig": {"mode": "AUTO"}},
    }
    snake = {
        **BODY,
        "system_instruction": {"parts": {"text": "be brief"}},
        "generation_config": {"max_output_tokens": 9, "response_schema": {"type": "OBJECT"}},
        "tools": [{"function_declarations": [{"name": "run"}, {"name": "see"}]}, {"googleSearch": {}}],
        "tool_config": {"functionCallingConfig": {"mode": "AUTO"}},
    }
    one, other = read(camel), read(snake)
    assert (one.model, one.stream, one.max_output_tokens, one.output_schema) == (
        "gemini-3-pro",
        False,
        9,
        True,
    )
    assert [(tool.name, tool.server) for tool in one.tools] == [
        ("run", False),
        ("see", False),
        ("googleSearch", True),
    ]
    assert [item.text for item in one.system] == ["be brief"]
    assert one.tools == other.tools
    assert (one.system, one.max_output_tokens, one.output_schema) == (
        other.system, other.max_output_tokens, other.output_schema,
    )  # fmt: skip
    assert one.options["toolConfig"] == other.options["toolConfig"]


@pytest.mark.parametrize(
    ("path", "operation", "stream"),
    [
        (PLAIN, "chat", False),
        (STREAM + "?alt=sse", "chat", True),
        ("/v1/publishers/google/models/gemini-3-pro:countTokens", "count", False),
        ("/v1/projects/p/locations/l/publishers/google/models/gemini-3-pro:generateContent", "chat", False),
    ],
)
def test_routes(path: str, operation: str, stream: bool) -> None:
    found = read(BODY, path)
    assert (found.model, found.operation, found.stream) == ("gemini-3-pro", operation, stream)


@pytest.mark.parametrize("verb", ["embedContent", "batchGenerateContent", "predict"])
def test_other_verbs_are_no_model_calls(verb: str) -> None:
    with pytest.raises(Unreadable):
        read(BODY, f"/v1beta/models/gemini-3-pro:{verb}")


@pytest.mark.parametrize("spelled", ["candidateCount", "candidate_count"])
def test_several_candidates_are_bounded_each_by_the_limit(spelled: str) -> None:
    config = {"maxOutputTokens": 100, spelled: 4}
    asked = read({"contents": [user({"text": "hi"})], "generationConfig": config})
    assert output_bound(asked, None) == 400


def test_a_request_without_contents_is_unreadable() -> None:
    with pytest.raises(Unreadable):
        read({})


# -- replies

USAGE = {
    "promptTokenCount": 100,
    "cachedContentTokenCount": 40,
    "toolUsePromptTokenCount": 7,
    "candidatesTokenCount": 20,
    "thoughtsTokenCount": 30,
    "totalTokenCount": 157,
    "promptTokensDetails": [{"modality": "TEXT", "tokenCount": 88}, {"modality": "AUDIO", "tokenCount": 12}],
    "serviceTier": "standard",
}
PARTS: list[dict[str, Any]] = [
    {"text": "let me see", "thought": True},
    {"text": "Snow \u2603 \U0001f600 falls."},
    {"text": "", "thoughtSignature": "a+/b"},
    call({"cmd": "ls -l"}, thoughtSignature="c"),
    call({}),
    {"executableCode": {"language": "PYTHON", "code": "1"}},
]


def reply(parts: Sequence[Mapping[str, Any]] = PARTS, **candidate: Any) -> dict[str, Any]:
    return {
        "candidates": [
            {
                "content": {"role": "model", "parts": list(parts)},
                "finishReason": "STOP",
                "index": 0,
                **candidate,
            }
        ],
        "usageMetadata": USAGE,
        "modelVersion": "gemini-3-pro-001",
        "responseId": "r1",
    }


def chunks(parts: Sequence[Mapping[str, Any]] = PARTS, size: int = 5) -> list[bytes]:
    """The stream that brings the parts, texts in pieces of a size, usage as a running total."""
    pieces: list[Mapping[str, Any]] = []
    for part in parts:
        said = part.get("text")
        if not said:
            pieces.append(part)
            continue
        cut = [said[at : at + size] for at in range(0, len(said), size)]
        signature = {name: part[name] for name in ("thoughtSignature",) if name in part}
        thought = {name: part[name] for name in ("thought",) if name in part}
        pieces += [{"text": piece, **thought} for piece in cut[:-1]]
        pieces.append({"text": cut[-1], **thought, **signature})
    told = []
    for number, piece in enumerate(pieces):
        candidate = {"content": {"role": "model", "parts": [piece]}, "index": 0}
        usage = {"promptTokenCount": 100, "candidatesTokenCount": number, "totalTokenCount": 100 + number}
        told.append(
            {
                "candidates": [candidate],
                "usageMetadata": usage,
                "modelVersion": "gemini-3-pro-001",
                "responseId": "r1",
            }
        )
    told.append({"candidates": [{"finishReason": "STOP", "index": 0}], "usageMetadata": USAGE})
    return [orjson.dumps(one) for one in told]


def sse(told: Sequence[bytes]) -> bytes:
    return b"".join(b"data: " + one + b"\r\n\r\n" for one in told)


def listed(told: Sequence[bytes]) -> bytes:
    return b"[" + b"\n,\r\n".join(told) + b"\n]"


def decode(data: bytes, cuts: Sequence[int] = (), status: int = 200) -> tuple[list[Event], Outcome]:
    decoder = DIALECT.decoder(read(BODY), status, "text/event-stream")
    places = sorted({place % (len(data) + 1) for place in cuts})
    pieces = [data[a:b] for a, b in zip([0, *places], [*places, len(data)], strict=True)]
    events = [event for piece in pieces for event in decoder.feed(piece)]
    return events, decoder.finish()


def test_a_reason_in_each_chunk_is_no_end() -> None:
    decoder = DIALECT.decoder(read(BODY), 200, "text/event-stream")
    for text in ("Hel", "lo", " you"):
        part = {"content": {"parts": [{"text": text}], "role": "model"}, "finishReason": "STOP", "index": 0}
        decoder.feed(b"data: " + orjson.dumps({"candidates": [part]}) + b"\r\n\r\n")
    assert not decoder.whole


def test_usage_is_inclusive() -> None:
    _, found = decode(orjson.dumps(reply(groundingMetadata={"webSearchQueries": ["a", "b"]})))
    assert found.usage is not None
    assert found.usage.public() == {
        "input_tokens": 107,
        "cache_read_tokens": 40,
        "output_tokens": 50,
        "reasoning_tokens": 30,
    }
    assert found.usage.extra == {"input_audio_tokens": 12, "web_searches": 2}
    assert found.extra["service_tier"] == "standard"


def test_usage_that_was_not_reported_is_absent() -> None:
    _, found = decode(orjson.dumps({**reply(), "usageMetadata": {"promptTokenCount": 3}}))
    assert found.usage is not None
    assert found.usage.public() == {"input_tokens": 3}
    assert decode(orjson.dumps({**reply(), "usageMetadata": {}}))[1].usage is None


@pytest.mark.parametrize("form", [sse, listed])
@pytest.mark.parametrize("size", [1, 5, 1_000])
def test_COST_01_streamed_and_whole_forms_give_one_outcome(form: Any, size: int) -> None:
    _, plain = decode(b"\n" + orjson.dumps(reply(), option=orjson.OPT_INDENT_2))
    _, streamed = decode(form(chunks(size=size)))
    for found in (plain, streamed):
        assert found.whole
        assert found.stop_reason == "STOP"
    unplaced = [replace(item, at=()) for item in streamed.items]
    assert unplaced == [replace(item, at=()) for item in plain.items]
    assert (streamed.usage, streamed.model, streamed.response_id) == (
        plain.usage,
        plain.model,
        plain.response_id,
    )


@given(st.lists(st.integers(0, 100_000), max_size=20), st.sampled_from([sse, listed]))
def test_WIRE_04_any_split_gives_the_same_events_and_outcome(cuts: list[int], form: Any) -> None:
    data = form(chunks(size=3))
    assert decode(data, cuts) == decode(data)
    assert "\ufffd" not in decode(data, cuts)[1].items[1].text


TEXTS = st.text(max_size=12)
SOME_PARTS = st.lists(
    st.builds(lambda said: {"text": said}, TEXTS)
    | st.builds(lambda said: {"text": said, "thought": True}, TEXTS)
    | st.builds(lambda said: {"text": said, "thoughtSignature": "s"}, TEXTS)
    | st.builds(lambda args: call(args, thoughtSignature="s"), st.dictionaries(TEXTS, TEXTS, max_size=2)),
    max_size=6,
)


@given(SOME_PARTS, st.integers(1, 5))
def test_a_reply_and_what_comes_back_of_it_are_the_same_items(parts: list[dict[str, Any]], size: int) -> None:
    _, whole = decode(orjson.dumps(reply(parts)))
    _, streamed = decode(sse(chunks(parts, size)))
    assert whole.items == items(model(*parts))
    assert [replace(item, at=()) for item in streamed.items] == [replace(item, at=()) for item in whole.items]


def test_arguments_that_arrive_member_by_member_are_one_call() -> None:
    begin = {"functionCall": {"name": "run", "willContinue": True}, "thoughtSignature": "s"}
    pieces = [
        {"jsonPath": "$.path", "stringValue": "src/", "willContinue": True},
        {"jsonPath": "$.path", "stringValue": "a.py"},
        {"jsonPath": "$.lines[0]", "numberValue": 1},
        {"jsonPath": "$.lines[1].deep", "boolValue": True},
        {"jsonPath": "", "stringValue": "nowhere"},
    ]
    more = [{"functionCall": {"partialArgs": [piece], "willContinue": True}} for piece in pieces]
    told = [begin, *more, {"functionCall": {}}, call({})]
    _, found = decode(sse([orjson.dumps(reply([part], finishReason=None)) for part in told]))
    whole = items(
        model(call({"path": "src/a.py", "lines": [1, {"deep": True}]}, thoughtSignature="s"), call({}))
    )
    assert [(item.digest, item.signature) for item in found.items] == [(i.digest, i.signature) for i in whole]


def test_a_reply_that_breaks_off_keeps_what_came() -> None:
    _, found = decode(sse(chunks()[:4])[:-3])
    assert [item.kind for item in found.items] == ["thinking", "text"]
    assert not found.whole
    assert found.usage is not None
    assert found.usage.input_tokens == 100


def test_a_blocked_prompt_stops_with_its_reason() -> None:
    _, found = decode(
        orjson.dumps({"promptFeedback": {"blockReason": "PROHIBITED_CONTENT"}, "usageMetadata": USAGE})
    )
    assert (found.stop_reason, found.items, found.whole) == ("PROHIBITED_CONTENT", (), True)


def test_a_candidate_without_parts_and_a_reason_by_number() -> None:
    _, found = decode(orjson.dumps({"candidates": [{"content": {"role": "model"}, "finishReason": 2}]}))
    assert (found.stop_reason, found.items, found.whole) == ("MAX_TOKENS", (), True)


def test_only_the_first_candidate_is_history() -> None:
    both = reply()
    both["candidates"] = [{**reply([{"text": "no"}])["candidates"][0], "index": 1}, *both["candidates"]]
    assert decode(orjson.dumps(both))[1].items == decode(orjson.dumps(reply()))[1].items


ERROR = {"error": {"code": 429, "message": "slow down", "status": "RESOURCE_EXHAUSTED"}}


@pytest.mark.parametrize("data", [orjson.dumps(ERROR), orjson.dumps([ERROR]), sse([orjson.dumps(ERROR)])])
def test_an_error_answer_is_read_in_every_form(data: bytes) -> None:
    _, found = decode(data, status=429)
    assert found.error == ProviderError("RESOURCE_EXHAUSTED", "slow down", "429")
    assert found.whole


def test_an_error_in_mid_stream_ends_the_reply() -> None:
    events, found = decode(sse([*chunks()[:3], orjson.dumps(ERROR)]))
    assert events[-1].kind == "error"
    assert found.error is not None
    assert not found.whole


def test_an_error_that_is_no_json_still_is_one() -> None:
    _, found = decode(b"<html>Bad Gateway</html>", status=502)
    assert found.error is not None
    assert found.whole


def test_events_tell_of_first_output_items_and_usage() -> None:
    events, found = decode(sse(chunks()))
    assert [event.kind for event in events[:2]] == ["usage", "first_output"]
    assert tuple(event.item for event in events if event.kind == "item") == found.items


ODD = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.sampled_from(["STOP", "model", "x"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["parts", "role", "text", "thought", "functionCall", "function_response", "args", "name",
                 "candidates", "content", "index", "finishReason", "usageMetadata", "promptTokenCount",
                 "error", "inlineData", "partialArgs", "jsonPath", "willContinue", "response", "code",
                 "promptFeedback", "toolCall", "executableCode", "tools", "functionDeclarations",
                 "generationConfig", "systemInstruction", "thoughtSignature", "groundingMetadata",
                 "webSearchQueries"]
            ),
            inner, max_size=5,
        )
    ),
    max_leaves=25,
)  # fmt: skip


@given(ODD, ODD)
def test_odd_values_raise_nothing(one: Any, other: Any) -> None:
    told = [orjson.dumps(one), orjson.dumps({"candidates": [{"content": {"parts": [one, other]}}]})]
    for data in (told[0], sse(told), listed(told)):
        assert isinstance(decode(data)[1], Outcome)
    rest = one if isinstance(one, dict) else {}
    assert read({**rest, "contents": [one, other, {"parts": one}]}).model == "gemini-3-pro"


@given(st.binary(max_size=300), st.sampled_from([200, 400]))
def test_garbage_raises_nothing(data: bytes, status: int) -> None:
    assert isinstance(decode(data, (5, 9), status)[1], Outcome)
    assert isinstance(decode(b"[" + data, (5, 9), status)[1], Outcome)


def test_an_element_that_outgrows_the_bound_is_skipped_whole() -> None:
    elements = Elements(100)
    found = elements.feed(b'[{"a":1},{"b":"')
    for _ in range(50):
        found += elements.feed(b"x\\" * 25)
        assert len(elements._buffer) <= 200
    found += elements.feed(b'x"},{"c":"]}\\""}]')
    assert found == [b'{"a":1}', b'{"c":"]}\\""}']
    assert elements.skipped == 1


# -- edits


def edited(raw: bytes, *edits: Edit) -> bytes:
    return DIALECT.edit_request(raw, read(orjson.loads(raw)), edits)


CLAMP = Edit("clamp", max_output_tokens=50)


@pytest.mark.parametrize("name", [b"maxOutputTokens", b"max_output_tokens"])
@pytest.mark.parametrize("config", [b"generationConfig", b"generation_config"])
def test_a_clamp_changes_only_the_number(config: bytes, name: bytes) -> None:
    raw = b'{ "%s": { "%s" : 900, "topK":1.0 }, "contents": [ {"parts":[{"text":"\\u2603"}]} ] }' % (
        config,
        name,
    )
    assert edited(raw, CLAMP) == raw.replace(b"900", b"50")


@pytest.mark.parametrize("more", [b"", b',"generationConfig":{}', b',"generationConfig":{"topK":1}'])
def test_a_clamp_puts_the_field_in_where_it_is_missing(more: bytes) -> None:
    raw = b'{"contents":[{"parts":[{"text":"hi"}]}]%s}' % more
    found = orjson.loads(edited(raw, CLAMP))
    assert found.pop("generationConfig")["maxOutputTokens"] == 50
    assert found == {"contents": [{"parts": [{"text": "hi"}]}]}


def test_a_nudge_is_a_part_behind_the_results_of_the_last_user_content() -> None:
    raw = orjson.dumps(
        {"contents": [model(call({})), user(answer({"output": "x"}))]}, option=orjson.OPT_INDENT_2
    )
    found = edited(raw, Edit("nudge", text="Wrap up."))
    assert orjson.loads(found)["contents"][1]["parts"] == [answer({"output": "x"}), {"text": "Wrap up."}]
    assert found.replace(b',{"text":"Wrap up."}', b"") == raw


def test_LOOP_09_nothing_is_put_behind_the_model() -> None:
    raw = orjson.dumps({"contents": [user({"text": "hi"}), model({"text": "{"})]})
    assert edited(raw, Edit("nudge", text="Wrap up.")) == raw


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"toolConfig": {}},
        {"toolConfig": {"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["a"]}}},
    ],
)
def test_a_landing_takes_the_tools_away_but_leaves_their_list(config: dict[str, Any]) -> None:
    tools = [{"functionDeclarations": [{"name": "a"}]}]
    found = orjson.loads(
        edited(orjson.dumps({**BODY, "tools": tools, **config}), Edit("land", text="Sum up."))
    )
    assert found["toolConfig"] == {"functionCallingConfig": {"mode": "NONE"}}
    assert found["tools"] == tools
    assert found["contents"][-1]["parts"][-1] == {"text": "Sum up."}


@given(ODD, st.sampled_from(["nudge", "land", "clamp"]))
def test_edits_of_odd_bodies_raise_nothing(odd: Any, kind: Any) -> None:
    request = read({**BODY, "tools": [{"functionDeclarations": [{"name": "a"}]}]})
    found = DIALECT.edit_request(orjson.dumps(odd), request, [Edit(kind, text="x", max_output_tokens=3)])
    assert isinstance(found, bytes)


# -- our own answers


def field(reply: Reply, name: bytes) -> bytes | None:
    return next((value for key, value in reply.headers if key == name), None)


def test_ERR_06_BUD_19_a_refusal_is_json_that_names_what_was_reached() -> None:
    found = DIALECT.refusal(read(BODY, STREAM + "?alt=sse"), WHY, "exc_1")
    assert found.status == 400
    assert field(found, b"content-type") == b"application/json; charset=UTF-8"
    error = orjson.loads(found.body)["error"]
    assert (error["code"], error["status"]) == (400, "FAILED_PRECONDITION")
    assert error["details"][0]["reason"] == "LOOPTAP_BUDGET_EXCEEDED"
    assert error["details"][0]["metadata"]["limit"] == "5.00"
    assert found.body.startswith(b'{"error":')


def test_a_refusal_that_passes_by_itself_says_when() -> None:
    found = DIALECT.refusal(read(BODY), replace(WHY, retry_after_s=7), "exc_1")
    assert (found.status, field(found, b"retry-after")) == (429, b"7")
    assert orjson.loads(found.body)["error"]["details"][1]["retryDelay"] == "7s"


@pytest.mark.parametrize("target", [PLAIN, STREAM, STREAM + "?alt=sse"])
def test_a_message_is_a_whole_reply_in_the_form_asked_for(target: str) -> None:
    found = DIALECT.refusal(read(BODY, target), replace(WHY, kind="message"), "exc_1")
    assert found.status == 200
    _, outcome = decode(found.body)
    assert outcome.whole
    assert outcome.stop_reason == "STOP"
    assert "$5.00" in outcome.items[0].text


def test_closing_frames_are_an_error_that_decoders_see() -> None:
    ends = DIALECT.closing_frames(read(BODY, STREAM + "?alt=sse"), WHY)
    assert ends.startswith(b'data: {"error":')
    told = decode(sse(chunks()[:3]) + ends)[1]
    assert told.error is not None
    array = b"[" + b",".join(chunks()[:3]) + DIALECT.closing_frames(read(BODY, STREAM), WHY)
    assert orjson.loads(array)[-1]["error"]["code"] == 400
    assert decode(array)[1].error == told.error
