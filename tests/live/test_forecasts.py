"""What policies say of budgets and ends of turns is the same live and replayed."""

from pathlib import Path

from tests.live.kit import Json, bare, stage
from tests.live.loops import Loop, Said
from tests.live.recorded import Player


async def test_a_budgets_end_is_forecast_live_as_in_the_replay(tmp_path: Path) -> None:
    budgets = [{"name": "turn", "scope": "turn", "limits": {"steps": 12, "spend_usd": 50}}]
    player = Player()
    async with stage(tmp_path, player.respond, budgets=budgets) as here:
        player.stage = here
        loop = Loop("anthropic")
        loop.user("a long task")
        for number in range(10):
            said = Said(number, calls=(f"question {number}",))
            await player.play(loop.ask(said))
            loop.took(said)
        await here.idle()
        live: Json = bare(await here.live_tree())
        replayed = bare(here.replay(await here.write_log(tmp_path / "log.jsonl")))
    told = [f for f in live["findings"] if f["policy"] == "growth"]
    assert [(f["severity"], f["evidence"]["last_step"], f["evidence"]["dimension"]) for f in told] == [
        ("info", 12, "steps"),
        ("warning", 12, "steps"),
    ]
    assert replayed == live
