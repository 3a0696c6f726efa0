"""The incident: a tool that always fails, retried ninety times a minute, under the caps that README shows.

The whole product in the test's own loop, on a clock that only the scripted model moves: each answer
takes it on by a ninetieth of a minute.
"""

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import ClientSession, web

from proxy.demo import incident
from tests.live.kit import PATIENCE_S, Json, Message, Peer, Stage, answer_head, stage, until

README = (Path(__file__).parents[2] / "README.md").read_text()
PACE_NS = 60_000_000_000 // 90
JSON_FIELDS = [("Content-Type", "application/json")]
LOG = "error: permission denied\n" + "  in deploy.step\n" * 400
BRIEFING = "You deploy. Mind the handbook. " * 5_000
MOST_CALLS = 400


@pytest.fixture
def shown() -> Json:
    """The configuration of README."""
    (block,) = [b for b in re.findall(r"```yaml\n(.*?)```", README, re.S) if "tool_retries" in b]
    given: Json = yaml.safe_load(block)
    return given


@dataclass
class House:
    """The proxy, a clock, and whoever receives alerts."""

    here: Stage
    clock: "Clock"
    posted: list[Json]

    async def counters(self, name: str) -> dict[str, tuple[float, float]]:
        """Used and reserved of a budget, by subject."""
        base, _, token = self.here.running.admin_url.partition("/?token=")
        fields = {"Authorization": f"Bearer {token}"}
        async with ClientSession(headers=fields) as http, http.get(f"{base}/api/v1/budgets") as answer:
            told = await answer.json()
        return {
            one["subject"]: (float(one["used"]), float(one["reserved"]))
            for one in told
            if one["name"] == name
        }

    async def alerts_counted(self) -> float:
        """By the metric, once there is any."""
        path = self.here.running.admin_url.partition("/?")[0] + "/metrics"
        async with asyncio.timeout(PATIENCE_S), ClientSession() as http:
            while True:
                async with http.get(path) as answer:
                    text = await answer.text()
                found = re.findall(r'^looptap_budget_alerts_total\{budget="customer"\} (\S+)', text, re.M)
                if found:
                    return sum(map(float, found))


@dataclass
class Clock:
    """Tells the time to everything in this process."""

    now_ns: int = int(datetime(2026, 11, 30, 12, tzinfo=UTC).timestamp()) * 1_000_000_000

    def __call__(self) -> int:
        return self.now_ns


@dataclass
class Agent:
    """One agent of one customer, which does not give up."""

    customer: str
    text: bool
    briefing: str = BRIEFING
    error: str = LOG
    messages: list[Json] = field(default_factory=list)

    def body(self) -> bytes:
        tools = [{"name": "deploy", "description": "Deploys.", "input_schema": {"type": "object"}}]
        told = {"model": "claude-opus-4-1", "max_tokens": 4096, "system": self.briefing}
        return json.dumps(
            told | {"messages": self.messages} | ({} if self.text else {"tools": tools})
        ).encode()

    async def ask(self, house: House) -> Message:
        fields = [*JSON_FIELDS, ("x-looptap-label-customer", self.customer)]
        return await house.here.ask("/anthropic/v1/messages", self.body(), fields)

    def fail(self, reply: Json, number: int) -> None:
        """The tool has failed again; the next prompt is another one."""
        self.messages.append({"role": "assistant", "content": reply["content"]})
        seen = f"{self.error}Attempt {number} did not work."
        if self.text:
            self.messages.append({"role": "user", "content": f"Observation: {seen}"})
            return
        (call,) = [block for block in reply["content"] if block["type"] == "tool_use"]
        result = {"type": "tool_result", "tool_use_id": call["id"], "content": seen, "is_error": True}
        self.messages.append({"role": "user", "content": [result]})

    async def run(self, house: House, *, look_every: int = 1) -> tuple[int, Message]:
        """Until it is refused: how many calls went out, and what it was told."""
        self.messages = [{"role": "user", "content": "Deploy version 2.4.1."}]
        for number in range(MOST_CALLS):
            answer = await self.ask(house)
            if answer.status != 200:
                return number, answer
            if number % look_every == 0:
                used, held = (await house.counters("customer"))[self.customer]
                assert used + held < 40
            self.fail(answer.json(), number)
        raise AssertionError("nothing stopped it")


