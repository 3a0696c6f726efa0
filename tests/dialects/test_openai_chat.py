"""Chat Completions: one reading of a message, whatever form it comes in; edits and refusals."""

from collections.abc import Iterable
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.dialects.openai_chat import OpenAIChat
from proxy.model import Event, Head, Item, ModelRequest, Outcome

DIALECT = OpenAIChat()


def request(
    *, path: str = "/v1/chat/completions", messages: Iterable[Any] = (), **fields: Any
) -> ModelRequest:
    read = tuple(DIALECT.read_message(message) for message in messages)
    return DIALECT.read_request(Head("POST", path), path, {"model": "gpt-5.1", **fields}, read)


ASK = request(messages=[{"role": "user", "content": "Hi"}])


def reply(body: bytes, *, status: int = 200, step: int = 0) -> Outcome:
    decoder = DIALECT.decoder(ASK, status, "application/json")
    for at in range(0, len(body), step or len(body) or 1):
        decoder.feed(body[at : at + (step or len(body))])
    return decoder.finish()


def stream(*chunks: Any, done: bool = True) -> bytes:
    frames = [b"data: " + orjson.dumps(chunk) + b"\n\n" for chunk in chunks]
    return b"".join(frames) + (b"data: [DONE]\n\n" if done else b"")


def chunk(delta: Any = None, reason: str | None = None, **more: Any) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta or {}, "finish_reason": reason}
    return {"id": "c1", "object": "chat.completion.chunk", "model": "m", "choices": [choice], **more}


def document(message: Any, reason: str = "stop", **more: Any) -> bytes:
    choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": reason}
    return orjson.dumps({"id": "c1", "object": "chat.completion", "model": "m", "choices": [choice], **more})


def call(
    name: str = "ls", arguments: Any = '{"a": 1}', call_id: Any = "call_1", **more: Any
) -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}, **more}


def digests(items: Iterable[Item]) -> list[bytes]:
    return [item.digest for item in items if item.digest]


def back(message: Any) -> list[bytes]:
    return digests(DIALECT.read_message({"role": "assistant", **message}).items)


# -- identity


@pytest.mark.parametrize(
    "returned",
    [
        {"content": "Ok", "tool_calls": [call()]},
        {
            "content": [{"type": "text", "text": "Ok"}],
            "tool_calls": [call(arguments='{"a":1}', call_id="other")],
        },
        {"content": "Ok", "tool_calls": [{"function": {"name": "ls", "arguments": {"a": 1}}}]},
        {
            "content": "Ok",
            "tool_calls": [call(index=0)],
            "refusal": None,
            "annotations": [],
            "audio": None,
            "function_call": None,
            "parsed": {"x": 1},
            "status": "completed",
            "id": "m",
            "phase": "final",
        },
        {"content": "Ok\n", "tool_calls": [call()], "reasoning_content": "Hm."},
        {"content": [{"type": "text", "text": "O"}, {"type": "text", "text": "k"}], "tool_calls": [call()]},
    ],
)
def test_what_clients_change_is_no_part_of_identity(returned: dict[str, Any]) -> None:
    outcome = reply(document({"content": "Ok", "refusal": None, "tool_calls": [call()]}))
    assert digests(outcome.items) == back(returned)


def test_other_text_arguments_and_names_are_another_identity() -> None:
    base = back({"content": "Ok", "tool_calls": [call()]})
    assert back({"content": "No", "tool_calls": [call()]}) != base
    assert back({"content": "Ok", "tool_calls": [call(arguments='{"a": 2}')]}) != base
    assert back({"content": "Ok", "tool_calls": [call(name="rm")]}) != base
    assert back({"content": "Ok"}) != base


def test_no_arguments_are_an_empty_object_in_every_spelling() -> None:
    spellings = ["{}", "", None, {}, " {} "]
    assert (
        len({tuple(back({"content": None, "tool_calls": [call(arguments=one)]})) for one in spellings}) == 1
    )


def test_text_of_no_letters_has_no_identity() -> None:
    for content in (None, "", [], " "):
        assert back({"content": content}) == []


