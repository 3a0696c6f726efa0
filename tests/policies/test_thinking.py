"""The decision tables, row by row: a history, what comes back, and what is said of it."""

import json
from pathlib import Path
from typing import Any

import orjson
import pytest

from policies.thinking import Thinking
from policies.thinking_rules import generation
from proxy.chain import Chain, Link
from proxy.model import Exchange, Head, Upstream
from proxy.ports import View
from proxy.replay import Replay
from proxy.verdict import Decision
from tests.policies.talk import assistant, messages, result, row, text, thinking, told, use, user

ASK = user("Go on.")
A, B = thinking("A", "I think."), thinking("B")
FULL = (A, text("First."), use("1"), B, use("2"))
ANSWERS = user(result("1"), result("2"))


def after(*came_back: dict[str, Any], **more: Any) -> list[dict[str, Any]]:
    """A reply with two thinking blocks, and the request that brings the results of its calls."""
    return [
        messages([ASK], *FULL, **more),
        messages([ASK, assistant(*came_back), ANSWERS], text("Done."), **more),
    ]


AT = "$['messages'][1]['content']"


@pytest.mark.parametrize(
    ("came_back", "said"),
    [
        (FULL, []),
        ((A, B, text("First."), use("1"), use("2")), [("reordered", "hard", AT + "[1]")]),
        ((A, A, text("First."), use("1"), B, use("2")), [("duplicated", "hard", AT + "[0]")]),
        ((A, text("First."), use("1"), use("2")), [("dropped", "hard", AT + "[3]")]),
        (
            (text("First."), use("1"), use("2")),
            [("dropped", "soft", AT + "[0]"), ("dropped", "soft", AT + "[2]")],
        ),
        ((text("I think."), text("First."), use("1"), B, use("2")), [("converted", "hard", AT + "[0]")]),
    ],
)
def test_THK_04_interleaved_blocks(
    came_back: tuple[dict[str, Any], ...], said: list[tuple[str, str, str]], tmp_path: Path
) -> None:
    assert told(after(*came_back), tmp_path, Thinking()) == [(1, *one) for one in said]


def test_THK_05_absent_before_a_tool_result_is_hard_where_thinking_is_manual(tmp_path: Path) -> None:
    manual = {"thinking": {"type": "enabled", "budget_tokens": 2000}}
    found = told(after(text("First."), use("1"), use("2"), **manual), tmp_path, Thinking())
    assert [one[:3] for one in found] == [(1, "dropped", "hard")] * 2


def test_THK_05_enforcing_refuses_in_the_providers_shape(tmp_path: Path) -> None:
    rows = after(A, text("First."), use("1"), use("2"))
    file = tmp_path / "talk.jsonl"
    file.write_text(json.dumps(rows[0]) + "\n")
    replay = Replay(chain=Chain([Link(Thinking(), "deny")]))
    replay.run([file])
    upstream = Upstream("anthropic", "https://anthropic", "anthropic")
    asks = Exchange("exc_1", 1, Head("POST", "/v1/messages"), upstream, "/v1/messages", 2 * 10**18)
    opened = replay.core.open(asks, rows[1]["request_body"].encode(), 2 * 10**18)
    assert opened.refusal is not None
    assert opened.refusal.status == 402
    assert AT.encode() in opened.refusal.body
    assert B["signature"].encode() not in opened.refusal.body


@pytest.mark.parametrize(
    ("block", "kind"),
    [
        ({**A, "signature": A["signature"][:-10]}, "modified"),
        ({**A, "thinking": "I thinK."}, "modified"),
        ({"type": "thinking", "thinking": "I think."}, "modified"),
        ({**dict(reversed(A.items()))}, None),
    ],
)
def test_THK_07_truncated_or_changed(block: dict[str, Any], kind: str | None, tmp_path: Path) -> None:
    marked = {**text("First."), "cache_control": {"type": "ephemeral"}}
    found = told(after(block, marked, use("1"), B, use("2")), tmp_path, Thinking())
    assert found == ([(1, kind, "hard", AT + "[0]")] if kind else [])


