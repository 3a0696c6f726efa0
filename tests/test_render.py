"""Trees as text: one look finds the slow, the costly and the failed; nothing hostile acts."""

import io
import unicodedata
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.details import Details
from proxy.model import Record
from proxy.terminal.listing import sessions_table, turns_table
from proxy.terminal.render import draw_session, draw_step, draw_turn
from proxy.terminal.screen import ASCII, UNICODE, Screen, open_screen


def at(ms: int) -> str:
    return f"2026-11-30T06:{ms // 60_000:02d}:{ms // 1000 % 60:02d}.{ms % 1000:03d}000Z"


def attempt(
    began: int, first: int | None, ended: int, outcome: str = "complete", **more: Any
) -> dict[str, Any]:
    times = {"started_at": at(began), "ended_at": at(ended)}
    return {
        "outcome": outcome,
        **times,
        **({"first_output_at": at(first)} if first is not None else {}),
        **more,
    }


def step(number: int, *attempts: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "id": f"stp_{number}", "index": number, "model": "claude-opus-5", "stop_reason": "end_turn",
        "tool_calls": [], "tool_results": [], "usage": {"input_tokens": 100, "output_tokens": 10},
        "cost_usd": "0.001", "cost_quality": "measured", "findings": [], "attempts": list(attempts), **more,
    }  # fmt: skip


def turn(*steps: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "id": "trn_1", "cause": "completed", "open": False, "agent": "coder", "steps": list(steps),
        "usage": {"input_tokens": 100, "output_tokens": 10}, "cost_usd": "0.001", "cost_quality": "measured",
        **more,
    }  # fmt: skip


def thread(id: str, kind: str, *turns: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"id": id, "kind": kind, "partial": False, "turns": list(turns), **more}


def screen(width: int = 140, *, cut: bool = False, colour: bool = False, ascii: bool = False) -> Screen:
    encoding = "ascii" if ascii else "utf-8"
    return Screen(io.StringIO(), width, cut, colour, ASCII if ascii else UNICODE, encoding)


def drawn(lines: list[Any], on: Screen) -> str:
    on.write(lines)
    assert isinstance(on.file, io.StringIO)
    return on.file.getvalue()


RETRIED = step(
    0,
    attempt(0, None, 400, "failed", status=529, error={"type": "overloaded_error", "message": "Busy"}),
    attempt(600, 1000, 2000),
    usage={"input_tokens": 10_200, "cache_read_tokens": 8_000, "output_tokens": 213, "reasoning_tokens": 100},
    stop_reason="tool_use", cost_usd="0.0041",
    tool_calls=[
        {"id": "a", "name": "read_file", "arguments": '{"path":"a.toml"}', "completed_at": at(1800)},
        {"id": "b", "name": "grep", "arguments": "{}", "completed_at": at(2000)},
    ],
    tool_results=[
        {"id": "b", "is_error": True, "arrived_at": at(3000)},
        {"id": "a", "is_error": False, "arrived_at": at(2800)},
    ],
    findings=[0],
)  # fmt: skip
FINDINGS = [
    {
        "policy": "thinking", "kind": "dropped", "severity": "violation", "consequence": "hard",
        "path": "$['messages'][1]",
        "evidence": {"blocks": 1, "calls": ["a", None], "quotes": {"error": True}},
    }
]  # fmt: skip


