"""What changed between a thread's requests, what it costs, and what is no change."""

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from policies.history import History, HistoryOptions, without_reminders
from proxy.chain import Chain, Link
from proxy.model import Cost, ModelRequest, Outcome, Upstream, Usage
from proxy.replay import Replay
from tests.policies.talk import TOOLS, assistant, messages, result, text, thinking, told, use, user

SYSTEM = [{"type": "text", "text": "You are an agent. Today is Monday."}]
OTHER = [{"type": "text", "text": "You are an agent. Today is Tuesday."}]
FIRST = user(text("Here is the task. "), text("Read the file first."))


def talk(change: Any = None, *, model: str = "claude-fable-5-2", **more: Any) -> list[dict[str, Any]]:
    """Three steps; ``change`` gets the messages of the fourth request and the fields beside them."""
    asked, rows = [FIRST], []
    fields: dict[str, Any] = {"system": SYSTEM, "model": model, **more}
    for n in range(3):
        step = (thinking(str(n)), use(str(n), f"ls {n}"))
        rows.append(messages(list(asked), *step, **fields))
        asked += [assistant(*step), user(result(str(n), f"result {n} of a command"))]
    last = json.loads(json.dumps(asked))
    if change is not None:
        change(last, fields)
    rows.append(messages(last, text("Done."), **fields))
    return rows


def shorten(asked: list[Any], fields: dict[str, Any]) -> None:
    asked[2]["content"][0]["content"] = "result 0"


def reworded(asked: list[Any], fields: dict[str, Any]) -> None:
    asked[0]["content"][1]["text"] = "Read all files first."


def another_day(asked: list[Any], fields: dict[str, Any]) -> None:
    fields["system"] = OTHER


def fewer_tools(asked: list[Any], fields: dict[str, Any]) -> None:
    fields["tools"] = []


def more_tools(asked: list[Any], fields: dict[str, Any]) -> None:
    fields["tools"] = [*TOOLS, {"name": "grep", "input_schema": {}}]


def extra_words(asked: list[Any], fields: dict[str, Any]) -> None:
    asked[2]["content"].append(text("By the way."))


CHANGES = [
    (another_day, "$['system'][0]"),
    (fewer_tools, "$['tools']"),
    (more_tools, "$['tools'][1]"),
    (reworded, "$['messages'][0]['content'][1]"),
    (shorten, "$['messages'][2]['content'][0]"),
    (extra_words, "$['messages'][2]['content'][1]"),
]


@pytest.mark.parametrize(("change", "path"), CHANGES)
def test_THK_06_a_changed_prefix_loses_bound_thinking(change: Any, path: str, tmp_path: Path) -> None:
    assert told(talk(change), tmp_path, History()) == [(3, "prefix_changed", "hard", path)]


@pytest.mark.parametrize(("change", "path"), CHANGES)
def test_THK_06_on_models_without_the_check_it_is_for_information(
    change: Any, path: str, tmp_path: Path
) -> None:
    assert told(talk(change, model="claude-opus-4-6"), tmp_path, History()) == [(3, "changed", None, path)]


@pytest.mark.parametrize(
    ("options", "binding", "consequence"),
    [
        (HistoryOptions(), None, "soft"),
        (HistoryOptions(new_account=True), None, "hard"),
        (HistoryOptions(), "error", "hard"),
        (HistoryOptions(new_account=True), "drop_block", "soft"),
    ],
)
def test_whether_it_is_refused_may_depend_on_account_and_request(
    options: HistoryOptions, binding: str | None, consequence: str, tmp_path: Path
) -> None:
    mode = {
        "type": "adaptive",
        **({"block_binding": {"prefix_mismatch_behavior": binding}} if binding else {}),
    }
    rows = talk(another_day, model="claude-opus-5-5", thinking=mode)
    assert [one[:3] for one in told(rows, tmp_path, History(options))] == [(3, "prefix_changed", consequence)]


def marked(asked: list[Any], fields: dict[str, Any]) -> None:
    asked[0]["content"][1]["cache_control"] = {"type": "ephemeral"}
    asked[2]["content"][0] = dict(reversed(asked[2]["content"][0].items()))


def as_blocks(asked: list[Any], fields: dict[str, Any]) -> None:
    block = asked[2]["content"][0]
    block["content"] = [text(block["content"])]


def other_limits(asked: list[Any], fields: dict[str, Any]) -> None:
    fields.update(max_tokens=100, metadata={"user_id": "u"}, tool_choice={"type": "auto"})


