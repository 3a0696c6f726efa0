"""Traces of the whole product: agent, proxy, provider, and a collector that takes what comes out."""

import asyncio
import json
import random
import socket
from pathlib import Path
from typing import Any

import grpc
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import (
    TraceServiceServicer,
    add_TraceServiceServicer_to_server,
)

from proxy import outlets
from proxy.config import ConfigError, load
from tests.exporters.otel.collector import Span, collecting, forest, span_of
from tests.live.kit import LAST, Message, Peer, Stage, answer_head, frame, request_bytes, sse, stage
from tests.live.test_scenarios import JSON_FIELDS, MESSAGES, STREAM_FIELDS, ask_body, events

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


async def test_OBS_04_streams_cut_at_random_leave_no_span_open(tmp_path: Path) -> None:
    randomness = random.Random(7)
    told = events("a stream that somebody breaks off")
    plans = {f"task {n}": (randomness.choice(("reset", "leave", "whole")), randomness.randrange(len(told)))
             for n in range(200)}  # fmt: skip
    left = asyncio.Semaphore(0)

    async def stream(request: Message, peer: Peer) -> None:
        how, at = plans[request.json()["messages"][0]["content"]]
        await peer.send(answer_head(200, STREAM_FIELDS, None))
        for event in told if how == "whole" else told[:at]:
            await peer.send(frame(sse(event)))
        if how == "whole":
            await peer.send(LAST)
        elif how == "reset":
            peer.reset()
        else:
            left.release()
            await peer.ended()

    async def one(the: Stage, task: str) -> None:
        peer = await the.connect()
        await peer.send(request_bytes("POST", MESSAGES, (), ask_body(task)))
        head = await peer.head()
        if plans[task][0] == "leave":
            await left.acquire()
            peer.reset()
            return
        if head is not None:
            await peer.body(head, until_close=True)
        peer.close()

    async with collecting() as collector:
        async with stage(tmp_path, stream, exporters={"otlp": {"endpoint": collector.url}}) as the:
            tasks = list(plans)
            for start in range(0, 200, 25):
                await asyncio.gather(*(one(the, task) for task in tasks[start : start + 25]))
            await the.idle()
        # The end of the process tells what nobody came back for.
        assert len(collector.named("chat")) == 200
    traces = forest(collector.spans)
    assert len(traces) == 200
    assert {len(trace) for trace in traces.values()} == {3}
    ended = [span.attributes["looptap.outcome"] for span in collector.named("chat")]
    assert {"complete", "client_gone"} < set(ended)
    assert all("looptap.turn.cause" in turn.attributes or turn.attributes["looptap.turn.open"]
               for turn in collector.named("invoke_agent"))  # fmt: skip


