"""Whole transcripts as agents write them: a dozen and more that work, and as many that turn in circles.

Each is a generator of steps, a step being calls with their results, in the tool names and result forms of
the agents that it is modelled on. A healthy one must stay silent to its end; of a doomed one the first
finding must come by the step that is named.
"""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from policies.repeats import Repeats
from proxy.testing import Failed, Play

Call = tuple[str, dict[str, Any], str | Failed]
Steps = Iterator[Call | list[Call]]
UPDATED = "The file has been updated. Here is the result of running `cat -n` on a snippet of the edited file."


def played(steps: Callable[[], Steps]) -> list[tuple[int, str]]:
    """Findings with the number of steps that had their results by then."""
    play = Play(Repeats())
    agent = play.agent()
    agent.asks("do the work")
    for step in steps():
        agent.does_all(*(step if isinstance(step, list) else [step]))
    agent.ends()
    return [(f["exchange"], f["kind"]) for f in play.findings]


def bash(command: str, result: str | Failed) -> Call:
    return "Bash", {"command": command, "description": "runs it"}, result


def edit(file: str, old: str, new: str = "x", result: str | Failed = UPDATED) -> Call:
    return "Edit", {"file_path": f"/repo/{file}", "old_string": old, "new_string": new}, result


def codex(command: str, output: str, code: int = 0, n: int = 0) -> Call:
    told = (
        f"Chunk ID: 3f{n:04x}\nWall time: 0.{n}13 seconds\nProcess exited with code {code}\nOutput:\n{output}"
    )
    return "exec_command", {"cmd": command, "yield_time_ms": 1000 + n}, told


# -- healthy


def mends_tests_one_by_one() -> Steps:
    yield "TodoWrite", {"todos": [{"content": "mend", "status": "pending"}]}, "Todos have been modified."
    for left in range(6, 0, -1):
        failing = f"Exit code 1\nFAILED a_test.py::test_{left}\n{left} failed, {9 - left} passed in 0.4s"
        yield bash("pytest -q", Failed(failing))
        yield "Read", {"file_path": "/repo/a.py"}, f"1\tdef f{left}():\n2\t    return {left}\n"
        yield edit("a.py", f"return {left}", f"return {left + 1}")
    yield bash("pytest -q", "9 passed in 0.41s")


def needs_three_tries_for_one_failure() -> Steps:
    for n in range(3):
        yield edit("a.py", f"try {n}")
        yield bash("pytest -q", Failed("Exit code 1\nE   assert 1 == 2\n1 failed in 0.12s"))
    yield edit("a.py", "try 3")
    yield bash("pytest -q", "1 passed in 0.11s")


def commits_file_by_file() -> Steps:
    for n in range(6):
        yield edit(f"m{n}.py", "a")
        yield bash("git diff --stat", f" m{n}.py | 2 +-\n 1 file changed")
        yield bash(f"git commit -am 'mend m{n}'", f"[main {n}a7c1f9] mend m{n}\n 1 file changed")
        yield bash("git status", "On branch main\nnothing to commit, working tree clean")


def waits_for_a_build() -> Steps:
    yield codex("make -j4 &", "started")
    for n in range(9):
        text = f"Chunk ID: a{n}\nWall time: 5.0{n} seconds\nProcess running with session ID 7\nOutput:\n"
        yield (
            "write_stdin",
            {"session_id": 7, "chars": ""},
            text + f"[{n * 11}%] Building CXX object src/{n}.o",
        )
    yield codex("ls build", "app")


def waits_for_ci() -> Steps:
    for _ in range(18):
        yield bash("gh run view 812 --json status", '{"status":"in_progress"}')
    yield bash("gh run view 812 --json status", '{"status":"completed"}')


def waits_for_pods() -> Steps:
    for n in range(12):
        rows = f"NAME    READY   STATUS              AGE\nweb-0   0/1     ContainerCreating   {n}s"
        yield bash("kubectl get pods", rows)
    yield bash(
        "kubectl get pods",
        "NAME    READY   STATUS    RESTARTS   AGE\nweb-0   1/1     Running   0          30s",
    )


def waits_for_a_stack() -> Steps:
    for _ in range(8):
        told = '{"Stacks": [{"StackName": "web", "StackStatus": "CREATE_IN_PROGRESS"}]}'
        yield bash("aws cloudformation describe-stacks --stack-name web", told)
    for _ in range(6):
        yield bash(
            "gcloud sql instances describe db", "name: db\nstate: PENDING_CREATE\nregion: europe-west1"
        )


def pages_through_a_long_log() -> Steps:
    for n in range(14):
        lines = "".join(f"{200 * n + k}: GET /index 200\n" for k in range(20))
        yield "read_file", {"absolute_path": "/var/log/app.log", "offset": 200 * n, "limit": 200}, lines
    yield "read_file", {"absolute_path": "/var/log/app.log", "offset": 2800, "limit": 200}, "End of file."


