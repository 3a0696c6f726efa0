"""Scenarios of the wire and of sessions, by id, on the whole product: agent, proxy, provider, record."""

import asyncio
import gzip
import hashlib
import json
import random
import time
from pathlib import Path
from typing import Any

import pytest
import zstandard

from proxy.record import NotRecorded
from tests.live.kit import (
    LAST,
    PATIENCE_S,
    Json,
    Message,
    Peer,
    Stage,
    answer_head,
    bare,
    frame,
    request_bytes,
    sketch,
    sse,
    stage,
    until,
)
from tests.live.loops import NAMES, Dialect, Loop, Said
from tests.live.recorded import Player

MESSAGES = "/anthropic/v1/messages"
JSON_FIELDS = [("Content-Type", "application/json")]
STREAM_FIELDS = [("Content-Type", "text/event-stream")]
USAGE = {
    "input_tokens": 37,
    "cache_read_input_tokens": 2455,
    "cache_creation_input_tokens": 0,
    "output_tokens": 23,
}


def ask_body(text: str = "hello", *, stream: bool = True, **more: Any) -> bytes:
    told = {"model": "claude-sonnet-4-5", "max_tokens": 64, "stream": stream, **more}
    told.setdefault("messages", [{"role": "user", "content": text}])
    return json.dumps(told).encode()


def reply(text: str = "hello", usage: Json | None = None) -> Json:
    return {
        "id": "msg_1", "type": "message", "role": "assistant", "model": "claude-sonnet-4-5",
        "content": [{"type": "text", "text": text}], "stop_reason": "end_turn", "stop_sequence": None,
        "usage": usage or USAGE,
    }  # fmt: skip


def events(text: str = "hello", usage: Json | None = None) -> list[Json]:
    whole = reply(text, usage)
    counted = {"output_tokens": whole["usage"]["output_tokens"]}
    delta = {"type": "content_block_delta", "index": 0}
    begun = {**whole, "content": [], "stop_reason": None, "usage": {**whole["usage"], "output_tokens": 1}}
    return [
        {"type": "message_start", "message": begun},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        *(delta | {"delta": {"type": "text_delta", "text": character}} for character in text),
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": counted},
        {"type": "message_stop"},
    ]  # fmt: skip


def steps_of(tree: Json) -> list[Json]:
    return [
        step
        for session in tree["sessions"]
        for thread in session["threads"]
        for turn in thread["turns"]
        for step in turn["steps"]
    ]


async def tree_when(here: Stage, whole: int) -> Json:
    await here.idle()
    tree = await here.live_tree()
    assert len(steps_of(tree)) == whole
    return tree


def answers(body: bytes, fields: list[tuple[str, str]] = JSON_FIELDS, status: int = 200) -> Any:
    async def respond(request: Message, peer: Peer) -> None:
        await peer.send(answer_head(status, fields, len(body)) + body)

    return respond


# -- D. the wire


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
async def test_WIRE_04_characters_split_over_chunks_are_stored_whole(newline: str, tmp_path: Path) -> None:
    text = "日本語の返事です。🙂👩‍👩‍👧 ελληνικά 𝒳"
    told = "".join(
        f"event: {e['type']}{newline}data: {json.dumps(e, ensure_ascii=False)}{newline}{newline}"
        for e in events(text)
    ).encode()

    async def respond(request: Message, peer: Peer) -> None:
        await peer.send(answer_head(200, STREAM_FIELDS, None))
        for at in range(len(told)):
            peer.writer.write(frame(told[at : at + 1]))
            if at % 16 == 0:
                await asyncio.sleep(0)
        await peer.send(LAST)

    async with stage(tmp_path, respond) as here:
        asked = ask_body("どうですか", messages=[{"role": "user", "content": "どうですか 🙂"}])
        answer = await here.ask(MESSAGES, asked, JSON_FIELDS)
        assert answer.body == told
        await tree_when(here, 1)
        with here.read() as reader:
            items = [r.data for _, r in reader.events() if r.type == "item"]
            (exchange,) = reader.exchanges()
            assert reader.body(exchange.response_body) == told
        assert [i["preview"] for i in items if i["direction"] == "out"] == [text]
        shown = here.looptap("show", "--json").decode()
    assert "\ufffd" not in json.dumps(items, ensure_ascii=False) + shown
    assert "\\ufffd" not in shown


