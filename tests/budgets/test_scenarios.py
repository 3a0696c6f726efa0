"""Scenarios of caps and cost, by id, on the whole product: what users of such proxies ran into."""

import json
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.budgets import kit
from tests.live.kit import LAST, Json, Message, Peer, answer_head, frame, sse, stage
from tests.live.loops import Loop, Said
from tests.live.recorded import Player

JSON_FIELDS = [("Content-Type", "application/json")]
MINUTE_NS = 60_000_000_000


@pytest.mark.real
def test_BUD_17_a_childs_calls_are_its_turns_and_the_151st_does_not_go_out(tmp_path: Path) -> None:
    budget = {"name": "calls", "scope": "turn", "limits": {"calls": {"*": 150}}, "alert_at": [0.5, 1.0]}
    session = {"x_claude_code_session_id": "s-1", "user_agent": "claude-cli/2.1.0 (external, cli)"}
    agent = {**session, "x_claude_code_agent_id": "agent-7"}
    with kit.model() as model, kit.serve(tmp_path, model, budgets=[budget]) as proxy:
        main = kit.request("go")
        first = proxy.post("/v1/messages", main, x_calls="1", **session)
        assert first.status == 200
        child = kit.request("sub-task", tools=[{"name": "Bash", "input_schema": {"type": "object"}}])
        steps = 0
        while True:
            said = proxy.post("/v1/messages", child, x_calls="10", **agent)
            if said.status != 200:
                break
            steps += 1
            assert steps <= 16
            child = kit.grown(child, said.json)
        # The first request of the child brings no results; fifteen more bring ten each.
        assert (steps, said.status, said.fields["used"], said.fields["needed"]) == (16, 402, 150, 10)
        asked = len(model.asked)
        assert proxy.post("/v1/messages", kit.grown(main, first.json), **session).status == 402
        assert len(model.asked) == asked
        (turn,) = [one for one in proxy.told("turns") if one["id"] == said.fields["subject"]]
        assert (turn["cause"], len(turn["steps"])) == ("calls", 1)
        assert [event["share"] for event in kit.recorded(proxy.data, "budget/alert", 2)] == [0.5, 1.0]
        assert len(kit.recorded(proxy.data, "budget/exhausted")) == 1


async def test_BUD_20_three_hours_of_a_client_that_says_nothing_of_itself_are_one_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_ns = int(datetime(2026, 11, 30, 9, tzinfo=UTC).timestamp()) * 1_000_000_000
    monkeypatch.setattr(time, "time_ns", lambda: now_ns)
    player = Player("chat")
    budget = {"name": "turn", "scope": "turn", "limits": {"steps": 12}}
    async with stage(tmp_path, player.respond, budgets=[budget]) as here:
        player.stage = here
        loop = Loop("chat")
        loop.user("Watch the deployment and tell me when it is done.")
        for number in range(12):
            said = Said(number, calls=(f"still going at {number}?",))
            await player.play(loop.ask(said))
            loop.took(said)
            now_ns += 15 * MINUTE_NS
            here.running.parts.server.shell.thinker.tick(now_ns)
        refused = await here.ask("/openai/v1/chat/completions", json.dumps(loop.body()).encode(), JSON_FIELDS)
        fields = refused.json()["error"]["looptap"]
        assert (refused.status, fields["dimension"], fields["used"]) == (400, "steps", 12)
        tree = await here.live_tree()
    ((thread,),) = [session["threads"] for session in tree["sessions"]]
    (turn,) = thread["turns"]
    assert (turn["cause"], len(turn["steps"])) == ("steps", 12)


def _chunks(usage: Json | None) -> list[Json]:
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "gpt-5-mini"}
    deltas: list[Json] = [{"role": "assistant", "content": ""}, *({"content": "word "} for _ in range(20))]
    told = [{**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
    told.append({**head, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
    return told if usage is None else [*told, {**head, "choices": [], "usage": usage}]


@pytest.mark.parametrize("option", [False, True], ids=["not asked for", "asked for"])
async def test_COST_09_and_COST_15_usage_is_not_asked_for_behind_the_clients_back_and_nothing_is_added(
    option: bool, tmp_path: Path
) -> None:
    usage = {"prompt_tokens": 9, "completion_tokens": 900, "total_tokens": 909}
    told = sse(*_chunks(usage if option else None), named=False) + b"data: [DONE]\n\n"

    async def respond(request: Message, peer: Peer) -> None:
        await peer.send(answer_head(200, [("Content-Type", "text/event-stream")], None) + frame(told) + LAST)

    asked: Json = {"model": "gpt-5-mini", "stream": True, "messages": [{"role": "user", "content": "hi"}]}
    if option:
        asked["stream_options"] = {"include_usage": True}
    budget = {"name": "key", "scope": "key", "window": "day", "limits": {"spend_usd": 5}}
    async with stage(tmp_path, respond, budgets=[budget]) as here:
        body = json.dumps(asked, indent=1).encode()
        answer = await here.ask("/openai/v1/chat/completions", body, JSON_FIELDS)
        await here.live_tree()
        with here.read() as reader:
            (attempt,) = [r.data for _, r in reader.events() if r.type == "step/attempt"]
        assert here.upstream.seen[0].body == body
    assert answer.body == told
    assert not [name for name, _ in answer.fields if "looptap" in name.lower()]
    if option:
        assert (attempt["cost_quality"], attempt["usage"]["output_tokens"]) == ("measured", 900)
    else:
        assert attempt["cost_quality"] == "estimated"
        assert attempt["usage"] == {}
        assert attempt["estimate"]["output_tokens"] >= 20 * len("word ") / 4
    assert float(attempt["cost_usd"]) > 0