def test_reasoning_in_all_its_fields_has_text_and_no_identity() -> None:
    details = [
        {"type": "reasoning.text", "text": "Hm.", "index": 0, "signature": None},
        {"type": "reasoning.text", "signature": "SIG", "index": 0},
    ]
    parts = [
        {"type": "thinking", "thinking": [{"type": "text", "text": "Hm."}]},
        {"type": "text", "text": "Ok"},
    ]
    forms = []
    for message in (
        {"content": "Ok", "reasoning_content": "Hm."},
        {"content": "Ok", "reasoning": "Hm."},
        {"content": "Ok", "reasoning": "Hm.", "reasoning_details": details},
        {"content": parts},
    ):
        thought, said = DIALECT.read_message({"role": "assistant", **message}).items
        assert (thought.kind, thought.text, thought.digest, said.text) == ("thinking", "Hm.", b"", "Ok")
        forms.append((thought.form, thought.signature is not None))
    assert forms == [
        ("reasoning_content", False),
        ("reasoning", False),
        ("reasoning_details", True),
        ("thinking", False),
    ]


def test_pieces_of_reasoning_have_one_spelling() -> None:
    split = [
        {"type": "reasoning.text", "text": "H", "index": 0},
        {"type": "reasoning.text", "text": "m.", "index": 0, "signature": None},
        {"type": "reasoning.text", "signature": "SIG", "index": 0, "format": "x"},
        {"type": "reasoning.encrypted", "data": "E", "index": 1},
    ]
    whole = [
        {"type": "reasoning.text", "text": "Hm.", "signature": "SIG", "format": "x"},
        {"type": "reasoning.encrypted", "data": "E", "index": 1},
    ]
    streamed = reply(stream(*(chunk({"reasoning_details": [piece]}) for piece in split), chunk({}, "stop")))
    returned = DIALECT.read_message({"role": "assistant", "content": None, "reasoning_details": whole})
    assert streamed.items[0].signature == returned.items[0].signature
    assert streamed.items[0].text == "Hm."


def test_roles_and_results() -> None:
    system = DIALECT.read_message({"role": "developer", "content": "Be brief."})
    user = DIALECT.read_message(
        {
            "role": "user",
            "content": [{"type": "text", "text": "See"}, {"type": "image_url", "image_url": {"url": "u"}}],
        }
    )
    result = DIALECT.read_message({"role": "tool", "tool_call_id": "call_1", "content": "done"})
    legacy = DIALECT.read_message({"role": "function", "name": "ls", "content": "done"})
    listed = DIALECT.read_message(
        {"role": "tool", "tool_call_id": "x", "content": [{"type": "text", "text": "done"}]}
    )
    assert (system.role, system.items[0].kind) == ("system", "system")
    assert [item.kind for item in user.items] == ["user", "media"]
    assert (result.items[0].kind, result.items[0].call_id, legacy.items[0].tool) == (
        "tool_result",
        "call_1",
        "ls",
    )
    assert result.items[0].digest == listed.items[0].digest == legacy.items[0].digest


def test_custom_tools_keep_their_input_and_legacy_calls_have_no_id() -> None:
    custom = {"id": "c", "type": "custom", "custom": {"name": "patch", "input": "{ not: json"}}
    item = reply(document({"content": None, "tool_calls": [custom]}, "tool_calls")).tool_calls[0]
    assert (item.tool, item.arguments, item.form) == ("patch", "{ not: json", "custom")
    legacy = {"name": "ls", "arguments": '{"a":1}'}
    old = reply(document({"content": None, "function_call": legacy}, "function_call")).tool_calls[0]
    assert (old.tool, old.call_id, old.form) == ("ls", None, "function_call")


def test_empty_forms_filled_in_by_a_gateway_are_no_calls() -> None:
    message = {
        "content": "Ok",
        "function_call": {"arguments": "", "name": ""},
        "audio": {"id": "", "data": ""},
        "tool_calls": [
            {"id": "t", "custom": {"input": "", "name": ""}, "function": {"name": "ls", "arguments": "{}"}}
        ],
    }
    outcome = reply(document(message, ""))
    assert [(item.kind, item.tool) for item in outcome.items] == [("text", None), ("tool_call", "ls")]
    assert outcome.stop_reason == ""
    plain = reply(document({**message, "tool_calls": None}))
    assert plain.tool_calls == ()


# -- streams


