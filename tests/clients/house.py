"""Runs a client straight at the scripted model or through a live proxy, with a witness at each end."""

import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.clients import task
from tests.clients.scripted import ScriptedUpstream
from tests.clients.wire import Message, Tee
from tests.processes import free_ports

PATIENCE_S = 30
AGENTS = Path(__file__).parent / "agents"


@dataclass(frozen=True, slots=True)
class Client:
    """A client program: how it is started, and what it prints in the end."""

    name: str
    command: Callable[[Path, str], Sequence[str]]
    """From its home folder and the base URL; may write settings into the home folder."""
    environment: Callable[[str], Mapping[str, str]]
    text: Callable[[str], str]
    """The agent's last words, out of what it printed."""
    again: Callable[[], Sequence[str]] | None = None
    """How its last conversation is gone on with, for those that can."""


@dataclass(frozen=True, slots=True)
class Run:
    """What one run of a client left behind."""

    root: Path
    text: str
    sent: list[Message]
    """Requests as the client wrote them."""
    arrived: list[Message]
    """Requests as the model API read them."""
    answered: list[Message]
    """Answers as the model API wrote them."""
    received: list[Message]
    """Answers as the client read them."""
    counted: Mapping[int, tuple[int, int, int]]


def run_client(client: Client, root: Path, port: int, upstream: ScriptedUpstream) -> Run:
    """Let a client do the task against a port, in a home of its own."""
    home = root / "home"
    home.mkdir(parents=True)
    project = task.lay_out(root / "project")
    tee = Tee(port)
    try:
        environment = bare_environment(home) | {"AGENT_URL": tee.url}
        environment |= dict(client.environment(tee.url))
        done = run_program(client.command(home, tee.url), environment, project)
        assert done.returncode == 0, f"{client.name} failed: {done.stdout[-1000:]}\n{done.stderr[-3000:]}"
        exchanges = tee.exchanges()
        return Run(
            root,
            client.text(done.stdout),
            [request for request, _ in exchanges],
            list(upstream.requests),
            list(upstream.answers),
            [answer for _, answer in exchanges],
            dict(upstream.counted),
        )
    finally:
        tee.close()


def bare_environment(home: Path) -> dict[str, str]:
    """Nothing of this process's own but where programs are; what is not on loopback is not reached."""
    nowhere = "http://127.0.0.1:9"
    return {
        "PATH": os.environ["PATH"], "HOME": str(home), "TMPDIR": str(home), "LANG": "C.UTF-8",
        "HTTPS_PROXY": nowhere, "NO_PROXY": "127.0.0.1,localhost", "npm_config_registry": nowhere,
    }  # fmt: skip


def run_program(
    command: Sequence[str], environment: Mapping[str, str], folder: Path
) -> "subprocess.CompletedProcess[str]":
    """Run a program to its end. It has nobody to ask, and has to end by itself."""
    return subprocess.run(
        [*command], env=dict(environment), cwd=folder, stdin=subprocess.DEVNULL, capture_output=True,
        encoding="utf-8", timeout=120, check=False,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Proxy:
    """A proxy that runs, and the folder of its record."""

    port: int
    data: Path
    config: Path

    def ask(self, *arguments: str) -> Any:
        """The answer of a reading command."""
        command = [sys.executable, "-m", "proxy", "--json", "--data-dir", str(self.data)]
        command += ["--config", str(self.config), *arguments]
        done = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=30, check=False)
        assert done.returncode == 0, f"looptap {arguments} failed: {done.stderr[-2000:]}"
        return json.loads(done.stdout)

    def closed_turns(self) -> list[dict[str, Any]]:
        """All turns, once none is open any more: the record is written within moments, not at once."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            turns: list[dict[str, Any]] = self.ask("turns")
            if turns and not any(turn["open"] for turn in turns):
                return turns
            assert time.monotonic() < deadline, f"turns stay open: {turns}"


@contextmanager
def running_proxy(data: Path, upstream: ScriptedUpstream, **settings: Any) -> Iterator[Proxy]:
    """``looptap serve`` in front of a model API, stopped again by its own process id."""
    port, admin = free_ports(2)
    data.mkdir(parents=True)
    config = data / "looptap.yaml"
    config.write_text(json.dumps(settings))
    command = [sys.executable, "-m", "proxy", "--data-dir", str(data), "--config", str(config), "serve"]
    command += ["--listen", f"127.0.0.1:{port}", "--admin", f"127.0.0.1:{admin}"]
    for name in ("anthropic", "openai", "gemini"):
        command += ["--upstream", f"{name}={upstream.url}"]
    with (data / "serve.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
    try:
        _await_ready(process, f"http://127.0.0.1:{admin}/readyz", data / "serve.log")
        yield Proxy(port, data, config)
    finally:
        process.terminate()
        try:
            process.wait(15)
        finally:
            process.kill()


def _await_ready(process: "subprocess.Popen[bytes]", url: str, log: Path) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urllib.request.urlopen(url, timeout=2):
                return
        except OSError:
            time.sleep(0.05)
    raise AssertionError(f"the proxy did not start: {log.read_text(errors='replace')[-2000:]}")
