"""Traces of the whole product: agent, proxy, provider, and a collector that takes what comes out."""

import asyncio
import json
from pathlib import Path

from tests.exporters.otel.collector import collecting, forest
from tests.live.kit import Message, Peer, answer_head, frame, stage
from tests.live.test_scenarios import JSON_FIELDS, MESSAGES, STREAM_FIELDS, ask_body, events, sse

CALLS = [
    {"type": "tool_use", "id": "toolu_01AAAAAAAAAA", "name": "look", "input": {"q": "a"}},
    {"type": "tool_use", "id": "toolu_01BBBBBBBBBB", "name": "find", "input": {"q": "b"}},
]
RESULTS = [{"type": "tool_result", "tool_use_id": call["id"], "content": "seen"} for call in CALLS]
USER = {"role": "user", "content": "what is there?"}
PARENT = "0af7651916cd43dd8448eb211c80319c"


async def answer(request: Message, peer: Peer) -> None:
    """Two calls at once, then an end."""
    done = len(request.json()["messages"]) > 1
    content = [{"type": "text", "text": "a and b"}] if done else CALLS
    whole = {
        "id": "msg_1", "type": "message", "role": "assistant", "model": "claude-sonnet-4-5",
        "content": content, "stop_reason": "end_turn" if done else "tool_use", "stop_sequence": None,
        "usage": {"input_tokens": 10, "output_tokens": 5},
    }  # fmt: skip
    body = json.dumps(whole).encode()
    await peer.send(answer_head(200, JSON_FIELDS, len(body)) + body)


async def test_OBS_02_a_turn_is_one_trace_with_its_steps_calls_and_tools(tmp_path: Path) -> None:
    async with collecting() as collector:
        told = {"otlp": {"endpoint": collector.url, "headers": {"x-token": "hunter2"}}}
        async with stage(tmp_path, answer, exporters=told) as the:
            client = [("traceparent", f"00-{PARENT}-b7ad6b7169203331-01")]
            await the.ask(MESSAGES, ask_body(messages=[USER]), client)
            asked = [USER, {"role": "assistant", "content": CALLS}, {"role": "user", "content": RESULTS}]
            await the.ask(MESSAGES, ask_body(messages=asked), client)
            await the.idle()
            await collector.until(lambda c: c.named("invoke_agent"))
            assert "hunter2" not in "".join(the.warnings)
    (trace,) = forest(collector.spans).values()
    (turn,) = collector.named("invoke_agent")
    first, second = collector.named("agent_step")
    look, find = sorted(collector.named("execute_tool"), key=lambda span: span.name, reverse=True)
    chats = collector.named("chat claude-sonnet-4-5")
    assert [span.parent for span in (first, second)] == [turn.id] * 2
    assert [span.parent for span in (chats[0], look, find, chats[1])] == [first.id] * 3 + [second.id]
    assert look.overlaps(find)
    assert first.end_ns == look.end_ns == find.end_ns <= second.end_ns
    assert turn.attributes["looptap.turn.cause"] == "completed"
    assert turn.attributes["looptap.turn.usage.input_tokens"] == 20
    assert sum(span.attributes["gen_ai.usage.input_tokens"] for span in chats) == 20
    assert [link[:2] for link in chats[0].links] == [(PARENT, "b7ad6b7169203331")]
    assert {span.attributes["gen_ai.conversation.id"] for span in trace} == {
        turn.attributes["looptap.thread.id"]
    }
    assert {header["x-token"] for header in collector.headers} == {"hunter2"}
    assert [name for name, _ in collector.logs] == ["looptap.turn.started", "looptap.turn.ended"]
    assert b"what is there?" not in b"".join(collector.bodies)
