"""What was refused or cut live is refused or cut for the same reason when its log is replayed."""

from pathlib import Path

import pytest

from tests.live.kit import bare, stage
from tests.live.loops import NAMES, Dialect, Loop, Said
from tests.live.recorded import pairs
from tests.live.test_restart import Model

TWO = {"name": "turn", "scope": "turn", "limits": {"steps": 2}}


@pytest.mark.parametrize("form", ["deny", "message"])
@pytest.mark.parametrize("dialect", NAMES)
async def test_a_turn_that_a_budget_ended_is_replayed_with_its_cause(
    dialect: Dialect, form: str, tmp_path: Path
) -> None:
    model, loop = Model(), Loop(dialect)
    loop.user("a long task")
    async with stage(tmp_path, model.respond, budgets=[{**TWO, "on_exhausted": form}]) as live:
        for number in range(3):
            said = Said(number, calls=(f"question {number}",))
            play = model.play = loop.ask(said)
            await live.ask(play.target, play.request_body, pairs(play.line["request_headers"]))
            loop.took(said)
        await live.idle()
        tree = await live.live_tree()
        (turn,) = tree["sessions"][0]["threads"][0]["turns"]
        assert (turn["cause"], len(turn["steps"])) == ("steps", 2)
        log = await live.write_log(tmp_path / "log.jsonl")
        assert bare(live.replay(log)) == bare(tree)