def test_THK_02_a_signature_that_came_in_two_deltas_is_missed_when_it_does_not_come_back(
    tmp_path: Path,
) -> None:
    signed = {**A, "thinking": "I think."}

    def delta(index: int, **told: str) -> dict[str, Any]:
        return {"type": "content_block_delta", "index": index, "delta": told}

    events: list[dict[str, Any]] = [
        {"type": "message_start", "message": {"id": "msg_1", "role": "assistant", "model": "m", "usage": {}}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "thinking", "thinking": ""}},
        delta(0, type="thinking_delta", thinking="I think."),
        delta(0, type="signature_delta", signature=signed["signature"][:7]),
        delta(0, type="signature_delta", signature=signed["signature"][7:]),
        {"type": "content_block_stop", "index": 0},
        {"type": "content_block_start", "index": 1, "content_block": {**use("1"), "input": {}}},
        delta(1, type="input_json_delta", partial_json=json.dumps(use("1")["input"])),
        {"type": "content_block_stop", "index": 1},
        {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 5}},
        {"type": "message_stop"},
    ]
    streamed = "".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events)
    first = {
        **messages([ASK], signed, use("1"), stream=True), "response_body": streamed,
        "response_headers": {"content-type": "text/event-stream"},
    }  # fmt: skip
    good = messages([ASK, assistant(signed, use("1")), user(result("1"))], text("Done."))
    bare = {"type": "thinking", "thinking": "I think."}
    bad = messages([ASK, assistant(bare, use("1")), user(result("1"))], text("Done."))
    assert told([first, good], tmp_path, Thinking()) == []
    assert told([first, bad], tmp_path, Thinking()) == [(1, "modified", "hard", AT + "[0]")]


def test_THK_03_empty_text_with_a_signature_is_a_block(tmp_path: Path) -> None:
    first = messages([ASK], B, use("1"))
    good = messages([ASK, assistant(B, use("1")), user(result("1"))], text("Done."))
    bad = messages([ASK, assistant(use("1")), user(result("1"))], text("Done."))
    assert told([first, good], tmp_path, Thinking()) == []
    (found,) = told([first, bad], tmp_path, Thinking(), kinds=False)
    assert (found["kind"], found["consequence"]) == ("dropped", "soft")
    assert "junk" in found["evidence"]["cause"]
    assert B["signature"] not in json.dumps(found)


def test_empty_text_that_was_filled_in_is_ignored_by_the_provider(tmp_path: Path) -> None:
    rows = [
        messages([ASK], B, use("1")),
        messages([ASK, assistant({**B, "thinking": "hm"}, use("1")), user(result("1"))], text("Done.")),
    ]
    assert told(rows, tmp_path, Thinking()) == []


def test_THK_08_blocks_of_unknown_origin_are_no_fault(tmp_path: Path) -> None:
    strange = assistant(thinking("elsewhere", "words"), use("7"))
    rows = [messages([ASK, strange, user(result("7"))], A, use("1"))]
    rows.append(
        messages([ASK, strange, user(result("7")), assistant(A, use("1")), user(result("1"))], text("x"))
    )
    assert told(rows, tmp_path, Thinking()) == []


def test_older_turns_may_go_and_a_block_that_comes_again_is_told(tmp_path: Path) -> None:
    history = [ASK, assistant(A, text("Hello, what next?"))]
    bare = [ASK, assistant(text("Hello, what next?"))]
    rows = [
        messages([ASK], A, text("Hello, what next?")),
        messages([*bare, user("more")], text("Well then, this.")),
        messages([*history, user("more"), assistant(text("Well then, this.")), user("and")], text("x")),
    ]
    assert told(rows, tmp_path, Thinking()) == [(2, "resurrected", "hard", AT + "[0]")]


@pytest.mark.parametrize(("gone", "said"), [((0,), 0), ((2,), 0), ((0, 1, 2), 0), ((1,), 1)])
def test_bound_models_take_runs_out_but_no_holes(gone: tuple[int, ...], said: int, tmp_path: Path) -> None:
    blocks = [thinking(str(n)) for n in range(3)]
    words = [text(f"These are the words of reply {n}.") for n in range(3)]
    rows, asked = [], [user("ask 0")]
    for n in range(3):
        rows.append(messages(list(asked), blocks[n], words[n], model="claude-sonnet-5-5"))
        asked += [assistant(blocks[n], words[n]), user(f"ask {n + 1}")]
    for n in gone:
        asked[2 * n + 1] = assistant(words[n])
    rows.append(messages(asked, text("end"), model="claude-sonnet-5-5"))
    found = told(rows, tmp_path, Thinking())
    assert [one[:3] for one in found] == [(3, "dropped", "hard")] * said


def test_THK_17_behind_a_summary_only_kept_blocks_count(tmp_path: Path) -> None:
    kept = [assistant(A, text("Kept words of the reply."), use("1")), user(result("1"))]
    rows = [
        messages([ASK], A, text("Kept words of the reply."), use("1")),
        messages([user("Summary: all is well."), *kept], text("x")),
    ]
    assert told(rows, tmp_path, Thinking()) == []


