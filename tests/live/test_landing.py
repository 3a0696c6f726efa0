"""A last step through the whole product: stored before it goes out, known after a restart, told, replayed."""

import asyncio
import json
from pathlib import Path

import pytest

from proxy.core.landing import WORDS
from tests.live.kit import Message, Stage, bare, stage
from tests.live.loops import NAMES, Dialect, Loop, Said
from tests.live.recorded import pairs
from tests.live.test_restart import Model

THREE = {"name": "turn", "scope": "turn", "limits": {"steps": 3}, "on_exhausted": "land"}


class Agent:
    """A loop in front of a model, asking whichever proxy runs."""

    def __init__(self, dialect: Dialect) -> None:
        self.model, self.loop = Model(), Loop(dialect)
        self.loop.user("a long task")

    async def ask(self, live: Stage, said: Said) -> Message:
        play = self.model.play = self.loop.ask(said)
        answer = await live.ask(play.target, play.request_body, pairs(play.line["request_headers"]))
        if said.good:  # else it asks the same again
            self.loop.took(said)
        await live.idle()
        return answer


def call(number: int, status: int = 200) -> Said:
    return Said(number, calls=(f"question {number}",), status=status)


@pytest.mark.parametrize("dialect", NAMES)
async def test_a_turn_that_was_given_its_last_step_is_told_and_replayed_with_its_cause(
    dialect: Dialect, tmp_path: Path
) -> None:
    agent = Agent(dialect)
    async with stage(tmp_path, agent.model.respond, budgets=[THREE]) as live:
        for number in range(2):
            await agent.ask(live, call(number))
        await agent.ask(live, Said(2, "so far"))
        asked = live.upstream.seen[-1].json()
        assert WORDS in json.dumps(asked)
        assert "none" in json.dumps(asked.get("tool_choice", asked.get("toolConfig"))).lower()
        tree = await live.live_tree()
        (turn,) = tree["sessions"][0]["threads"][0]["turns"]
        assert (turn["cause"], len(turn["steps"])) == ("steps", 3)
        assert "last step, by budget turn (2 of 3 steps): This is" in live.looptap("show", "last").decode()
        told = await asyncio.to_thread(live.looptap, "budgets", "--json")
        assert [(one["dimension"], one["used"], one["limit"]) for one in json.loads(told)] == [
            ("steps", 3, 3)
        ]
        log = await live.write_log(tmp_path / "log.jsonl")
        assert bare(live.replay(log)) == bare(tree)


async def test_a_restart_gives_no_second_last_step(tmp_path: Path) -> None:
    agent = Agent("anthropic")
    async with stage(tmp_path, agent.model.respond, budgets=[THREE]) as live:
        for number in range(2):
            await agent.ask(live, call(number))
        assert (await agent.ask(live, call(2, status=529))).status == 529
        first = live.upstream.seen[-1].body
        assert WORDS.encode() in first
    async with stage(tmp_path, agent.model.respond, budgets=[THREE]) as live:
        assert (await agent.ask(live, call(3))).status == 200  # a model that calls all the same
        assert live.upstream.seen[-1].body == first
        refused = await agent.ask(live, call(4))
        assert refused.status == 402
        assert "3 of 3 steps; this turn was given its last step" in refused.json()["error"]["message"]


async def test_what_a_policy_ends_is_replayed_with_what_it_said_and_no_more(tmp_path: Path) -> None:
    agent, repeats = Agent("responses"), {"action": "land", "stop_at": 4}
    async with stage(tmp_path, agent.model.respond, policies={"repeats": repeats}) as live:
        for number in range(5):
            await agent.ask(live, Said(number, calls=("the same",)))
        assert WORDS in json.dumps(live.upstream.seen[-1].json())
        refused = await agent.ask(live, Said(5, "on"))
        assert "This turn was given its last step" in refused.body.decode()
        tree = await live.live_tree()
        (turn,) = tree["sessions"][0]["threads"][0]["turns"]
        assert (turn["cause"], len(turn["steps"])) == ("policy", 5)
        assert "last step, by repeats: This is" in live.looptap("show", "last").decode()
        assert bare(live.replay(await live.write_log(tmp_path / "log.jsonl"))) == bare(tree)