def test_a_stream_with_usage_in_a_chunk_of_its_own() -> None:
    body = stream(
        chunk({"role": "assistant", "content": ""}, usage=None, obfuscation="xx"),
        chunk({"content": "Hel"}, usage=None),
        chunk({"content": "lo"}),
        chunk({}, "stop"),
        {
            "id": "c1",
            "model": "m",
            "choices": [],
            "usage": {
                "prompt_tokens": 10,
                "completion_tokens": 2,
                "total_tokens": 12,
                "prompt_tokens_details": {"cached_tokens": 8},
                "completion_tokens_details": {"reasoning_tokens": 0},
            },
        },
    )
    outcome = reply(body)
    assert outcome.usage is not None
    assert outcome.usage.public() == {
        "input_tokens": 10,
        "cache_read_tokens": 8,
        "output_tokens": 2,
        "reasoning_tokens": 0,
    }
    assert (outcome.items[0].text, outcome.stop_reason, outcome.whole) == ("Hello", "stop", True)


@pytest.mark.parametrize(
    "pieces",
    [
        [
            {"index": 0, "id": "a", "function": {"name": "ls", "arguments": ""}},
            {"index": 0, "function": {"arguments": '{"a"'}},
            {"index": 0, "function": {"arguments": ": 1}"}},
            {"index": 1, "id": "b", "function": {"name": "rm", "arguments": "{}"}},
        ],
        [
            {"id": "a", "function": {"name": "ls", "arguments": '{"a": 1}'}},
            {"id": "b", "function": {"name": "rm", "arguments": "{}"}},
        ],
        [
            {"index": 0, "id": "a", "function": {"name": "ls", "arguments": '{"a": 1}'}},
            {"index": 0, "id": "b", "function": {"name": "rm", "arguments": "{}"}},
        ],
        [
            {"id": "a", "function": {"name": "ls"}},
            {"function": {"arguments": '{"a": '}},
            {"function": {"arguments": "1}"}},
            {"id": "b", "function": {"name": "rm", "arguments": {}}},
        ],
        [
            {"index": 0, "id": "a", "function": {"name": "ls", "arguments": None}},
            {"index": 0, "id": "a", "function": {"name": "ls", "arguments": '{"a": 1}'}},
            {"index": 1, "id": "b", "function": {"name": "rm", "arguments": ""}},
        ],
    ],
)
def test_calls_come_in_pieces_of_many_kinds(pieces: list[Any]) -> None:
    outcome = reply(stream(*(chunk({"tool_calls": [piece]}) for piece in pieces), chunk({}, "tool_calls")))
    assert [(c.call_id, c.tool, c.arguments) for c in outcome.tool_calls] == [
        ("a", "ls", '{"a":1}'),
        ("b", "rm", "{}"),
    ]


def test_each_of_very_many_calls_is_told_once_when_the_next_begins() -> None:
    arguments = orjson.dumps({"text": "x" * 2_000}).decode()
    decoder = OpenAIChat().decoder(request(), 200, "text/event-stream")
    told: list[Item] = []
    for number in range(1_000):  # to make all of them anew at each would take most of a minute
        one = {"index": number, "id": f"call_{number}", "function": {"name": "write", "arguments": arguments}}
        events = decoder.feed(stream(chunk({"tool_calls": [one]}), done=False))
        told += [event.item for event in events if event.item is not None]
        assert len(told) == number
    told += [
        event.item for event in decoder.feed(stream(chunk(reason="tool_calls"))) if event.item is not None
    ]
    assert decoder.finish().items == tuple(told)
    assert [one.call_id for one in told] == [f"call_{number}" for number in range(1_000)]


def test_calls_count_though_the_reason_says_stop() -> None:
    outcome = reply(document({"content": None, "tool_calls": [call()]}, "stop"))
    assert (outcome.stop_reason, len(outcome.tool_calls)) == ("stop", 1)


@pytest.mark.parametrize(
    "usages",
    [
        [{"prompt_tokens": 9, "completion_tokens": 1}, {"prompt_tokens": 9, "completion_tokens": 2}],
        [None, {"prompt_tokens": 9, "completion_tokens": 2}],
        [{"prompt_tokens": 9, "completion_tokens": 2}, None],
    ],
)
def test_the_last_usage_counts(usages: list[Any]) -> None:
    first, last = usages
    outcome = reply(stream(chunk({"content": "x"}, usage=first), chunk({}, "stop", usage=last)))
    assert outcome.usage is not None
    assert outcome.usage.public() == {"input_tokens": 9, "output_tokens": 2}


