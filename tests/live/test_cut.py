"""A running stream that must not go on ends in a form its client parses, and asking again is refused."""

import asyncio
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest
from google import genai
from google.genai import errors as google

from proxy.record import Reader
from tests.live.kit import Json, Message, Peer, bare, frame, stage, until
from tests.live.loops import NAMES, Dialect, Loop, Said
from tests.live.recorded import Play, pairs

FORBIDDEN = {"policies": {"tools": {"action": "cut", "deny": ["look"]}}}
SECOND = {"name": "turn", "scope": "turn", "limits": {"wall_clock": "1s"}, "on_exhausted": "cut"}
EVENT = re.compile(rb".*?(?:\r?\n){2}", re.DOTALL)


class Stream:
    """An upstream that sends a reply event by event, and stops before the last so many of them."""

    def __init__(self, play: Play | None = None, keep_back: int = 1, coding: str = "") -> None:
        self.play = play
        self.keep_back = keep_back
        self.more = f"Content-Encoding: {coding}\r\n" if coding else ""
        self.sent = b""
        self.left = 0

    async def respond(self, request: Message, peer: Peer) -> None:
        assert self.play is not None
        fields = "".join(f"{name}: {value}\r\n" for name, value in pairs(self.play.line["response_headers"]))
        await peer.send(f"HTTP/1.1 200 OK\r\n{fields}{self.more}Transfer-Encoding: chunked\r\n\r\n".encode())
        events = EVENT.findall(self.play.response)
        for event in events[: len(events) - self.keep_back]:
            await peer.send(frame(event))
            self.sent += event
        await peer.ended()
        self.left += 1


@pytest.mark.parametrize("dialect", NAMES)
async def test_a_stream_that_brings_a_forbidden_call_is_cut(dialect: Dialect, tmp_path: Path) -> None:
    loop, model = Loop(dialect), Stream(keep_back=dialect != "gemini")
    loop.user("look around")
    said = Said(0, calls=("round the corner",))
    model.play = loop.ask(said)
    async with stage(tmp_path, model.respond, **FORBIDDEN) as live:
        answer = await live.ask(
            model.play.target, model.play.request_body, pairs(model.play.line["request_headers"])
        )
        assert (answer.status, answer.whole) == (200, True)
        told, sent = EVENT.findall(answer.body), EVENT.findall(model.play.response)
        at = next(n for n, event in enumerate(told) if event not in sent)
        assert told[:at] == sent[:at]
        assert b"looptap_tool_denied" in told[at]
        await until(lambda: model.left == 1)
        await live.idle()
        loop.took(said)
        again = loop.ask(Said(1, text="done"))
        refused = await live.ask(again.target, again.request_body, pairs(again.line["request_headers"]))
        assert refused.status == (402 if dialect == "anthropic" else 400)
        tree = await live.live_tree()
        (turn,) = tree["sessions"][0]["threads"][0]["turns"]
        assert (turn["cause"], len(turn["steps"])) == ("policy", 1)
        assert float(turn["cost_usd"]) > 0
        with Reader(live.data_dir) as reader:
            (cut, _) = reader.exchanges()
            assert reader.body(cut.response_body) == answer.body
            (told,) = [
                dict(r.data) for _, r in reader.events(0, types=["step/attempt"]) if r.data["number"] == 0
            ]
            assert told["outcome"] == "cut"
        log = await live.write_log(tmp_path / "log.jsonl")
        assert bare(live.replay(log)) == bare(tree)


