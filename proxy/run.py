"""`looptap run -- CMD`: a private proxy around one command, transparent to both sides.

The command inherits the terminal as it is and gets the base URLs of the proxy in its environment.
Where the user already points at a gateway, that gateway becomes the upstream: nothing is routed
elsewhere behind their back. Signals go to the command; the proxy stays up until it has ended, and
the exit code is the command's own.
"""

import asyncio
import os
import secrets
import shutil
import signal
import sys
from asyncio.subprocess import Process
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from proxy import app
from proxy.config import BUILT_IN, Settings, UpstreamSettings
from proxy.record import Reader, RecordMissing

NOT_FOUND = 127
NOT_EXECUTABLE = 126
_GRACE_S = 2.0
"""The client is gone when its command is: what still streams then, streams to nobody."""

_FORWARDED = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
_FROM_KEYBOARD = frozenset({signal.SIGINT, signal.SIGQUIT})
"""The terminal sends these to the command as well; a second copy would count as a second Ctrl-C."""


class CannotStart(Exception):
    """The command cannot be run; ``code`` is what a shell would return."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True)
class Variable:
    """A base URL variable that clients read. ``tail`` is what they expect the URL to end with."""

    name: str
    upstream: str
    api: str
    tail: str = ""
    quiet: bool = False
    """Only set where the user had set it: another variable already serves these clients."""


VARIABLES = (
    Variable("ANTHROPIC_BASE_URL", "anthropic", "anthropic"),
    Variable("ANTHROPIC_API_BASE", "anthropic", "anthropic"),
    Variable("OPENAI_BASE_URL", "openai", "openai", "/v1"),
    Variable("OPENAI_API_BASE", "openai", "openai", "/v1"),
    Variable("AIDER_OPENAI_API_BASE", "openai", "openai", "/v1", quiet=True),
    Variable("GOOGLE_GEMINI_BASE_URL", "gemini", "gemini"),
)
"""Codex's built-in provider, opencode, cline and pi read no variable: they need their own setting."""


@dataclass(frozen=True, slots=True)
class Gateway:
    """An upstream that the user's environment pointed at."""

    name: str
    url: str
    api: str


@dataclass(frozen=True, slots=True)
class Plan:
    """Which upstreams the private proxy needs, and where below it each variable points."""

    gateways: tuple[Gateway, ...]
    paths: Mapping[str, str]


def plan(environ: Mapping[str, str]) -> Plan:
    """Read the user's base URLs."""
    gateways: dict[str, Gateway] = {}
    paths: dict[str, str] = {}
    for variable in VARIABLES:
        told = environ.get(variable.name, "").strip().rstrip("/")
        if not told:
            if not variable.quiet:
                paths[variable.name] = f"/{variable.upstream}{variable.tail}"
            continue
        if urlsplit(told).scheme not in ("http", "https") or not urlsplit(told).hostname:
            raise CannotStart(f"{variable.name} is no http(s) URL; unset it or correct it", 2)
        tail = variable.tail if variable.tail and told.endswith(variable.tail) else ""
        url = told.removesuffix(tail)
        name = _gateway_name(variable, url, gateways)
        gateways[name] = Gateway(name, url, variable.api)
        paths[variable.name] = f"/{name}{tail}"
    return Plan(tuple(gateways.values()), _same_family(paths, gateways, environ))


def _gateway_name(variable: Variable, url: str, gateways: Mapping[str, Gateway]) -> str:
    """The provider's own name, or the variable's where two variables disagree."""
    for known in gateways.values():
        if (known.url, known.api) == (url, variable.api):
            return known.name
    if variable.upstream not in gateways:
        return variable.upstream
    return variable.name.lower().replace("_", "-")


def _same_family(
    paths: dict[str, str], gateways: Mapping[str, Gateway], environ: Mapping[str, str]
) -> dict[str, str]:
    """A variable that was not set follows its sibling that was, in the sibling's form."""
    for variable in VARIABLES:
        if environ.get(variable.name, "").strip() or variable.name not in paths:
            continue
        sibling = next(
            (v for v in VARIABLES if v.upstream == variable.upstream and environ.get(v.name, "").strip()),
            None,
        )
        if sibling is not None:
            paths[variable.name] = paths[sibling.name]
    return paths


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """How the command ended, and how to find in the record what it did."""

    code: int
    after_seq: int
    label: tuple[str, str]