@pytest.mark.parametrize("more", [{"model": "claude-sonnet-4-6"}, {"thinking": {"type": "disabled"}}])
def test_THK_19_another_model_or_no_thinking_makes_it_lawful(more: dict[str, Any], tmp_path: Path) -> None:
    rows = after(text("First."), use("1"), use("2"))
    request = json.loads(rows[1]["request_body"]) | more
    rows[1] = {**rows[1], "request_body": json.dumps(request)}
    assert told(rows, tmp_path, Thinking()) == []


def test_what_the_provider_reports_stands_beside_the_prediction(tmp_path: Path) -> None:
    rows = after(A, text("First."), use("1"), use("2"))
    words = "`thinking` or `redacted_thinking` blocks in the latest assistant message cannot be modified"
    error = {"type": "error", "error": {"type": "invalid_request_error", "message": words}}
    rows[1] = {**rows[1], "status": 400, "response_body": json.dumps(error)}
    _, said = told(rows, tmp_path, Thinking(), kinds=False)
    assert (said["kind"], said["severity"]) == ("reported", "info")
    assert said["evidence"] == {
        "by": "error",
        "says": "modified",
        "predicted": ["dropped"],
        "verdict": "agreed",
    }


class AsksEach(Thinking):
    """The same without what it knows of settled replies together: it looks at each of them."""

    def step_start(self, view: View) -> Decision:
        return super().step_start(view.remembering({**view.memory, "settled": []}))

    def step_end(self, view: View) -> Decision:
        return super().step_end(view.remembering({**view.memory, "settled": []}))


def long_loop(steps: int, fault: str) -> list[dict[str, Any]]:
    """Steps with thinking and the same call; something happens to the history; a reply without thinking."""
    history, rows = [ASK], []
    for number in range(steps):
        reply = (thinking(str(number)), use(str(number)))
        rows.append(messages(list(history), *reply))
        history += [assistant(*reply), user(result(str(number)))]
    old, newest = history[-20]["content"], history[-2]["content"]
    if fault == "copied":
        newest.insert(0, old[0])
    elif fault == "moved":
        newest.insert(0, old.pop(0))
    elif fault == "dropped":
        del old[0]
    elif fault == "rewound":
        del history[9:]
    said = [text("Go on."), use("x")]
    return [*rows, messages(list(history), *said), messages([*history, assistant(*said), user(result("x"))])]