async def test_what_is_in_the_middle_of_an_event_is_let_to_its_end(tmp_path: Path) -> None:
    loop = Loop("anthropic")
    loop.user("look around")
    play = loop.ask(Said(0, calls=("round the corner",)))
    events = EVENT.findall(play.response)
    at = next(
        n for n, event in enumerate(events) if b"content_block_stop" in event and b'"index": 0' in event
    )
    begun, rest = asyncio.Event(), asyncio.Event()

    async def respond(request: Message, peer: Peer) -> None:
        await peer.send(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        await peer.send(frame(b"".join(events[: at + 1]) + events[at + 1][:9]))
        begun.set()
        await rest.wait()
        await peer.send(frame(events[at + 1][9:] + b"".join(events[at + 2 :])))
        await peer.ended()

    async with stage(tmp_path, respond, **FORBIDDEN) as live:
        asking = asyncio.create_task(
            live.ask(play.target, play.request_body, pairs(play.line["request_headers"]))
        )
        await begun.wait()
        rest.set()
        answer = await asking
        told = EVENT.findall(answer.body)
    assert answer.whole
    assert told[: at + 2] == events[: at + 2]
    assert (len(told), b"looptap_tool_denied" in told[-1]) == (at + 3, True)


async def test_a_stream_in_a_content_coding_is_broken_off(tmp_path: Path) -> None:
    """Nothing can be put behind it; the client sees that it is not whole."""
    loop = Loop("anthropic")
    loop.user("look around")
    model = Stream(loop.ask(Said(0, text="a long answer")), coding="br")
    async with stage(tmp_path, model.respond, budgets=[SECOND]) as live:
        play = model.play
        assert play is not None
        answer = await live.ask(play.target, play.request_body, pairs(play.line["request_headers"]))
        assert not answer.whole


Call = Callable[[str], None]


def ask_anthropic(url: str) -> None:
    with anthropic.Anthropic(base_url=f"{url}/anthropic", api_key="k") as client:
        messages: Any = [{"role": "user", "content": "a long task of anthropic"}]
        with client.messages.stream(model="acme-1", max_tokens=999, messages=messages) as stream:
            stream.get_final_message()


def ask_chat(url: str) -> None:
    with openai.OpenAI(base_url=f"{url}/openai/v1", api_key="k") as client:
        messages: Any = [{"role": "user", "content": "a long task of chat"}]
        with client.chat.completions.create(model="gpt-5", messages=messages, stream=True) as stream:
            list(stream)


def ask_responses(url: str) -> None:
    with (
        openai.OpenAI(base_url=f"{url}/openai/v1", api_key="k") as client,
        client.responses.create(model="gpt-5", input="a long task of responses", stream=True) as stream,
    ):
        for event in stream:
            if event.type == "response.failed":
                assert event.response.error is not None
                raise openai.OpenAIError(event.response.error.message)
    raise AssertionError("the stream ended without a word")


def ask_google(url: str) -> None:
    with genai.Client(api_key="k", http_options={"base_url": f"{url}/gemini"}) as client:
        list(
            client.models.generate_content_stream(model="gemini-2.5-flash", contents="a long task of gemini")
        )


ASKS: dict[Dialect, tuple[Call, type[Exception]]] = {
    "anthropic": (ask_anthropic, anthropic.APIStatusError),
    "chat": (ask_chat, openai.APIError),
    "responses": (ask_responses, openai.OpenAIError),
    "gemini": (ask_google, google.APIError),
}


async def test_official_sdks_read_why_their_stream_was_cut_and_are_refused_when_they_ask_again(
    tmp_path: Path,
) -> None:
    """All of them at once: the limit on time is two seconds for each."""
    plays: dict[str, Stream] = {}
    for dialect in NAMES:
        loop = Loop(dialect)
        loop.user("a long task")
        events = 3 if dialect == "chat" else 1  # the choice's own end, the usage and the end mark
        plays[dialect] = Stream(loop.ask(Said(0, text="an answer that takes its time")), events)

    async def respond(request: Message, peer: Peer) -> None:
        await plays[next(d for d, word in PLACES.items() if word in request.target)].respond(request, peer)

    async with stage(tmp_path, respond, budgets=[{**SECOND, "limits": {"wall_clock": "2s"}}]) as live:
        url = live.running.data_url

        async def both(dialect: Dialect) -> list[str]:
            call, raised = ASKS[dialect]
            said = []
            for _ in range(2):
                with pytest.raises(raised) as caught:
                    await asyncio.to_thread(call, url)
                said.append(str(caught.value))
            return said

        told = await asyncio.gather(*(both(dialect) for dialect in NAMES))
        for dialect, (cut, again) in zip(NAMES, told, strict=True):
            assert "budget 'turn' of turn trn_" in cut, dialect
            assert "of 2 seconds" in again, dialect
        await until(lambda: [play.left for play in plays.values()] == [1] * 4)
        await live.idle()
        tree = await live.live_tree()
        turns: list[Json] = [t for s in tree["sessions"] for th in s["threads"] for t in th["turns"]]
        assert [turn["cause"] for turn in turns] == ["wall_clock"] * 4
        assert [len(turn["steps"]) for turn in turns] == [1] * 4
        log = await live.write_log(tmp_path / "log.jsonl")
        ends = [(told["end"], told["status"]) for told in map(json.loads, log.read_text().splitlines())]
        assert sorted(ends) == [("refused", 200)] * 4 + [("refused", 400)] * 3 + [("refused", 402)]
        assert bare(live.replay(log)) == bare(tree)
    assert not [warning for warning in live.warnings if "fault" in warning]


PLACES: dict[Dialect, str] = {
    "anthropic": "/messages",
    "chat": "/chat/completions",
    "responses": "/responses",
    "gemini": ":stream",
}


async def test_a_reply_of_which_nothing_came_yet_is_refused_in_its_place(tmp_path: Path) -> None:
    loop = Loop("anthropic", stream=False)
    loop.user("a long task")
    play = loop.ask(Said(0, text="too late"))

    async def respond(request: Message, peer: Peer) -> None:
        await peer.ended()

    async with stage(tmp_path, respond, budgets=[SECOND]) as live:
        answer = await live.ask(play.target, play.request_body, pairs(play.line["request_headers"]))
        assert answer.status == 402
        assert answer.json()["error"]["looptap"]["dimension"] == "wall_clock"
        await live.idle()
        tree = await live.live_tree()
        (turn,) = tree["sessions"][0]["threads"][0]["turns"]
        assert (turn["cause"], len(turn["steps"])) == ("wall_clock", 1)
        log = await live.write_log(tmp_path / "log.jsonl")
        assert bare(live.replay(log)) == bare(tree)