def looks_in_many_places() -> Steps:
    for place in ("src", "lib", "app", "pkg", "internal", "cmd"):
        yield "glob", {"pattern": "**/*.proto", "path": f"/repo/{place}"}, "No files found"
        yield "search_file_content", {"pattern": "GrpcClient", "path": f"/repo/{place}"}, "No matches found"
    for word in ("retry", "backoff", "timeout", "deadline"):
        yield "Grep", {"pattern": word, "glob": "*.go"}, Failed("No matches found")


def lints_each_file() -> Steps:
    for n in range(7):
        yield bash(
            f"npx eslint src/c{n}.ts", Failed(f"Exit code 1\n/repo/src/c{n}.ts\n  3:7  error  'v' is unused")
        )
        yield edit(f"src/c{n}.ts", "const v = 1")
        yield bash(f"npx eslint src/c{n}.ts", "")


def brings_the_errors_down_in_one_go() -> Steps:
    for left in (41, 28, 17, 9, 4):
        said = f"Exit code 2\nerror: aborting due to {left} previous errors"
        yield bash(f"./fix.py --pass {left} && cargo check", Failed(said))
    yield bash("cargo check", "Finished dev target(s) in 3.2s")


def asks_a_database() -> Steps:
    tables = ("users", "orders", "items", "carts", "events")
    yield "sql_db_list_tables", {}, ", ".join(tables)
    for table in tables:
        schema = f"CREATE TABLE {table} (id INTEGER PRIMARY KEY, name TEXT, made DATETIME)\n" * 3
        yield "sql_db_schema", {"table_names": table}, schema
        yield (
            "sql_db_query_checker",
            {"query": f"SELECT COUNT(*) FROM {table}"},
            f"SELECT COUNT(*) FROM {table}",
        )
        yield "sql_db_query", {"query": f"SELECT COUNT(*) FROM {table}"}, "[(1042,)]"


def keeps_a_plan() -> Steps:
    for n in range(9):
        plan = [{"step": f"part {k}", "status": "done" if k < n else "pending"} for k in range(9)]
        yield "update_plan", {"plan": plan}, "Plan updated"
        yield codex(f"sed -n '{n * 50},{n * 50 + 50}p' main.go", f"func part{n}() {{}}\n", n=n)


def patches_one_file_often() -> Steps:
    for n in range(10):
        patch = f"*** Begin Patch\n*** Update File: main.go\n@@\n-old {n}\n+new {n}\n*** End Patch"
        yield "apply_patch", {"input": patch}, "Success. Updated the following files:\nM main.go"
    yield codex("go build ./...", "")


def walks_through_a_site() -> Steps:
    for n in range(8):
        yield "browser_click", {"element": "Next", "ref": "e12"}, "Clicked"
        yield "browser_snapshot", {}, f"- heading: page {n + 2}\n- link: item {n}\n"
    yield "browser_wait_for", {"text": "Done"}, "Waited for text: Done"


def hands_out_work() -> Steps:
    for n in range(4):
        parts = [("Task", {"prompt": f"review part {n}.{k}"}, "No findings.") for k in range(3)]
        yield list(parts)


def restarts_a_server() -> Steps:
    for n in range(3):
        yield bash("curl -s localhost:3000/health", Failed("Exit code 7"))
        yield bash("npm start > /tmp/log 2>&1 &", "")
        yield bash("sleep 2; curl -s localhost:3000/health", Failed("Exit code 7") if n < 2 else "ok")
        yield edit("server.js", f"port {n}")


def reads_again_what_it_wrote() -> Steps:
    for n in range(6):
        yield "Read", {"file_path": "/repo/notes.md"}, "".join(f"- note {k}\n" for k in range(n + 1))
        yield "Write", {"file_path": "/repo/notes.md", "content": "- note\n" * (n + 2)}, "File written."


def checks_messages_on_a_board() -> Steps:
    for n in range(6):
        yield "board_list", {"assignee": "me"}, f'{{"open": {[f"T-{k}" for k in range(n, 6)]}}}'
        yield "board_close", {"id": f"T-{n}"}, '{"ok": true}'


HEALTHY = [
    mends_tests_one_by_one, needs_three_tries_for_one_failure, commits_file_by_file, waits_for_a_build,
    waits_for_ci, waits_for_pods, waits_for_a_stack, pages_through_a_long_log, looks_in_many_places,
    lints_each_file, brings_the_errors_down_in_one_go, asks_a_database, keeps_a_plan, patches_one_file_often,
    walks_through_a_site, hands_out_work, restarts_a_server, reads_again_what_it_wrote,
    checks_messages_on_a_board,
]  # fmt: skip


@pytest.mark.parametrize("steps", HEALTHY)
def test_work_that_gets_on_is_left_alone(steps: Callable[[], Steps]) -> None:
    assert played(steps) == []


# -- doomed


def reads_the_same_file() -> Steps:
    for _ in range(6):
        yield "Read", {"file_path": "/repo/a.py"}, "1\tdef f():\n2\t    return 1\n"


