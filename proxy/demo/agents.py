"""The demo's agents: five small tool loops, as data, and the loops that play them.

An agent here does what agents do: it sends the whole history, runs the tools that the reply
asks for (all of one reply at the same time), appends the results and asks again until the reply
asks for none, or its own limit of steps is reached. It knows its base URL and nothing of Looptap.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import orjson
from aiohttp import ClientResponse, ClientSession

from proxy.demo.model import Call, Line, Script


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool that takes its time and always gives the same answer."""

    about: str
    seconds: float
    answer: str
    fails: bool = False


@dataclass(frozen=True, slots=True)
class Agent:
    """One agent and the task it is given, with what there is to see in its tree."""

    name: str
    lesson: str
    api: Literal["anthropic", "openai", "text"]
    """``text``: a ReAct loop over Anthropic Messages, whose calls and results are plain text."""
    model: str
    system: str
    script: Script
    tools: Mapping[str, Tool]
    settings: Mapping[str, Any] = field(default_factory=dict)
    streams: bool = True
    forgets_thinking: bool = False
    max_steps: int = 12


class _Stopped(Exception):
    """The API said no; a real agent shows the message and ends."""


async def play(agent: Agent, base_url: str) -> str | None:
    """Let the agent work at its task until it is done, refused, or at its limit; what refused it."""
    headers = {"user-agent": f"demo-{agent.name}/1.0"}
    async with ClientSession(headers=headers) as http:
        loop = _LOOPS[agent.api](agent, base_url, http)
        try:
            for _ in range(agent.max_steps):
                if not await loop.step():
                    return None
        except _Stopped as no:
            return str(no)
    return None


class _Anthropic:
    """A tool loop over Anthropic Messages."""

    def __init__(self, agent: Agent, base_url: str, http: ClientSession) -> None:
        self._agent = agent
        self._url = base_url + "/anthropic/v1/messages"
        self._http = http
        self._messages: list[dict[str, Any]] = [{"role": "user", "content": agent.script.task}]

    async def step(self) -> bool:
        """One request and the tools it asks for; whether there is more to do."""
        agent = self._agent
        tools = [
            {"name": name, "description": tool.about, "input_schema": {"type": "object"}}
            for name, tool in agent.tools.items()
        ]
        content = await self._ask(tools=tools)
        kept = [b for b in content if not (agent.forgets_thinking and b["type"] == "thinking")]
        self._messages.append({"role": "assistant", "content": kept})
        calls = [b for b in content if b["type"] == "tool_use"]
        if not calls:
            return False
        results = await asyncio.gather(*(_run(agent, c["name"]) for c in calls))
        blocks = [
            {"type": "tool_result", "tool_use_id": call["id"], "content": tool.answer, "is_error": tool.fails}
            for call, tool in zip(calls, results, strict=True)
        ]
        self._messages.append({"role": "user", "content": blocks})
        return True

    async def _ask(self, **more: Any) -> list[dict[str, Any]]:
        agent = self._agent
        body = {
            "model": agent.model, "max_tokens": 4096, "system": agent.system, "messages": self._messages,
            "stream": agent.streams, **more, **agent.settings,
        }  # fmt: skip
        headers = {"x-api-key": "demo", "anthropic-version": "2023-06-01"}
        async with self._http.post(self._url, json=body, headers=headers) as response:
            return await _anthropic_content(response)


class _Text(_Anthropic):
    """A ReAct loop: the reply's text names an action, the observation is the next user text."""

    async def step(self) -> bool:
        """One request and the action that its text asks for; whether there is more to do."""
        (block,) = await self._ask()
        self._messages.append({"role": "assistant", "content": block["text"]})
        _, named, action = block["text"].partition("Action: ")
        if not named:
            return False
        tool = await _run(self._agent, action.partition("[")[0])
        self._messages.append({"role": "user", "content": f"Observation: {tool.answer}"})
        return True


