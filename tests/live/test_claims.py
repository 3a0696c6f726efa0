"""A policy of one's own, installed and configured, has its claims held by a running proxy."""

import json
import time
from pathlib import Path
from typing import Any

import pytest

from tests.live.kit import Json, Message, Peer, Stage, answer_head, bare, stage
from tests.plugins import installed

EXAMPLE = Path(__file__).parents[1] / "example_claims"
REPLY = {
    "type": "message", "id": "msg_1", "role": "assistant", "model": "claude-sonnet-4-5",
    "content": [{"type": "text", "text": "done"}], "stop_reason": "end_turn",
    "usage": {"input_tokens": 100, "output_tokens": 10},
}  # fmt: skip
FIELDS = (("content-type", "application/json"),)


async def respond(message: Message, peer: Peer) -> None:
    body = json.dumps(REPLY).encode()
    await peer.send(answer_head(200, FIELDS, len(body)) + body)


async def said(live: Stage, text: str) -> Message:
    asked: Json = {"model": "claude-sonnet-4-5", "max_tokens": 50}
    asked["messages"] = [{"role": "user", "content": text}]
    return await live.ask("/anthropic/v1/messages", json.dumps(asked).encode(), FIELDS)


def told(live: Stage, kind: str) -> list[Any]:
    with live.read() as reader:
        return [record.data for _, record in reader.events() if record.type == kind]


async def test_what_a_policy_claims_is_held_settled_and_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(installed(EXAMPLE, tmp_path / "site")))
    wanted = {"long_prompts": {"action": "deny", "tokens": 1_000, "most": 1}}
    async with stage(tmp_path, respond, policies=wanted) as live:
        purse = live.running.parts.treasury.purse
        assert purse is not None
        answers = [await said(live, text) for text in ("short", "long " * 300, "short, too")]
        await live.idle()
        await purse.drain()
        answers.append(await said(live, "longer " * 300))
        assert [one.status for one in answers] == [200, 200, 200, 402]
        assert len(live.upstream.seen) == 3
        why = answers[-1].json()["error"]
        assert "is used up: 1 of 1 long_prompts" in why["message"]
        expected = ("long_prompts", "long_prompts/hourly", "unnamed")
        assert tuple(why["looptap"][name] for name in ("policy", "budget", "subject")) == expected
        tree = await live.live_tree()
        holds = [told(live, f"budget/{kind}") for kind in ("reserve", "settle")]
        assert [[hold["budget"] for one in of for hold in one["holds"]] for of in holds] == [
            ["long_prompts/hourly"], ["long_prompts/hourly"],
        ]  # fmt: skip
        (counter,) = await purse.ledger.balances(now_ns=time.time_ns())
        assert (counter.name, counter.used, counter.reserved) == ("long_prompts/hourly", 1, 0)
        log = await live.write_log(tmp_path / "log.jsonl")
        assert bare(live.replay(log)) == bare(tree)
