"""The commands as people and scripts use them: output, exit codes, pipes, one-line errors."""

import io
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from proxy.cli import COMMANDS, cli
from proxy.commands.options import Common, run, written_whole
from proxy.commands.settled import same_place
from proxy.config import Overrides, load
from proxy.model import CaptureEnd, CaptureStart, Record
from proxy.record import RecordWriter
from proxy.terminal.welcome import welcome
from tests.processes import running

ROOT = Path(__file__).parents[1]
SECOND = 1_000_000_000
START = 1_790_000_000 * SECOND
BODY = b'{"model":"claude-opus-5","messages":[{"role":"user","content":"\xc3\xa9"}]}'
GZIP = b"\x1f\x8b\x08\x00not really\xff"


def ids(number: int) -> dict[str, str]:
    return {
        "session": f"ses_{number}aaaaaaaaaaaaaaaaaaa",
        "thread": f"thr_{number}aaaaaaaaaaaaaaaaaaa",
        "turn": f"trn_{number}aaaaaaaaaaaaaaaaaaa",
        "step": f"stp_{number}aaaaaaaaaaaaaaaaaaa",
    }


def a_turn(number: int, client: str, cause: str, at: int, answer: bytes) -> list[Any]:
    """Everything that one recorded turn of one step leaves behind: a failed attempt and a good one."""
    of = ids(number)
    session = {"session": of["session"]}
    thread = session | {"thread": of["thread"]}
    turn = thread | {"turn": of["turn"]}
    price = {"cost_usd": "0.0123", "cost_quality": "measured"}
    usage = {"input_tokens": 1000, "cache_read_tokens": 800, "output_tokens": 50}
    entries: list[Any] = [
        Record(at, "session/start", **session, data={"client": client, "labels": {"env": f"e{number}"}}),
        Record(at, "thread/start", **thread, data={"kind": "main", "partial": False, "matched_by": "prefix"}),
        Record(at, "turn/start", **turn, data={"index": 0}),
        Record(at, "step/start", **of, data={"index": 0, "model": "claude-opus-5", "epoch": 0}),
    ]
    for attempt, (outcome, status) in enumerate((("failed", 529), ("complete", 200))):
        began = at + attempt * SECOND
        exchange = f"exc_{number}{attempt}aaaaaaaaaaaaaaaaaa"
        where = {"number": 2 * number + attempt, "exchange": exchange}
        entries += [
            CaptureStart(
                exchange, where["number"], began, "anthropic", "anthropic", "https://api.anthropic.com",
                "POST", "/@env=x/anthropic/v1/messages?beta=true", ((b"x-api-key", b"..."),), BODY,
                labels={"env": "x"}, **of,
            ),
            CaptureEnd(exchange, began + SECOND // 2, "complete", status, ((b"X", b"\xe9"),), answer),
            Record(
                began + SECOND // 2, "step/attempt", **of,
                data={
                    "attempt": attempt, **where, "outcome": outcome, "status": status,
                    "model": "claude-opus-5", "stop_reason": "end_turn" if outcome == "complete" else None,
                    "usage": usage if outcome == "complete" else {}, "arrived_ns": began,
                    "ended_ns": began + SECOND // 2, "first_output_ns": began + SECOND // 4,
                    **(price if outcome == "complete" else {"cost_usd": "0", "cost_quality": "measured"}),
                },
            ),
        ]  # fmt: skip
    entries.append(Record(at + 2 * SECOND, "turn/end", **turn, data={"cause": cause, "steps": 1}))
    return entries


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A record with two turns, the second of them the newest."""
    writer = RecordWriter(tmp_path)
    writer.write(a_turn(1, "codex", "error", START, GZIP))
    writer.write(a_turn(2, "claude-code", "completed", START + 60 * SECOND, b"data: x\n\n"))
    writer.close()
    return tmp_path


def looptap(data: Path, *arguments: str, stdin: bytes = b"") -> tuple[int, bytes, str]:
    """Run a command as a process of its own: exit code, stdout, stderr."""
    done = subprocess.run(
        [sys.executable, "-m", "proxy", *arguments], cwd=ROOT, capture_output=True, timeout=50,
        input=stdin, env=clean(data),
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr.decode()


def clean(data: Path) -> dict[str, str]:
    kept = {
        k: v for k, v in os.environ.items() if not k.startswith(("LOOPTAP", "COLUMNS", "NO_COLOR", "FORCE"))
    }
    return kept | {"LOOPTAP_DATA_DIR": str(data), "PYTHONUTF8": "1"}


def invoke(data: Path, *arguments: str) -> Any:
    return CliRunner().invoke(cli, ["--data-dir", str(data), *arguments], catch_exceptions=False)


def test_turns_newest_first(data: Path) -> None:
    lines = invoke(data, "turns").stdout.splitlines()
    assert lines[0].split() == [
        "AGE",
        "TURN",
        "AGENT",
        "MODEL",
        "CAUSE",
        "STEPS",
        "TOOK",
        "IN",
        "CACHED",
        "OUT",
        "COST",
        "LABELS",
    ]
    assert [line.split()[1][:5] for line in lines[1:]] == ["trn_2", "trn_1"]
    assert lines[1].split()[2:] == [
        "claude-code",
        "claude-opus-5",
        "completed",
        "1",
        "2.0s",
        "1.0k",
        "80%",
        "50",
        "$0.0123",
        "env=e2",
    ]


@pytest.mark.parametrize(
    ("filters", "found"),
    [
        (["--limit", "1"], ["trn_2"]),
        (["--cause", "error"], ["trn_1"]),
        (["--agent", "codex"], ["trn_1"]),
        (["--model", "claude-opus-5"], ["trn_2", "trn_1"]),
        (["--model", "gpt-5"], []),
        (["--label", "env=e2"], ["trn_2"]),
        (["--label", "env"], ["trn_2", "trn_1"]),
        (["--session", "ses_1"], ["trn_1"]),
    ],
)
def test_turns_filters(data: Path, filters: list[str], found: list[str]) -> None:
    assert [t["id"][:5] for t in json.loads(invoke(data, "turns", "--json", *filters).stdout)] == found


def test_turns_json_is_the_turn_of_replay_with_where_and_when(data: Path) -> None:
    newest = json.loads(invoke(data, "turns", "--json").stdout)[0]
    assert newest["session"] == ids(2)["session"]
    assert newest["thread"] == ids(2)["thread"]
    assert newest["agent"] == "claude-code"
    assert newest["labels"] == {"env": "e2"}
    assert newest["started_at"] == "2026-09-21T14:14:20.000000Z"
    assert newest["ended_at"] == "2026-09-21T14:14:22.000000Z"
    assert (newest["cause"], newest["open"], newest["cost_usd"]) == ("completed", False, "0.0123")
    assert [s["exchanges"] for s in newest["steps"]] == [[4, 5]]


def test_sessions(data: Path) -> None:
    found = json.loads(invoke(data, "sessions", "--json").stdout)
    assert [(s["client"], s["turns"], s["cost_usd"]) for s in found] == [
        ("claude-code", 1, "0.0123"),
        ("codex", 1, "0.0123"),
    ]
    lines = invoke(data, "sessions", "--label", "env=e1").stdout.splitlines()
    assert len(lines) == 2
    assert "codex" in lines[1]


def test_json_may_stand_before_the_command(data: Path) -> None:
    before = CliRunner().invoke(cli, ["--json", "--data-dir", str(data), "turns"]).stdout
    assert json.loads(before) == json.loads(invoke(data, "turns", "--json").stdout)


def test_show_draws_the_newest_turn_a_step_a_session(data: Path) -> None:
    newest = invoke(data, "show").stdout
    assert newest.startswith(f"turn {ids(2)['turn']} · claude-code · completed")
    assert "attempt 1 failed: 529" in newest
    assert invoke(data, "show", "last").stdout == newest
    assert invoke(data, "show", "trn_2").stdout == newest
    assert invoke(data, "show", "stp_1").stdout.startswith(f"step {ids(1)['step']}\n└─ 1 ")
    assert invoke(data, "show", "exc_11").stdout == invoke(data, "show", "stp_1").stdout
    assert invoke(data, "show", "ses_1").stdout.startswith(
        f"session {ids(1)['session']} · codex · 1 thread · 1 turn"
    )
    answer = json.loads(invoke(data, "show", "stp_1", "--json").stdout)
    assert answer["attempts"][0]["status"] == 529
    assert answer["findings"] == []


def test_show_prints_exact_bytes(data: Path) -> None:
    assert looptap(data, "show", "stp_1", "--request") == (0, BODY, "")
    assert looptap(data, "show", "stp_1", "--response", "--attempt", "1") == (0, GZIP, "")
    assert looptap(data, "show", "exc_20", "--response") == (0, b"data: x\n\n", "")
    assert looptap(data, "show", "--request") == (0, BODY, "")


def test_show_exchanges_writes_a_log_without_what_only_we_understand(data: Path) -> None:
    code, out, _ = looptap(data, "show", "ses_1", "--exchanges")
    lines = [json.loads(line) for line in out.splitlines()]
    assert code == 0
    assert [line["status"] for line in lines] == [529, 200]
    first = lines[0]
    assert first["path"] == "/v1/messages?beta=true"
    assert first["host"] == "api.anthropic.com"
    assert first["labels"] == {"env": "x"}
    assert first["request_body"].encode() == BODY
    assert "response_body" not in first
    assert first["response_body_b64"]
    assert first["response_headers"] == [["X", "é"]]
    assert (first["t"], first["t_end"], first["end"]) == (1_790_000_000.0, 1_790_000_000.5, "complete")


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["show", "trn_9"], 1, "`looptap turns`"),
        (["show", "trn_"], 1, "fits several"),
        (["show", "stp_1", "--request", "--attempt", "3"], 1, "has 2 attempts, counted"),
        (["show", "trn_1", "--request", "--response"], 2, "ask for one of them"),
        (["show", "trn_1", "--step", "2"], 1, "has 1 step, counted from 1"),
        (["show", "ses_1", "--step", "1"], 1, "is a session"),
        (["show", "stp_1", "--attempt", "1"], 2, "--attempt goes with"),
        (["show", "stp_1", "--request", "--exchanges"], 2, "does not go with"),
        (["turns", "--session", "trn_1"], 1, "is a turn, not a session"),
        (["turns", "--limit", "0"], 2, "Try 'looptap turns --help'"),
        (["frobnicate"], 2, "No such command"),
        (["shwo"], 2, "Did you mean 'show'? Try 'looptap --help'"),
        (["serve", "--listen", "4040"], 2, "looptap: --listen: '4040' is no address"),
        (
            ["serve", "--listen", "192.0.2.1:4040"],
            1,
            "192.0.2.1:4040 is no address of this machine: --listen",
        ),
        (["replay", "no-such-file.jsonl"], 1, "no-such-file.jsonl: there is no such file"),
        (["--data-dir", "/nonexistent", "turns"], 1, "looptap serve"),
        (["--config", "no-such.yaml", "check"], 2, "no-such.yaml: there is no such file"),
        (["--config", "no-such.yaml", "replay", __file__], 2, "no such file"),
        (["turns", "--cause", "bogus"], 2, "'bogus' is not one of 'completed', "),
        (["demo", "--keep", __file__], 1, "name a directory that can be made"),
        (["--config", "x.yaml", "demo"], 2, "the demo takes no --config"),
        (["check", "a b.yaml"], 2, "did you mean --config 'a b.yaml'? Try 'looptap check --help'"),
    ],
)
def test_errors_are_one_line_that_says_what_to_do(
    data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    arguments: list[str], code: int, says: str,
) -> None:  # fmt: skip
    monkeypatch.setenv("LOOPTAP_DATA_DIR", str(data))
    monkeypatch.delenv("LOOPTAP_CONFIG", raising=False)
    with pytest.raises(SystemExit) as ended:
        run(cli, arguments)
    told = capsys.readouterr()
    assert (ended.value.code, told.out) == (code, "")
    assert says in told.err
    assert told.err.count("\n") == 1
    assert "Traceback" not in told.err


def test_a_proxy_that_has_seen_nothing_yet_is_no_missing_one(tmp_path: Path) -> None:
    (tmp_path / "admin-token").touch()
    result = CliRunner().invoke(cli, ["--data-dir", str(tmp_path), "turns"])
    assert "nothing is recorded in" in str(result.exception)
    assert "point an agent at the proxy" in str(result.exception)


def test_check_lists_every_problem_with_its_line(data: Path, tmp_path: Path) -> None:
    config = tmp_path / "looptap.yaml"
    config.write_text("mode: obey\nidle_after: 5\n")
    code, out, err = looptap(data, "check", "--config", str(config))
    assert (code, out) == (2, b"")
    assert [line.rpartition("looptap.yaml:")[2][:1] for line in err.splitlines()] == ["1", "2"]
    code, out, err = looptap(data, "check", "--config", str(config), "--json")
    assert [p["line"] for p in json.loads(out)["problems"]] == [1, 2]
    config.write_text("mode: observe\n")
    assert looptap(data, "check", "--config", str(config))[0] == 0


def test_check_tells_wrong_variables_of_the_traces_beside_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "many")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization s3cret")
    config = tmp_path / "looptap.yaml"
    config.write_text("mode: obey\nexporters: {otlp: {}}\n")
    told = CliRunner().invoke(cli, ["--config", str(config), "check"])
    assert told.exit_code == 2
    assert "s3cret" not in told.output
    for part in ("OTEL_BSP_MAX_QUEUE_SIZE: must be a number", "OTEL_EXPORTER_OTLP_HEADERS: entry 1", "1:7"):
        assert part in told.stderr
    config.write_text("mode: observe\n")
    assert CliRunner().invoke(cli, ["--config", str(config), "check"]).stderr == ""  # nobody wants traces
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:4318")
    told = CliRunner().invoke(cli, ["--config", str(config), "check"])  # they may be meant for the agent
    assert (told.exit_code, told.stderr.count("no traces are exported: OTEL_")) == (0, 2)


def test_schema_is_a_json_schema() -> None:
    schema = json.loads(CliRunner().invoke(cli, ["schema"]).stdout)
    assert "budgets" in schema["properties"]


def test_every_command_has_help_with_an_example_and_the_common_options() -> None:
    for name in COMMANDS:
        command = cli.get_command(click.Context(cli), name)
        assert command is not None
        text = CliRunner().invoke(cli, [name, "--help"]).stdout
        assert f"looptap {name}" in text.partition("Usage:")[2].partition("\n")[2], name
        assert {"--config", "--data-dir", "--json"} <= {o for p in command.params for o in p.opts}, name


def test_the_list_of_commands_is_whole_at_80_columns() -> None:
    listed = CliRunner().invoke(cli, ["--help"], terminal_width=80).stdout.partition("Commands:")[2]
    assert "..." not in listed
    assert re.findall(r"^  ([a-z]+) ", listed, re.MULTILINE) == list(COMMANDS)


def test_a_step_is_named_by_its_turn_and_number(data: Path) -> None:
    assert invoke(data, "show", "trn_1", "--step", "1").stdout.startswith(f"step {ids(1)['step']}")
    assert invoke(data, "show", "trn_1", "--step", "1", "--request").stdout_bytes == BODY


def test_version_and_completion(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert CliRunner().invoke(cli, ["--version"]).stdout.startswith("looptap ")
    assert "_LOOPTAP_COMPLETE" in CliRunner().invoke(cli, ["--help"]).stdout
    done = subprocess.run(
        [sys.executable, "-m", "proxy"], cwd=ROOT, capture_output=True, text=True, timeout=50,
        env={**os.environ, "_LOOPTAP_COMPLETE": "bash_source"},
    )  # fmt: skip
    assert "complete" in done.stdout
    monkeypatch.setenv("_LOOPTAP_COMPLETE", "bash_complete")
    with pytest.raises(SystemExit, match="2"):
        run(cli, [])
    assert "which sets COMP_WORDS" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["turns"], ["--help"]], ids=" ".join)
def test_a_reader_that_has_enough_is_no_error(data: Path, arguments: list[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as pipe:
        done = subprocess.run(
            [sys.executable, "-m", "proxy", *arguments], cwd=ROOT, stdout=pipe, stderr=subprocess.PIPE,
            env=clean(data), timeout=50,
        )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, b"")


def test_an_internal_error_is_one_line_and_a_traceback_only_on_request(data: Path) -> None:
    broken = (
        "import proxy.cli as c, proxy.commands.lists as lists\n"
        "def bad(*a): raise RuntimeError('odd\\x1b[2J')\n"
        "lists.turns_table = bad\nc.main(['turns'])"
    )
    for debug in ("", "1"):
        done = subprocess.run(
            [sys.executable, "-c", broken], cwd=ROOT, capture_output=True, text=True, timeout=50,
            env=clean(data) | {"LOOPTAP_DEBUG": debug},
        )  # fmt: skip
        assert done.returncode == 1
        assert ("Traceback" in done.stderr) is bool(debug)
        assert done.stderr.splitlines()[-1].startswith(r"looptap: internal error: RuntimeError: odd\x1b[2J")


def test_tail_follows_and_ctrl_c_ends_it_quietly(tmp_path: Path) -> None:
    tail = subprocess.Popen(
        [sys.executable, "-m", "proxy", "tail", "--json", "--after", "0"], cwd=ROOT, env=clean(tmp_path),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    with running(tail):
        assert tail.stdout is not None
        assert tail.stderr is not None
        assert tail.stderr.readline().startswith("waiting…")  # before there is a record
        writer = RecordWriter(tmp_path)
        writer.write(a_turn(1, "codex", "error", START, GZIP))
        first = [json.loads(tail.stdout.readline()) for _ in range(7)]
        writer.write(a_turn(2, "codex", "error", START, GZIP))
        second = json.loads(tail.stdout.readline())
        assert [e["type"] for e in first] == [
            "session/start", "thread/start", "turn/start", "step/start", "step/attempt", "step/attempt",
            "turn/end",
        ]  # fmt: skip
        assert (second["seq"], second["session"]) == (8, ids(2)["session"])
        tail.send_signal(signal.SIGINT)
        assert tail.wait(timeout=20) == 130
        assert tail.stderr.read() == ""
        writer.close()


def test_tail_in_words_of_one_turn(data: Path) -> None:
    tail = subprocess.Popen(
        [sys.executable, "-m", "proxy", "tail", "--turn", "trn_2", "--after", "0"], cwd=ROOT, env=clean(data),
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    with running(tail):
        assert tail.stdout is not None
        lines = [tail.stdout.readline() for _ in range(5)]
        tail.kill()
    assert lines[0].startswith("14:14:20.000  turn/start")
    assert "529" in lines[2]
    assert "completed 1 step in ?" in lines[4]


def test_serve_says_where_it_is_and_ends_quietly_on_ctrl_c(tmp_path: Path) -> None:
    ports = ["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]
    serve = subprocess.Popen(
        [sys.executable, "-m", "proxy", "serve", "--json", *ports], cwd=ROOT, env=clean(tmp_path),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    with running(serve):
        assert serve.stdout is not None
        assert serve.stderr is not None
        up = json.loads(serve.stdout.readline())
        assert up["data_url"].startswith("http://127.0.0.1:")
        assert "/?token=" in up["admin_url"]
        port = up["data_url"].rpartition(":")[2]
        code, out, err = looptap(tmp_path, "serve", "--listen", f"127.0.0.1:{port}", "--admin", "127.0.0.1:0")
        assert (code, out) == (1, b"")
        assert "--listen" in err
        assert err.count("\n") == 1
        serve.send_signal(signal.SIGINT)
        assert serve.wait(timeout=20) == 0
        assert serve.stderr.read() == ""


def test_serve_names_settings_for_clients_and_what_is_enforced() -> None:
    settings = load(None, environ={})
    lines = list(welcome(settings, "http://127.0.0.1:4040", "http://127.0.0.1:4041/?token=t"))
    text = "\n".join(lines)
    for line in (
        "ANTHROPIC_BASE_URL=http://127.0.0.1:4040 ",
        "OPENAI_BASE_URL=http://127.0.0.1:4040/v1 ",
        "GOOGLE_GEMINI_BASE_URL=http://127.0.0.1:4040 ",
        "enforced: nothing",
        f"records bodies and events in {settings.store.path}",
        "admin: http://127.0.0.1:4041/?token=t",
    ):
        assert line in text
    assert "listens on all" not in text
    everywhere = load(None, Overrides("[::]:4040"), {})
    told = "\n".join(welcome(everywhere, everywhere.listen.url, ""))
    assert "ANTHROPIC_BASE_URL=http://[::1]:4040 " in told
    assert "listens on all its IPv6 addresses" in told
    away = "\n".join(welcome(settings, "http://127.0.0.1:4040", "http://127.0.0.1:4041", "the disk is full"))
    assert "does NOT record, and tries again: the disk is full" in away
    assert "records bodies" not in away


def test_serve_says_by_which_options_other_commands_find_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LOOPTAP_CONFIG", raising=False)
    file = tmp_path / "my caps.yaml"
    file.write_text("budgets: [{name: turn, scope: turn, limits: {steps: 2}}]\n")
    assert same_place(Common()) == ""
    place = same_place(Common(config=Path("my caps.yaml"), data_dir=tmp_path))
    told = list(welcome(load(file, environ={}), "http://127.0.0.1:4040", "", place=place))
    commands = f"(looptap --config '{file}' --data-dir {tmp_path} show, turns, tail, budgets, topup)"
    assert [line for line in told if line.endswith(commands)]


@pytest.mark.parametrize("arguments", [(), ("keys",)])
def test_a_group_without_a_command_shows_its_help_in_lines(data: Path, arguments: tuple[str, ...]) -> None:
    code, answer, said = looptap(data, *arguments)
    assert (code, answer) == (2, b"")
    assert said.startswith("Usage: looptap")
    assert "\nCommands:\n" in said


def test_a_log_may_come_through_a_pipe_and_a_directory_is_none(data: Path, tmp_path: Path) -> None:
    _, log, _ = looptap(data, "show", "--exchanges")
    (tmp_path / "log.jsonl").write_bytes(log)
    piped = looptap(data, "--json", "replay", "-", stdin=log)
    assert piped == looptap(data, "--json", "replay", str(tmp_path / "log.jsonl"))
    assert piped[0] == 0
    code, _, said = looptap(data, "replay", str(tmp_path))
    assert code == 1
    assert "is a directory" in said


def test_of_what_is_no_log_only_some_lines_are_named(data: Path, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("a line\n" * 30)
    told = invoke(data, "replay", str(tmp_path / "notes.txt"))
    assert told.exit_code == 1
    assert len(told.stderr.splitlines()) == 11
    assert told.stderr.endswith("and 20 more\n")


class Sip(io.RawIOBase):
    """A pipe that takes a part of what it is given, as a pipe may."""

    def __init__(self) -> None:
        self.taken = b""

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self.taken += bytes(data[:7])
        return len(data[:7])


def test_without_a_buffer_of_pythons_all_is_written_all_the_same() -> None:
    sip = Sip()
    stream = written_whole(io.TextIOWrapper(sip, write_through=True))
    stream.write("one line that is long\n")
    stream.buffer.write(b"bytes of more than seven")
    stream.flush()
    assert sip.taken == b"one line that is long\nbytes of more than seven"


def test_a_full_disk_is_told_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        monkeypatch.setattr(sys, "stdout", full)
        with pytest.raises(SystemExit) as ended:
            run(click.Command("show", callback=lambda: click.echo("a tree")), [])
        assert ended.value.code == 1
    assert capsys.readouterr().err == "looptap: No space left on device\n"


def test_a_stream_that_was_closed_takes_whatever_comes() -> None:
    with written_whole(None) as stream:
        stream.write("text")
        stream.buffer.write(b"bytes")
