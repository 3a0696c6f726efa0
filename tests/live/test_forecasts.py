"""What policies say of budgets and ends of turns is the same live and replayed."""

import json
from decimal import Decimal
from pathlib import Path

import aiohttp

from tests.live.kit import Json, Message, Peer, answer_head, bare, stage
from tests.live.loops import Loop, Said
from tests.live.recorded import Player

JSON_FIELDS = [("Content-Type", "application/json")]


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


async def test_LOOP_11_a_turns_spend_and_its_loop_are_seen_while_it_runs(tmp_path: Path) -> None:
    call = {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {"q": "the same"}}
    history: list[Json] = [{"role": "user", "content": "a long task"}]
    reply = {
        "id": "msg_1", "type": "message", "role": "assistant", "model": "claude-sonnet-4-5",
        "content": [call], "stop_reason": "tool_use", "usage": {"input_tokens": 1000, "output_tokens": 20},
    }  # fmt: skip

    async def respond(request: Message, peer: Peer) -> None:
        body = json.dumps(reply).encode()
        await peer.send(answer_head(200, JSON_FIELDS, len(body)) + body)

    async with stage(tmp_path, respond, response_headers=True) as here:
        for number in range(4):
            call["id"] = f"toolu_{number}"
            told = {"model": "claude-sonnet-4-5", "max_tokens": 64, "messages": history}
            answer = await here.ask("/anthropic/v1/messages", json.dumps(told).encode(), JSON_FIELDS)
            result = {"type": "tool_result", "tool_use_id": call["id"], "content": "nothing new"}
            history += [{"role": "assistant", "content": [dict(call)]}, {"role": "user", "content": [result]}]
        await here.idle()
        await here.running.flush()
        base, _, token = here.running.admin_url.partition("/?token=")
        url, fields = (
            f"{base}/api/v1/turns/{answer.get('x-looptap-turn')}",
            {"Authorization": f"Bearer {token}"},
        )
        async with aiohttp.ClientSession(headers=fields) as client, client.get(url) as got:
            turn = await got.json()
    assert answer.get("x-looptap-warning") == "repeats/consecutive"
    assert (turn["open"], len(turn["steps"]), turn["usage"]["input_tokens"]) == (True, 4, 4000)
    assert Decimal(turn["cost_usd"]) > 0
    assert "repeats" in json.dumps(turn)