def test_a_turn_shows_retry_tools_finding_and_the_step_that_stands_out() -> None:
    on = screen(120)
    text = drawn(
        draw_turn(turn(RETRIED, step(1, attempt(3010, 3200, 4000), stop_reason=None)), FINDINGS, on), on
    )
    assert (
        text
        == """\
turn trn_1 · coder · completed · 4.0s · 2 steps · in 100 · out 10 · $0.0010 · claude-opus-5
├─ 1       +0ms   3.0s  ×××× ░░░░█████████▒▒▒▒▒▒▒▒▒           in 10.2k (78% cached)  out 213 (100 thinking)  \
$0.0041  tool_use  ◂ slowest 75%  ◂ costliest 80%
│  ├─ ✗    +0ms  400ms  ××××                                  attempt 1 failed: 529 overloaded_error: Busy
│  ├─ ✓  +600ms   1.4s       ░░░░█████████                    attempt 2 complete
│  ├─ ✗ thinking/dropped violation (hard) $['messages'][1]  blocks=1, calls=[a, null], quotes={error: true}
│  ├─ ∥   +1.8s   1.0s                  ▒▒▒▒▒▒▒▒▒▒            read_file {"path":"a.toml"}
│  └─ ∥   +2.0s   1.0s                    ▒▒▒▒▒▒▒▒▒           grep  error
└─ 2      +3.0s  990ms                             ░████████  in 100                 out 10                  \
$0.0010  ?
░ waiting  █ streaming  ▒ tools  × failed
"""
    )


def test_sub_agents_hang_where_they_began_side_calls_and_forks_say_what_they_are() -> None:
    main = thread(
        "thr_m", "main", turn(step(0, attempt(0, 100, 1000)), step(1, attempt(5000, 5100, 6000), epoch=1))
    )
    sub = thread(
        "thr_s",
        "subagent",
        turn(step(0, attempt(1500, 1600, 3000)), id="trn_s"),
        parent="thr_m",
        parent_turn="trn_1",
    )
    side = thread(
        "thr_t", "side", turn(step(0, attempt(10, 20, 90)), id="trn_t", cost_usd=None), parent="thr_m"
    )
    fork = thread("thr_f", "main", turn(step(0), id="trn_f", started_at=at(7000)), parent="thr_m")
    session = {"id": "ses_1", "client": "cli", "labels": {"team": "a"}, "threads": [main, sub, side, fork]}
    on = screen(100)
    lines = drawn(draw_session(session, [], on), on).splitlines()
    assert lines[0] == "session ses_1 · cli · 4 threads · 4 turns · 7.0s · $0.0030 + ? · team=a"
    assert lines[1].startswith("├─ turn trn_1 · coder · completed")
    order = [
        "sub-agent thr_s",
        "turn trn_s",
        "side call trn_t",
        "epoch 1",
        "thread thr_f · fork of thr_m",
        "turn trn_f",
    ]
    found = [next(i for i, line in enumerate(lines) if word in line) for word in order]
    step_one = next(i for i, line in enumerate(lines) if line.startswith("│  ├─ 1"))
    assert sorted(found) == [found[i] for i in (2, 0, 1, 3, 4, 5)]
    assert step_one < min(found)


def test_results_without_the_calls_ids_answer_in_order() -> None:
    calls = [{"id": None, "name": "ls"}, {"id": None, "name": "cat"}]
    results = [{"id": "made_up_1", "is_error": False}, {"id": "made_up_2", "is_error": True}]
    on = screen()
    text = drawn(draw_turn(turn(step(0, tool_calls=calls, tool_results=results)), [], on), on)
    assert "no result yet" not in text
    assert text.splitlines()[-1].endswith("cat  error")


def test_a_moment_said_twice_is_no_duration() -> None:
    on = screen()
    text = drawn(draw_turn(turn(step(0, attempt(0, None, 0)), step(1, attempt(5, None, 5))), [], on), on)
    assert [line.split()[3] for line in text.splitlines()[1:3]] == ["?", "?"]


def test_what_is_not_known_is_a_question_mark() -> None:
    bare = {
        "id": "trn_1",
        "cause": None,
        "open": True,
        "usage": {},
        "cost_usd": None,
        "cost_quality": "unpriced",
    }
    on = screen()
    text = drawn(draw_turn({**bare, "steps": [{"id": "stp_1"}]}, [], on), on)
    assert (
        text == "turn trn_1 · open · ? · 1 step · in ? · out ? · ?\n└─ 1        ?      ?  in ?  out ?  ?  ?\n"
        or text
    )
    assert "0" not in text.replace("trn_1", "")


