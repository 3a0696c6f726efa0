"""`looptap run`: the environment of the command, its exit code, its signals."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from proxy.run import CannotStart, Gateway, child_environment, find_command, plan, run_child

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
import asyncio, os, sys
from proxy.run import run_child
sys.exit(asyncio.run(run_child(sys.argv[1], sys.argv[1:], dict(os.environ))))
"""
CHILD = """
import signal, sys
got = []
for name in sys.argv[1:]:
    signal.signal(getattr(signal, name), lambda number, frame: got.append(number))
print("ready", flush=True)
while not got:
    signal.pause()
print(signal.Signals(got[0]).name, flush=True)
sys.exit(5)
"""


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP", "SIGINT", "SIGUSR1"])
def test_signals_go_to_the_command_and_its_answer_counts(name: str) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, sys.executable, "-c", CHILD, name],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True,
        cwd=Path(__file__).parents[1],
    )  # fmt: skip
    with parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"ready\n"
        parent.send_signal(getattr(signal, name))
        assert parent.stdout.readline() == name.encode() + b"\n"
        assert parent.wait(timeout=20) == 5