@pytest.mark.parametrize("trouble", ["dead", "slow", "refusing", "elsewhere"])
async def test_a_collector_in_trouble_costs_the_traffic_nothing(
    tmp_path: Path, trouble: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.3")
    async with collecting() as collector:
        url = collector.url
        if trouble == "dead":
            with socket.socket() as bound:
                bound.bind(("127.0.0.1", 0))
                url = f"http://127.0.0.1:{bound.getsockname()[1]}"
        elif trouble == "slow":
            collector.gate = asyncio.Event()
        else:
            collector.status = 400 if trouble == "refusing" else 307
        async with stage(tmp_path, answer, exporters={"otlp": {"endpoint": url}}) as the:
            for number in range(20):
                reply = await the.ask(MESSAGES, ask_body(messages=[{**USER, "content": f"task {number}"}]))
                assert reply.status == 200
            if trouble != "dead":
                await collector.until(lambda c: c.requests)
        rows = {one.name: dict(one.rows) for one in the.running.parts.otlp.readings()}
        lost = sum(count for (signal, _), count in rows["otlp_dropped_total"].items() if signal == "traces")
        assert (lost, rows["otlp_sent_total"]["traces",], rows["otlp_queued"]["traces",]) == (
            100,
            0,
            0,
        )  # of 20 turns
        said = [line for line in the.warnings if "does not take traces" in line]
        assert len(said) <= 1
        assert all(line.endswith(f"(at {url})") for line in said)


async def test_OBS_01_OBS_03_join_puts_the_request_into_the_clients_trace(tmp_path: Path) -> None:
    client = [("traceparent", f"00-{PARENT}-b7ad6b7169203331-01")]
    async with collecting() as collector:
        told = {"otlp": {"endpoint": collector.url}}
        async with stage(tmp_path, answer, exporters=told, traceparent="join") as the:
            await the.ask(MESSAGES, ask_body(messages=[USER]), client)
            await the.ask(
                MESSAGES, ask_body(messages=[USER]), [("traceparent", f"00-{'0' * 32}-{'1' * 16}-01")]
            )
            passed = [[request.get("traceparent")] for request in the.upstream.seen]
    assert passed == [[client[0][1]], [f"00-{'0' * 32}-{'1' * 16}-01"]]  # untouched, the broken one, too
    (inbound,) = [span for span in collector.spans if span.trace == PARENT]
    (chat, _) = collector.named("chat")
    assert (inbound.name, inbound.kind, inbound.parent) == ("POST /v1/messages", 2, "b7ad6b7169203331")
    assert [link[:2] for link in inbound.links] == [(chat.trace, chat.id)]
    assert not any("usage" in key for key in inbound.attributes)


async def test_the_environment_alone_switches_traces_on_and_off(tmp_path: Path) -> None:
    environ = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"}
    assert set(load(environ=environ).exporters) == {"otlp"}
    assert not load(environ={**environ, "OTEL_SDK_DISABLED": "true"}).exporters
    warnings: list[str] = []
    odd = {**environ, "OTEL_EXPORTER_OTLP_PROTOCOL": "http/json"}
    assert outlets.otlp(load(environ=odd), warnings.append, odd) is None
    assert len(warnings) == 1
    assert "OTEL_EXPORTER_OTLP_PROTOCOL" in warnings[0]
    file = tmp_path / "looptap.yaml"
    file.write_text("exporters: {otlp: {}}\n")
    with pytest.raises(ConfigError, match="OTEL_EXPORTER_OTLP_PROTOCOL"):
        outlets.otlp(load(file, environ=odd), warnings.append, odd)


async def test_a_turn_goes_on_in_its_trace_after_a_restart(tmp_path: Path) -> None:
    asked = [USER, {"role": "assistant", "content": CALLS}, {"role": "user", "content": RESULTS}]
    async with collecting() as collector:
        told = {"otlp": {"endpoint": collector.url}}
        async with stage(tmp_path, answer, exporters=told) as the:
            await the.ask(MESSAGES, ask_body(messages=[USER]))
            await the.idle()
        (turn,) = collector.named("invoke_agent")  # told as it stands when the process ends
        assert turn.attributes["looptap.turn.open"] is True
        async with stage(tmp_path, answer, exporters=told) as the:
            await the.ask(MESSAGES, ask_body(messages=asked))
            await the.idle()
    forest(collector.spans, reaching=False)
    root, stretch = collector.named("invoke_agent")
    assert (stretch.parent, stretch.attributes["looptap.turn.cause"]) == (root.id, "completed")
    assert stretch.attributes["looptap.turn.usage.input_tokens"] == 20  # of the whole turn
    assert len(collector.named("agent_step")) == 2


class Receiver(TraceServiceServicer):
    """A collector that is spoken to in gRPC."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.headers: list[dict[str, str]] = []

    async def Export(self, request: ExportTraceServiceRequest, context: Any) -> ExportTraceServiceResponse:
        self.headers.append(dict(context.invocation_metadata()))
        self.spans += [span_of(s) for r in request.resource_spans for o in r.scope_spans for s in o.spans]
        return ExportTraceServiceResponse()


async def test_a_collector_may_be_spoken_to_in_grpc(tmp_path: Path) -> None:
    server, receiver = grpc.aio.server(), Receiver()
    add_TraceServiceServicer_to_server(receiver, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    told = {"endpoint": f"http://127.0.0.1:{port}", "protocol": "grpc", "signals": ["traces"],
            "headers": {"authorization": "Bearer hunter2"}}  # fmt: skip
    try:
        async with stage(tmp_path, answer, exporters={"otlp": told}) as the:
            await the.ask(MESSAGES, ask_body(messages=[USER]))
            await the.idle()
    finally:
        await server.stop(None)
    forest(receiver.spans)
    assert len(receiver.spans) == 5
    assert receiver.headers[0]["authorization"] == "Bearer hunter2"
