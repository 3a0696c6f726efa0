"""Every call answered once, where its provider wants the answer: the faults of each dialect."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies import pairing
from policies.pairing import Pairing
from proxy.model import DialectName, Item, Message, ModelRequest
from proxy.ports import View
from proxy.verdict import Decision
from tests.policies.talk import assistant, messages, result, row, text, told, use, user

ASK = user("Go on.")
CALLS = assistant(use("1"), use("2"))
AT = "$['messages']"


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ([CALLS, user(result("1"), result("2"))], []),
        ([CALLS, user(result("1"), result("2"), text("and hurry"))], []),
        ([CALLS, user(result("2"), result("1"))], [("order", None, AT + "[2]['content'][0]")]),
        ([CALLS, user(result("1"))], [("unanswered", "hard", AT + "[1]['content'][1]")]),
        (
            [CALLS, user(text("first"), result("1"), result("2"))],
            [("misplaced", "hard", AT + "[2]['content'][1]")],
        ),
        (
            [CALLS, user(result("1"), result("1"), result("2"))],
            [("duplicate", "hard", AT + "[2]['content'][1]")],
        ),
        (
            [CALLS, user(result("1"), result("2"), result("9"))],
            [("orphan", "hard", AT + "[2]['content'][2]")],
        ),
        ([CALLS, user(result("1")), user(result("2"))], []),
        ([CALLS, user("stop")], [("unanswered", "hard", AT + f"[1]['content'][{n}]") for n in (0, 1)]),
        (
            [CALLS, user(result("1"), result("2")), assistant(text("Well.")), user(result("1"))],
            [("stranger", "hard", AT + "[4]['content'][0]")],
        ),
        (
            [CALLS, {"role": "system", "content": "mind"}, user(result("1"), result("2"))],
            [("misplaced", "hard", AT + "[3]['content'][0]")],
        ),
        ([CALLS, user(result("1"), result("2")), {"role": "system", "content": "mind"}], []),
        (
            [
                assistant({"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {}}),
                ASK,
            ],
            [],
        ),
    ],
)
def test_anthropic(asked: list[Any], said: list[Any], tmp_path: Path) -> None:
    assert told([messages([ASK, *asked], text("x"))], tmp_path, Pairing()) == [(0, *one) for one in said]


def test_a_fault_is_told_once(tmp_path: Path) -> None:
    asked = [ASK, CALLS, user(result("1"))]
    rows = [messages(asked, text("Hm.")), messages([*asked, assistant(text("Hm.")), user("ok")], text("x"))]
    assert [one[0] for one in told(rows, tmp_path, Pairing())] == [0]


def chat(*later: dict[str, Any]) -> list[dict[str, Any]]:
    calls = [
        {"id": f"call_{n}", "type": "function", "function": {"name": "bash", "arguments": "{}"}}
        for n in (1, 2)
    ]
    spoken = {"role": "assistant", "content": None, "tool_calls": calls}
    request = {"model": "gpt-4.1", "messages": [{"role": "user", "content": "Go."}, spoken, *later]}
    message = {"role": "assistant", "content": "x"}
    return [row("/v1/chat/completions", request, {"id": "c", "choices": [{"index": 0, "message": message}]})]


def tool(n: int) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": f"call_{n}", "content": "ok"}


@pytest.mark.parametrize(
    ("later", "said"),
    [
        ([tool(1), tool(2)], []),
        ([tool(1)], ["unanswered"]),
        ([tool(1), {"role": "user", "content": "hurry"}, tool(2)], ["misplaced"]),
        ([tool(1), tool(2), tool(2)], ["duplicate"]),
        ([tool(1), tool(2), tool(7)], ["orphan"]),
        ([tool(2), tool(1)], ["order"]),
    ],
)
def test_chat(later: list[Any], said: list[str], tmp_path: Path) -> None:
    assert [one[1] for one in told(chat(*later), tmp_path, Pairing())] == said


CALL = {"type": "function_call", "call_id": "call_abcdefgh", "name": "bash", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "call_abcdefgh", "output": "ok"}
SAY = {"role": "user", "content": "Go on."}


@pytest.mark.parametrize(
    ("items", "more", "said"),
    [
        ([SAY, CALL, OUTPUT], {}, []),
        ([SAY, CALL, SAY, OUTPUT], {}, []),
        ([SAY, CALL, SAY], {}, [("unanswered", "$['input'][1]")]),
        ([SAY, OUTPUT], {}, [("orphan", "$['input'][1]")]),
        ([SAY, CALL, OUTPUT, OUTPUT], {}, [("duplicate", "$['input'][3]")]),
        ([OUTPUT], {"previous_response_id": "resp_0"}, []),
        ([{"type": "item_reference", "id": "fc_1"}, OUTPUT], {}, []),
        ([{"type": "compaction", "id": "cmp_1", "encrypted_content": "c"}, OUTPUT], {}, []),
    ],
)
def test_responses(items: list[Any], more: dict[str, Any], said: list[Any], tmp_path: Path) -> None:
    reply = {"id": "resp_1", "object": "response", "status": "completed", "output": []}
    rows = [row("/v1/responses", {"model": "gpt-5.5", "input": items, **more}, reply)]
    assert [(one[1], one[3]) for one in told(rows, tmp_path, Pairing())] == said


def part(name: str, n: int, **id: str) -> dict[str, Any]:
    inner = {"args": {"n": n}} if name == "functionCall" else {"response": {"n": n}}
    return {name: {"name": "bash", **inner, **id}}


@pytest.mark.parametrize(
    ("answers", "said"),
    [
        ([part("functionResponse", 1), part("functionResponse", 2)], []),
        ([part("functionResponse", 1, id="made-up"), part("functionResponse", 2)], []),
        ([part("functionResponse", 1)], ["unanswered"]),
        ([part("functionResponse", n) for n in (1, 2, 3)], ["orphan"]),
    ],
)
def test_gemini(answers: list[Any], said: list[str], tmp_path: Path) -> None:
    contents = [
        {"role": "user", "parts": [{"text": "Go."}]},
        {"role": "model", "parts": [part("functionCall", 1), part("functionCall", 2)]},
        {"role": "user", "parts": answers},
    ]
    reply = {"candidates": [{"content": {"role": "model", "parts": [{"text": "x"}]}, "finishReason": "STOP"}]}
    rows = [row("/v1beta/models/gemini-3-pro:generateContent", {"contents": contents}, reply)]
    assert [one[1] for one in told(rows, tmp_path, Pairing())] == said


def test_evidence_names_the_call_and_holds_no_content(tmp_path: Path) -> None:
    (found,) = told(
        [messages([ASK, CALLS, user(result("1", "secret"))], text("x"))], tmp_path, Pairing(), kinds=False
    )
    assert found["evidence"] == {"message": 1, "call": "toolu_000000000002", "tool": "bash"}
    assert "secret" not in json.dumps(found)


class ReadsAll(Pairing):
    """The same without what it knows of the history: it reads all of it at every step."""

    def step_start(self, view: View) -> Decision:
        return super().step_start(view.remembering({**view.memory, "sound": 0}))


def scattered_loop(fault: str) -> list[dict[str, Any]]:
    """Steps with a call each, and something in the last of them that concerns an early one."""
    history: list[dict[str, Any]] = [{"role": "user", "content": "Go on."}]
    asked = []
    for number in range(8):
        call = {"type": "function_call", "call_id": f"call_{number}", "name": "bash", "arguments": "{}"}
        asked.append((list(history), call))
        history += [call, {"type": "function_call_output", "call_id": f"call_{number}", "output": "done"}]
    again = {"type": "function_call_output", "call_id": "call_1", "output": "done"}
    match fault:
        case "duplicate":
            history.append(again)
        case "orphan":
            history.append({**again, "call_id": "call_x"})
        case "unanswered":
            history.append({**history[-2], "call_id": "call_x"})
        case "call gone":
            del history[3]
        case "result gone":
            del history[4]
        case "hidden":
            history[1:5] = [{"type": "compaction", "encrypted_content": "sealed"}]
            history.append(again)
        case "used again":
            history += [{**history[-2], "call_id": "call_1"}, again]
    done = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Done."}]}
    rows = [(items, call) for items, call in [*asked, (history, done), ([*history, done], done)]]
    return [
        row(
            "/v1/responses",
            {"model": "gpt-5.5", "input": items},
            {"id": f"resp_{n}", "object": "response", "status": "completed", "output": [output]},
        )
        for n, (items, output) in enumerate(rows)
    ]


@pytest.mark.parametrize(
    ("fault", "kinds"),
    [
        ("none", []),
        ("duplicate", ["duplicate"]),
        ("orphan", ["orphan"]),
        ("unanswered", ["unanswered"]),
        ("call gone", ["orphan"]),
        ("result gone", ["unanswered"]),
        ("hidden", []),
        ("used again", []),
    ],
)
def test_in_responses_a_fault_of_an_early_call_is_found_without_reading_all_again(
    fault: str, kinds: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = scattered_loop(fault)
    found = told(rows, tmp_path, Pairing())
    assert [one[1] for one in found] == kinds
    assert found == told(rows, tmp_path, ReadsAll())
    if fault == "none":
        starts: list[int] = []
        along = pairing._along

        def watched(request: Any, start: int) -> Any:
            starts.append(len(request.messages) - start)
            return along(request, start)

        monkeypatch.setattr(pairing, "_along", watched)
        told(rows, tmp_path, Pairing())
        assert max(starts) <= 3


ids = st.sampled_from(["a", "b", None])
calls = st.builds(
    Item, st.just("tool_call"), st.just("assistant"), tool=st.sampled_from(["x", "y"]), call_id=ids
)
results = st.builds(
    Item, st.just("tool_result"), st.just("tool"), tool=st.sampled_from(["x", "y", None]), call_id=ids,
    server=st.booleans(),
)  # fmt: skip
words = st.builds(Item, st.just("user"), st.just("user"), digest=st.sampled_from([b"", b"word"]))
histories = st.lists(
    st.builds(Message, st.just("assistant"), st.lists(calls | words, max_size=3).map(tuple))
    | st.builds(Message, st.just("user"), st.lists(results | words, max_size=3).map(tuple)),
    max_size=6,
)


@given(histories, st.sampled_from(["anthropic", "openai_chat", "gemini"]))
def test_a_glance_finds_sound_only_what_care_finds_sound(
    history: list[Message], dialect: DialectName
) -> None:
    request = ModelRequest(dialect, "chat", "m", False, tuple(history))
    rules = pairing._RULES[dialect]
    with pytest.MonkeyPatch.context() as patch:
        quick = list(pairing._adjacent(request, rules, 0))
        patch.setattr(pairing, "_answered", lambda *_: None)
        assert quick == list(pairing._adjacent(request, rules, 0))


def test_thousands_of_results_find_their_calls_in_any_order() -> None:
    several = range(3_000)
    calls = Message(
        "assistant", tuple(Item("tool_call", "assistant", tool="t", call_id=f"c{n}") for n in several)
    )
    answers = [Item("tool_result", "tool", call_id=f"c{n}") for n in reversed(several)]
    strange = [Item("tool_result", "tool", call_id=f"x{n}") for n in several]
    faults = list(
        pairing._adjacent(
            ModelRequest("anthropic", "chat", "m", False, (calls, Message("user", (*answers, *strange)))),
            pairing._RULES["anthropic"], 0,
        )
    )  # fmt: skip
    assert [fault.kind for fault in faults] == ["orphan"] * len(strange) + ["order"]
    assert faults[-1].names[:2] == ["c2999", "c2998"]