@pytest.mark.parametrize("coding", ["identity", "gzip"])
async def test_WIRE_05_each_event_is_there_before_the_next_is_sent(coding: str, tmp_path: Path) -> None:
    told = [sse(event) for event in events("word by word")]
    seen = asyncio.Event()

    async def respond(request: Message, peer: Peer) -> None:
        fields = [*STREAM_FIELDS, *([("Content-Encoding", coding)] if coding != "identity" else [])]
        await peer.send(answer_head(200, fields, None))
        for event in told:
            seen.clear()
            await peer.send(frame(gzip.compress(event) if coding == "gzip" else event))
            await seen.wait()
        await peer.send(LAST)

    async with stage(tmp_path, respond) as here:
        peer = await here.connect()
        await peer.send(request_bytes("POST", MESSAGES, JSON_FIELDS, ask_body()))
        assert await peer.head() is not None
        async with asyncio.timeout(PATIENCE_S):
            for event in told:
                piece = await peer.chunk()
                assert (gzip.decompress(piece) if coding == "gzip" else piece) == event
                seen.set()
            assert await peer.chunk() == b""
        peer.close()
        (step,) = steps_of(await tree_when(here, 1))
    assert step["usage"]["output_tokens"] == USAGE["output_tokens"]


async def test_WIRE_06_pings_and_comments_alone_pass_at_once_for_as_long_as_they_come(tmp_path: Path) -> None:
    """Time is moved by hand: each ping comes when nearly the whole patience for silence has passed."""
    ping, comment = b'event: ping\ndata: {"type": "ping"}\n\n', b": keep-alive\n\n"
    seen = asyncio.Event()

    async def respond(request: Message, peer: Peer) -> None:
        await peer.send(answer_head(200, STREAM_FIELDS, None))
        for event in (ping, comment) * 20 + (sse(*events()),):
            seen.clear()
            await peer.send(frame(event))
            await seen.wait()
        await peer.send(LAST)

    async with stage(tmp_path, respond) as here:
        shell = here.running.parts.server.shell
        peer = await here.connect()
        await peer.send(request_bytes("POST", MESSAGES, JSON_FIELDS, ask_body()))
        assert await peer.head() is not None
        async with asyncio.timeout(PATIENCE_S):
            for event in (ping, comment) * 20:
                assert await peer.chunk() == event
                later = shell.pulse.now + shell.limits.silence_s * 0.9
                for connection in list(here.running.parts.server._connections):
                    connection.sweep(later)
                seen.set()
            assert await peer.chunk() == sse(*events())
            seen.set()
            assert await peer.chunk() == b""
        peer.close()
        (step,) = steps_of(await tree_when(here, 1))
    assert step["stop_reason"] == "end_turn"


@pytest.mark.parametrize("dialect", NAMES)
async def test_WIRE_07_an_upstream_that_dies_in_an_event_is_seen_dead_and_settled(
    dialect: Dialect, tmp_path: Path
) -> None:
    player = Player(dialect)
    async with stage(tmp_path, player.respond) as here:
        player.stage = here
        loop = Loop(dialect)
        loop.user("hello")
        cut = loop.ask(Said(1, "a long answer that breaks off", cut=True))
        await player.play(cut)
        assert cut.answer is not None
        assert not cut.answer.whole
        assert cut.response.startswith(cut.answer.body)
        await player.play(loop.ask(Said(2, "a long answer")))
        (step,) = steps_of(await tree_when(here, 1))
        with here.read() as reader:
            told = [r.data for _, r in reader.events() if r.type == "step/attempt"]
    assert [a["outcome"] for a in told] == ["cut", "complete"]
    assert told[0]["cost_quality"] in ("estimated", "unpriced")
    assert step["exchanges"] == [0, 1]


