"""`looptap run`: the environment of the command, its exit code, its signals."""

import asyncio
import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from proxy.demo.agents import LAPTOP
from proxy.demo.model import Stage
from proxy.run import CannotStart, Gateway, child_environment, find_command, plan, run_child
from tests.processes import running

ROOT = Path(__file__).parents[1]
URL = "http://127.0.0.1:4999"


def environment(environ: dict[str, str]) -> dict[str, str]:
    return child_environment(plan(environ), environ, URL)


def test_a_plain_environment_is_pointed_at_the_proxy() -> None:
    assert plan({}).gateways == ()
    assert environment({"HOME": "/h"}) == {
        "HOME": "/h",
        "ANTHROPIC_BASE_URL": URL + "/anthropic",
        "ANTHROPIC_API_BASE": URL + "/anthropic",
        "OPENAI_BASE_URL": URL + "/openai/v1",
        "OPENAI_API_BASE": URL + "/openai/v1",
        "GOOGLE_GEMINI_BASE_URL": URL + "/gemini",
    }


@pytest.mark.parametrize(
    ("variable", "told", "name", "url", "path"),
    [
        ("ANTHROPIC_BASE_URL", "https://gw.example/a/", "anthropic", "https://gw.example/a", "/anthropic"),
        ("OPENAI_BASE_URL", "https://gw.example/o/v1", "openai", "https://gw.example/o", "/openai/v1"),
        ("OPENAI_BASE_URL", "https://gw.example/api", "openai", "https://gw.example/api", "/openai"),
        ("GOOGLE_GEMINI_BASE_URL", "http://10.0.0.1:80", "gemini", "http://10.0.0.1:80", "/gemini"),
    ],
)
def test_a_gateway_of_the_users_stays_the_upstream(
    variable: str, told: str, name: str, url: str, path: str
) -> None:
    assert plan({variable: told}).gateways == (Gateway(name, url, name),)
    assert environment({variable: told})[variable] == URL + path


def test_the_unset_twin_follows_and_a_disagreeing_one_gets_its_own_upstream() -> None:
    one = environment({"OPENAI_API_BASE": "https://gw.example/api"})
    assert one["OPENAI_BASE_URL"] == one["OPENAI_API_BASE"] == URL + "/openai"
    two = {"OPENAI_BASE_URL": "https://a.example/v1", "OPENAI_API_BASE": "https://b.example/v1"}
    assert [(g.name, g.url) for g in plan(two).gateways] == [
        ("openai", "https://a.example"),
        ("openai-api-base", "https://b.example"),
    ]
    assert environment(two)["OPENAI_API_BASE"] == URL + "/openai-api-base/v1"
    assert environment(two)["OPENAI_BASE_URL"] == URL + "/openai/v1"


def test_a_base_url_that_is_none_is_refused_without_repeating_it() -> None:
    with pytest.raises(CannotStart) as refused:
        plan({"OPENAI_BASE_URL": "user:secret@gw"})
    assert refused.value.code == 2
    assert "secret" not in str(refused.value)


def test_a_forward_proxy_is_told_to_leave_loopback_alone() -> None:
    child = environment({"HTTP_PROXY": "http://corp:3128", "NO_PROXY": ".corp"})
    assert child["NO_PROXY"] == ".corp,127.0.0.1"
    assert child["no_proxy"] == "127.0.0.1"
    assert "NO_PROXY" not in environment({})


def test_what_cannot_be_run_has_the_shells_code(tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text("#!/bin/sh\nexit 0\n")
    for program, code in (("no-such-command-here", 127), (str(tmp_path / "gone"), 127), (str(script), 126)):
        with pytest.raises(CannotStart) as refused:
            find_command([program], os.environ)
        assert refused.value.code == code
    script.chmod(0o755)
    assert find_command([str(script)], os.environ) == str(script)


@pytest.mark.parametrize(
    ("code", "shown"), [("raise SystemExit(7)", 7), ("import os; os.kill(os.getpid(), 15)", 143)]
)
async def test_the_exit_code_is_the_commands(code: str, shown: int) -> None:
    assert await run_child(sys.executable, [sys.executable, "-c", code], dict(os.environ)) == shown


async def test_a_script_without_interpreter_is_not_executable(tmp_path: Path) -> None:
    script = tmp_path / "bare"
    script.write_text("exit 0\n")
    script.chmod(0o755)
    with pytest.raises(CannotStart) as refused:
        await run_child(str(script), [str(script)], dict(os.environ))
    assert refused.value.code == 126


PARENT = """
import asyncio, os, signal, sys
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup, under which tests may run, has it ignored
signal.signal(signal.SIGINT, signal.default_int_handler)  # and a shell its background
from proxy.run import run_child
sys.exit(asyncio.run(run_child(sys.argv[1], sys.argv[1:], dict(os.environ))))
"""
CHILD = """
import signal, sys
wanted = [getattr(signal, name) for name in sys.argv[1:]]
signal.pthread_sigmask(signal.SIG_BLOCK, wanted)  # one that comes before anybody waits for it stays
print("ready", flush=True)
print(signal.Signals(signal.sigwait(wanted)).name, flush=True)
sys.exit(5)
"""


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP", "SIGINT", "SIGUSR1"])
def test_signals_go_to_the_command_and_its_answer_counts(name: str) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, sys.executable, "-c", CHILD, name],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True,
        cwd=ROOT,
    )  # fmt: skip
    with running(parent):
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"ready\n"
        parent.send_signal(getattr(signal, name))
        assert parent.stdout.readline() == name.encode() + b"\n"
        assert parent.wait(timeout=20) == 5