@pytest.mark.parametrize("fault", ["none", "copied", "dropped", "moved"])
@pytest.mark.parametrize("most", [12, 48])
def test_replies_that_settled_long_ago_are_still_held_against_what_comes(
    most: int, fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("policies.thinking._MOST_REPLIES", most)
    rows = long_loop(15, fault)
    found = told(rows, tmp_path, Thinking(), kinds=False)
    assert found == told(rows, tmp_path, AsksEach(), kinds=False)
    assert bool(found) is (fault != "none")


@pytest.mark.parametrize("most", [12, 48])
def test_behind_a_rewind_equal_calls_and_a_reply_without_thinking_are_no_fault(
    most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("policies.thinking._MOST_REPLIES", most)
    assert told(long_loop(15, "rewound"), tmp_path, Thinking()) == []


def test_a_fault_is_told_once_and_a_restart_forgets_nothing(tmp_path: Path) -> None:
    rows = after(A, text("First."), use("1"), use("2"))
    more = messages(
        [
            ASK,
            assistant(A, text("First."), use("1"), use("2")),
            ANSWERS,
            assistant(text("Done.")),
            user("ok"),
        ],
        text("x"),
    )
    assert [one[0] for one in told([*rows, more], tmp_path, Thinking())] == [1]

    def played(part: list[dict[str, Any]], heads: list[Any]) -> tuple[list[Any], list[Any]]:
        file = tmp_path / "part.jsonl"
        file.write_text("".join(json.dumps(one) + "\n" for one in part))
        replay = Replay(chain=Chain([Link(Thinking())]))
        replay.core.tracker.load(orjson.loads(orjson.dumps(heads)))
        replay.run([file])
        return replay.core.tracker.heads(), replay.tree()["findings"]

    heads, none = played(rows[:1], [])
    assert none == []
    _, found = played(rows[1:], heads)
    assert [(one["kind"], one["consequence"]) for one in found] == [("dropped", "hard")]


# -- Responses


def reasoning(id: str, sealed: str | None) -> dict[str, Any]:
    item = {"type": "reasoning", "id": f"rs_{id}", "summary": []}
    return item if sealed is None else {**item, "encrypted_content": sealed}


RS = reasoning("1", "sealed-content-of-reasoning-one")
CALL = {"type": "function_call", "id": "fc_1", "call_id": "call_abcdefgh", "name": "bash", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "call_abcdefgh", "output": "done"}
SAY = {"role": "user", "content": "Go on."}


def responses(came_back: list[dict[str, Any]], *, store: bool, issued: Any = RS, **more: Any) -> list[Any]:
    def one(items: list[dict[str, Any]], output: list[dict[str, Any]], **own: Any) -> dict[str, Any]:
        request = {
            "model": "gpt-5.5", "store": store, "input": items,
            "tools": [{"type": "function", "name": "bash"}], **own,
        }  # fmt: skip
        response = {"id": "resp_1", "object": "response", "status": "completed", "output": output}
        return row("/v1/responses", request, response)

    end = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Done."}]}
    return [one([SAY], [issued, CALL]), one([SAY, *came_back], [end], **more)]


@pytest.mark.parametrize(
    ("came_back", "store", "said"),
    [
        ([RS, CALL, OUTPUT], False, []),
        ([reasoning("1", None), CALL, OUTPUT], False, [("incomplete", "hard")]),
        ([reasoning("1", None), CALL, OUTPUT], True, []),
        ([CALL, RS, OUTPUT], False, [("reordered", "hard")]),
        ([CALL, OUTPUT], False, [("dropped", "soft")]),
        ([CALL, OUTPUT], True, [("dropped", "hard")]),
        ([{k: v for k, v in CALL.items() if k != "id"}, OUTPUT], True, [("dropped", "soft")]),
        ([{**RS, "encrypted_content": "other"}, CALL, OUTPUT], False, [("modified", "hard")]),
        ([{k: v for k, v in RS.items() if k != "id"}, CALL, OUTPUT], False, []),
        ([CALL, OUTPUT, SAY], False, []),
    ],
)
def test_THK_14_responses(came_back: list[Any], store: bool, said: list[Any], tmp_path: Path) -> None:
    found = told(responses(came_back, store=store), tmp_path, Thinking())
    assert found == [(1, *one, found[n][3]) for n, one in enumerate(said)]


def test_history_that_the_provider_holds_is_not_checked(tmp_path: Path) -> None:
    held = responses([OUTPUT], store=True, previous_response_id="resp_1")
    named = responses([{"type": "item_reference", "id": "rs_1"}, CALL, OUTPUT], store=True)
    assert told(held, tmp_path, Thinking()) == told(named, tmp_path, Thinking()) == []


# -- Gemini


def gemini(came_back: list[dict[str, Any]], model: str = "gemini-3-pro", said: str = "") -> list[Any]:
    signed = {"functionCall": {"name": "bash", "args": {"n": 1}}, "thoughtSignature": "QUJD+/8="}
    second = {"functionCall": {"name": "bash", "args": {"n": 2}}}
    answer = [{"functionResponse": {"name": "bash", "response": {"n": n}}} for n in (1, 2)]
    path = f"/v1beta/models/{model}:generateContent"
    ask = {"role": "user", "parts": [{"text": "Go on."}]}
    tools = [{"functionDeclarations": [{"name": "bash"}]}]

    def reply(*parts: Any) -> dict[str, Any]:
        return {"candidates": [{"content": {"role": "model", "parts": list(parts)}, "finishReason": "STOP"}]}

    later = [{"role": "user", "parts": [{"text": said}]}] if said else []
    contents = [ask, {"role": "model", "parts": came_back}, {"role": "user", "parts": answer}, *later]
    return [
        row(path, {"contents": [ask], "tools": tools}, reply(signed, second)),
        row(path, {"contents": contents, "tools": tools}, reply({"text": "Done."})),
    ]


def called(n: int, **more: Any) -> dict[str, Any]:
    return {"functionCall": {"name": "bash", "args": {"n": n}}, **more}


@pytest.mark.parametrize(
    ("came_back", "model", "said"),
    [
        ([called(1, thoughtSignature="QUJD+/8="), called(2)], "gemini-3-pro", []),
        ([called(1, thought_signature="QUJD-_8"), called(2)], "gemini-3-pro", []),
        ([called(1), called(2)], "gemini-3-pro", [("dropped", "hard")]),
        ([called(1), called(2)], "gemini-2.5-pro", [("dropped", "soft")]),
        ([called(1, thoughtSignature="QUJE"), called(2)], "gemini-3-pro", [("modified", "hard")]),
        ([called(1), called(2, thoughtSignature="QUJD+/8=")], "gemini-3-pro", [("reordered", "hard")]),
        ([called(1, thoughtSignature="skip_thought_signature_validator"), called(2)], "gemini-3-pro", []),
    ],
)
def test_THK_11_gemini_signatures(came_back: list[Any], model: str, said: list[Any], tmp_path: Path) -> None:
    found = told(gemini(came_back, model), tmp_path, Thinking())
    assert found == [(1, *one, f"$['contents'][1]['parts'][{int(one[0] == 'reordered')}]") for one in said]


def test_THK_11_words_of_the_user_begin_a_new_turn(tmp_path: Path) -> None:
    assert told(gemini([called(1), called(2)], said="And now?"), tmp_path, Thinking()) == []


# -- Chat Completions


def chat(model: str, came_back: dict[str, Any], *, calls: bool = True, tools: bool = True) -> list[Any]:
    call = {"id": "call_abcdefgh", "type": "function", "function": {"name": "bash", "arguments": "{}"}}
    spoken: dict[str, Any] = {"role": "assistant", "content": "Words of mine that are long enough."}
    if calls:
        spoken["tool_calls"] = [call]
    ask = {"role": "user", "content": "Go on."}
    answer = {"role": "tool", "tool_call_id": "call_abcdefgh", "content": "done"} if calls else ask

    def one(asked: list[Any], message: dict[str, Any]) -> dict[str, Any]:
        request: dict[str, Any] = {"model": model, "messages": asked}
        if tools:
            request["tools"] = [{"type": "function", "function": {"name": "bash"}}]
        choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if calls else "stop"}
        return row("/v1/chat/completions", request, {"id": "c", "choices": [choice]})

    issued = {**spoken, "reasoning_content": "Let me think. "}
    return [
        one([ask], issued),
        one([ask, {**spoken, **came_back}, answer], {"role": "assistant", "content": "x"}),
    ]


SAME = {"reasoning_content": "Let me think. "}


@pytest.mark.parametrize(
    ("model", "came_back", "more", "said"),
    [
        ("deepseek-v4-flash", SAME, {}, None),
        ("deepseek-v4-flash", {}, {}, ("dropped", "hard")),
        ("deepseek-v4-flash", {}, {"calls": False}, ("dropped", "hard")),
        ("deepseek-v4-flash", {}, {"calls": False, "tools": False}, None),
        ("deepseek-v4-flash", {"reasoning_content": "Let me think."}, {}, ("modified", "soft")),
        ("deepseek-chat", {}, {}, ("dropped", "hard")),
        ("deepseek-chat", {}, {"calls": False}, None),
        ("deepseek-reasoner", SAME, {}, ("forbidden", "hard")),
        ("deepseek-reasoner", {}, {}, None),
        ("gpt-4.1", {}, {}, None),
        ("some-local-model", {}, {}, None),
    ],
)
def test_THK_09_THK_10_reasoning_content(
    model: str, came_back: Any, more: Any, said: tuple[str, str] | None, tmp_path: Path
) -> None:
    found = told(chat(model, came_back, **more), tmp_path, Thinking())
    assert [one[:3] for one in found] == ([(1, *said)] if said is not None else [])


# -- the rows


@pytest.mark.parametrize(
    ("model", "bound", "refuses"),
    [
        ("claude-fable-5-2", True, True),
        ("claude-mythos-5.1", True, True),
        ("claude-fable-5-1-20260801", True, False),
        ("claude-opus-5-5", True, False),
        ("claude-haiku-5.5", True, False),
        ("claude-sonnet-5", False, False),
        ("claude-opus-4-5-20251101", False, False),
        ("claude-sonnet-4-20250514", False, False),
        ("claude-3-7-sonnet-20250219", False, False),
        ("claude-fable-5", False, False),
    ],
)
def test_which_claude_models_bind_their_thinking(model: str, bound: bool, refuses: bool) -> None:
    found = generation("anthropic", model, "anthropic")
    assert found is not None
    assert (found.bound, found.refuses) == (bound, refuses)


@pytest.mark.parametrize(
    ("model", "bound"), [("gpt-6.2-sol", True), ("gpt-6.1", False), ("gpt-5.6", False), ("o4", False)]
)
def test_which_gpt_models_bind_their_reasoning(model: str, bound: bool) -> None:
    found = generation("openai_responses", model, "openai")
    assert found is not None
    assert found.bound is bound