@pytest.mark.parametrize("on_abort", ["cancel", "drain"])
async def test_WIRE_18_and_COST_05_a_client_that_leaves_mid_stream_is_settled(
    on_abort: str, tmp_path: Path
) -> None:
    told = events("0123456789" * 4, {**USAGE, "output_tokens": 511})
    go_on, gone, sent = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def respond(request: Message, peer: Peer) -> None:
        await peer.send(answer_head(200, STREAM_FIELDS, None) + frame(sse(*told[:7])))
        if on_abort == "cancel":
            await peer.ended()
            gone.set()
            return
        await go_on.wait()
        await peer.send(frame(sse(*told[7:])) + LAST)
        sent.set()

    async with stage(tmp_path, respond, on_abort=on_abort) as here:
        shell = here.running.parts.server.shell
        peer = await here.connect()
        await peer.send(request_bytes("POST", MESSAGES, JSON_FIELDS, ask_body()))
        assert await peer.head() is not None
        await peer.chunk()
        peer.close()
        async with asyncio.timeout(PATIENCE_S):
            if on_abort == "cancel":
                await gone.wait()
            else:
                await until(lambda: shell.draining)
                go_on.set()
                await sent.wait()
        (step,) = steps_of(await tree_when(here, 1))
        with here.read() as reader:
            (attempt,) = [r.data for _, r in reader.events() if r.type == "step/attempt"]
    if on_abort == "drain":
        assert attempt["usage"]["output_tokens"] == 511
        assert (attempt["outcome"], attempt["cost_quality"]) == ("complete", "measured")
    else:
        assert (attempt["outcome"], attempt["cost_quality"]) == ("client_gone", "estimated")
        assert float(attempt["cost_usd"]) > 0
    assert step["cost_usd"] == attempt["cost_usd"]


@pytest.mark.parametrize("coding", ["zstd", "gzip", "zstd stream", "x-unknown", "gzip but broken"])
async def test_WIRE_02_compressed_requests_pass_untouched_and_are_read(coding: str, tmp_path: Path) -> None:
    plain = ask_body("a task in zstd", stream=False)
    packed = {
        "zstd": zstandard.compress(plain),
        "gzip": gzip.compress(plain),
        "zstd stream": zstandard.ZstdCompressor(write_content_size=False).compressobj().compress(plain) + b"",
        "x-unknown": plain[::-1],
        "gzip but broken": gzip.compress(plain)[:-20] + b"x" * 20,
    }[coding]
    if coding == "zstd stream":
        compressor = zstandard.ZstdCompressor(write_content_size=False).compressobj()
        packed = compressor.compress(plain) + compressor.flush()
    fields = [*JSON_FIELDS, ("Content-Encoding", coding.split()[0])]
    readable = coding in ("zstd", "gzip", "zstd stream")
    async with stage(tmp_path, answers(json.dumps(reply()).encode())) as here:
        answer = await here.ask(MESSAGES, packed, fields)
        assert answer.json() == reply()
        assert here.upstream.seen[0].body == packed
        assert here.upstream.seen[0].get("content-encoding") == coding.split()[0]
        tree = await tree_when(here, 1 if readable else 0)
        assert tree["unmodelled"] == ([] if readable else [0])
        log = await here.write_log(tmp_path / "log.jsonl")
        assert bare(here.replay(log)) == bare(tree)
        with here.read() as reader:
            (exchange,) = reader.exchanges()
            assert reader.body(exchange.request_body) == packed


# -- B. and C.: cost and thinking


