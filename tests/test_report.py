"""`looptap report`: what it counts, what it calls a failure, and that it copes with many turns."""

import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from proxy.cli import cli
from proxy.commands.report import drawn
from proxy.model import Record
from proxy.record import Reader, RecordWriter
from proxy.terminal.report import TYPES, Report, hazard
from proxy.testing import Failed, Play

SECOND = 1_000_000_000
START = 1_790_000_000 * SECOND


class Log:
    """Records of turns as the tracker tells them."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self._count = 0

    def session(self, client: str = "cli", *, kind: str = "main", **thread: Any) -> dict[str, str]:
        self._count += 1
        ids = {"session": f"ses_{self._count}", "thread": f"thr_{self._count}"}
        about = {"kind": kind, "dialect": "anthropic", **thread}
        self.records += [
            Record(START, "session/start", ids["session"], data={"client": client}),
            Record(START, "thread/start", **ids, data=about),
        ]
        return ids

    def turn(
        self, of: dict[str, str], steps: int = 2, cause: str | None = "completed", *, at: int = START,
        cost: str | None = "0.5", model: str = "m", calls: tuple[tuple[str, bool | None], ...] = (),
        ids: bool = True,
    ) -> str:  # fmt: skip
        """A turn; ``calls`` of its first step: tool, and whether the result is an error (None: no result)."""
        self._count += 1
        turn = f"trn_{self._count}"
        where = {**of, "turn": turn}
        self.records.append(Record(at, "turn/start", **where, data={"index": 0}))
        for n in range(steps):
            step = {**where, "step": f"stp_{self._count}_{n}"}
            usage = {"input_tokens": 100, "cache_read_tokens": 75, "output_tokens": 10}
            attempt = {
                "attempt": 0, "outcome": "complete", "model": model, "usage": usage,
                "cost_usd": cost, "cost_quality": "measured" if cost is not None else "unpriced",
            }  # fmt: skip
            asked = [{"id": f"c{i}" if ids else None, "name": name} for i, (name, _) in enumerate(calls)]
            self.records += [
                Record(at, "step/start", **step, data={"model": model}),
                Record(at, "step/attempt", **step, data=attempt),
            ]
            if n == 0:
                for i, (name, bad) in enumerate(calls):
                    if bad is None:
                        continue
                    item = {"direction": "in", "kind": "tool_result", "is_error": bad, "tool": name}
                    if ids:
                        item["call_id"] = f"c{i}"
                    self.records.append(Record(at, "item", **step, data=item))
            self.records.append(Record(at, "step/end", **step, data={"tool_calls": asked if n == 0 else []}))
        if cause is not None:
            self.records.append(Record(at, "turn/end", **where, data={"cause": cause}))
        return turn


def row(log: Log, table: str = "agents", since: int = 0) -> dict[str, Any]:
    (only,) = Report(since, log.records).tables()[table]
    return dict(only)


def test_steps_causes_and_tokens_of_an_agent() -> None:
    log = Log()
    of = log.session("claude-code")
    for steps, cause in ((1, "completed"), (3, "completed"), (8, "error"), (2, "interrupted"), (4, None)):
        log.turn(of, steps, cause)
    agent = row(log)
    assert (agent["agent"], agent["kind"]) == ("claude-code", "main")
    assert (agent["turns"], agent["open"], agent["completed"]) == (5, 1, 2)
    assert agent["steps"] == {"median": 2, "p90": 8, "most": 8}
    assert agent["causes"] == {"completed": 0.5, "error": 0.25, "interrupted": 0.25}
    assert agent["usage"] == {"input_tokens": 1800, "cache_read_tokens": 1350, "output_tokens": 180}
    assert agent["cached_share"] == 0.75


def test_failure_is_what_the_agent_did_not_choose_and_the_user_did_not_cause() -> None:
    log = Log()
    of = log.session()
    for cause in ("completed", "interrupted", "superseded", "abandoned"):
        log.turn(of, 5, cause)
    assert row(log)["failures"] == 0
    assert row(log)["half_life_steps"] is None
    for cause in ("error", "steps", "policy", "max_tokens"):
        log.turn(of, 5, cause)
    agent = row(log)
    assert agent["failures"] == 4
    assert agent["failure_rate_per_step"] == 0.1
    assert agent["half_life_steps"] == round(math.log(0.5) / math.log(0.9), 1)


def test_a_turn_that_was_refused_before_its_first_step_is_counted_and_says_nothing_about_steps() -> None:
    log = Log()
    of = log.session()
    log.turn(of, 0, "spend")
    log.turn(of, 4)
    agent = row(log)
    assert (agent["turns"], agent["failures"], agent["steps"]["median"]) == (2, 0, 4)
    assert agent["causes"] == {"spend": 0.5, "completed": 0.5}


@given(st.lists(st.tuples(st.integers(0, 50), st.booleans()), max_size=50))
def test_the_half_life_is_where_half_would_have_failed(turns: list[tuple[int, bool]]) -> None:
    found = hazard(turns)
    rate, half = found["failure_rate_per_step"], found["half_life_steps"]
    assert (rate is None) == (not any(steps for steps, _ in turns))
    if half:
        assert (1 - rate) ** half == pytest.approx(0.5, abs=0.05)
    if rate == 0:
        assert half is None


def test_cost_per_completed_turn_includes_failed_turns_sub_agents_and_side_calls() -> None:
    log = Log()
    of = log.session()
    turn = log.turn(of, 2, cost="0.5")
    log.turn(of, 1, "error", cost="0.5")
    helper = log.session(kind="subagent", parent_turn=turn)
    below = log.turn(helper, 1, cost="0.25")
    log.turn(log.session(kind="side", parent_turn=below), 1, cost="0.125")
    log.turn(log.session(kind="side"), 1, cost="1")
    tables = Report(0, log.records).tables()
    main, sub = tables["agents"]
    assert (main["kind"], main["cost_usd"], main["cost_per_completed_turn_usd"]) == (
        "main",
        "1.5",
        "1.875000",
    )
    assert (sub["kind"], sub["cost_usd"], sub["cost_per_completed_turn_usd"]) == (
        "subagent",
        "0.25",
        "0.375000",
    )
    assert tables["cost_usd"] == "2.875"
    assert tables["turns"] == 3
    assert tables["side_calls"]["turns"] == 2
    assert tables["side_calls"]["without_a_turn"]["cost_usd"] == "1"


def test_an_unknown_price_is_counted_and_never_averaged_away() -> None:
    log = Log()
    of = log.session()
    log.turn(of, 1, cost="0.5")
    log.turn(of, 1, cost=None)
    agent = row(log)
    assert (agent["cost_usd"], agent["unpriced_attempts"]) == ("0.5", 1)
    assert agent["cost_per_completed_turn_usd"] is None
    nothing = Log()
    nothing.turn(nothing.session(), 1, cost=None)
    assert (row(nothing)["cost_usd"], row(nothing)["cost_quality"]) == (None, "unpriced")


@pytest.mark.parametrize("ids", [True, False])
def test_calls_and_errors_of_a_tool(ids: bool) -> None:
    log = Log()
    of = log.session()
    log.turn(of, 2, calls=(("bash", True), ("bash", False), ("read", False)), ids=ids)
    log.turn(of, 2, calls=(("bash", False), ("bash", None)), ids=ids)
    bash, read = Report(0, log.records).tables()["tools"]
    assert (bash["tool"], bash["turns"], bash["calls"], bash["answered"]) == ("bash", 2, 4, 3)
    assert (bash["errors"], bash["error_rate"]) == (1, 0.3333)
    assert bash["calls_per_turn"] == {"median": 2, "p90": 2, "most": 2}
    assert (read["tool"], read["error_rate"]) == ("read", 0.0)


def test_where_the_wire_has_no_error_flag_the_rate_is_not_known() -> None:
    log = Log()
    log.turn(log.session(dialect="openai_chat"), 2, calls=(("bash", False),))
    (tool,) = Report(0, log.records).tables()["tools"]
    assert (tool["answered"], tool["errors"], tool["error_rate"]) == (1, None, None)


def test_a_rate_of_a_part_of_the_answers_says_of_how_many() -> None:
    log = Log()
    log.turn(log.session(), 2, calls=(("bash", True), ("bash", False)))
    log.turn(log.session(dialect="openai_chat"), 2, calls=(("bash", False),))
    tables = Report(0, log.records).tables()
    (tool,) = tables["tools"]
    assert (tool["answered"], tool["told"], tool["errors"], tool["error_rate"]) == (3, 2, 1, 0.5)
    assert "3       1  50% of 2" in "\n".join(line.plain for line in drawn(tables))


def test_a_turn_is_counted_under_the_model_of_most_of_its_steps() -> None:
    log = Log()
    of = log.session()
    log.turn(of, 3, model="big")
    log.turn(of, 1, "error", model="small")
    models = Report(0, log.records).tables()["models"]
    assert [(m["model"], m["turns"], m["failures"]) for m in models] == [("big", 1, 0), ("small", 1, 1)]


def test_a_resumed_turn_ends_by_its_last_end() -> None:
    log = Log()
    of = log.session()
    turn = log.turn(of, 2, "spend")
    where = {**of, "turn": turn}
    log.records.append(Record(START, "turn/resume", **where, data={}))
    assert row(log)["open"] == 1
    log.records.append(Record(START, "turn/end", **where, data={"cause": "completed"}))
    assert row(log)["causes"] == {"completed": 1.0}


def test_findings_of_tools_and_broken_caches_are_counted() -> None:
    log = Log()
    of = log.session()
    where = {**of, "turn": log.turn(of, 2, calls=(("bash", False),))}
    for policy, kind, evidence in (
        ("repeats", "consecutive", {"tool": "bash"}),
        ("history", "cache_lost", {"tokens": 10, "cost_usd": "0.25"}),
        ("history", "cache_lost", {"tokens": 10}),
        ("history", "changed", {}),
    ):
        data = {"policy": policy, "kind": kind, "severity": "warning", "evidence": evidence}
        log.records.append(Record(START, "finding", **where, data=data))
    tables = Report(0, log.records).tables()
    assert tables["tools"][0]["findings"] == {"repeats/consecutive": 1}
    assert (tables["agents"][0]["cache_breaks"], tables["agents"][0]["cache_breaks_usd"]) == (2, "0.25")


def test_older_turns_are_left_out_whole_and_their_sessions_still_known() -> None:
    log = Log()
    of = log.session("claude-code")
    log.turn(of, 9, at=START)
    log.turn(of, 2, at=START + 10 * SECOND)
    agent = row(log, since=START + 5 * SECOND)
    assert (agent["agent"], agent["turns"], agent["steps"]["most"]) == ("claude-code", 1, 2)


def test_it_reads_what_the_core_records() -> None:
    records: list[Record] = []
    play = Play()
    put = play._replay.put
    play._replay.core.tracker.emit = lambda record: (records.append(record), put(record))[1]
    agent = play.agent()
    agent.asks("do it")
    agent.does("bash", {"command": "ls"}, "a")
    agent.does("bash", {"command": "cat b"}, Failed("no such file"))
    agent.ends()
    tables = Report(0, records).tables()
    (found,) = tables["tools"]
    assert (found["calls"], found["answered"], found["errors"]) == (2, 2, 1)
    assert tables["agents"][0]["steps"]["median"] == 3
    assert tables["models"][0]["model"] == "claude-sonnet-4-5"


def test_predictions_are_counted_by_what_the_provider_did() -> None:
    log = Log()
    of = log.session()
    for number, outcome, told in ((1, "complete", False), (2, "failed", True), (3, "complete", True)):
        where = {**of, "turn": "trn_1", "step": f"stp_{number}"}
        said = {"policy": "thinking", "kind": "dropped", "consequence": "hard", "exchange": f"e{number}"}
        if number < 3:
            log.records.append(Record(START, "finding", **where, data=said))
        end = {"attempt": 0, "outcome": outcome, "exchange": f"e{number}"}
        log.records.append(Record(START, "step/attempt", **where, data=end))
        if told:
            heard = {"verdict": "agreed" if number < 3 else "missed"}
            reported = {"policy": "thinking", "kind": "reported", "evidence": heard, "exchange": f"e{number}"}
            log.records.append(Record(START, "finding", **where, data=reported))
    assert Report(0, log.records).tables()["predictions"] == [
        {"policy": "thinking", "agreed": 1, "missed": 1, "unconfirmed": 1}
    ]


def many(turns: int, steps: int) -> Log:
    log = Log()
    of = log.session()
    for n in range(turns):
        log.turn(of, steps, "error" if n % 10 == 0 else "completed", calls=(("bash", n % 7 == 0),))
    return log


def test_what_is_told_in_runs_adds_up_to_what_is_told_one_by_one(tmp_path: Path) -> None:
    log = many(200, 6)
    writer = RecordWriter(tmp_path)
    writer.write(log.records)
    writer.close()
    report = Report()
    with Reader(tmp_path) as reader:
        for run in reader.runs(TYPES):
            report.take(*run)
    tables = report.tables()
    assert tables == Report(0, log.records).tables()
    assert (tables["turns"], tables["steps"], tables["agents"][0]["failures"]) == (200, 1_200, 20)


@pytest.mark.real  # writing them takes seconds
def test_ten_thousand_turns_cost_little_more_than_reading_them(tmp_path: Path) -> None:
    writer = RecordWriter(tmp_path)
    log = many(10_000, 6).records
    for start in range(0, len(log), 5_000):
        writer.write(log[start : start + 5_000])
    writer.close()

    def spent(what: Callable[[Any], object]) -> float:
        with Reader(tmp_path) as reader:
            began = time.process_time()
            for run in reader.runs(TYPES):
                what(run)
            return time.process_time() - began

    plain = min(spent(lambda run: None) for _ in range(3))
    report = Report()
    told = spent(lambda run: report.take(*run))
    print(f"reading {plain:.2f} s, reporting {told:.2f} s of processor time")
    assert report.tables()["turns"] == 10_000
    assert told < 8 * plain


# -- the command


def run(*arguments: str) -> tuple[int, str, str]:
    done = CliRunner().invoke(cli, list(arguments))
    return done.exit_code, done.stdout, done.stderr


@pytest.fixture
def place(tmp_path: Path) -> Path:
    log = Log()
    of = log.session("claude-code")
    log.turn(of, 3, calls=(("bash", True), ("read", False)))
    log.turn(of, 5, "error")
    log.turn(log.session("codex", dialect="openai_responses"), 1, cost=None)
    writer = RecordWriter(tmp_path)
    writer.write(log.records)
    writer.close()
    return tmp_path


def test_the_command_answers_in_json(place: Path) -> None:
    code, said, _ = run("--data-dir", str(place), "report", "--json")
    tables = json.loads(said)
    assert code == 0
    assert [(a["agent"], a["turns"]) for a in tables["agents"]] == [("claude-code", 2), ("codex", 1)]
    assert [t["tool"] for t in tables["tools"]] == ["bash", "read"]


def test_the_command_draws_tables_and_calls_nothing_a_success(place: Path) -> None:
    code, said, _ = run("--data-dir", str(place), "report")
    lines = said.splitlines()
    assert code == 0
    assert lines[0] == "3 turns, 9 steps, $4.0000 + 1 unpriced"
    assert any(line.startswith("AGENT ") and "HALF-LIFE" in line for line in lines)
    assert any(line.startswith("claude-code") and "error 50%" in line for line in lines)
    assert any(line.startswith("bash") and "100%" in line for line in lines)
    assert "success" not in said.lower()


def test_the_command_since(place: Path) -> None:
    now = [Record(time.time_ns(), "turn/start", "ses_1", "thr_1", "trn_new", data={"index": 2})]
    writer = RecordWriter(place)
    writer.write(now)
    writer.close()
    code, said, _ = run("--data-dir", str(place), "report", "--json", "--since", "1h")
    assert code == 0
    assert json.loads(said)["turns"] == 1


@pytest.mark.parametrize("bad", ["x", "7", "-1d", "0s", "9" * 400 + "d"])
def test_a_bad_stretch_is_said_in_one_line(place: Path, bad: str) -> None:
    code, said, error = run("--data-dir", str(place), "report", f"--since={bad}")
    assert code == 2
    assert "duration" in error + said
    assert "Traceback" not in error + said


def test_an_empty_record_says_so(tmp_path: Path) -> None:
    RecordWriter(tmp_path).write([Record(START, "gap", data={})])
    code, _, error = run("--data-dir", str(tmp_path), "report")
    assert code == 0
    assert "no turns recorded yet" in error
