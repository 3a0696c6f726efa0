"""Live equals replay where exchanges overlap: siblings, sub-agents side by side, retries too soon."""

import asyncio
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.live.kit import Json, Stage, bare, sketch, stage
from tests.live.loops import NAMES, Dialect, Loop, Said
from tests.live.recorded import Play, Player


async def agree(here: Stage, place: Path) -> Json:
    """The live tree and the tree of its exchange log are one; it is returned."""
    await here.idle()
    tree = await here.live_tree()
    log = await here.write_log(place / "log.jsonl")
    assert bare(here.replay(log)) == bare(tree)
    assert here.warnings == []
    assert here.running.parts.server.shell.faults.counts == {}
    return tree


@pytest.mark.parametrize("dialect", NAMES)
async def test_SES_04_unrelated_conversations_at_once_are_sessions_of_their_own(
    dialect: Dialect, tmp_path: Path
) -> None:
    player = Player(dialect)
    async with stage(tmp_path, player.respond) as here:
        player.stage = here
        loops = [Loop(dialect) for _ in range(3)]
        for number, loop in enumerate(loops):
            loop.user(f"task {number}")
        for step in range(3):
            said = [Said(10 * n + step, calls=("where",) if step < 2 else (), text=f"{n}") for n in range(3)]
            flights = [loop.ask(each) for loop, each in zip(loops, said, strict=True)]
            for flight in flights:
                await player.open(flight)
            for flight in flights:
                await player.part(flight, 0.5)
            for flight in reversed(flights):
                await player.finish(flight)
            for loop, each in zip(loops, said, strict=True):
                loop.took(each)
        tree = await agree(here, tmp_path)
    assert sketch(tree) == [["main: 0 3 6"], ["main: 1 4 7"], ["main: 2 5 8"]]
    assert all(t["turns"][0]["cause"] == "completed" for s in tree["sessions"] for t in s["threads"])


@pytest.mark.parametrize("dialect", NAMES)
async def test_a_sibling_and_a_retry_that_comes_too_soon(dialect: Dialect, tmp_path: Path) -> None:
    player = Player(dialect)
    async with stage(tmp_path, player.respond) as here:
        player.stage = here
        loop = Loop(dialect)
        loop.user("task")
        first, second = loop.ask(Said(1, calls=("a",))), loop.ask(Said(2, calls=("b",)))
        await player.open(first)
        await player.part(first, 0.3)
        await player.open(second)  # the same request while the first is still answered
        await player.finish(second)
        await player.leave(first)
        loop.took(Said(2, calls=("b",)))
        await player.play(loop.ask(Said(3, text="done")))
        tree = await agree(here, tmp_path)
    assert sketch(tree) == [["main: 0…"], ["main: 1 2"]]


@pytest.mark.parametrize("dialect", ["anthropic", "chat", "responses"])
async def test_SES_03_sub_agents_side_by_side_stay_apart(dialect: Dialect, tmp_path: Path) -> None:
    player = Player(dialect)
    async with stage(tmp_path, player.respond) as here:
        player.stage = here
        tasks = ("look for the cause of the failing test", "look for the newest change of the file")
        parent = Loop(dialect)
        parent.user("mend it")
        spawn = Said(1, calls=tasks)
        await player.play(parent.ask(spawn))
        children = [Loop(dialect) for _ in tasks]
        for child, task in zip(children, tasks, strict=True):
            child.user(task)
        for step in range(2):
            said = [Said(20 * (n + 1) + step, calls=("same",) * (1 - step), text="ok") for n in range(2)]
            flights = [child.ask(each) for child, each in zip(children, said, strict=True)]
            await player.open(flights[0])
            await player.open(flights[1])
            await player.finish(flights[1])
            await player.finish(flights[0])
            for child, each in zip(children, said, strict=True):
                child.took(each)
        parent.took(spawn)
        await player.play(parent.ask(Said(2, text="mended")))
        tree = await agree(here, tmp_path)
    assert sketch(tree) == [["main: 0 5", "subagent<0: 1 3", "subagent<0: 2 4"]]


