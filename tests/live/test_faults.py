"""A bug of ours costs observations, never traffic: planted faults, and the bytes that still pass."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from proxy.dialects.anthropic import Anthropic
from proxy.dialects.anthropic_stream import AnthropicDecoder
from proxy.outbox import Outbox
from proxy.outbox.waiting import Waiting
from proxy.pricing import Pricing
from proxy.reading.library import Library
from proxy.record import RecordWriter
from proxy.tracker import Tracker
from tests.live.kit import Stage, stage, until
from tests.live.loops import NAMES, Loop, Said
from tests.live.recorded import Player

SECRET = "words that only the conversation may hold"

PLACES: dict[str, tuple[Any, str]] = {
    "read_message": (Anthropic, "read_message"),
    "read_request": (Anthropic, "read_request"),
    "reading": (Library, "slices"),
    "decoder": (Anthropic, "decoder"),
    "feed": (AnthropicDecoder, "feed"),
    "finish": (AnthropicDecoder, "finish"),
    "place": (Tracker, "place"),
    "admit": (Tracker, "admit"),
    "close": (Tracker, "close"),
    "price": (Pricing, "cost"),
    "queue": (Waiting, "put"),
    "capture": (Outbox, "capture"),
    "heads": (Tracker, "changed_heads"),
    "tick": (Tracker, "tick"),
}


def planted(kind: type[Exception]) -> Callable[..., Any]:
    def fail(*_: Any, **__: Any) -> Any:
        raise kind(SECRET)

    return fail


async def step(player: Player, loop: Loop, said: Said) -> None:
    """One step; the player holds the bytes that came to the bytes that were sent, both ways."""
    await player.play(loop.ask(said))
    loop.took(said)


def faults(here: Stage) -> int:
    return sum(here.running.parts.server.shell.faults.counts.values())


@pytest.mark.parametrize("where", PLACES)
async def test_bytes_pass_and_the_fault_is_told_once(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner, name = PLACES[where]
    player = Player(where)
    async with stage(tmp_path, player.respond) as here:
        player.stage = here
        loop = Loop("anthropic")
        loop.user("a task")
        await step(player, loop, Said(0, calls=("question",)))
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, planted(ZeroDivisionError))
            for number in range(1, 4):
                await step(player, loop, Said(number, calls=(f"question {number}",)))
            await here.idle()
            await until(lambda: faults(here) >= 2)
            told = [w for w in here.warnings if "ZeroDivisionError" in w]
            kinds = here.running.parts.server.shell.faults.counts
            assert len(told) == len(kinds), (told, kinds)
            assert 1 <= len(told) <= 3
            assert not any(SECRET in w for w in here.warnings)
        other = Loop("anthropic")
        other.user("another task")
        await step(player, other, Said(9, text="done"))
        await step(player, loop, Said(5, text="done"))
        tree = await here.live_tree()
        seen = {
            number
            for session in tree["sessions"]
            for thread in session["threads"]
            for turn in thread["turns"]
            for step_ in turn["steps"]
            for number in step_["exchanges"]
        }
        assert {0, 4, 5} <= seen
        await here.idle()


async def test_a_fault_in_one_dialect_leaves_the_others_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Anthropic, "read_message", planted(KeyError))
    player = Player()
    async with stage(tmp_path, player.respond) as here:
        player.stage = here
        for number, dialect in enumerate(NAMES):
            loop = Loop(dialect)
            loop.user("a task")
            await step(player, loop, Said(number, text="done"))
        tree = await here.live_tree()
    assert tree["unmodelled"] == [0]
    assert len(tree["sessions"]) == 3


@pytest.mark.parametrize("kind", [OSError, MemoryError, RecursionError, ValueError])
async def test_a_writer_that_fails_loses_the_record_and_says_so(
    kind: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    player = Player(kind.__name__)
    async with stage(tmp_path, player.respond) as here:
        player.stage = here
        loop = Loop("chat")
        loop.user("a task")
        with monkeypatch.context() as patch:
            patch.setattr(RecordWriter, "write", planted(kind))
            await step(player, loop, Said(0, calls=("question",)))
            await until(lambda: here.warnings)
        await step(player, loop, Said(1, text="done"))
        await here.running.flush()
        assert sum(kind.__name__ in w for w in here.warnings) == 1
        assert not any(SECRET in w for w in here.warnings)
        assert here.running.parts.outbox.readings().dropped_events > 0
        assert {r.type for _, r in here.read().events()} >= {"gap", "step/attempt"}