def test_usage_of_groq_in_its_own_place_and_none_at_all() -> None:
    groq = reply(
        stream(
            chunk({"content": "x"}),
            chunk({}, "stop", x_groq={"usage": {"prompt_tokens": 3, "completion_tokens": 1}}),
        )
    )
    assert groq.usage is not None
    assert groq.usage.public() == {"input_tokens": 3, "output_tokens": 1}
    assert reply(stream(chunk({"content": "x"}), chunk({}, "stop"))).usage is None


def test_azure_begins_with_no_choice_and_no_id() -> None:
    outcome = reply(
        stream(
            {"id": "", "model": "", "choices": [], "prompt_filter_results": []},
            chunk({"content": "x"}, "stop"),
        )
    )
    assert (outcome.response_id, outcome.model, outcome.items[0].text) == ("c1", "m", "x")


def test_two_finish_chunks_and_two_ids() -> None:
    outcome = reply(
        stream(
            chunk({"content": "x"}, "length"),
            {**chunk({}, "length"), "id": "c2"},
            chunk({"content": ""}, None),
        )
    )
    assert (outcome.stop_reason, outcome.response_id) == ("length", "c1")


def test_several_choices_give_the_items_of_the_first() -> None:
    second = {"index": 1, "delta": {"content": "B"}, "finish_reason": "stop"}
    outcome = reply(stream(chunk({"content": "A"}), {**chunk(), "choices": [second]}, chunk({}, "stop")))
    assert [item.text for item in outcome.items] == ["A"]


def test_mistral_mixes_strings_and_parts() -> None:
    thought = [{"type": "thinking", "thinking": [{"type": "text", "text": "Hm"}], "closed": False}]
    body = stream(
        chunk({"content": thought}),
        chunk({"content": thought}),
        chunk({"content": "O"}),
        chunk({"content": [{"type": "text", "text": "k"}]}, "stop"),
    )
    assert [(item.kind, item.text) for item in reply(body).items] == [("thinking", "HmHm"), ("text", "Ok")]


def test_events_tell_first_output_and_items_as_they_finish() -> None:
    decoder = DIALECT.decoder(ASK, 200, "text/event-stream")
    seen: list[tuple[int, Event]] = []
    deltas = [
        {"role": "assistant", "content": "", "reasoning_content": None},
        {"reasoning_content": "Hm"},
        {"content": "Ok"},
        {"content": "!"},
        {"tool_calls": [{"index": 0, "id": "a", "function": {"name": "ls", "arguments": "{}"}}]},
        {"tool_calls": [{"index": 1, "id": "b", "function": {"name": "rm", "arguments": "{}"}}]},
    ]
    for number, one in enumerate([*(chunk(delta) for delta in deltas), chunk({}, "tool_calls")]):
        seen.extend((number, event) for event in decoder.feed(stream(one, done=False)))
    assert [(number, e.kind, e.item.kind if e.item else "") for number, e in seen] == [
        (1, "first_output", ""),
        (2, "item", "thinking"),
        (4, "item", "text"),
        (5, "item", "tool_call"),
        (6, "item", "tool_call"),
    ]
    outcome = decoder.finish()
    assert [id(event.item) for _, event in seen[1:]] == [id(item) for item in outcome.items]


def test_WIRE_a_cut_stream_is_not_whole_and_keeps_what_came() -> None:
    outcome = reply(stream(chunk({"content": "Hel"}), chunk({"content": "lo"}), done=False) + b'data: {"cho')
    assert (outcome.whole, outcome.items[0].text, outcome.streamed_chars) == (False, "Hello", 5)
    assert outcome.stop_reason is None


@pytest.mark.parametrize(("reason", "ends"), [("", False), ("stop", True)])
def test_a_reason_in_each_chunk_is_no_end(reason: str, ends: bool) -> None:
    """Whether all has come is known at the end mark; cut off, an empty reason tells of no end."""
    decoder = DIALECT.decoder(ASK, 200, "text/event-stream")
    for text in ("Hel", "lo", " you"):
        decoder.feed(stream(chunk({"content": text}, reason), done=False))
    assert not decoder.whole
    decoder.feed(b"data: [DONE]\n\n")
    assert decoder.whole
    cut = stream(*(chunk({"content": text}, reason) for text in ("Hel", "lo")), done=False)
    assert reply(cut).whole is ends