def runs_the_same_command_at_other_times() -> Steps:
    for n in range(6):
        yield codex("npm test", f"npm error code ELIFECYCLE at 2026-03-01T10:0{n}:11.{n}04Z pid 48{n}1", 1, n)


def misses_the_text_to_replace() -> Steps:
    for n in range(7):
        yield edit("a.py", f"retrun {n}", result=Failed("String to replace not found in file."))


def edits_without_any_effect() -> Steps:
    for n in range(8):
        yield edit("a.py", f"guess {n}")
        yield bash("pytest -q", Failed("Exit code 1\nE   assert 1 == 2\n1 failed in 0.12s"))


def read_edit_test_round() -> Steps:
    for n in range(5):
        yield "read_file", {"absolute_path": "/repo/a.py"}, "def f():\n    return 1\n"
        yield (
            "replace",
            {"file_path": "/repo/a.py", "old_string": "q", "new_string": "r"},
            Failed("0 occurrences"),
        )
        yield "run_shell_command", {"command": "pytest"}, f"Exit Code: 1\n1 failed in 0.{n}s"


def round_of_four() -> Steps:
    for n in range(5):
        for name in ("list_issues", "get_issue", "search_code", "get_file"):
            yield name, {"repo": "web"}, f'{{"took_ms": {n}, "at": "10:00:0{n}", "items": ["{name}"]}}'


def opens_and_closes() -> Steps:
    for _ in range(6):
        yield "browser_navigate", {"url": "https://example.test/login"}, "- heading: Log in"
        yield "browser_navigate", {"url": "https://example.test/home"}, "- heading: Please log in first"


def is_not_allowed_anywhere() -> Steps:
    for n in range(6):
        yield (
            "WebFetch",
            {"url": f"https://docs.example.test/{n}"},
            Failed("Request failed with status code 403"),
        )


def fails_in_another_line_each_time() -> Steps:
    for n in range(6):
        code = f"x = {n}\nprint(undefined_{'abcdef'[n]}"
        said = f"  File \"<stdin>\", line {n + 2}\nSyntaxError: '(' was never closed (<stdin>, line {n + 2})"
        yield "python_repl", {"code": code}, Failed(said)


def writes_the_same_list() -> Steps:
    todos = [{"content": "think", "status": "in_progress", "activeForm": "Thinking"}]
    for _ in range(6):
        yield "TodoWrite", {"todos": todos}, "Todos have been modified successfully."


def asks_the_same_helper() -> Steps:
    for n in range(5):
        yield (
            "Task",
            {"prompt": "find the bug", "description": f"try {n}"},
            "I could not find a bug in the code.",
        )


def watches_a_dead_process() -> Steps:
    for n in range(6):
        yield "BashOutput", {"bash_id": "sh_1"}, f"<status>failed</status><exit_code>1</exit_code> 10:00:0{n}"


def spells_the_search_anew() -> Steps:
    page = "1. How to mend it - a page about mending\n2. Mending for everybody - another page\n" * 4
    for word in ("error", "error ", "the error", "errors", "an error", "error!"):
        yield "tavily_search", {"query": f"langgraph recursion limit reached {word}"}, page


def does_two_things_in_any_order() -> Steps:
    one: Call = ("Read", {"file_path": "/repo/a.py"}, "a")
    other: Call = ("Read", {"file_path": "/repo/b.py"}, "b")
    for n in range(5):
        yield [one, other] if n % 2 else [other, one]


def says_why_each_time() -> Steps:
    for n in range(6):
        thought = ("first", "again", "once more", "now really", "let me see", "hm")[n]
        yield "search", {"thought": thought, "query": "order 17"}, "no such order"


def gets_ids_that_mean_nothing() -> Steps:
    for n in range(6):
        told = f'{{"error": "rate limited", "request_id": "req_{n}f8a1c9d2", "trace": "0x{n}afe12bc"}}'
        yield "http_get", {"url": "https://api.example.test/v1"}, told


DOOMED = [
    (reads_the_same_file, 3, "consecutive"),
    (runs_the_same_command_at_other_times, 5, ""),
    (misses_the_text_to_replace, 5, ""),
    (edits_without_any_effect, 14, ""),
    (read_edit_test_round, 9, ""),
    (round_of_four, 12, "cycle"),
    (opens_and_closes, 6, "cycle"),
    (is_not_allowed_anywhere, 3, "same_error"),
    (fails_in_another_line_each_time, 3, "same_error"),
    (writes_the_same_list, 3, "consecutive"),
    (asks_the_same_helper, 3, "near"),
    (watches_a_dead_process, 3, "consecutive"),
    (spells_the_search_anew, 5, "near"),
    (does_two_things_in_any_order, 3, "consecutive"),
    (says_why_each_time, 3, "near"),
    (gets_ids_that_mean_nothing, 3, "consecutive"),
]


@pytest.mark.parametrize(("steps", "by", "kind"), DOOMED)
def test_work_that_turns_in_circles_is_told(steps: Callable[[], Steps], by: int, kind: str) -> None:
    found = played(steps)
    assert found
    assert found[0][0] <= by
    assert kind in ("", found[0][1])
