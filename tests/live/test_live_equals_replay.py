"""Live equals replay: a live run written out and replayed gives the same trees, and so does its origin.

Every recording is played by a real client through a real proxy to a real upstream. Three trees must
be one: what the running proxy recorded, its exchange log replayed, and the original recording
replayed; ids aside, with the same times where prices depend on them.
"""

import os
import shutil
from pathlib import Path

import pytest

from tests.live.kit import bare, stage
from tests.live.recorded import Player, as_played, read

RECORDINGS = Path(__file__).parents[1] / "recordings"
CLIENTS = sorted((RECORDINGS / "clients").glob("*.jsonl"))
LIBRARIES = sorted((RECORDINGS / "libraries").glob("*.jsonl"))


async def hold_equal(recording: Path, place: Path) -> None:
    plays, upstreams = read(recording)
    player = Player(recording.name)
    async with stage(place, player.respond, upstreams) as here:
        player.stage = here
        for play in plays:
            await player.play(play)
        await here.idle()
        live = bare(await here.live_tree())
        log = await here.write_log(place / "log.jsonl")
        assert bare(here.replay(log)) == live
        original = as_played(place / "original.jsonl", plays, log)
        assert bare(here.replay(original)) == live
        broke_off = "upstream "  # in some recordings it did, and is told so; nothing of ours may go wrong
        assert [said for said in here.warnings if not said.startswith(broke_off)] == []


@pytest.mark.parametrize("recording", CLIENTS, ids=lambda path: path.stem)
async def test_recordings_of_clients(recording: Path, tmp_path: Path) -> None:
    await hold_equal(recording, tmp_path)


@pytest.mark.parametrize("recording", LIBRARIES, ids=lambda path: path.stem)
async def test_recordings_of_libraries(recording: Path, tmp_path: Path) -> None:
    await hold_equal(recording, tmp_path)


def outside() -> list[Path]:
    """The recordings that lie outside the tree, where they are at hand."""
    shared = Path(os.environ.get("LOOPTAP_SHARED") or Path(__file__).parents[3] / "shared")
    found = [
        *(shared / "corpus" / "recordings").glob("*.jsonl"),
        *(shared / "client-traffic").glob("*.jsonl"),
    ]
    return sorted(path for path in found if path.name != "labels.jsonl")


@pytest.mark.real
@pytest.mark.timeout(3000)
async def test_every_recording_outside_the_tree(tmp_path: Path) -> None:
    recordings = outside()
    assert len(recordings) > 400, "set LOOPTAP_SHARED to the folder that holds corpus and client-traffic"
    unequal = {}
    for number, recording in enumerate(recordings):
        try:
            await hold_equal(recording, tmp_path / str(number))
        except AssertionError as difference:
            unequal[recording.name] = str(difference)[:300]
        shutil.rmtree(tmp_path / str(number))
    assert unequal == {}