class _Chat:
    """A tool loop over OpenAI Chat Completions."""

    def __init__(self, agent: Agent, base_url: str, http: ClientSession) -> None:
        self._agent = agent
        self._url = base_url + "/openai/v1/chat/completions"
        self._http = http
        self._messages: list[dict[str, Any]] = [
            {"role": "system", "content": agent.system},
            {"role": "user", "content": agent.script.task},
        ]

    async def step(self) -> bool:
        """One request and the tools it asks for; whether there is more to do."""
        agent = self._agent
        body: dict[str, Any] = {
            "model": agent.model,
            "messages": self._messages,
            "tools": [
                {
                    "type": "function",
                    "function": {"name": name, "description": tool.about, "parameters": {"type": "object"}},
                }
                for name, tool in agent.tools.items()
            ],
            "max_completion_tokens": 4096,
            **agent.settings,
        }
        if agent.streams:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        headers = {"authorization": "Bearer demo"}
        async with self._http.post(self._url, json=body, headers=headers) as response:
            message = await _chat_message(response)
        self._messages.append(message)
        calls = message.get("tool_calls") or []
        if not calls:
            return False
        results = await asyncio.gather(*(_run(agent, c["function"]["name"]) for c in calls))
        self._messages.extend(
            {"role": "tool", "tool_call_id": call["id"], "content": tool.answer}
            for call, tool in zip(calls, results, strict=True)
        )
        return True


_LOOPS: Mapping[str, type[_Anthropic] | type[_Chat]] = {
    "anthropic": _Anthropic, "openai": _Chat, "text": _Text,
}  # fmt: skip


async def _run(agent: Agent, name: str) -> Tool:
    tool = agent.tools[name]
    await asyncio.sleep(tool.seconds)
    return tool


async def _anthropic_content(response: ClientResponse) -> list[dict[str, Any]]:
    if response.status >= 400:
        raise _Stopped(orjson.loads(await response.read())["error"]["message"])
    if response.content_type != "text/event-stream":
        content: list[dict[str, Any]] = orjson.loads(await response.read())["content"]
        return content
    blocks: list[dict[str, Any]] = []
    arguments: dict[int, str] = {}
    async for event in _events(response):
        if event["type"] == "content_block_start":
            blocks.append(event["content_block"])
        elif event["type"] == "content_block_delta":
            delta = event["delta"]
            block = blocks[event["index"]]
            if delta["type"] == "input_json_delta":
                arguments[event["index"]] = arguments.get(event["index"], "") + delta["partial_json"]
            else:
                part = delta["type"].removesuffix("_delta")
                block[part] = block.get(part, "") + delta[part]
    for index, text in arguments.items():
        blocks[index]["input"] = orjson.loads(text)
    return blocks


async def _chat_message(response: ClientResponse) -> dict[str, Any]:
    if response.status >= 400:
        raise _Stopped(orjson.loads(await response.read())["error"]["message"])
    if response.content_type != "text/event-stream":
        whole: dict[str, Any] = orjson.loads(await response.read())["choices"][0]["message"]
        return whole
    text = ""
    calls: list[dict[str, Any]] = []
    async for chunk in _events(response):
        for choice in chunk["choices"]:
            delta = choice["delta"]
            text += delta.get("content") or ""
            for piece in delta.get("tool_calls") or ():
                if "id" in piece:
                    calls.append({k: v for k, v in piece.items() if k != "index"})
                else:
                    calls[piece["index"]]["function"]["arguments"] += piece["function"]["arguments"]
    message: dict[str, Any] = {"role": "assistant", "content": text or None}
    if calls:
        message["tool_calls"] = calls
    return message


async def _events(response: ClientResponse) -> Any:
    async for line in response.content:
        data = line.removeprefix(b"data: ").strip()
        if line.startswith(b"data: ") and data != b"[DONE]":
            yield orjson.loads(data)


# -- who plays


_READ = Tool("Read a file of the project.", 0.12, "version = 2\nretries = 3\ntimeout_s = 30\n")
_TEST = Tool("Run the tests.", 0.34, "41 passed, 1 failed: test_timeout expects 60")
_SEARCH = Tool("Search the shop's catalogue.", 0.09, '[{"item": "Aero 14 laptop", "price": "1,299 EUR"}]')