async def around(
    command: Sequence[str], settings: Settings, environ: Mapping[str, str], warn: app.Warn
) -> RunOutcome:
    """Run the command inside a proxy of its own. Raises CannotStart before anything is listening."""
    program = find_command(command, environ)
    planned = plan(environ)
    label = ("run", secrets.token_hex(5))
    after_seq = _last_seq(Path(settings.store.path))
    running = await app.start(_through(settings, planned.gateways), warn)
    try:
        url = f"{running.data_url}/@{label[0]}={label[1]}"
        code = await run_child(program, command, child_environment(planned, environ, url))
    finally:
        await running.stop(_GRACE_S)
    return RunOutcome(code, after_seq, label)


def _through(settings: Settings, gateways: Sequence[Gateway]) -> Settings:
    """The settings with the user's own gateways as upstreams."""
    upstreams = dict(settings.upstreams)
    for gateway in gateways:
        known = upstreams.get(gateway.name) or BUILT_IN.get(gateway.name)
        fresh = UpstreamSettings.model_validate({"url": gateway.url, "api": gateway.api})
        upstreams[gateway.name] = known.model_copy(update={"url": fresh.url}) if known else fresh
    return settings.model_copy(update={"upstreams": upstreams})


def _last_seq(data_dir: Path) -> int:
    try:
        with Reader(data_dir) as reader:
            return reader.last_seq()
    except RecordMissing:
        return 0


def child_environment(plan: Plan, environ: Mapping[str, str], data_url: str) -> dict[str, str]:
    """The command's environment: the user's, with base URLs that lead through the proxy.

    ``data_url`` may carry labels (``http://127.0.0.1:4999/@run=7``).
    """
    child = dict(environ)
    for name, path in plan.paths.items():
        child[name] = data_url.rstrip("/") + path
    if any(environ.get(name) for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY")):
        host = urlsplit(data_url).hostname or "127.0.0.1"
        for name in ("no_proxy", "NO_PROXY"):  # a forward proxy elsewhere cannot reach our loopback
            child[name] = ",".join(p for p in (environ.get(name, ""), host) if p)
    return child


def find_command(command: Sequence[str], environ: Mapping[str, str]) -> str:
    """The path of the program, or why there is none, in a shell's words and codes."""
    program = command[0]
    found = shutil.which(program, path=environ.get("PATH"))
    if found is not None:
        return found
    if "/" in program and Path(program).exists():
        raise CannotStart(f"{program}: cannot be executed", NOT_EXECUTABLE)
    raise CannotStart(f"{program}: command not found", NOT_FOUND)


async def run_child(program: str, command: Sequence[str], environ: Mapping[str, str]) -> int:
    """Run the command in our own terminal until it ends; its exit code, 128+n for a signal."""
    loop = asyncio.get_running_loop()
    signals: asyncio.Queue[signal.Signals] = asyncio.Queue()
    # What was to be ignored (nohup) stays so, for the command too.
    caught = [n for n in _FORWARDED if signal.getsignal(n) is not signal.SIG_IGN]
    for number in caught:
        loop.add_signal_handler(number, signals.put_nowait, number)
    try:
        child = await _spawn(program, command, environ)
        async with asyncio.TaskGroup() as tasks:
            forwarding = tasks.create_task(_forward(signals, child))
            code = await child.wait()
            forwarding.cancel()
    finally:
        for number in caught:
            loop.remove_signal_handler(number)
    return 128 - code if code < 0 else code


async def _spawn(program: str, command: Sequence[str], environ: Mapping[str, str]) -> Process:
    try:
        return await asyncio.create_subprocess_exec(*command, executable=program, env=environ)
    except PermissionError:
        raise CannotStart(f"{command[0]}: cannot be executed", NOT_EXECUTABLE) from None
    except FileNotFoundError:
        raise CannotStart(f"{command[0]}: command not found", NOT_FOUND) from None
    except OSError as error:
        raise CannotStart(f"{command[0]}: {error.strerror}", NOT_EXECUTABLE) from None


async def _forward(signals: asyncio.Queue[signal.Signals], child: Process) -> None:
    while True:
        number = await signals.get()
        if child.returncode is None and not (number in _FROM_KEYBOARD and _in_foreground()):
            child.send_signal(number)


def _in_foreground() -> bool:
    """Whether our process group has the terminal, so that the command gets its keys directly."""
    for stream in (sys.__stdin__, sys.__stderr__, sys.__stdout__):
        try:
            if stream is not None and stream.isatty():
                return os.tcgetpgrp(stream.fileno()) == os.getpgrp()
        except (OSError, ValueError):
            continue
    return False