def edited_by_the_provider(asked: list[Any], fields: dict[str, Any]) -> None:
    fields["context_management"] = {"edits": [{"type": "clear_tool_uses_20250919"}]}


def reminded_behind_the_newest_result(asked: list[Any], fields: dict[str, Any]) -> None:
    asked[-1]["content"].append(text("<system-reminder>Mind the gap.</system-reminder>"))


def replaced(asked: list[Any], fields: dict[str, Any]) -> None:
    asked[:] = [user("Summary of all that was: nothing of it is left."), *asked[-2:]]


LAWFUL = [
    None, marked, as_blocks, other_limits, edited_by_the_provider, reminded_behind_the_newest_result,
    replaced,
]  # fmt: skip


@pytest.mark.parametrize("model", ["claude-fable-5-2", "claude-opus-4-6"])
@pytest.mark.parametrize("change", LAWFUL)
def test_lawful_changes_are_silent(change: Any, model: str, tmp_path: Path) -> None:
    assert told(talk(change, model=model), tmp_path, History()) == []


def test_what_the_provider_cleared_itself_is_no_lost_cache(tmp_path: Path) -> None:
    rows = talk(edited_by_the_provider, model="claude-opus-4-6")
    for n, (read, written) in enumerate([(0, 9000), (9000, 500), (9500, 500), (0, 3000)]):
        answer = json.loads(rows[n]["response_body"])
        answer["usage"] |= {"cache_read_input_tokens": read, "cache_creation_input_tokens": written}
        answer["context_management"] = {"applied_edits": [{"type": "clear_tool_uses_20250919"}]}
        rows[n]["response_body"] = json.dumps(answer)
    assert told(rows, tmp_path, History()) == []


def test_WIRE_17_the_attribution_block_is_not_the_instructions(tmp_path: Path) -> None:
    def billed(number: int) -> list[dict[str, Any]]:
        return [text(f"x-anthropic-billing-header: cc_version=2.1.{number}; cc_entrypoint=cli"), *SYSTEM]

    rows = talk()
    for number, one in enumerate(rows):
        body = json.loads(one["request_body"]) | {"system": billed(number)}
        one["request_body"] = json.dumps(body)
    assert told(rows, tmp_path, History()) == []


def test_a_reminder_in_a_result_is_lawful_where_nothing_is_bound(tmp_path: Path) -> None:
    def remind(asked: list[Any], fields: dict[str, Any]) -> None:
        asked[2]["content"][0]["content"] += "\n<system-reminder>1000 tokens left</system-reminder>"

    assert told(talk(remind, model="claude-opus-4-6"), tmp_path, History()) == []
    assert [one[1] for one in told(talk(remind), tmp_path, History())] == ["prefix_changed"]


def test_reminders_are_left_out_with_the_space_around_them() -> None:
    closed, opened = "<system-reminder>x</system-reminder>", "<system-reminder>"
    assert without_reminders(f"  one \n{closed}  two{closed}\n") == "onetwo"
    assert without_reminders(closed) == ""
    blank = " " * 200_000  # none of it is searched from each of its places
    assert without_reminders(f"one{blank}two") == f"one{blank}two"
    assert without_reminders(f"one{blank}two{closed}{opened * 10_000}") == f"one{blank}two{opened * 10_000}"


def test_tools_that_a_search_loads_are_lawful(tmp_path: Path) -> None:
    search = [{"type": "tool_search_tool_regex_20251119", "name": "tool_search_tool_regex"}, *TOOLS]

    def load(asked: list[Any], fields: dict[str, Any]) -> None:
        fields["tools"] = [*search, {"name": "grep", "input_schema": {}}]

    assert told(talk(load, tools=search), tmp_path, History()) == []


def test_what_a_failed_attempt_said_is_nobodys_prefix(tmp_path: Path) -> None:
    rows = talk(another_day)
    error = {"type": "error", "error": {"type": "overloaded_error", "message": "busy"}}
    failed = {**rows[3], "status": 529, "response_body": json.dumps(error)}
    again = talk()[3]
    found = told([*rows[:3], failed, again], tmp_path, History())
    assert [one[0] for one in found] == [3]