async def test_COST_01_the_same_usage_costs_the_same_streamed_and_whole(tmp_path: Path) -> None:
    async def respond(request: Message, peer: Peer) -> None:
        if request.json()["stream"]:
            await peer.send(answer_head(200, STREAM_FIELDS, None) + frame(sse(*events())) + LAST)
        else:
            body = json.dumps(reply()).encode()
            await peer.send(answer_head(200, JSON_FIELDS, len(body)) + body)

    async with stage(tmp_path, respond) as here:
        for stream in (True, False):
            await here.ask(MESSAGES, ask_body(f"streamed: {stream}", stream=stream), JSON_FIELDS)
        streamed, whole = steps_of(await tree_when(here, 2))
    assert streamed["usage"] == whole["usage"]
    assert streamed["usage"]["cache_read_tokens"] == 2455
    assert streamed["cost_usd"] == whole["cost_usd"] is not None
    assert float(whole["cost_usd"]) == pytest.approx((37 * 3 + 2455 * 0.3 + 23 * 15) / 1e6, rel=1e-12)


ODD = [
    b'{ "model":"claude-sonnet-4-5",\r\n\t"max_tokens" : 64 , "messages":[ '
    b'{"content":"caf\\u00e9 caf\xc3\xa9 \\/ ","role":"user"} ],'
    b'"temperature":1e0,"x":1E2,"stream":false ,"metadata":{ } }\n',
    b'{"messages":[{"role":"user","content":"a"}],"max_tokens":1,"max_tokens":2,"model":"claude-sonnet-4-5"}',
    b'{"model":"claude-sonnet-4-5","max_tokens":5,"messages":[{"role":"user","content":[{"type":"text","text":'
    b'"\\ud83d\\ude42 \xf0\x9f\x99\x82 \\u2028"}]}],"big":123456789012345678901234567890,"z":-0.0,"n":null}',
    b'\xef\xbb\xbf{"model":"claude-sonnet-4-5","messages":[]}',
    b'{"model":"claude-sonnet-4-5","max_tokens":5,"messages":[{"role":"user","content":"\\ud800 alone"}]}',
    b"not json at all \xff\xfe",
    b"",
]


@pytest.mark.parametrize("body", ODD, ids=range(len(ODD)))
async def test_THK_01_odd_json_passes_byte_for_byte(body: bytes, tmp_path: Path) -> None:
    odd_reply = (
        b'{ "id":"msg_1","type":"message","role":"assistant","content":[ ] ,"usage":{"input_tokens":1e0}}\r\n'
    )
    async with stage(tmp_path, answers(odd_reply)) as here:
        answer = await here.ask(MESSAGES, body, JSON_FIELDS)
        assert answer.body == odd_reply
        assert hashlib.sha256(here.upstream.seen[0].body).digest() == hashlib.sha256(body).digest()
        await here.running.flush()
        with here.read() as reader:
            (exchange,) = reader.exchanges()
            assert reader.body(exchange.request_body) == body
            assert reader.body(exchange.response_body) == odd_reply
        assert here.running.parts.server.shell.faults.counts == {}


# -- I. size


