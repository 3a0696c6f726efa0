"""The loop detectors, on both sides: what must be told, and what must stay silent."""

from dataclasses import replace
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.loops import Counters, Seen, count
from policies.repeats import Limits, Repeats, RepeatsOptions, alike, edited
from proxy.model import Item, ModelRequest
from proxy.ports import Answer, View
from proxy.testing import Agent, Failed, Play

README = "# Demo\n\nA small demo project."


def begin(action: Any = "observe", **options: Any) -> tuple[Play, Agent]:
    play = Play(Repeats(RepeatsOptions(**options)), action=action)
    agent = play.agent()
    agent.asks("do it")
    return play, agent


def told(play: Play) -> list[tuple[str, int]]:
    return [(f["kind"], f["evidence"]["count"]) for f in play.findings]


# -- what must be told


def test_LOOP_01_the_same_call_is_told_at_three_five_and_eight_and_refused_at_the_configured_count() -> None:
    play, agent = begin("deny", stop_at=8)
    refused = []
    for _ in range(10):
        refused.append(agent.does("bash", {"command": "cat README.md"}, README).refusal is not None)
        if refused[-1]:
            break
    assert told(play) == [("consecutive", 3), ("consecutive", 5), ("consecutive", 8)]
    assert refused == [False] * 8 + [True]
    assert {f["severity"] for f in play.findings} == {"warning"}


def test_LOOP_01_none_before_the_third_result_has_come() -> None:
    play, agent = begin()
    for _ in range(3):
        agent.does("bash", {"command": "cat README.md"}, README)
    assert told(play) == []
    agent.ends()
    assert [f["exchange"] for f in play.findings] == [3]


def test_the_evidence_names_tool_count_ids_and_arguments() -> None:
    play, agent = begin()
    for _ in range(4):
        agent.does("bash", {"command": "cat README.md"}, README)
    (finding,) = play.findings
    evidence = finding["evidence"]
    assert evidence["tool"] == "bash"
    assert (evidence["count"], evidence["limit"]) == (3, 3)
    assert evidence["calls"][0].startswith("toolu_")
    assert evidence["quotes"] == {"arguments": '{"command":"cat README.md"}'}
    assert finding["step"].startswith("stp_")


def test_LOOP_02_key_order_and_number_form_and_space_are_the_same_call() -> None:
    play, agent = begin()
    for arguments in ({"a": 1, "b": "x"}, {"b": "x", "a": 1.0}, {"a": 1, "b": "x"}):
        agent.does("get", arguments, "the same")
    agent.ends()
    assert told(play) == [("consecutive", 3)]


def test_LOOP_02_a_volatile_field_counts_only_until_it_is_configured() -> None:
    for ignore, expected in (
        ((), []),
        (("nonce",), [("consecutive", 3)]),
        (("get.nonce",), [("consecutive", 3)]),
    ):
        play, agent = begin(ignore=ignore)
        for nonce in ("alpha", "something else", "and quite another"):
            agent.does("get", {"nonce": nonce, "key": 12}, "short")
        agent.ends()
        assert told(play) == expected


def test_LOOP_02_a_changed_thought_does_not_escape_and_the_finding_shows_it() -> None:
    play, agent = begin()
    for thought in ("first look", "let me look again", "perhaps it is there now"):
        agent.does("bash", {"command": "ls src", "thought": thought}, "a.py")
    agent.ends()
    assert told(play) == [("near", 3)]
    evidence = play.findings[0]["evidence"]
    assert evidence["differs_in"] == ["thought"]
    assert evidence["quotes"]["differs"] == {"thought": ["let me look again", "perhaps it is there now"]}


@pytest.mark.parametrize("period", [2, 3, 4])
def test_LOOP_03_cycles_of_up_to_four_steps_are_found(period: int) -> None:
    play, agent = begin()
    for _ in range(4):
        for step in range(period):
            agent.does("bash", {"command": f"step {step}"}, f"result of {'abcd'[step]}")
    agent.ends()
    assert told(play) == [("cycle", 3)]
    assert play.findings[0]["evidence"]["period"] == period
    assert play.findings[0]["exchange"] == 3 * period


def test_LOOP_03_results_that_differ_only_in_times_and_ids_are_equal() -> None:
    play, agent = begin()
    for n in range(3):
        text = (
            f"Chunk ID: 78e07{n}\nWall time: 0.{n} seconds\nProcess Group PGID: 2157{n}\n"
            f"at 2026-11-30T07:4{n}:11.123Z in /tmp/run-{n}a/x: build 3f2a9c{n}d1 failed after 1{n}ms"
        )
        agent.does("exec", {"cmd": "make"}, text)
    agent.ends()
    assert told(play) == [("consecutive", 3)]


