"""What must come back beside reasoning: phases of messages and fallback blocks, row by row and by mutants."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from policies.replies import Reply
from policies.thinking import Thinking
from policies.thinking_marks import Mark
from policies.thinking_rules import generation
from tests.policies.mutants import RECORDINGS, Mutant, rows_of
from tests.policies.mutants_marks import FALLBACK, LEAD, mark_mutants
from tests.policies.streams import streamed
from tests.policies.talk import assistant, messages, result, row, text, thinking, told, use, user
from tests.policies.test_thinking_mutants import wrong

FILES = sorted(RECORDINGS.glob("*/*.jsonl"), key=lambda path: path.name)
SMALL = ["anthropic-sdk", "openai-sdk-responses"]
SHARED = Path(os.environ.get("LOOPTAP_SHARED") or Path(__file__).parents[3] / "shared")


# -- phases

SAY = {"role": "user", "content": "Go on."}
CALL = {"type": "function_call", "call_id": "call_abcdefgh", "name": "bash", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "call_abcdefgh", "output": "done"}


def said(words: str, phase: str | None = None, **more: Any) -> dict[str, Any]:
    part = {"type": "output_text", "text": words}
    return {"type": "message", "role": "assistant", "content": [part], "phase": phase, **more}


def step(asked: list[Any], output: list[Any], model: str = "gpt-5.5", **more: Any) -> dict[str, Any]:
    tools = [{"type": "function", "name": "bash"}]
    request = {"model": model, "store": False, "input": asked, "tools": tools, **more}
    reply = {"id": "resp_1", "object": "response", "status": "completed", "output": output}
    return row("/v1/responses", request, reply)


LOOK = said("Let me look.", "commentary", id="msg_1")
ANSWER = said("Done.", "final_answer")


@pytest.mark.parametrize(
    ("came_back", "told_of"),
    [
        ([LOOK, CALL, OUTPUT], []),
        ([said("Let me look."), CALL, OUTPUT], ["$['input'][1]"]),
        ([said("Let me look.", "final_answer"), CALL, OUTPUT], ["$['input'][1]['phase']"]),
        ([said("Let me look!", id="msg_1"), CALL, OUTPUT], ["$['input'][1]"]),
        ([{"role": "assistant", "content": "Let me look.", "phase": "commentary"}, CALL, OUTPUT], []),
        ([said("I looked."), CALL, OUTPUT], []),
        ([CALL, OUTPUT], []),
    ],
)
def test_a_phase_comes_back_with_its_message(came_back: Any, told_of: list[str], tmp_path: Path) -> None:
    rows = [step([SAY], [LOOK, CALL]), step([SAY, *came_back], [ANSWER])]
    assert told(rows, tmp_path, Thinking()) == [(1, "modified", "soft", path) for path in told_of]


def test_equal_words_on_the_way_and_as_the_answer_are_told_apart(tmp_path: Path) -> None:
    both = [said("Done.", "commentary"), CALL]
    history = [SAY, *both, OUTPUT, ANSWER, SAY]
    rows = [step([SAY], both), step(history[:4], [ANSWER]), step(history, [ANSWER])]
    assert told(rows, tmp_path, Thinking()) == []
    history[4] = said("Done.", "commentary")
    rows[2] = step(history, [ANSWER])
    assert told(rows, tmp_path, Thinking()) == [(2, "modified", "soft", "$['input'][4]['phase']")]


def test_a_lost_phase_is_told_once_with_what_it_was_of(tmp_path: Path) -> None:
    history = [SAY, said("Let me look."), CALL, OUTPUT]
    rows = [step([SAY], [LOOK, CALL]), step(history, [ANSWER]), step([*history, ANSWER, SAY], [ANSWER])]
    (found,) = told(rows, tmp_path, Thinking(), kinds=False)
    assert found["severity"] == "warning"
    assert found["evidence"].items() >= {
        "block": 0, "message": 1, "of_exchange": 0, "situation": "phase.gone",
    }.items()  # fmt: skip
    assert found["evidence"]["fingerprint"]
    assert "phase" in found["evidence"]["cause"]
    assert "look" not in json.dumps(found["evidence"]).replace("lacks", "")


@pytest.mark.parametrize(
    "more", [{"previous_response_id": "resp_1"}, {"conversation": "conv_1"}, {"model": "gpt-5.4"}]
)
def test_no_phase_is_missed_where_another_holds_the_history_or_reads_it(more: Any, tmp_path: Path) -> None:
    rows = [step([SAY], [LOOK, CALL]), step([SAY, said("Let me look."), CALL, OUTPUT], [ANSWER], **more)]
    assert told(rows, tmp_path, Thinking()) == []


def test_a_reference_that_comes_late_hides_the_history_and_one_that_goes_shows_it(tmp_path: Path) -> None:
    history = [SAY, LOOK, CALL, OUTPUT]
    named = [{"type": "item_reference", "id": "msg_1"}, *history[2:]]
    lost = [SAY, said("Let me look."), CALL, OUTPUT]
    rows = [step([SAY], [LOOK, CALL]), step(history, [ANSWER])]
    rows.append(step([*lost, {"type": "item_reference", "id": "msg_2"}, SAY], [said("So.")]))
    rows.append(step([SAY, *named, ANSWER, SAY], [said("So.")]))
    rows.append(step([*lost, ANSWER, SAY], [said("So.")]))
    assert told(rows, tmp_path, Thinking()) == [(4, "modified", "soft", "$['input'][1]")]


@pytest.mark.parametrize(
    ("model", "phased"),
    [
        ("gpt-5.3-codex", True), ("gpt-5.4", True), ("openai/gpt-5.6-sol", True), ("gpt-5.10", True),
        ("gpt-6", True), ("gpt-6.1-mini", True), ("gpt-6.2", True), ("gpt-7", True),
        ("gpt-5", False), ("gpt-5-2025-08-07", False), ("gpt-5.1", False), ("gpt-5.3", False),
        ("gpt-4.1", False), ("o4-mini", False), ("deepseek-v4-flash", False), ("gpt-35-turbo", False),
    ],
)  # fmt: skip
def test_which_models_want_their_phases_back(model: str, phased: bool) -> None:
    found = generation("openai_responses", model, "openai")
    assert found is not None
    assert found.table is not None
    assert ("phase.gone" in found.table) is phased


# -- fallback blocks

ASK = user("Go on.")
B = thinking("B")
FULL = (LEAD, text("First."), FALLBACK, B, text("Second."), use("1"))
AT = "$['messages'][1]['content']"


@pytest.mark.parametrize(
    ("came_back", "path"),
    [
        (FULL, None),
        ((text("First."), FALLBACK, B, text("Second."), use("1")), None),
        ((FALLBACK, B, use("1")), None),
        ((text("First."), B, text("Second."), use("1")), None),
        ((LEAD, text("First."), B, text("Second."), use("1")), AT + "[2]"),
        ((LEAD, FALLBACK, text("First."), B, text("Second."), use("1")), AT + "[1]"),
        ((LEAD, text("First."), B, FALLBACK, text("Second."), use("1")), AT + "[3]"),
        ((LEAD, text("First."), B, text("Second."), use("1"), FALLBACK), AT + "[5]"),
        ((FALLBACK, LEAD, text("First."), B, text("Second."), use("1")), AT + "[0]"),
        ((LEAD, text("First."), {**FALLBACK, "trigger": "refusal"}, B, text("Second."), use("1")), None),
    ],
)
def test_a_fallback_block_divides_the_thinking_that_comes_back(
    came_back: Any, path: str | None, tmp_path: Path
) -> None:
    rows = [messages([ASK], *FULL), messages([ASK, assistant(*came_back), user(result("1"))], text("Done."))]
    assert told(rows, tmp_path, Thinking()) == ([(1, "modified", "hard", path)] if path else [])


def test_what_precedes_a_fallback_stands_for_no_block_behind_it(tmp_path: Path) -> None:
    came_back = assistant(LEAD, text("First."), FALLBACK, text("Second."), use("1"))
    rows = [messages([ASK], *FULL), messages([ASK, came_back, user(result("1"))], text("Done."))]
    assert [one[1:3] for one in told(rows, tmp_path, Thinking())] == [("dropped", "soft")]


def test_with_thinking_off_a_fallback_block_may_go(tmp_path: Path) -> None:
    came_back = assistant(LEAD, text("First."), B, text("Second."), use("1"))
    off = messages([ASK, came_back, user(result("1"))], text("x"), thinking={"type": "disabled"})
    assert told([messages([ASK], *FULL), off], tmp_path, Thinking()) == []


def test_marks_are_kept_as_json_and_a_reply_that_was_kept_without_them_is_read() -> None:
    mark = Mark("fallback", "", "a1", 2, ("p1", "t1"), ("p2",), ("p1", "p2"))
    reply = Reply("s", 1, 1, "", "x", "m", False, False, False, [], ["a1"], {}, [""], [], marks=[mark])
    kept = json.loads(json.dumps(reply.pack()))
    assert Reply.unpack(kept) == reply
    assert Reply.unpack(kept[:15]).marks == []


# -- mutants


def told_wrong(path: Path, made: list[Mutant], place: Path) -> list[str]:
    """What is wrong with the mutants, as they are and with streams for whole replies."""
    dressed = [
        Mutant(f"{m.name}, streamed", [streamed(one) for one in m.rows], m.kind, m.consequence, m.path)
        for m in made
    ]
    return wrong(path.name, [], [*made, *dressed], place)


def test_each_lost_mark_is_told_and_each_lawful_change_is_not(tmp_path: Path) -> None:
    chosen = [path for path in FILES if path.stem in SMALL]
    made = {path: list(mark_mutants(rows_of(path), 1)) for path in chosen}
    assert {kind for mutants in made.values() for kind in (m.consequence for m in mutants)} == {
        None, "soft", "hard",
    }  # fmt: skip
    assert [one for path in chosen for one in told_wrong(path, made[path], tmp_path / "mutant.jsonl")] == []


@pytest.mark.real
@pytest.mark.timeout(1_400)
def test_so_it_is_in_the_recordings_outside_the_tree(tmp_path: Path) -> None:
    files = [*FILES, *SHARED.glob("corpus/recordings/*.jsonl"), *SHARED.glob("client-traffic/*.jsonl")]
    assert len(files) > 400, "set LOOPTAP_SHARED to the folder that holds corpus and client-traffic"
    said = []
    for path in sorted(files):
        made = list(mark_mutants(rows_of(path), 4)) if path.name != "labels.jsonl" else []
        said += told_wrong(path, made, tmp_path / "mutant.jsonl")
    assert said == []