def test_a_turn_that_was_only_refused_says_so() -> None:
    refused = {
        "outcome": "refused",
        "status": 402,
        "error": {"type": "billing_error", "message": "spent $5.00"},
    }
    on = screen()
    text = drawn(draw_turn(turn(cause="spend", refusals=[refused]), [], on), on)
    assert " · spend · " in text
    assert "0 steps" in text
    assert text.endswith("\n└─ ✗ refused: 402 billing_error: spent $5.00\n")


REACHED = {
    "action": "deny", "policy": "budgets", "code": "looptap_step_limit", "budget": "turn", "scope": "turn",
    "subject": "trn_1", "dimension": "steps", "limit": 1, "used": 1, "reserved": 0, "resets_at": None,
    "how_to_go_on": "looptap topup turn --subject trn_1 --add N --dimension steps, or begin anew",
}  # fmt: skip


def test_the_refusal_that_ended_a_turn_is_its_last_line_and_history_once_it_went_on() -> None:
    refused = attempt(1_100, None, 1_110, "refused", status=402, refused=REACHED, step="stp_9")
    first, later = step(0, attempt(0, 500, 1_000)), step(1, attempt(5_000, 5_500, 6_000))
    on = screen()
    text = drawn(draw_turn(turn(first, cause="steps", refusals=[refused, refused]), [], on), on)
    assert text.splitlines()[2] == (
        "└─ ✗ refused by budget turn: 1 of 1 steps · looptap topup turn --subject trn_1 --add N "
        "--dimension steps, or begin anew"
    )
    on = screen()
    text = drawn(draw_turn(turn(first, later, refusals=[refused]), [], on), on)
    assert text.splitlines()[2] == "├─ ✗ refused by budget turn: 1 of 1 steps"
    assert text.count("refused by") == 1
    retried = step(1, refused, attempt(65_000, 65_500, 66_000), started_at=at(65_000), ended_at=at(66_000))
    on = screen()
    text = drawn(draw_turn(turn(first, retried), [], on), on)
    assert "+1m05s   1.0s" in text  # the wait for the top-up is nobody's work
    assert "attempt 1 refused by budget turn: 1 of 1 steps" in text


@pytest.mark.parametrize(
    ("refused", "words"),
    [
        ({"policy": "repeats", "kind": "cycle", "count": 5}, "refused by repeats: kind cycle, count 5"),
        ({"policy": "repeats", "count": 5, "landed": True}, "refused by repeats: count 5"),
        ({"policy": "tools", "action": "cut", "tool": "rm\x1b[2J"}, r"cut by tools: tool rm\x1b[2J"),
        ({"stopped": "trn_1", "how_to_go_on": "looptap stop --lift trn_1"},
         "refused: an operator stopped trn_1 · looptap stop"),
        ({**REACHED, "dimension": "spend_usd", "used": "4.5", "limit": "5", "needed": "0.8"},
         "refused by budget turn: $4.5000 of $5.0000, and it may take $0.8000 · "),
        ({**REACHED, "dimension": "spend_usd", "used": "9", "limit": "5", "stops_at": "10", "needed": "2"},
         "refused by budget turn: $9.0000 of $5.0000, stops at $10.00, and it may take $2.0000 · "),
        ({"budget": "day", "code": "looptap_unpriced"}, "refused by budget day: unpriced"),
    ],
)  # fmt: skip
def test_whatever_ended_a_turn_is_said(refused: dict[str, Any], words: str) -> None:
    cut = attempt(0, None, 400, "cut", refused=refused)
    on = screen()
    text = drawn(draw_turn(turn(step(0, cut), refusals=[{**cut, "step": "stp_0"}]), [], on), on)
    assert f"\n└─ ✗ {words}" in text
    assert "True" not in text
    assert "\x1b" not in text


def test_a_wide_terminal_has_room_for_the_steps_ids() -> None:
    id = "stp_0123456789abcdef0123"
    for width, there in ((140, True), (120, False)):
        on = screen(width, cut=True)
        text = drawn(draw_turn(turn({**step(0, attempt(0, 5, 10)), "id": id}), [], on), on)
        assert (id[:12] in text) is there