@pytest.mark.parametrize("size", [900_000, 1_150_000, 8 << 20, 32 << 20])
async def test_PERF_01_bodies_up_to_32_MiB_are_forwarded_read_and_recorded(size: int, tmp_path: Path) -> None:
    text = "".join(random.Random(size).choices("abcdefghij klmnop", k=10_000)) * (size // 10_000 + 1)
    body = ask_body(text[: size - 200], stream=False)
    async with stage(tmp_path, answers(json.dumps(reply()).encode())) as here:
        answer = await here.ask(MESSAGES, body, JSON_FIELDS)
        assert answer.status == 200
        assert here.upstream.seen[0].body == body
        (step,) = steps_of(await tree_when(here, 1))
        assert here.looptap("show", step["id"], "--request") == body
        assert here.running.parts.server.counters.buffered_bytes == 0


async def test_PERF_03_fifty_thousand_tiny_events_start_no_task_and_cost_the_same_each(
    tmp_path: Path,
) -> None:
    most = 50_000
    told = events("x" * most)
    tasks: list[int] = []
    cpu: list[float] = []

    async def respond(request: Message, peer: Peer) -> None:
        await peer.send(answer_head(200, STREAM_FIELDS, None))
        for at in range(0, len(told), 500):
            peer.writer.write(b"".join(frame(sse(event)) for event in told[at : at + 500]))
            await peer.writer.drain()
            tasks.append(len(asyncio.all_tasks()))
            cpu.append(time.process_time())
        await peer.send(LAST)

    async with stage(tmp_path, respond) as here:
        answer = await here.ask(MESSAGES, ask_body(), JSON_FIELDS)
        assert answer.body == sse(*told)
        (step,) = steps_of(await tree_when(here, 1))
    assert step["stop_reason"] == "end_turn"
    assert max(tasks) - min(tasks) <= 2
    half = len(cpu) // 2
    assert cpu[-1] - cpu[half] < 3 * (cpu[half] - cpu[0]) + 0.5


# -- E. sessions


def claude(session: str, agent: str | None = None) -> dict[str, str]:
    told = {"User-Agent": "claude-cli/2.1.332 (external, cli)", "X-Claude-Code-Session-Id": session}
    return told if agent is None else {**told, "x-claude-code-agent-id": agent}


async def play(player: Player, loop: Loop, said: Said, results: str | None = "seen") -> None:
    await player.play(loop.ask(said))
    if said.good:
        loop.took(said, results)


async def test_SES_01_a_sub_agent_under_its_parents_session_id_is_a_thread_of_its_own(tmp_path: Path) -> None:
    player = Player()
    async with stage(tmp_path, player.respond) as here:
        player.stage = here
        main = Loop("anthropic", headers=claude("s-1"))
        main.user("a long task")
        for number in range(19):
            await play(player, main, Said(number, calls=(f"question {number}",)))
        await play(player, main, Said(19, calls=("delegate the rest",)), results=None)
        child = Loop("anthropic", headers=claude("s-1", "agent-7"))
        child.user("count the files")
        await play(player, child, Said(100, text="three"))
        tree = await tree_when(here, 21)
        with here.read() as reader:
            kinds = {r.data["kind"] for _, r in reader.events() if r.type == "item"}
    (threads,) = sketch(tree)
    assert threads == ["main: " + " ".join(map(str, range(20))) + "…", "subagent<0: 20"]
    assert "compaction" not in kinds


async def test_SES_02_a_summary_with_a_tail_goes_on_with_the_turn(tmp_path: Path) -> None:
    player = Player()
    async with stage(tmp_path, player.respond) as here:
        player.stage = here
        loop = Loop("anthropic", headers=claude("s-2"))
        loop.user("a long task")
        for number in range(6):
            await play(player, loop, Said(number, calls=(f"question {number}",)))
        asks = loop.branch()
        asks.user("Your task is to create a detailed summary of the conversation so far.")
        asks.more = {"tools": []}
        await play(player, asks, Said(50, text="We asked questions 0 to 5."))
        tail = loop.history[-2:]
        loop.summed_up("We asked questions 0 to 5.")
        loop.history += tail
        await play(player, loop, Said(7, text="done"))
        tree = await tree_when(here, 8)
        with here.read() as reader:
            epochs = [r.data["epoch"] for _, r in reader.events() if r.type == "step/start"]
    (threads,) = sketch(tree)
    assert threads == ["main: 0 1 2 3 4 5 7", "side<0: 6"]
    assert epochs[-1] == 1


async def test_SES_06_agents_of_one_session_never_wait_for_each_other(tmp_path: Path) -> None:
    player = Player()
    async with stage(tmp_path, player.respond) as here:
        player.stage = here
        loops = [Loop("anthropic", headers=claude("s-6", f"agent-{n}")) for n in range(8)]
        flights = []
        for number, loop in enumerate(loops):
            loop.user(f"part {number}")
            flights.append(loop.ask(Said(number, text="done")))
        for flight in flights:
            await player.open(flight)  # all eight have reached the provider; none is answered yet
        for flight in flights:
            await player.part(flight, 0.5)
        for flight in reversed(flights):
            await player.finish(flight)
        tree = await tree_when(here, 8)
    assert len(tree["sessions"]) == 1
    assert len(tree["sessions"][0]["threads"]) == 8


@pytest.mark.parametrize(
    ("dialect", "fields", "more"),
    [
        ("anthropic", {"X-Claude-Code-Session-Id": "{}"}, {}),
        (
            "anthropic",
            {},
            {"metadata": {"user_id": '{{"device_id":"d","account_uuid":"a","session_id":"{}"}}'}},
        ),
        ("anthropic", {}, {"metadata": {"user_id": "user_0123_account_89ab_session_{}"}}),
        ("responses", {"session-id": "{}"}, {}),
        ("responses", {"session_id": "{}"}, {}),
        ("responses", {}, {"prompt_cache_key": "{}"}),
        ("responses", {}, {"conversation": "conv_{}"}),
    ],
    ids=[
        "header",
        "metadata as JSON",
        "metadata of old",
        "session-id",
        "session_id",
        "cache key",
        "conversation",
    ],
)
async def test_SES_08_each_client_names_its_session_in_its_own_way(
    dialect: Dialect, fields: dict[str, str], more: Json, tmp_path: Path
) -> None:
    names = ("56c3d6c2-2b9d-4035-901b-83151c8a64fd", "0f9d6c2e-1111-4035-901b-83151c8a64fd")

    def filled(value: Any, name: str) -> Any:
        if isinstance(value, dict):
            return {key: filled(inner, name) for key, inner in value.items()}
        return value.format(name)

    player = Player()
    async with stage(tmp_path, player.respond) as here:
        player.stage = here
        for serial, name in enumerate((names[0], names[1], names[0])):
            loop = Loop(dialect, headers=filled(fields, name), more=filled(more, name))
            loop.user(f"an unrelated task {serial}")
            await play(player, loop, Said(serial, text="done"))
        tree = await tree_when(here, 3)
    exchanges = [
        [s["exchanges"] for t in x["threads"] for u in t["turns"] for s in u["steps"]]
        for x in tree["sessions"]
    ]
    assert exchanges == [[[0], [2]], [[1]]]


@pytest.mark.parametrize("name", ["", " ", "x" * 100_000, "\u00ff\u00fe", "null", "{"])
async def test_SES_08_a_malformed_session_name_leaves_it_to_the_content(name: str, tmp_path: Path) -> None:
    player = Player()
    async with stage(tmp_path, player.respond) as here:
        player.stage = here
        loop = Loop("anthropic", more={"metadata": {"user_id": name}})
        loop.user("a task")
        await play(player, loop, Said(0, calls=("question",)))
        await play(player, loop, Said(1, text="done"))
        tree = await tree_when(here, 2)
    assert sketch(tree) == [["main: 0 1"]]


async def test_SES_09_history_held_by_the_provider_is_chained_by_id(tmp_path: Path) -> None:
    def told(number: int, before: str | None) -> bytes:
        return json.dumps(
            {
                "model": "gpt-5",
                "input": f"question {number}",
                **({"previous_response_id": before} if before else {}),
            }
        ).encode()

    async def respond(request: Message, peer: Peer) -> None:
        number = request.json()["input"].split()[-1]
        body = json.dumps(
            {
                "id": f"resp_{number}", "object": "response", "status": "completed", "model": "gpt-5",
                "output": [{"id": f"m{number}", "type": "message", "status": "completed", "role": "assistant",
                            "content": [{"type": "output_text", "text": "yes", "annotations": []}]}],
                "usage": {"input_tokens": 5, "output_tokens": 1, "total_tokens": 6},
            }
        ).encode()  # fmt: skip
        await peer.send(answer_head(200, JSON_FIELDS, len(body)) + body)

    async with stage(tmp_path, respond) as here:
        for number in range(5):
            await here.ask(
                "/openai/v1/responses", told(number, f"resp_{number - 1}" if number else None), JSON_FIELDS
            )
        await here.ask("/openai/v1/responses", told(77, "resp_never_seen"), JSON_FIELDS)
        tree = await tree_when(here, 6)
        log = await here.write_log(tmp_path / "log.jsonl")
        assert bare(here.replay(log)) == bare(tree)
    assert sketch(tree) == [["main: 0 | 1 | 2 | 3 | 4"], ["main: 5"]]
    assert [session["threads"][0]["partial"] for session in tree["sessions"]] == [False, True]


@pytest.mark.parametrize("hinted", [True, False])
async def test_SES_10_a_title_between_two_steps_is_no_step_and_ends_no_turn(
    hinted: bool, tmp_path: Path
) -> None:
    player = Player()
    fields = claude("s-10") if hinted else {}
    schema = {
        "type": "json_schema",
        "schema": {"type": "object", "properties": {"title": {"type": "string"}}},
    }
    async with stage(tmp_path, player.respond) as here:
        player.stage = here
        loop = Loop("anthropic", headers=fields)
        loop.user("mend the failing test in the parser")
        await play(player, loop, Said(0, calls=("question",)))
        title = Loop(
            "anthropic", headers=fields, more={"tools": [], "model": "claude-haiku-4-5", "max_tokens": 32}
        )
        title.more["output_config"] = {"format": schema}
        title.user("mend the failing test in the parser")
        await play(player, title, Said(60, text='{"title":"Parser"}'))
        await play(player, loop, Said(1, text="done"))
        tree = await tree_when(here, 3)
    (threads,) = sketch(tree)
    assert threads[0] == "main: 0 2"
    assert threads[1].startswith("side")
    side = tree["sessions"][0]["threads"][1]["turns"][0]
    assert float(side["cost_usd"]) > 0


@pytest.mark.parametrize("dialect", NAMES)
async def test_SES_11_retries_of_one_call_are_attempts_of_one_step(dialect: Dialect, tmp_path: Path) -> None:
    player = Player()
    async with stage(tmp_path, player.respond) as here:
        player.stage = here
        loop = Loop(dialect)
        loop.user("hello")
        for said in (Said(0, status=529), Said(1, status=529), Said(2, text="done")):
            await player.play(loop.ask(said))
        tree = await tree_when(here, 1)
    assert sketch(tree) == [["main: 0+1+2"]]
    assert tree["findings"] == []


async def test_digest_keeps_structure_and_no_content(tmp_path: Path) -> None:
    """Neither while it runs nor in what outlives the process: requests, replies, calls, results, heads."""
    player = Player()
    async with stage(tmp_path, player.respond, store={"record": "digest"}) as here:
        player.stage = here
        loop = Loop("anthropic")
        loop.user("a secret plan")
        for serial in range(5):
            await play(
                player, loop, Said(serial, "some secret words", ("a secret argument",)), "a secret result"
            )
        await play(player, loop, Said(6, "a secret answer", ("another secret argument",)), None)
        step, *_ = steps_of(await tree_when(here, 6))
        with here.read() as reader, pytest.raises(NotRecorded):
            reader.request_body(reader.attempts(step["id"])[0].id)
        live = await here.live_tree()
    stored = b"".join(file.read_bytes() for file in here.data_dir.glob("record.db*"))
    assert b"secret" not in stored
    assert sketch(live) == [["main: 0 1 2 3 4 5…"]]


async def test_digest_goes_on_with_a_turn_after_a_restart(tmp_path: Path) -> None:
    player = Player()
    loop = Loop("chat")
    loop.user("a secret plan")
    ids = []
    for said in (Said(0, calls=("a secret argument",)), Said(1, text="done")):
        async with stage(tmp_path, player.respond, store={"record": "digest"}) as here:
            player.stage = here
            await play(player, loop, said)
            await here.idle()
            (session,) = (await here.live_tree())["sessions"]
            ids.append([turn["id"] for thread in session["threads"] for turn in thread["turns"]])
    assert len(ids[0]) == 1
    assert ids[0] == ids[1]