def test_the_same_error_is_told_whatever_the_arguments_and_its_numbers() -> None:
    play, agent = begin()
    for n in range(3):
        error = Failed(f"Connection refused by the build server, attempt {n + 17}")
        agent.does("fetch", {"url": f"http://build/{'xyz'[n]}{n * 31}"}, error)
    agent.ends()
    assert told(play) == [("same_error", 3)]


def test_failed_edits_of_one_file_are_told() -> None:
    play, agent = begin()
    words = ("alpha", "beta", "gamma", "delta", "epsilon")
    for word in words:
        edit = {"file_path": "a.py", "old_string": word, "new_string": "x"}
        agent.does("Edit", edit, Failed(f"String to replace not found in file.\nString: {word}"))
        agent.does("Read", {"file_path": "a.py"}, f"contents seen for {word}")
    agent.ends()
    assert told(play) == [("edits", 5)]
    assert play.findings[0]["evidence"]["quotes"]["file"] == "a.py"


def test_edits_after_which_the_same_check_fails_the_same_way_are_told() -> None:
    play, agent = begin()
    for word in ("zero", "one", "two", "three", "four", "five"):
        agent.does("Edit", {"file_path": "a.py", "old_string": word, "new_string": "x"}, f"edited {word}")
        agent.does("bash", {"command": "pytest"}, Failed("Exit code 1\nFAILED test_a.py::test_sum in 0.12s"))
    agent.ends()
    assert told(play) == [("edits", 5)]


def test_LOOP_10_a_missing_result_counts_by_the_call_alone_with_a_higher_limit() -> None:
    counters, counts = Counters(), []
    for _ in range(5):
        counts = count(counters, [Seen("ls", "ls", None)])
    assert [(run.kind, run.count, run.blind) for run in counts] == [("consecutive", 5, True)]
    assert RepeatsOptions().blind == 5


@given(period=st.integers(1, 4), rounds=st.integers(3, 6), noise=st.integers(0, 9), width=st.integers(1, 3))
@settings(max_examples=25, deadline=None)
def test_every_loop_is_found_by_its_third_round(period: int, rounds: int, noise: int, width: int) -> None:
    play, agent = begin()
    for turn in range(rounds):
        for step in range(period):
            calls = [
                (
                    "run",
                    {"command": f"do {step}.{n}"},
                    f"said {'abcd'[step]}{'xyz'[n]} at 12:0{turn}:0{noise}",
                )
                for n in range(width)
            ]
            agent.does_all(*calls)
    agent.ends()
    kind = "consecutive" if period == 1 else "cycle"
    assert (kind, 3) in told(play)
    first = play.findings[0]
    assert first["exchange"] == 3 * period
    assert first["evidence"].get("period", 1) == period


# -- what must stay silent


def test_LOOP_03_LOOP_04_polling_with_changing_output_is_no_loop() -> None:
    play, agent = begin()
    for n in range(12):
        agent.does("write_stdin", {"session_id": 5, "chars": ""}, f"built {n} of 40 files")
    agent.ends()
    assert told(play) == []


def test_LOOP_04_waiting_for_something_that_runs_is_told_late() -> None:
    play, agent = begin()
    for n in range(30):
        text = f"Chunk ID: 78e07{n % 10}\nWall time: {n}.0 seconds\nProcess running with session ID 5\n"
        agent.does("write_stdin", {"session_id": 5, "chars": ""}, text)
    agent.ends()
    assert told(play) == [("consecutive", 25)]
    assert play.findings[0]["evidence"]["waits"] is True


def test_LOOP_07_a_new_message_of_the_user_begins_anew() -> None:
    play, agent = begin()
    for _ in range(4):
        for _ in range(2):
            agent.does("bash", {"command": "git status"}, "clean")
        agent.ends()
        agent.asks("again")
    assert told(play) == []


def test_LOOP_10_a_shared_task_board_is_no_loop() -> None:
    play, agent = begin()
    for n in range(8):
        agent.does("board", {}, f"open: {', '.join('abcdefgh'[n:])}")
        agent.does(
            "TodoWrite", {"todos": [{"content": "x" * n, "status": "open"}]}, "Todos have been modified. " * 8
        )
    agent.ends()
    assert told(play) == []


def test_paging_through_a_file_is_no_loop() -> None:
    play, agent = begin()
    for n in range(10):
        agent.does("Read", {"file_path": "big.txt", "offset": 100 * n, "limit": 100}, f"{n} line\n" * 100)
    agent.ends()
    assert told(play) == []


def test_searching_for_several_things_that_are_not_there_is_no_loop() -> None:
    play, agent = begin()
    for word in ("alpha", "beta", "gamma", "delta", "eps", "zeta"):
        agent.does("Grep", {"pattern": word, "path": "src"}, "No matches found")
    for word in ("alpha", "beta", "gamma", "delta"):
        agent.does("Bash", {"command": f"grep -rn {word} src"}, Failed("Exit code 1"))
    agent.ends()
    assert told(play) == []


