"""The test driver for policies, and a policy of one's own: written, installed, configured, run."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from policies.base import Policy
from proxy.ports import View
from proxy.testing import Failed, Play, PolicyFault
from proxy.verdict import Decision, Edit, Finding, Terminal
from tests.plugins import installed

ROOT = Path(__file__).parents[1]
EXAMPLE = ROOT / "tests" / "example_policy"
CLAIMS = ROOT / "tests" / "example_claims"


class Watches(Policy):
    """Writes down what it is shown."""

    name = "watches"

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, int, int]] = []

    def step_start(self, view: View) -> Decision:
        self.seen.append(("start", view.step_index, len(view.answers)))
        return Decision((Finding(self.name, "asked", "info", {"step": view.step_index}),))

    def step_end(self, view: View) -> Decision:
        assert view.outcome is not None
        self.seen.append(("end", view.step_index, len(view.outcome.tool_calls)))
        return Decision()


def test_a_conversation_goes_through_the_real_core() -> None:
    policy = Watches()
    play = Play(policy)
    agent = play.agent()
    agent.asks("do it")
    agent.does_all(("bash", {"command": "ls"}, "a"), ("bash", {"command": "cat x"}, Failed("no such file")))
    agent.ends()
    agent.asks("and now")
    agent.ends()
    assert policy.seen == [
        ("start", 0, 0), ("end", 0, 2), ("start", 1, 2), ("end", 1, 0), ("start", 0, 0), ("end", 0, 0),
    ]  # fmt: skip
    assert play.kinds("watches") == ["asked"] * 3
    (session,) = play.tree()["sessions"]
    (thread,) = session["threads"]
    assert [turn["cause"] for turn in thread["turns"]] == ["completed", "completed"]
    assert [result["is_error"] for result in thread["turns"][0]["steps"][0]["tool_results"]] == [False, True]


def test_agents_have_threads_of_their_own() -> None:
    play = Play()
    one, other = play.agent("You are one."), play.agent("You are another.")
    one.asks("first")
    other.asks("second")
    for agent in (one, other, one, other):
        agent.does("bash", {}, "x")
    threads = [thread for session in play.tree()["sessions"] for thread in session["threads"]]
    assert [len(thread["turns"][0]["steps"]) for thread in threads] == [2, 2]


def test_a_policy_that_raises_fails_the_test_that_drives_it() -> None:
    class Breaks(Policy):
        name = "breaks"

        def step_end(self, view: View) -> Decision:
            raise KeyError("gone")

    agent = Play(Breaks()).agent()
    agent.asks("do it")
    with pytest.raises(PolicyFault, match=r"breaks\.step_end: KeyError: 'gone'"):
        agent.ends()


@pytest.mark.parametrize(("action", "refused"), [("observe", False), ("warn", False), ("deny", True)])
def test_what_a_policy_may_do_is_its_actions_business(action: Any, refused: bool) -> None:
    class Refuses(Policy):
        name = "refuses"

        def step_start(self, view: View) -> Decision:
            return Decision(terminal=Terminal("deny", self.name, "no", "not today", any_form=True))

    agent = Play(Refuses(), action=action).agent()
    agent.asks("do it")
    answered = agent.ends()
    assert (answered.refusal is not None) is refused
    if answered.refusal is not None:
        assert b"not today" in answered.refusal.body


def test_the_body_that_goes_upstream_is_shown() -> None:
    class Nudges(Policy):
        name = "nudges"

        def step_start(self, view: View) -> Decision:
            return Decision(edits=(Edit("nudge", "mind the gap"),))

    agent = Play(Nudges()).agent()
    agent.asks("do it")
    assert b"mind the gap" not in agent.ends().body


def test_what_a_policy_claims_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(CLAIMS))
    from long_prompts import LongPrompts, LongPromptsOptions  # type: ignore[import-not-found]

    play = Play(LongPrompts(LongPromptsOptions(tokens=2_000)))
    agent = play.agent()
    agent.asks("read it")
    assert agent.does("read", {"file": "a"}, "words " * 500).claims == ()
    (claim,) = agent.ends().claims
    assert (claim.budget, claim.subject, claim.amount, claim.limit) == (
        "long_prompts/hourly",
        "unnamed",
        1,
        10,
    )
    (session,) = play.tree()["sessions"]
    assert len(session["threads"][0]["turns"][0]["steps"]) == 2


# -- a policy of one's own


def looptap(place: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    paths = os.pathsep.join([str(place), str(ROOT)])
    return subprocess.run(
        [sys.executable, "-m", "proxy", *arguments],
        env={**os.environ, "PYTHONPATH": paths}, cwd=ROOT, capture_output=True, text=True, timeout=50,
    )  # fmt: skip


def recorded(place: Path, command: str) -> Path:
    """An exchange log in which a model calls a shell."""
    request = {
        "model": "claude-sonnet-4-5",
        "max_tokens": 9,
        "messages": [{"role": "user", "content": "push"}],
    }
    call = {"type": "tool_use", "id": "toolu_1", "name": "bash", "input": {"command": command}}
    reply = {
        "type": "message", "id": "msg_1", "role": "assistant", "model": "claude-sonnet-4-5",
        "content": [call], "stop_reason": "tool_use", "usage": {"input_tokens": 1, "output_tokens": 1},
    }  # fmt: skip
    line = {
        "method": "POST", "path": "/v1/messages", "request_headers": {"content-type": "application/json"},
        "request_body": json.dumps(request), "status": 200, "provider": "anthropic",
        "response_headers": {"content-type": "application/json"}, "response_body": json.dumps(reply),
    }  # fmt: skip
    log = place / "log.jsonl"
    log.write_text(json.dumps(line) + "\n")
    return log


def test_a_policy_of_ones_own_takes_part_once_the_settings_name_it(tmp_path: Path) -> None:
    place = installed(EXAMPLE, tmp_path / "site")
    log = recorded(tmp_path, "git push --force origin main")
    settings = tmp_path / "looptap.yaml"
    settings.write_text("policies:\n  force_push: {action: deny, most: 0}\n")
    done = looptap(place, "replay", "--json", "--config", str(settings), str(log))
    assert done.returncode == 0, done.stderr
    (finding,) = json.loads(done.stdout)["findings"]
    assert (finding["policy"], finding["kind"], finding["severity"]) == ("force_push", "forced", "violation")
    assert finding["evidence"]["calls"] == ["toolu_1"]
    settings.write_text("{}\n")
    done = looptap(place, "replay", "--json", "--config", str(settings), str(log))
    assert json.loads(done.stdout)["findings"] == []


def test_its_options_are_checked_as_all_others(tmp_path: Path) -> None:
    place = installed(EXAMPLE, tmp_path / "site")
    settings = tmp_path / "looptap.yaml"
    settings.write_text("policies:\n  force_push: {mots: 0}\n")
    done = looptap(place, "check", "--config", str(settings))
    assert done.returncode == 2
    assert "looptap.yaml:2" in done.stderr
    assert "mots" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_example_tells_and_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLE))
    from force_push import ForcePush, ForcePushOptions  # type: ignore[import-not-found]

    play = Play(ForcePush(ForcePushOptions(most=1)), action="deny")
    agent = play.agent()
    agent.asks("push it")
    agent.does("bash", {"command": "git push --force-with-lease"}, "ok")
    agent.does("bash", {"command": "git push -f"}, "ok")
    assert agent.does("bash", {"command": "git push --force"}, "ok").refusal is None
    assert agent.ends().refusal is not None
    assert [f["severity"] for f in play.findings] == ["warning", "violation"]


@pytest.mark.real
def test_the_example_is_installed_by_pip_and_passes_its_own_test(tmp_path: Path) -> None:
    project, site = tmp_path / "project", tmp_path / "site"
    project.mkdir()
    for name in ("force_push.py", "pyproject.toml", "test_force_push.py"):
        shutil.copy(EXAMPLE / name, project)
    install = ["-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--target", str(site)]
    subprocess.run([sys.executable, *install, str(project)], check=True, timeout=120)
    (project / "force_push.py").unlink()
    paths = {**os.environ, "PYTHONPATH": os.pathsep.join([str(site), str(ROOT)])}
    test = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_force_push.py"]
    done = subprocess.run(test, env=paths, cwd=project, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    settings = tmp_path / "looptap.yaml"
    settings.write_text("policies:\n  force_push: {action: deny, most: 0}\n")
    assert "force_push" in looptap(site, "check", "--config", str(settings)).stdout