@pytest.mark.parametrize("calls", [(), ("a",)], ids=["user speaks", "results"])
@pytest.mark.parametrize("late", [0, 20], ids=["whole before", "whole after"])
@pytest.mark.parametrize("dialect", NAMES)
async def test_the_next_request_overtakes_the_end_of_the_reply(
    dialect: Dialect, late: int, calls: tuple[str, ...], tmp_path: Path
) -> None:
    """SDKs stop reading at the last event; what ends the body may come after their next request."""
    player = Player(dialect)
    async with stage(tmp_path, player.respond) as here:
        player.stage = here
        loop = Loop(dialect)
        loop.user("task")
        said = Said(1, "well", calls)
        first = loop.ask(said)
        await player.open(first)
        await player.part(first, 0.6)
        loop.took(said)
        if not calls:
            loop.user("and now")
        second = loop.ask(Said(2, text="done"))
        if late:
            await player.begin(second, late)
            await player.finish(first)
            await player.rest(second, late)
        else:
            await player.open(second)
            await player.finish(first)
        await player.finish(second)
        tree = await agree(here, tmp_path)
    assert sketch(tree) == [["main: 0 1" if calls else "main: 0 | 1"]]
    assert {turn["cause"] for turn in tree["sessions"][0]["threads"][0]["turns"]} == {"completed"}


# -- made-up loops


@dataclass
class Flight:
    """An exchange under way."""

    play: Play
    loop: Loop
    said: Said


@dataclass
class Field:
    """Clients at work against one proxy, moved by drawn numbers."""

    player: Player
    loops: list[Loop] = field(default_factory=list)
    flights: list[Flight] = field(default_factory=list)
    last: dict[int, Said] = field(default_factory=dict)
    serial: int = 0
    log: list[str] = field(default_factory=list)

    async def move(self, who: int, what: int, how: int) -> None:
        if what >= 6 and self.flights:
            await self._fly(self.flights[who % len(self.flights)], what, how)
        elif len(self.flights) < 5:
            await self._ask(who, what, how)

    async def _ask(self, who: int, what: int, how: int) -> None:
        if not self.loops or (what == 0 and len(self.loops) < 5):
            self._begin(how)
            loop = self.loops[-1]
        else:
            loop = self.loops[who % len(self.loops)]
            if what == 1:
                loop.user(f"more {how % 3}")
            elif what == 2 and len(self.loops) < 5:
                loop = loop.branch()
                self.loops.append(loop)
            elif what == 3 and how % 4 == 0:
                loop.summed_up(f"so far {self.serial}")
        self.serial += 1
        calls = tuple(f"question {self.serial} {n}" for n in range(how % 3))
        status, cut = (529, False) if how % 11 == 5 else (200, how % 7 == 3)
        said = Said(self.serial, "" if calls and how % 2 else f"text {self.serial}", calls, status, cut)
        flight = Flight(loop.ask(said), loop, said)
        await self.player.open(flight.play)
        self.flights.append(flight)

    def _begin(self, how: int) -> None:
        questions = [q for flight in self.flights for q in flight.said.calls] + [
            q for said in self.last.values() for q in said.calls
        ]
        loop = Loop(NAMES[how % 4], stream=how % 5 != 0)
        loop.user(questions[how % len(questions)] if questions and how % 3 else f"task {how % 2}")
        if how % 6 == 1:
            loop.headers["X-Claude-Code-Session-Id"] = f"s{how % 2}"
        self.loops.append(loop)

    async def _fly(self, flight: Flight, what: int, how: int) -> None:
        if what == 6:
            await self.player.part(flight.play, (how % 9) / 10)
            return
        self.flights.remove(flight)
        if what == 7 and how % 3 == 0:
            await self.player.leave(flight.play)
            return
        await self.player.finish(flight.play)
        if flight.said.good:
            self.last[id(flight.loop)] = flight.said
            flight.loop.took(flight.said, None if how % 13 == 12 else "seen")


async def run(moves: list[tuple[int, int, int]], place: Path) -> None:
    player = Player(len(moves))
    async with stage(place, player.respond) as here:
        player.stage = here
        at_work = Field(player)
        for move in moves:
            await at_work.move(*move)
        for flight in list(at_work.flights):
            await at_work.player.finish(flight.play)
        await agree(here, place)


MOVE: Any = st.tuples(st.integers(0, 4), st.integers(0, 11), st.integers(0, 400))


def test_made_up_loops_in_any_order() -> None:
    _fuzz(20, 25)


@pytest.mark.real
@pytest.mark.timeout(900)
def test_many_more_made_up_loops_in_any_order() -> None:
    _fuzz(400, 80)


def _fuzz(examples: int, most: int) -> None:
    @settings(
        max_examples=examples, deadline=None, derandomize=True, database=None,
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(st.lists(MOVE, min_size=most // 2, max_size=most))
    def check(moves: list[tuple[int, int, int]]) -> None:
        with tempfile.TemporaryDirectory() as place:
            asyncio.run(run(moves, Path(place)))

    check()
