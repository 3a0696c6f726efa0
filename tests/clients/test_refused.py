"""Real agent programs at the end of a budget: one request, the words on the screen, and on after a top-up."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.clients import task
from tests.clients.house import Client, Proxy, bare_environment, run_program, running_proxy
from tests.clients.programs import PROGRAMS
from tests.clients.scripted import ScriptedUpstream
from tests.clients.wire import Message, Tee

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]

STEPS = 2
WORDS = f"budget 'agent' of key unnamed is used up: {STEPS} of {STEPS} steps"


@dataclass(frozen=True, slots=True)
class Desk:
    """A client at its place: a home, a project, and a witness between it and the proxy."""

    client: Client
    root: Path
    proxy: Proxy
    upstream: ScriptedUpstream
    tee: Tee

    def works(self, command: list[str]) -> tuple[int, str]:
        """Run to its end: exit code, and all that the user sees."""
        environment = bare_environment(self.root / "home") | dict(self.client.environment(self.tee.url))
        done = run_program(command, environment, self.root / "project")
        return done.returncode, done.stdout + done.stderr

    def begins(self) -> tuple[int, str]:
        return self.works([*self.client.command(self.root / "home", self.tee.url)])

    def goes_on(self) -> tuple[int, str]:
        assert self.client.again is not None
        return self.works([*self.client.again()])

    def refused(self) -> list[Message]:
        return [
            request
            for request, answer in self.tee.exchanges()
            if answer.field(b"x-looptap-refused") is not None
        ]

    def threads(self) -> dict[str, int]:
        """Steps by thread; side calls (titles, routing) have threads of one step."""
        found: dict[str, int] = {}
        for turn in self.proxy.ask("turns"):
            found[turn["thread"]] = found.get(turn["thread"], 0) + len(turn["steps"])
        return found


@contextmanager
def desk(client: Client, root: Path, on_exhausted: str) -> Iterator[Desk]:
    budget = {"name": "agent", "scope": "key", "window": "day", "limits": {"steps": STEPS}}
    (root / "home").mkdir(parents=True)
    task.lay_out(root / "project")
    with (
        ScriptedUpstream(task.SCRIPT) as upstream,
        running_proxy(root / "data", upstream, budgets=[{**budget, "on_exhausted": on_exhausted}]) as proxy,
    ):
        tee = Tee(proxy.port)
        try:
            yield Desk(client, root, proxy, upstream, tee)
        finally:
            tee.close()


@pytest.mark.parametrize("client", PROGRAMS, ids=lambda client: client.name)
def test_ERR_01_and_BUD_18_a_refused_program_asks_once_says_why_and_goes_on_after_a_top_up(
    client: Client, tmp_path: Path
) -> None:
    with desk(client, tmp_path, "deny") as here:
        code, seen = here.begins()
        assert (code, WORDS in " ".join(seen.split())) == (1, True), seen
        assert len(here.refused()) == 1
        here.proxy.ask("topup", "agent", "--add", "20")
        goes_on_as_it_was(here)


@pytest.mark.parametrize("client", PROGRAMS, ids=lambda client: client.name)
def test_a_message_ends_a_program_as_an_answer_does(client: Client, tmp_path: Path) -> None:
    with desk(client, tmp_path, "message") as here:
        code, seen = here.begins()
        assert (code, WORDS in " ".join(seen.split())) == (0, True), seen
        assert len(here.refused()) == 1
        here.proxy.ask("topup", "agent", "--add", "20")
        goes_on_as_it_was(here)


def goes_on_as_it_was(here: Desk) -> None:
    """The same conversation comes to its end: one thread, with what its tools had found before."""
    code, seen = here.goes_on()
    assert (code, task.FINAL in seen) == (0, True), seen
    assert len(here.refused()) == 1
    last = json.dumps(here.upstream.bodies()[-1], ensure_ascii=False)
    assert task.PRINTED[0] in last
    assert max(here.threads().values()) > STEPS