# -- errors


def test_a_good_reply_with_null_error_is_none() -> None:
    assert reply(document({"content": "Ok"}, error=None)).error is None


def test_white_space_and_comments_before_the_reply() -> None:
    spaced = b"\n         \n\n   " + document({"content": "Ok"})
    commented = b": OPENROUTER PROCESSING\n\n" * 3 + stream(chunk({"content": "Ok"}, "stop"))
    assert reply(spaced).items == reply(commented).items
    assert reply(b"\n\n" + commented).items == reply(commented).items


# -- properties

WORDS = st.text(alphabet='ab \n\r{}[]"é😀\u2028:', max_size=8)
CALLS = st.lists(
    st.tuples(
        st.sampled_from(["ls", "rm"]),
        st.dictionaries(WORDS, WORDS | st.integers(-(2**53), 2**53), max_size=2),
    ),
    max_size=3,
)


def cut(data: st.DataObject, text: str) -> list[str]:
    ends = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=4)))
    return [text[a:b] for a, b in zip([0, *ends], [*ends, len(text)], strict=True)]


@given(WORDS, WORDS, CALLS, st.booleans(), st.data())
@settings(max_examples=150, deadline=None)
def test_streamed_and_whole_forms_give_one_outcome_however_split(
    thought: str, text: str, calls: list[Any], usage: bool, data: st.DataObject
) -> None:
    raw = [
        call(name, orjson.dumps(arguments).decode(), f"c{at}") for at, (name, arguments) in enumerate(calls)
    ]
    message = {"content": text or None, "reasoning_content": thought or None, "tool_calls": raw or None}
    counts = {"usage": {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}} if usage else {}
    chunks = [chunk({"reasoning_content": piece}) for piece in cut(data, thought)]
    chunks += [chunk({"content": piece}) for piece in cut(data, text)]
    for at, one in enumerate(raw):
        chunks.append(
            chunk({"tool_calls": [{**one, "index": at, "function": {"name": one["function"]["name"]}}]})
        )
        for piece in cut(data, one["function"]["arguments"]):
            chunks.append(chunk({"tool_calls": [{"index": at, "function": {"arguments": piece}}]}))
    body = stream(*chunks, chunk({}, "stop"), {"choices": [], **counts})
    whole = reply(document(message, **counts))
    assert reply(body) == whole
    assert reply(body, step=data.draw(st.integers(1, 60))) == whole
    assert digests(whole.items) == back(message)


@given(st.binary(max_size=200), st.integers(1, 9), st.sampled_from([200, 400]))
@settings(max_examples=150, deadline=None)
def test_garbage_never_raises(body: bytes, step: int, status: int) -> None:
    assert reply(body, status=status, step=step) == reply(body, status=status)
    reply(b"data: " + body + b"\n\n")


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "id",
                    "model",
                    "choices",
                    "delta",
                    "message",
                    "content",
                    "type",
                    "text",
                    "tool_calls",
                    "function",
                    "index",
                    "name",
                    "arguments",
                    "usage",
                    "error",
                    "finish_reason",
                    "role",
                    "custom",
                    "input",
                    "reasoning_details",
                    "prompt_tokens",
                    "x_groq",
                    "audio",
                    "refusal",
                    "function_call",
                    "thinking",
                    "reasoning",
                    "messages",
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=25,
)


@given(JSON)
@settings(max_examples=120, deadline=None)
def test_json_of_any_shape_never_raises(value: Any) -> None:
    body = orjson.dumps(value)
    reply(body)
    reply(b"data: " + body + b"\n\n")
    reply(stream({"choices": [{"index": 0, "delta": value, "finish_reason": "stop"}], "usage": value}))
    DIALECT.read_message(value)
    if isinstance(value, dict):
        DIALECT.read_message({"role": "assistant", **value})
        request(messages=[value], **{name: value[name] for name in value if name not in ("messages", "path")})


def test_a_long_reply_stays_within_bounds() -> None:
    piece = stream(chunk({"content": "x" * 1_000}), done=False)
    decoder = DIALECT.decoder(ASK, 200, "text/event-stream")
    for _ in range(5_000):
        decoder.feed(piece)
    outcome = decoder.finish()
    assert outcome.streamed_chars == 5_000_000
    assert len(outcome.items[0].text) <= 1_000_000