def test_a_nudge_that_was_said_stands_at_its_step() -> None:
    on = screen()
    nudged = step(0, attempt(0, 5, 10), nudges=[{"policy": "repeats", "text": "Try\x1b[2J\nanother way."}])
    text = drawn(draw_turn(turn(nudged), [], on), on)
    assert r"└─ ✎ nudge by repeats: Try\x1b[2J another way." in text


def test_reasoning_that_was_put_back_stands_at_its_step() -> None:
    on = screen()
    path = "$['messages'][1]['content'][0]"
    mended = step(0, attempt(0, 5, 10), repairs=[{"policy": "thinking", "blocks": [0], "paths": [path]}])
    assert f"└─ ✎ reasoning put back by thinking: {path}" in drawn(draw_turn(turn(mended), [], on), on)


def test_what_would_have_ended_a_recorded_step_is_said_as_such() -> None:
    of = {"session": "ses_1", "thread": "thr_1", "turn": "trn_1", "step": "stp_0"}
    wish = {"policy": "tools", "kind": "deny", "tool": "Bash", "code": "c", "exchange": "exc_1", "number": 0}
    went = {"attempt": 0, "outcome": "complete", "exchange": "exc_1", "arrived_ns": 0, "ended_ns": 10**9}
    records = [Record(1, "intervention", **of, data=wish), Record(2, "step/attempt", **of, data=went)]
    on = screen()
    told = Details(records).complete_turn(turn(step(0)))
    assert "   └─ ✗ would be refused by tools: tool Bash\n" in drawn(draw_turn(told, [], on), on)
    records[1] = Record(2, "step/attempt", **of, data={**went, "outcome": "refused"})
    assert "would_end" not in Details(records).complete_turn(turn(step(0)))["steps"][0]


def test_a_step_that_waited_for_an_operator_says_so() -> None:
    of = {"session": "ses_1", "thread": "thr_1", "turn": "trn_1", "step": "stp_0"}
    went = {"attempt": 0, "outcome": "complete", "arrived_ns": 0, "ended_ns": 10**10, "waited_ns": 9 * 10**9}
    told = Details([Record(2, "step/attempt", **of, data=went)]).complete_turn(turn(step(0)))
    on = screen()
    assert "   └─ ✎ waited 9.0s for an operator\n" in drawn(draw_turn(told, [], on), on)


def test_a_step_alone_shows_every_attempt() -> None:
    on = screen()
    text = drawn(draw_step(step(4, attempt(0, 5, 10)), [], on), on)
    assert text.startswith("step stp_4\n└─ 1 ")
    assert "attempt 1 complete" in text


def test_ascii_where_the_encoding_knows_no_more() -> None:
    on = screen(ascii=True)
    text = drawn(draw_turn(turn(RETRIED, agent="größe"), FINDINGS, on), on)
    assert text.isascii()
    assert "|- x " in text
    assert r"gr\xf6\xdfe" in text


def test_a_terminal_gets_colours_and_cut_lines_a_pipe_neither() -> None:
    lines = draw_turn(turn(RETRIED), FINDINGS, screen(60))
    tty, pipe = screen(60, cut=True, colour=True), screen(60)
    coloured, plain = drawn(lines, tty), drawn(lines, pipe)
    assert "\x1b[" in coloured
    assert "\x1b" not in plain
    assert max(map(len, plain.splitlines())) > 60
    tty.file.seek(0)
    bare = Screen(io.StringIO(), 60, True, False, UNICODE, "utf-8")
    assert max(map(len, drawn(lines, bare).splitlines())) == 60


@pytest.mark.parametrize(
    ("environ", "colour"),
    [
        ({}, False),
        ({"FORCE_COLOR": "1"}, True),
        ({"FORCE_COLOR": "0"}, False),
        ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, False),
    ],
)
def test_colour_of_a_pipe_is_the_environments_choice(environ: dict[str, str], colour: bool) -> None:
    assert open_screen(io.StringIO(), environ).colour is colour


