"""Text of ours in the client's body: where it stands, and that nothing else moves."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.dialects import ANTHROPIC, GEMINI, OPENAI_CHAT, OPENAI_RESPONSES
from proxy.dialects.nudges import blame, put_back
from proxy.model import Attempt, Carrier, Cost, Exchange, Head, Nudge, Outcome, ProviderError
from proxy.ports import Dialect
from proxy.reading.insertions import inserted, moved, stretches, without
from proxy.reading.library import Library, Reading

TEXT = 'Try "another" way.'
PATHS = {
    "anthropic": "/v1/messages",
    "openai_chat": "/v1/chat/completions",
    "openai_responses": "/v1/responses",
    "gemini": "/v1beta/models/gemini-3-pro:generateContent",
}
DIALECTS: dict[str, Dialect] = {one.name: one for one in (ANTHROPIC, OPENAI_CHAT, OPENAI_RESPONSES, GEMINI)}


def read(dialect: Dialect, body: bytes) -> Reading:
    path = PATHS[dialect.name]
    return Library().read(dialect, Exchange("exc_1", 0, Head("POST", path), None, path, 0), body)


def put(dialect: Dialect, body: bytes, *places: int, made_for: bytes | None = None) -> bytes:
    """The body with a nudge behind the messages of some indexes, as the dialect made it for a request."""
    reading = read(dialect, body)
    carrier = dialect.nudge(read(dialect, made_for or body).request, TEXT)
    assert carrier is not None
    found = put_back(dialect, reading, [(at, Nudge("repeats", b"", 0, carrier)) for at in places])
    return inserted(body, [one for _, _, some in found for one in some])


def anthropic(*messages: Any, model: str = "claude-opus-5-5") -> bytes:
    return json.dumps({"model": model, "max_tokens": 9, "messages": messages, "tools": []}).encode()


ASK = {"role": "user", "content": "go"}
CALL = {"role": "assistant", "content": [{"type": "tool_use", "id": "toolu_1", "name": "ls", "input": {}}]}
BACK = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": "a"}]}


def test_a_model_that_takes_system_messages_gets_one_behind_the_results() -> None:
    body = anthropic(ASK, CALL, BACK)
    message = b',{"role":"system","content":"Try \\"another\\" way."}'
    assert put(ANTHROPIC, body, 2) == body.replace(b'}]}], "tools"', b"}]}" + message + b'], "tools"')


def test_a_system_message_stands_at_the_end_or_before_the_model_and_nowhere_else() -> None:
    grown = anthropic(ASK, CALL, BACK, CALL, BACK)
    assert [m["role"] for m in json.loads(put(ANTHROPIC, grown, 2))["messages"]] == [
        "user", "assistant", "user", "system", "assistant", "user",
    ]  # fmt: skip
    steered = anthropic(ASK, CALL, BACK, {"role": "user", "content": "stop that"})
    assert put(ANTHROPIC, steered, 2, made_for=anthropic(ASK, CALL, BACK)) == steered


def test_a_client_that_changes_to_a_model_without_system_messages_is_spared_them() -> None:
    older = anthropic(ASK, CALL, BACK, model="claude-sonnet-4-5")
    assert put(ANTHROPIC, older, 2, made_for=anthropic(ASK, CALL, BACK)) == older


def test_other_models_get_a_block_behind_the_results_and_a_string_becomes_a_list() -> None:
    body = anthropic(ASK, CALL, BACK, model="claude-sonnet-4-5")
    told = json.loads(put(ANTHROPIC, body, 2))["messages"][2]["content"]
    assert told == [*BACK["content"], {"type": "text", "text": TEXT}]
    first = anthropic(ASK, model="claude-sonnet-4-5")
    told = json.loads(put(ANTHROPIC, first, 0))["messages"][0]["content"]
    assert told == [{"type": "text", "text": "go"}, {"type": "text", "text": TEXT}]


@pytest.mark.parametrize(("model", "role"), [("gpt-5.1", "developer"), ("deepseek-chat", "user")])
def test_chat_completions_get_a_message_behind_all_results(model: str, role: str) -> None:
    messages = [{"role": "user", "content": "go"}, {"role": "tool", "tool_call_id": "c", "content": "a"}]
    body = json.dumps({"model": model, "messages": messages}).encode()
    told = json.loads(put(OPENAI_CHAT, body, 1))["messages"]
    assert told == [*messages, {"role": role, "content": TEXT}]
    more = json.dumps({"model": model, "messages": [*messages, messages[1]]}).encode()
    assert put(OPENAI_CHAT, more, 1, made_for=body) == more


def test_a_developer_message_is_for_the_models_that_know_the_role() -> None:
    ours, other = (
        json.dumps({"model": model, "messages": [{"role": "user", "content": "go"}]}).encode()
        for model in ("gpt-5.1", "deepseek-chat")
    )
    assert put(OPENAI_CHAT, other, 0, made_for=ours) == other


def test_responses_get_a_developer_item_and_a_string_becomes_a_list() -> None:
    nudge = {"type": "message", "role": "developer", "content": TEXT}
    items = [
        {"role": "user", "content": "go"},
        {"type": "function_call_output", "call_id": "c", "output": "a"},
    ]
    body = json.dumps({"input": items, "model": "gpt-6.2", "x": 1}).encode()
    assert json.loads(put(OPENAI_RESPONSES, body, 1))["input"] == [*items, nudge]
    body = b'{"input": "\\u00e9", "model":"gpt-6.2"}'
    grown = (
        b'{"input": [{"role":"user","content":"\\u00e9"},' + json.dumps(nudge, separators=(",", ":")).encode()
    )
    assert put(OPENAI_RESPONSES, body, 0) == grown + b'], "model":"gpt-6.2"}'


def test_gemini_gets_a_part_behind_the_results_of_the_same_content() -> None:
    response = {"functionResponse": {"name": "ls", "response": {"output": "a"}}}
    contents = [{"role": "user", "parts": [{"text": "go"}]}, {"role": "user", "parts": [response]}]
    body = json.dumps({"contents": contents}).encode()
    told = json.loads(put(GEMINI, body, 1))["contents"]
    assert told == [contents[0], {"role": "user", "parts": [response, {"text": TEXT}]}]


@pytest.mark.parametrize(
    ("name", "last"),
    [
        ("anthropic", {"role": "assistant", "content": "I"}),
        ("openai_chat", {"role": "assistant", "content": "I"}),
        ("openai_responses", {"role": "assistant", "content": "I"}),
        ("gemini", {"role": "model", "parts": [{"text": "I"}]}),
    ],
)
def test_a_prefilled_reply_is_not_talked_into(name: str, last: dict[str, Any]) -> None:
    dialect = DIALECTS[name]
    body = json.dumps({"model": "m", dialect.list_key: [last]}).encode()
    assert dialect.nudge(read(dialect, body).request, TEXT) is None


def test_a_body_with_a_key_twice_is_nudged_where_parsers_look() -> None:
    body = b'{"model":"claude-opus-5-5","messages":[],"messages":[{"role":"user","content":"go"}]}'
    assert [m["role"] for m in json.loads(put(ANTHROPIC, body, 0))["messages"]] == ["user", "system"]


# -- properties

WORDS = st.text(alphabet='aé"\\{[,:]}\n', max_size=8)


@st.composite
def histories(draw: st.DrawFn) -> tuple[str, str, list[Any]]:
    """A dialect, a model, and a conversation of so many rounds that grows."""
    name = draw(st.sampled_from(sorted(DIALECTS)))
    rounds = draw(st.lists(st.tuples(WORDS, WORDS), min_size=1, max_size=6))
    model = (
        draw(st.sampled_from(["claude-opus-5-5", "claude-sonnet-4-5"])) if name == "anthropic" else "gpt-6.2"
    )
    messages: list[Any] = []
    for said, told in rounds:
        if name == "gemini":
            messages += [
                {"role": "user", "parts": [{"text": said}]},
                {"role": "model", "parts": [{"text": told}]},
            ]
        elif name == "openai_responses":
            messages += [{"role": "user", "content": said}, {"type": "reasoning", "summary": [], "id": told}]
            messages += [{"role": "assistant", "content": told}]
        else:
            listed = [{"type": "text", "text": said}] if draw(st.booleans()) else said
            messages += [{"role": "user", "content": listed}, {"role": "assistant", "content": told}]
    return name, model, messages


@settings(max_examples=50)
@given(histories(), st.sampled_from([None, 1]), st.data())
def test_edited_requests_of_one_thread_extend_one_prefix(
    history: tuple[str, str, list[Any]], indent: int | None, data: st.DataObject
) -> None:
    name, model, messages = history
    dialect = DIALECTS[name]

    def body_of(count: int) -> bytes:
        body = {dialect.list_key: messages[:count], "model": model}
        return json.dumps(body, indent=indent).encode()

    asks = [at + 1 for at, one in enumerate(messages) if one.get("role") == "user"]
    nudged_at = [count for count in asks if data.draw(st.booleans())]
    carriers: dict[int, Carrier] = {}
    before, known = b"", 0
    for count in asks:
        body = body_of(count)
        reading = read(dialect, body)
        if count in nudged_at:
            carrier = dialect.nudge(reading.request, f"{TEXT} {count}")
            assert carrier is not None
            carriers[count - 1] = carrier
        nudges = [(at, Nudge("p", b"", 0, carrier)) for at, carrier in carriers.items()]
        found = put_back(dialect, reading, nudges)
        insertions = [one for _, _, some in found for one in some]
        edited = inserted(body, insertions)
        assert len(found) == len(carriers)
        assert without(edited, stretches(insertions)) == body
        parsed = json.loads(edited)
        assert {key: value for key, value in parsed.items() if key != dialect.list_key} == {"model": model}
        assert json.loads(before or b"[]") == parsed[dialect.list_key][:known]
        listed = parsed[dialect.list_key]
        before, known = json.dumps(listed).encode(), len(listed)


@given(st.binary(max_size=40), st.lists(st.tuples(st.integers(0, 40), st.binary(max_size=5)), max_size=5))
def test_what_was_put_in_can_be_taken_out(body: bytes, some: list[tuple[int, bytes]]) -> None:
    places = sorted((min(at, len(body)), text) for at, text in some)
    assert without(inserted(body, places), stretches(places)) == body


def test_insertions_follow_a_body_that_became_shorter_before_them() -> None:
    before, after = b'{"max_tokens":32000,"messages":[1]}', b'{"max_tokens":500,"messages":[1]}'
    at = before.index(b"]")
    assert inserted(after, moved([(at, b",2")], before, after)) == b'{"max_tokens":500,"messages":[1,2]}'
    assert moved([(3, b"x")], before, after) == ((3, b"x"),)


# -- what a provider holds against it


def attempt(status: int, message: str = "", **extra: Any) -> Attempt:
    error = ProviderError("invalid_request_error", message) if message else None
    reply = Outcome(error=error, extra=extra)
    return Attempt("failed", "complete", reply, None, Cost(None, "unpriced"), status, 0, 0)


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (attempt(400, "The block is bound to a different conversation."), "prefix"),
        (attempt(400, "role 'system' is not supported on this model"), "role"),
        (attempt(400, "prompt is too long"), "unsaid"),
        (attempt(422), "unsaid"),
        (attempt(200, input_transformations=[{"type": "reasoning", "reason": "prefix_mismatch"}]), "prefix"),
        (attempt(200, input_transformations=[{"type": "reasoning", "reason": "model_mismatch"}]), None),
        (attempt(200), None),
        (attempt(529, "overloaded"), None),
    ],
)
def test_blame(answer: Attempt, told: str | None) -> None:
    assert blame(answer) == told