HEALTHY = Agent(
    name="coder",
    lesson="A healthy turn: two tools run side by side, thinking comes back, the cache is warm.",
    api="anthropic",
    model="claude-opus-5",
    system="You are a careful programmer. Read before you write, and run the tests.",
    settings={"thinking": {"type": "adaptive"}},
    tools={
        "read_file": _READ,
        "run_tests": _TEST,
        "edit_file": Tool("Change a file.", 0.03, "1 line changed"),
    },
    script=Script(
        "The timeout test fails since Monday. Please mend it.",
        (
            Line(
                "The configuration and the failing test are independent: I can look at both at once.",
                "I will read the settings and run the tests.",
                (Call("read_file", {"path": "settings.toml"}), Call("run_tests", {"only": "test_timeout"})),
            ),
            Line(
                "The test expects 60 seconds, the settings say 30. The settings are wrong.",
                "",
                (
                    Call(
                        "edit_file",
                        {"path": "settings.toml", "old": "timeout_s = 30", "new": "timeout_s = 60"},
                    ),
                ),
            ),
            Line("", "The setting was 30 seconds where the test expects 60. I set it to 60."),
        ),
    ),
)

LAPTOP = Agent(
    name="shop",
    lesson="Two steps: one search, one answer.",
    api="openai",
    model="gpt-5-mini",
    system="You answer questions about our shop. Look prices up, do not guess them.",
    tools={"search": _SEARCH},
    script=Script(
        "What does the laptop cost?",
        (
            Line(calls=(Call("search", {"query": "laptop"}),)),
            Line(text="The Aero 14 laptop costs 1,299 EUR."),
        ),
    ),
)

ON_CALL = Agent(
    name="on-call",
    lesson="Three steps, each question depending on the last answer: find the service, read its log, answer.",
    api="openai",
    model="gpt-5-mini",
    system="You help the engineer on call. Find the cause, name the evidence.",
    tools={
        "list_alerts": Tool(
            "Alerts that are firing.", 0.05, '[{"service": "checkout", "alert": "5xx > 2 %"}]'
        ),
        "read_log": Tool("The log of a service.", 0.21, "14:02:11 pool exhausted, 50 of 50 in use"),
    },
    script=Script(
        "I was paged. What is wrong?",
        (
            Line(calls=(Call("list_alerts", {}),)),
            Line(calls=(Call("read_log", {"service": "checkout", "last": "15m"}),)),
            Line(
                text="checkout answers 5xx since 14:02: its connection pool is exhausted (50 of 50 in use)."
            ),
        ),
    ),
)

RUNAWAY = Agent(
    name="deployer",
    lesson="A runaway loop: the same failing call again and again, each step dearer than the one before.",
    api="anthropic",
    model="claude-sonnet-4-5",
    system="You deploy the service. Do not give up.",
    tools={
        "deploy": Tool("Deploy a version.", 0.02, "error: permission denied for role deployer", fails=True)
    },
    script=Script(
        "Deploy version 2.4.1 to production.",
        (Line(text="Let me try that once more.", calls=(Call("deploy", {"version": "2.4.1"}),)),),
    ),
    max_steps=8,
)

FORGETFUL = Agent(
    name="forgetful",
    lesson="A client that strips the thinking before it sends a reply back; real providers refuse that.",
    api="anthropic",
    model="claude-sonnet-4-5",
    system="You are a careful programmer.",
    settings={"thinking": {"type": "enabled", "budget_tokens": 2000}},
    tools={"read_file": _READ},
    streams=False,
    forgets_thinking=True,
    script=Script(
        "How many retries do we make?",
        (
            Line("The settings will say.", "", (Call("read_file", {"path": "settings.toml"}),)),
            Line("", "Three: `retries = 3` in settings.toml."),
        ),
    ),
)

AGENTS: Sequence[Agent] = (HEALTHY, LAPTOP, ON_CALL, RUNAWAY, FORGETFUL)