def test_calls_that_the_user_declines_are_no_failing_tool() -> None:
    play, agent = begin()
    for command in ("rm a", "rm b", "rm c", "rm d"):
        agent.does(
            "Bash", {"command": command}, Failed("The user doesn't want to proceed with this tool use.")
        )
    agent.ends()
    assert told(play) == []


def test_nearly_equal_reads_with_the_same_long_answer_are_told_at_five() -> None:
    play, agent = begin()
    for n in (50, 60, 70, 80, 90):
        agent.does("bash", {"command": f"head -n {n} log.txt"}, "a line of the log\n" * 12)
    agent.ends()
    assert told(play) == [("near", 5)]
    assert play.findings[0]["evidence"]["differs_in"] == ["command"]


def test_doing_things_that_are_confirmed_alike_is_no_loop() -> None:
    play, agent = begin()
    for n in range(12):
        text = f"The message number {n} for the team, sent from the build of today"
        agent.does("send_message", {"to": "team", "text": text}, "Message delivered to the channel. " * 6)
    for n in range(12):
        agent.does(
            "run_command", {"command": f"insert row {n} into the table"}, "1 row added successfully. " * 6
        )
    agent.ends()
    assert told(play) == []


def test_editing_many_files_in_a_row_is_no_loop() -> None:
    play, agent = begin()
    for n in range(12):
        edit = {"file_path": f"src/module_{n}.py", "old_string": "a", "new_string": "b"}
        agent.does("Edit", edit, "The file has been updated successfully. " * 5)
    for n in range(12):
        agent.does("Edit", {"file_path": "src/one.py", "old_string": f"{n}", "new_string": "b"}, "updated")
    agent.ends()
    assert told(play) == []


def test_tests_after_each_edit_are_no_loop_while_their_result_moves() -> None:
    play, agent = begin()
    for n in range(10, 0, -1):
        agent.does("Edit", {"file_path": "a.py", "old_string": f"{n}", "new_string": "b"}, "updated")
        agent.does("bash", {"command": "pytest"}, Failed(f"Exit code 1\n{n} failed, {20 - n} passed in 0.1s"))
    agent.does("bash", {"command": "pytest"}, "20 passed")
    agent.ends()
    assert told(play) == []


def test_fan_out_inside_a_step_counts_once() -> None:
    play, agent = begin()
    agent.does_all(*[("Task", {"prompt": "look"}, "found nothing")] * 6)
    agent.does_all(*[("Task", {"prompt": "look"}, "found nothing")] * 6)
    agent.ends()
    assert told(play) == []


def test_interleaved_agents_do_not_mix() -> None:
    play = Play(Repeats())
    agents = [play.agent(f"You are helper {name}.") for name in ("one", "two", "three")]
    for number, agent in enumerate(agents):
        agent.asks(f"look into part {number}")
    for agent in agents * 2:
        agent.does("bash", {"command": "ls"}, "a.py")
    for agent in agents:
        agent.ends()
    assert told(play) == []


def test_two_of_three_agents_loop_and_only_they_are_told() -> None:
    play = Play(Repeats())
    agents = [play.agent(f"You are helper {name}.") for name in ("one", "two", "three")]
    for number, agent in enumerate(agents):
        agent.asks(f"look into part {number}")
    for turn in range(3):
        agents[0].does("bash", {"command": "ls"}, "a.py")
        agents[1].does("bash", {"command": "ls"}, f"file{turn}.py")
        agents[2].does("bash", {"command": "ls"}, "a.py")
    for agent in agents:
        agent.ends()
    assert told(play) == [("consecutive", 3)] * 2


@given(data=st.lists(st.sampled_from("abcdef"), min_size=4, max_size=40))
@settings(max_examples=40, deadline=None)
def test_results_that_always_differ_are_never_a_loop(data: list[str]) -> None:
    play, agent = begin()
    for n, letter in enumerate(data):
        agent.does("look", {"at": letter}, f"{letter} number {n} of the list")
    agent.ends()
    assert told(play) == []


@given(st.permutations([f"src/{a}{b}.py" for a in "abc" for b in "xyz"]), st.booleans())
@settings(max_examples=20, deadline=None)
def test_work_on_unlike_files_is_never_a_loop(files: list[str], flagged: bool) -> None:
    play, agent = begin()
    for file in files:
        agent.does("Read", {"file_path": file}, f"contents of {file}")
        agent.does("Edit", {"file_path": file, "old_string": "a", "new_string": "b"}, "ok")
        bad = Failed(f"Exit code 1\n{file}: undefined name") if flagged else "all good"
        agent.does("bash", {"command": f"lint {file}"}, bad)
    agent.ends()
    assert told(play) == []


