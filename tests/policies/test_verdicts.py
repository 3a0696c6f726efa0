"""What providers say themselves of reasoning that came back, beside what was predicted of it."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from policies.history import History
from policies.thinking import Thinking
from proxy.verdict import Agreement
from tests.policies import test_history, test_thinking
from tests.policies.talk import assistant, messages, result, text, thinking, told, use, user

SHARED = Path(os.environ.get("LOOPTAP_SHARED") or Path(__file__).parents[3] / "shared")
BOUND = (
    "messages.1.content.0: Invalid `thinking` block. The block is bound to a different conversation than the "
    "one in which it is sent."
)
LATEST = (
    "messages.1.content.0: `thinking` or `redacted_thinking` blocks in the latest assistant message cannot "
    "be modified. These blocks must remain as they were in the original response."
)
SIGNATURE = "messages.1.content.0: Invalid `signature` in `thinking` block"
FIRST = "messages.1.content.0.type: Expected `thinking` or `redacted_thinking`, but found `text`."
OTHERS = "messages.0: Input does not match the expected shape."


def refused(rows: list[dict[str, Any]], words: str, *, code: str | None = None) -> list[dict[str, Any]]:
    """The last exchange of a talk, refused by its provider."""
    error = {"type": "error", "error": {"type": "invalid_request_error", "code": code, "message": words}}
    return [*rows[:-1], {**rows[-1], "status": 400, "response_body": json.dumps(error)}]


def changed(rows: list[dict[str, Any]], *entries: dict[str, str]) -> list[dict[str, Any]]:
    """The last exchange of a talk, answered, with what its provider did to the request."""
    reply = json.loads(rows[-1]["response_body"]) | {"input_transformations": list(entries)}
    return [*rows[:-1], {**rows[-1], "response_body": json.dumps(reply)}]


def said(rows: list[dict[str, Any]], where: Path) -> list[tuple[Any, ...]]:
    found = told(rows, where, Thinking(), History(), kinds=False)
    return [
        (f["policy"], f["evidence"].get("says"), f["evidence"].get("verdict"), f["evidence"]["predicted"])
        for f in found
        if f["kind"] == "reported"
    ]


SOME = test_thinking.after(test_thinking.A, text("First."), use("1"), use("2"))
WHOLE = test_thinking.after(*test_thinking.FULL)


@pytest.mark.parametrize(
    ("rows", "words", "says"),
    [
        (SOME, LATEST, ("thinking", "modified", "agreed", ["dropped"])),
        (WHOLE, LATEST, ("thinking", "modified", "missed", [])),
        (WHOLE, SIGNATURE, ("thinking", "modified", "missed", [])),
        (WHOLE, FIRST, ("thinking", "dropped", "missed", [])),
        (WHOLE, BOUND, ("history", "prefix", "missed", [])),
        (
            test_history.talk(test_history.another_day),
            BOUND,
            ("history", "prefix", "agreed", ["prefix_changed"]),
        ),
        (test_history.talk(), BOUND, ("history", "prefix", "missed", [])),
    ],
)
def test_a_refusal_stands_beside_the_prediction(
    rows: list[dict[str, Any]], words: str, says: tuple[Any, ...], tmp_path: Path
) -> None:
    assert said(refused(rows, words), tmp_path) == [says]


@pytest.mark.parametrize("words", [OTHERS, "Overloaded", ""])
def test_other_errors_say_nothing_of_reasoning(words: str, tmp_path: Path) -> None:
    assert said(refused(SOME, words), tmp_path) == []


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ("Item 'rs_1' of type 'reasoning' was provided without its required following item.", None),
        (
            "Item 'fc_1' of type 'function_call' was provided without its required 'reasoning' item: 'rs_1'.",
            None,
        ),
        ("Item with id 'rs_1' not found. Items are not persisted when `store` is set to false.", None),
        ("The encrypted content gAAA could not be verified.", "invalid_encrypted_content"),
    ],
)
def test_refusals_of_responses_are_known(words: str, code: str | None, tmp_path: Path) -> None:
    rows = test_thinking.responses(
        [test_thinking.SAY, test_thinking.RS, test_thinking.CALL, test_thinking.OUTPUT], store=False
    )
    ((policy, says, verdict, predicted),) = said(refused(rows, words, code=code), tmp_path)
    assert (policy, verdict, predicted) == ("thinking", "missed", [])
    assert says in ("dropped", "incomplete", "modified")


def test_transformations_go_to_the_policy_that_could_foresee_them(tmp_path: Path) -> None:
    prefix = {"type": "thinking_dropped", "path": "messages.1.content.0", "reason": "prefix_binding_mismatch"}
    model = {"type": "thinking_dropped", "path": "messages.1.content.0", "reason": "model_binding_mismatch"}
    rows = test_history.talk(test_history.another_day, model="claude-sonnet-5-5")
    assert said(changed(rows, prefix), tmp_path) == [("history", None, "agreed", ["prefix_changed"])]
    assert said(changed(rows, prefix, model), tmp_path) == [
        ("thinking", None, None, []),
        ("history", None, "agreed", ["prefix_changed"]),
    ]
    quiet = test_history.talk(model="claude-sonnet-5-5")
    assert said(changed(quiet, prefix), tmp_path) == [("history", None, "missed", [])]
    assert said(changed(quiet, model), tmp_path) == [("thinking", None, None, [])]
    assert said(changed(quiet), tmp_path) == []


def test_a_mended_retry_after_a_refusal_predicts_nothing(tmp_path: Path) -> None:
    step = (thinking("0"), use("0"))
    asked = [user("Go."), assistant(*step), user(result("0"))]
    strict = {"model": "claude-fable-5-2"}
    rows = [
        messages(asked[:1], *step, system="one", **strict),
        *refused([messages(asked, system="two", **strict)], BOUND),
        messages([asked[0], assistant(step[1]), asked[2]], text("Done."), system="two", **strict),
    ]
    assert [one[:3] for one in said(rows, tmp_path)] == [("history", "prefix", "agreed")]


def test_agreement_counts_each_prediction_once() -> None:
    agreement, seen = Agreement(), []

    def take(type: str, **data: Any) -> None:
        seen.extend(agreement.take(type, data))

    hard = {"policy": "thinking", "kind": "dropped", "consequence": "hard"}
    reported = {"policy": "thinking", "kind": "reported"}
    take("finding", exchange="a", **hard)
    take("finding", exchange="a", **hard)
    take("step/attempt", exchange="a", outcome="complete")
    take("step/attempt", exchange="a", outcome="complete")
    take("finding", exchange="b", **hard)
    take("step/attempt", exchange="b", outcome="failed")
    take("finding", exchange="b", evidence={"verdict": "agreed"}, **reported)
    take("finding", exchange="c", evidence={"verdict": "missed"}, **reported)
    take("finding", exchange="d", evidence={"by": "input_transformations"}, **reported)
    take("finding", exchange="e", **{**hard, "consequence": "soft"})
    take("step/attempt", exchange="e", outcome="complete")
    assert seen == [("thinking", "unconfirmed"), ("thinking", "agreed"), ("thinking", "missed")]


@pytest.mark.real
def test_the_one_refusal_in_the_recorded_traffic_was_predicted(tmp_path: Path) -> None:
    (file,) = (SHARED / "corpus" / "recordings").glob("*responses-thinking-with-modified-history*.jsonl")
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert said(rows, tmp_path) == [("thinking", "dropped", "agreed", ["dropped"])]