COUNTING = """
import signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
print("ready", flush=True)
signal.sigwait({signal.SIGINT})
again = signal.sigtimedwait({signal.SIGINT}, 0.5)
print("once" if again is None else "twice", flush=True)
"""


def test_ctrl_c_on_a_terminal_reaches_the_command_once() -> None:
    """Agents take a second Ctrl-C as "leave now", so ours must not add one to the terminal's."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(ROOT)
        arguments = [sys.executable, "-c", PARENT, sys.executable, "-c", COUNTING]
        os.execv(sys.executable, arguments)
    with os.fdopen(terminal, "rb", buffering=0) as screen:
        assert screen.readline().strip() == b"ready"
        os.write(terminal, b"\x03")
        assert screen.readline().strip().removeprefix(b"^C") == b"once"
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


# -- the whole command, with a real proxy between a client and a model on loopback


@pytest.fixture
async def model() -> AsyncIterator[str]:
    """The demo's scripted model, as the gateway that the user's environment points at."""
    stage = Stage([LAPTOP.script])
    yield await stage.start()
    await stage.stop()


CLIENT = """
import json, os, sys, urllib.request
body = {"model": "gpt-5-mini", "messages": [{"role": "user", "content": "What does the laptop cost?"}]}
request = urllib.request.Request(
    os.environ["OPENAI_BASE_URL"] + "/chat/completions", json.dumps(body).encode(),
    {"content-type": "application/json", "authorization": "Bearer sk-secret"},
)
print(json.load(urllib.request.urlopen(request))["choices"][0]["message"]["tool_calls"][0]["function"]["name"])
print("own words", file=sys.stderr)
sys.exit(int(sys.stdin.read()))
"""


async def looptap(*arguments: str, data: Path, stdin: str = "", **environ: str) -> tuple[int, str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("LOOPTAP", "OPENAI", "ANTHROPIC"))}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "proxy", "--data-dir", str(data), *arguments, cwd=ROOT,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=kept | environ,
    )  # fmt: skip
    out, err = await asyncio.wait_for(process.communicate(stdin.encode()), 50)
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


async def test_run_leaves_the_command_alone_and_shows_what_it_did(model: str, tmp_path: Path) -> None:
    told = {"OPENAI_BASE_URL": model + "/v1"}
    command = ("run", "--", sys.executable, "-c", CLIENT)
    code, out, err = await looptap(*command, data=tmp_path, stdin="7", **told)
    assert (code, out) == (7, "search\n")
    assert err.startswith("own words\nsession ses_")
    assert "gpt-5-mini" in err
    assert "sk-secret" not in err
    code, out, err = await looptap(command[0], "--no-show", *command[1:], data=tmp_path, stdin="0", **told)
    assert (code, out, err) == (0, "search\n", "own words\n")
    code, out, err = await looptap("--json", *command, data=tmp_path, stdin="0", **told)
    sessions = json.loads(err.splitlines()[-1])["sessions"]
    assert len(sessions) == 1  # not those of the runs before
    assert b"sk-secret" not in b"".join(p.read_bytes() for p in tmp_path.glob("record.db*"))


@pytest.mark.parametrize(
    ("command", "code", "says"),
    [
        (["no-such-command-here"], 127, "looptap: no-such-command-here: command not found\n"),
        ([str(ROOT / "pyproject.toml")], 126, "cannot be executed\n"),
        (["sh", "-c", "exit 3"], 3, "no model call came through"),
        (["sh", "-c", "kill -9 $$"], 137, "no model call came through"),
    ],
)
async def test_run_returns_what_a_shell_would(
    command: list[str], code: int, says: str, tmp_path: Path
) -> None:
    exit_code, out, err = await looptap("run", *command, data=tmp_path)
    assert (exit_code, out) == (code, "")
    assert says in err
    assert "Traceback" not in err