def test_a_whole_history_behind_one_that_the_provider_held_is_lawful(tmp_path: Path) -> None:
    # Anthropic's tool runner: steps of a turn name the reply before them, each turn begins with all of it
    step, answer = use("1"), user(result("1"))
    held = {"type": "continue", "previous_message_id": "msg_1"}
    rows = [
        messages([FIRST], step, system=SYSTEM, thread={"type": "create"}),
        messages([answer], text("Done."), tools=None, thread=held),
        messages([FIRST, assistant(step), answer, assistant(text("Done.")), FIRST], system=SYSTEM),
    ]
    assert told(rows, tmp_path, History()) == []


def test_a_summary_in_front_of_a_long_tail_is_lawful(tmp_path: Path) -> None:
    one, more, last = [use("1", "cat README")], [use(str(n)) for n in (2, 3, 4)], [use("5")]
    done = user(*(result(str(n)) for n in (2, 3, 4)))
    asked = [FIRST, assistant(*one), user(result("1"))]
    tail = [assistant(*more), done]
    short = [user(text("Here is a summary: the file was read.")), *tail, assistant(*last), user(result("5"))]
    lists, replies = ([FIRST], asked, [*asked, *tail], short), (one, more, last, [text("Done.")])
    rows = [messages(list(sent), *said, system=SYSTEM) for sent, said in zip(lists, replies, strict=True)]
    assert told(rows, tmp_path, History()) == []


def test_instructions_of_gpt_6_2_are_for_one_request(tmp_path: Path) -> None:
    def rows(model: str) -> list[dict[str, Any]]:
        made = []
        asked: list[Any] = [{"role": "user", "content": "Go on with the work."}]
        for n in range(2):
            call = {"type": "function_call", "call_id": f"call_abcdefg{n}", "name": "bash", "arguments": "{}"}
            request = {"model": model, "instructions": f"Mind {n}.", "input": list(asked), "store": False}
            reply = {"id": f"resp_{n}", "object": "response", "status": "completed", "output": [call]}
            made.append(
                {
                    "method": "POST", "path": "/v1/responses", "request_headers": {}, "status": 200,
                    "request_body": json.dumps(request), "response_headers": {},
                    "response_body": json.dumps(reply),
                }
            )  # fmt: skip
            asked += [call, {"type": "function_call_output", "call_id": call["call_id"], "output": "ok"}]
        return made

    assert told(rows("gpt-6.2-sol"), tmp_path, History()) == []
    assert told(rows("gpt-6.1-sol"), tmp_path, History()) == [(1, "changed", None, "$['instructions']")]


def test_excerpts_are_short_and_keep_no_secrets(tmp_path: Path) -> None:
    def leak(asked: list[Any], fields: dict[str, Any]) -> None:
        asked[0]["content"][1]["text"] = "Read the key sk-abcdefghijklmnopqrstuvwxyz0123456789 first."

    (found,) = told(talk(leak), tmp_path, History(HistoryOptions(excerpts=True)), kinds=False)
    assert found["evidence"]["quotes"]["before"].startswith("Read the file")
    assert "abcdefghij" not in json.dumps(found)
    assert len(found["evidence"]["quotes"]["after"]) <= 60
    (plain,) = told(talk(leak), tmp_path, History(), kinds=False)
    assert "quotes" not in plain["evidence"]


class _Prices:
    """A token costs a dollar, from the cache nothing."""

    def cost(
        self, request: ModelRequest, outcome: Outcome, usage: Usage, upstream: Upstream, at_ns: int
    ) -> Cost:
        return Cost(Decimal((usage.input_tokens or 0) - (usage.cache_read_tokens or 0)), "measured")

    def estimate(self, outcome: Outcome, request_bytes: int) -> Usage:
        return Usage()


def test_what_the_broken_cache_cost(tmp_path: Path) -> None:
    rows = talk(another_day, model="claude-opus-4-6")
    for n, (read, written) in enumerate([(0, 4000), (4000, 500), (4500, 500), (0, 6000)]):
        answer = json.loads(rows[n]["response_body"])
        answer["usage"] |= {"cache_read_input_tokens": read, "cache_creation_input_tokens": written}
        rows[n]["response_body"] = json.dumps(answer)
    file = tmp_path / "talk.jsonl"
    file.write_text("".join(json.dumps(one) + "\n" for one in rows))
    replay = Replay(chain=Chain([Link(History())]), prices=_Prices())
    replay.run([file])
    assert replay.faults == []
    lost = [found for found in replay.tree()["findings"] if found["kind"] == "cache_lost"]
    assert [(one["severity"], one["evidence"]) for one in lost] == [
        ("warning", {"tokens": 5000, "parts": ["system"], "cost_usd": "5000"})
    ]