def said(number: int, asked: Json, size: int) -> Json:
    """The model wants the tool again, each time a little differently."""
    content: list[Json] = [{"type": "text", "text": f"Once more.\nAction: deploy[attempt {number}]"}]
    if "tools" in asked:
        call = {"type": "tool_use", "id": f"toolu_{number:06}", "name": "deploy"}
        content = [{**call, "input": {"prompt": f"deploy 2.4.1, attempt {number}"}}]
    return {
        "id": f"msg_{number}", "type": "message", "role": "assistant", "model": asked["model"],
        "content": content, "stop_reason": "tool_use" if "tools" in asked else "end_turn",
        "stop_sequence": None, "usage": {"input_tokens": size // 4, "output_tokens": 40},
    }  # fmt: skip


@pytest.fixture
def house(
    shown: Json, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, aiohttp_server: Callable[..., Any]
) -> Any:
    clock = Clock()
    monkeypatch.setattr(time, "time_ns", clock)
    posted: list[Json] = []
    asked = 0

    async def take(request: web.Request) -> web.Response:
        posted.append(await request.json())
        return web.Response()

    async def respond(request: Message, peer: Peer) -> None:
        nonlocal asked
        asked += 1
        clock.now_ns += PACE_NS
        body = json.dumps(said(asked, request.json(), len(request.body))).encode()
        await peer.send(answer_head(200, JSON_FIELDS, len(body)) + body)

    @asynccontextmanager
    async def opened() -> AsyncIterator[House]:
        application = web.Application()
        application.router.add_post("/hook", take)
        receiver = await aiohttp_server(application)
        hooks = [{**hook, "url": str(receiver.make_url("/hook"))} for hook in shown["webhooks"]]
        async with stage(tmp_path, respond, budgets=shown["budgets"], webhooks=hooks) as here:
            yield House(here, clock, posted)

    return opened


@pytest.mark.parametrize(("text", "ended_by"), [(False, "retries"), (True, "customer")])
async def test_a_loop_ends_before_twice_its_days_budget_and_is_told_of_once(
    text: bool, ended_by: str, house: Any
) -> None:
    async with house() as home:
        other = Agent("c8", text, "You deploy.", "", [{"role": "user", "content": "Is it up?"}])
        assert (await other.ask(home)).status == 200
        agent = Agent("c7", text)
        began_ns = home.clock.now_ns
        calls, refused = await agent.run(home)
        assert home.clock.now_ns - began_ns == calls * PACE_NS
        fields = refused.json()["error"]["looptap"]
        assert (refused.status, fields["budget"]) == (402, ended_by)
        # It goes on asking, by itself, and nothing more is spent or told.
        spent = (await home.counters("customer"))["c7"]
        for _ in range(5):
            assert (await agent.ask(home)).status == 402
        assert (await home.counters("customer"))["c7"] == spent
        assert 20 <= spent[0] < 40
        assert spent[1] == 0
        # Whoever is somebody else is not touched.
        assert (await other.ask(home)).status == 200
        assert (await home.counters("customer"))["c8"][0] < 0.1
        await home.here.running.flush()
        await until(lambda: any(post["type"] == "budget/alert" for post in home.posted))
        alert = _the_alert(home)
        assert alert["subject"] == "c7"
        assert 20 <= float(alert["used"]) < 40
        assert [line for line in home.here.warnings if "has reached" in line] == [
            f"budget customer of label:customer c7 has reached 100 %: {alert['used']} of 20 spend_usd"
        ]
        assert await home.alerts_counted() == 1
        assert len([line for line in home.here.warnings if line.startswith("refused: ")]) == 1


def _the_alert(home: House) -> Json:
    """It came once, into the record and to the receiver."""
    with home.here.read() as reader:
        (event,) = [record.data for _, record in reader.events() if record.type == "budget/alert"]
    (post,) = [post for post in home.posted if post["type"] == "budget/alert"]
    assert post["data"] == json.loads(json.dumps(event))
    return dict(event)


@pytest.mark.real
async def test_a_cheap_text_loop_ends_with_its_threads_steps(house: Any) -> None:
    async with house() as home:
        agent = Agent("c7", True, "You deploy.", "error")
        calls, refused = await agent.run(home, look_every=50)
        fields = refused.json()["error"]["looptap"]
        assert (calls, fields["budget"], fields["dimension"]) == (200, "thread-day", "steps")
        assert not any(post["type"] == "budget/alert" for post in home.posted)


def test_the_demo_has_the_caps_that_readme_shows(shown: Json) -> None:
    assert [*map(dict, incident.BUDGETS)] == shown["budgets"]