# -- acting, configuration, cost


def test_excluded_tools_are_not_seen_at_all() -> None:
    play, agent = begin(exclude=("wait*",))
    for _ in range(4):
        agent.does("wait_agent", {}, "nothing")
    agent.ends()
    assert told(play) == []


def test_a_tool_may_have_limits_of_its_own() -> None:
    play, agent = begin(tools={"press_*": Limits(consecutive=6)})
    for _ in range(6):
        agent.does("press_key", {"key": "Tab"}, "pressed")
    agent.ends()
    assert told(play) == [("consecutive", 6)]


def test_a_refused_request_that_is_sent_again_is_refused_again_and_the_user_frees_it() -> None:
    play, agent = begin("deny", stop_at=3)
    for _ in range(3):
        assert agent.does("bash", {"command": "ls"}, "a").refusal is None
    for _ in range(2):
        refused = agent.does("bash", {"command": "ls"}, "a").refusal
        assert refused is not None
        assert b"looptap_repeats" in refused.body
        assert b"same call of bash" in refused.body
    play.now_ns += 60_000_000_000
    agent.asks("try something else")
    assert agent.does("bash", {"command": "ls"}, "a").refusal is None


def test_without_an_action_nothing_is_touched() -> None:
    agent = begin()[1]
    for _ in range(12):
        sent = agent.does("bash", {"command": "ls"}, "a")
        assert sent.refusal is None
    assert len(sent.body) > 1_000


def test_the_reminder_gets_longer() -> None:
    policy, memory, reminders = Repeats(), {"turn": "t"}, []
    for n in range(9):
        view = replace(view_of(0, "a", "bash", memory), step=f"p{n}")
        decision = policy.step_start(view)
        memory = dict(decision.memory or {})
        reminders += [edit.text for edit in decision.edits]
    short, longer, last = reminders
    assert "3 times" in short
    assert '"f0"' not in short
    assert "5 times" in longer
    assert "8 times" in last
    assert all("bash" in text and '{"path":"f0"}' in text for text in (longer, last))


def view_of(n: int, text: str, tool: str, memory: Any) -> View:
    result = Item("tool_result", "tool", text, call_id=f"c{n}", digest=b"x")
    answer = Answer(result, tool, f"c{n}", f'{{"path":"f{n}"}}', b"")
    return View(
        now_ns=n, mode="enforce", session="s", thread="th", turn="t", step=f"p{n}", step_index=n,
        request=ModelRequest("anthropic", "chat", "m", True, ()), answers=(answer,), results=(result,),
        memory=memory,
    )  # fmt: skip


def test_memory_stays_small_whatever_a_turn_does() -> None:
    policy, memory = Repeats(), {"turn": "t"}
    for n in range(400):
        text = f"error: cannot reach the store number {n}" if n % 2 else "x" * 10_000
        memory = dict(policy.step_start(view_of(n, text, f"tool{n % 90}", memory)).memory or {})
    assert len(orjson.dumps(memory)) < 20_000


@pytest.mark.parametrize(
    ("tool", "arguments", "file"),
    [
        ("Edit", '{"file_path":"a.py"}', "a.py"),
        ("str_replace_based_edit_tool", '{"command":"view","path":"a.py"}', None),
        ("str_replace_based_edit_tool", '{"command":"insert","path":"a.py"}', "a.py"),
        ("apply_patch", '{"input":"*** Begin Patch\\n*** Update File: src/a.py\\n@@"}', "src/a.py"),
        ("write_stdin", '{"session_id":1,"chars":"x"}', None),
        ("TodoWrite", '{"todos":[]}', None),
        ("Read", '{"file_path":"a.py"}', None),
        ("Edit", "no json", None),
    ],
)
def test_which_file_a_call_edits(tool: str, arguments: str, file: str | None) -> None:
    assert edited(tool, arguments) == file


@pytest.mark.parametrize(
    ("one", "other", "likeness"),
    [
        ('{"command":"ls  -la"}', '{"command":"ls -la"}', "dress"),
        ('{"path":"./src"}', '{"path":"src/"}', "dress"),
        ('{"thought":"one"}', '{"thought":"two"}', ""),
        ('{"command":"head -50 log.txt"}', '{"command":"head -60 log.txt"}', "part"),
        ('{"command":"ls"}', '{"command":"make all && ./run --everything"}', ""),
        ('{"a":1}', '{"b":1}', ""),
        ("no json", "no json either", ""),
    ],
)
def test_likeness_of_arguments(one: str, other: str, likeness: str) -> None:
    assert alike(one, other)[0] == likeness