def test_width_of_a_pipe() -> None:
    assert open_screen(io.StringIO(), {"COLUMNS": "90"}).width == 90
    assert open_screen(io.StringIO(), {"COLUMNS": "rubbish"}).width == 120
    assert open_screen(io.StringIO(), {}).cut is False


HOSTILE = st.one_of(
    st.text(max_size=60),
    st.sampled_from(
        [
            "\x1b[2J\x1b]0;owned\x07",
            "\u202eevil\u2066",
            "a\r\nb\x0bc",
            "\x9b31m",
            "x" * 1_000_000,
            "[red]x[/]",
        ]
    ),
)
ODD = st.one_of(HOSTILE, st.none(), st.integers(), st.booleans(), st.lists(st.integers(), max_size=2))


@settings(max_examples=60, deadline=None)
@given(st.fixed_dictionaries({
    "id": HOSTILE, "agent": ODD, "cause": ODD, "model": ODD, "tool": ODD, "arguments": ODD, "error": ODD,
    "path": ODD, "label": HOSTILE, "stop": ODD, "usage": ODD, "cost": ODD, "time": ODD,
}))  # fmt: skip
def test_hostile_content_stays_inert_and_short(bad: dict[str, Any]) -> None:
    hostile_step = step(
        0,
        {"outcome": "failed", "status": bad["cost"], "error": {"type": bad["error"], "message": "x"}},
        id=bad["id"], model=bad["model"], stop_reason=bad["stop"], usage=bad["usage"], cost_usd=bad["cost"],
        tool_calls=[{"name": bad["tool"], "arguments": bad["arguments"], "completed_at": bad["time"]}],
        findings=[{"policy": bad["tool"], "kind": bad["error"], "severity": bad["stop"], "path": bad["path"]}]
        * 2,
    )  # fmt: skip
    whole = turn(hostile_step, id=bad["id"], agent=bad["agent"], cause=bad["cause"], started_at=bad["time"])
    session = {
        "id": bad["id"], "client": bad["agent"], "labels": {bad["label"]: bad["label"]},
        "threads": [thread(bad["id"], bad["tool"], whole, parent=bad["id"], agent=bad["agent"])],
    }  # fmt: skip
    on = screen()
    text = drawn(draw_session(session, [], on), on)
    assert max(map(len, text.split("\n"))) < 800
    assert {unicodedata.category(c) for c in text if c != "\n"}.isdisjoint(
        {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
    )


@pytest.mark.parametrize("width", [80, 100])
def test_tables_and_heads_fit_a_terminal_and_keep_the_figures(width: int) -> None:
    labels = {"team": "search-and-ranking", "environment": "continuous-integration"}
    listed = {
        "id": "trn_0123456789abcdef0123", "agent": "claude-code", "models": ["claude-sonnet-4-5-20250929"],
        "cause": "interrupted", "open": False, "steps": 12, "started_at": at(0), "ended_at": at(59_000),
        "usage": {"input_tokens": 123_456, "cache_read_tokens": 60_000, "output_tokens": 2_345},
        "cost_usd": "0.1234", "cost_quality": "estimated", "labels": labels,
    }  # fmt: skip
    lines = [line.plain for line in turns_table([listed], 1_000_000, width)]
    assert max(map(len, lines)) <= width
    for word in ("trn_01234567", "12", "59.0s", "123k", "2.3k", "~$0.1234"):
        assert word in lines[1]
    row = {**listed, "id": "ses_0123456789abcdef0123", "client": "claude-code", "turns": 3, "labels": labels}
    assert max(len(line.plain) for line in sessions_table([row], 1_000_000, width)) <= width
    whole = turns_table([listed], 1_000_000)
    assert listed["id"] in whole[1].plain
    assert "continuous-integration" in whole[1].plain
    on = screen(width, cut=True)
    text = drawn(draw_turn(turn(step(0, attempt(0, 5, 10)), labels=labels), [], on), on)
    assert "environment=continuous-integration" in text
    assert max(map(len, text.splitlines())) <= width
