"""Reasoning that a client loses, in each dialect through a real proxy: what the model reads, the record, the
log and its replay; over a restart, a retry and a count."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from tests.live.kit import Json, Stage, bare, stage
from tests.live.loops import NAMES, Dialect, Loop, Said
from tests.live.recorded import pairs
from tests.live.test_nudges import Model, listed, started_anew

REPAIRING = {"thinking": {"action": "repair"}}
MORE: dict[Dialect, Json] = {
    "anthropic": {"thinking": {"type": "adaptive"}, "model": "claude-opus-5-5"},
    "chat": {"model": "deepseek-v4"},
    "responses": {"reasoning": {"effort": "low"}, "include": ["reasoning.encrypted_content"]},
    "gemini": {},
}
HARD = {"anthropic": "hard", "chat": "hard", "responses": "soft", "gemini": "soft"}


def forget(value: Any) -> Any:
    """The same as a client writes it that has no place for reasoning."""
    if isinstance(value, dict):
        return {
            key: forget(member)
            for key, member in value.items()
            if key not in ("thoughtSignature", "reasoning_content")
        }
    if isinstance(value, list):
        lost = [one for one in value if not isinstance(one, dict) or one.get("type") not in LOST]
        return [forget(one) for one in lost]
    return value


LOST = ("thinking", "reasoning")


class Forgetful:
    """An agent whose client drops all reasoning."""

    def __init__(self, here: Stage, model: Model, dialect: Dialect) -> None:
        self.here, self.model = here, model
        self.loop = Loop(dialect, more=MORE[dialect], thinks=True)
        self.loop.user("look around")
        self.count = 0

    async def ask(self, *, status: int = 200, count: bool = False) -> bytes:
        """One exchange; answers the body that went upstream."""
        self.count += 1
        said = Said(self.count, "", (f"round {self.count}",), status=status)
        self.model.play = play = self.loop.ask(said)
        body = json.dumps(forget(self.asked())).encode()
        target = f"{play.target}/count_tokens" if count else play.target
        answer = await self.here.ask(target, body, pairs(play.line["request_headers"]))
        assert answer.body == play.response
        if status == 200 and not count:
            self.loop.took(said, "seen")
        return self.here.upstream.seen[-1].body

    def asked(self) -> Json:
        """What a client that loses nothing would send."""
        return copy.deepcopy(self.loop.body())

    async def rounds(self, count: int) -> list[bytes]:
        """What went upstream, which is what a lawful client would have sent."""
        sent = []
        for _ in range(count):
            lawful = json.dumps(self.asked()).encode()
            sent.append(await self.ask())
            assert listed(sent[-1], self.loop.dialect) == listed(lawful, self.loop.dialect)
        return sent


@pytest.mark.parametrize("dialect", NAMES)
async def test_reasoning_that_is_lost_goes_out_all_the_same(dialect: Dialect, tmp_path: Path) -> None:
    model = Model()
    async with stage(tmp_path, model.respond, policies=REPAIRING) as here:
        sent = await Forgetful(here, model, dialect).rounds(4)
        await here.idle()
        live = bare(await here.live_tree())
        assert [f["kind"] for f in live["findings"]] == ["dropped"] * 3
        assert {f["consequence"] for f in live["findings"]} == {HARD[dialect]}
        with here.read() as reader:
            told = [dict(one.data) for _, one in reader.events(types=["intervention"])]
            last = [exchange.step for exchange in reader.exchanges()][-1]
        assert last is not None
        assert [one["blocks"] for one in told if one["kind"] == "repair"] == [[0]] * 3
        assert not any("why" in one for one in told)
        assert here.looptap("show", last, "--request") == sent[-1]
        log = await here.write_log(tmp_path / "log.jsonl")
        for line, body in zip(map(json.loads, log.read_text().splitlines()), sent, strict=True):
            assert json.loads(line["request_body"]) == forget(json.loads(body))
        assert bare(here.replay(log)) == live
        assert here.warnings == []


@pytest.mark.parametrize("dialect", NAMES)
async def test_a_restart_a_retry_and_a_count_change_nothing_of_it(dialect: Dialect, tmp_path: Path) -> None:
    model = Model()
    async with stage(tmp_path, model.respond, policies=REPAIRING) as here:
        agent = Forgetful(here, model, dialect)
        before = await agent.rounds(2)
        refused = await agent.ask(status=529)
        await started_anew(here)
        assert await agent.ask(status=529) == refused
        if dialect == "anthropic":
            assert await agent.ask(count=True) == refused
        after = await agent.rounds(2)
        assert after[0] == refused
        assert listed(after[1], dialect)[: len(listed(before[1], dialect))] == listed(before[1], dialect)
