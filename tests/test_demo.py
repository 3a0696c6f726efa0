"""`looptap demo`: the scripted model is deterministic, its two wires agree, and the trees come out."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import orjson
import pytest
from aiohttp import ClientSession

from proxy.demo.agents import AGENTS, FORGETFUL, HEALTHY, LAPTOP, ON_CALL, RUNAWAY, Agent
from proxy.demo.model import Stage

ROOT = Path(__file__).parents[1]


async def ask(agent: Agent, stream: bool, history: list[dict[str, Any]]) -> bytes:
    """One request of the agent's to the model itself."""
    stage = Stage([agent.script])
    url = await stage.start()
    body: dict[str, Any] = {"model": agent.model, "messages": history, "stream": stream}
    path = "/v1/messages" if agent.api == "anthropic" else "/v1/chat/completions"
    if stream and agent.api == "openai":
        body["stream_options"] = {"include_usage": True}
    try:
        async with ClientSession() as http, http.post(url + path, json=body) as response:
            assert response.status == 200
            return await response.read()
    finally:
        await stage.stop()


def events(raw: bytes) -> list[dict[str, Any]]:
    lines = (line.removeprefix(b"data: ") for line in raw.splitlines() if line.startswith(b"data: "))
    return [orjson.loads(line) for line in lines if line != b"[DONE]"]


def opening(agent: Agent) -> list[dict[str, Any]]:
    return [{"role": "user", "content": agent.script.task}]


async def test_the_model_says_the_same_streamed_and_whole_on_anthropics_wire() -> None:
    whole = orjson.loads(await ask(HEALTHY, False, opening(HEALTHY)))
    raw = await ask(HEALTHY, True, opening(HEALTHY))
    assert raw == await ask(HEALTHY, True, opening(HEALTHY))
    blocks: list[dict[str, Any]] = []
    for event in events(raw):
        if event["type"] == "content_block_start":
            blocks.append(dict(event["content_block"]))
        elif event["type"] == "content_block_delta":
            delta = dict(event["delta"])
            kind = delta.pop("type")
            if kind == "input_json_delta":
                blocks[-1]["json"] = blocks[-1].get("json", "") + delta["partial_json"]
            else:
                (part,) = delta
                blocks[-1][part] += delta[part]
    for block in blocks:
        if "json" in block:
            block["input"] = orjson.loads(block.pop("json"))
    assert blocks == whole["content"]
    last = events(raw)[-2]
    assert last["usage"] == whole["usage"]
    assert whole["usage"]["output_tokens_details"]["thinking_tokens"] < whole["usage"]["output_tokens"]


async def test_the_model_says_the_same_streamed_and_whole_on_openais_wire() -> None:
    whole = orjson.loads(await ask(LAPTOP, False, opening(LAPTOP)))
    chunks = events(await ask(LAPTOP, True, opening(LAPTOP)))
    arguments = "".join(
        piece["function"]["arguments"]
        for chunk in chunks
        for choice in chunk["choices"]
        for piece in choice["delta"].get("tool_calls", ())
    )
    assert arguments == whole["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"]
    assert chunks[-1]["usage"] == whole["usage"]
    assert whole["choices"][0]["finish_reason"] == "tool_calls"


async def test_the_model_knows_only_its_tasks() -> None:
    stage = Stage([HEALTHY.script])
    url = await stage.start()
    for path in ("/v1/messages", "/v1/chat/completions"):
        body = {"model": "m", "messages": [{"role": "user", "content": "something else"}]}
        async with ClientSession() as http, http.post(url + path, json=body) as response:
            assert response.status == 400
            assert "knows no such task" in await response.text()
    await stage.stop()


def looptap(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "proxy", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=55,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What one demo left behind: its JSON, by agent, and where the record is."""
    place = tmp_path_factory.mktemp("demo")
    done = looptap("demo", "--json", "--keep", str(place))
    assert (done.returncode, done.stderr) == (0, "")
    answer = json.loads(done.stdout)
    scenes = {scene["agent"]: scene["sessions"] for scene in answer["scenes"]}
    incident = {story["customer"]: story for story in answer["incident"]}
    return {
        "place": place, "findings": answer["findings"], "incident": incident, "log": answer["log"], **scenes,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("agent", "steps"),
    [(HEALTHY, 3), (LAPTOP, 2), (ON_CALL, 3), (RUNAWAY, 8), (FORGETFUL, 2)],
    ids=["healthy", "laptop", "on-call", "runaway", "forgetful"],
)
def test_each_agent_is_one_session_with_one_turn(told: dict[str, Any], agent: Agent, steps: int) -> None:
    (session,) = told[agent.name]
    (thread,) = session["threads"]
    (turn,) = thread["turns"]
    assert (thread["kind"], thread["partial"]) == ("main", False)
    assert len(turn["steps"]) == steps
    assert turn["open"] is (agent is RUNAWAY)
    assert turn["cause"] == (None if agent is RUNAWAY else "completed")
    assert turn["cost_quality"] == "measured"
    assert float(turn["cost_usd"]) > 0
    for step in turn["steps"]:
        (attempt,) = step["attempts"]
        assert attempt["outcome"] == "complete"
        assert attempt["started_at"] < attempt["ended_at"]


def test_the_healthy_turn_ran_its_tools_side_by_side(told: dict[str, Any]) -> None:
    (session,) = told["coder"]
    first = session["threads"][0]["turns"][0]["steps"][0]
    assert [c["name"] for c in first["tool_calls"]] == ["read_file", "run_tests"]
    assert [r["is_error"] for r in first["tool_results"]] == [False, False]
    said = max(call["completed_at"] for call in first["tool_calls"])
    assert said < min(result["arrived_at"] for result in first["tool_results"])
    assert first["usage"]["reasoning_tokens"] > 0


def test_the_runaway_fails_the_same_way_again_and_again(told: dict[str, Any]) -> None:
    (session,) = told["deployer"]
    steps = session["threads"][0]["turns"][0]["steps"]
    assert {c["arguments"] for s in steps for c in s["tool_calls"]} == {'{"version":"2.4.1"}'}
    assert all(r["is_error"] for s in steps for r in s["tool_results"])
    costs = [float(s["cost_usd"]) for s in steps[1:]]
    assert costs == sorted(costs)


@pytest.mark.real
def test_the_kept_record_can_be_read_and_replayed(told: dict[str, Any], tmp_path: Path) -> None:
    """Live equals replay: structure and costs are the same, ids and times differ."""
    for agent in AGENTS:
        (live,) = told[agent.name]
        log = looptap("--data-dir", str(told["place"]), "show", live["id"], "--exchanges")
        assert log.returncode == 0, log.stderr
        file = tmp_path / f"{agent.name}.jsonl"
        file.write_text(log.stdout)
        again = json.loads(looptap("replay", "--json", str(file)).stdout)
        assert [bare(s, again["findings"]) for s in again["sessions"]] == [bare(live, told["findings"])]


def test_the_runaway_and_the_forgetful_are_found_out(told: dict[str, Any]) -> None:
    found = {
        agent.name: {finding["policy"] for step in _steps(told[agent.name]) for finding in _of(step, told)}
        for agent in AGENTS
    }
    assert "repeats" in found[RUNAWAY.name]
    assert "thinking" in found[FORGETFUL.name]
    assert found[HEALTHY.name] == set()


def test_in_the_incident_two_loops_end_before_twice_their_budget_and_the_third_customer_works(
    told: dict[str, Any],
) -> None:
    happened = told["incident"]
    assert {name: story["ended_by"] for name, story in happened.items()} == {
        "acme": "retries", "globex": "customer", "initech": None,
    }  # fmt: skip
    for name in ("acme", "globex"):
        assert happened[name]["alerts"] == [1.0]
        assert 20 <= float(happened[name]["cost_usd"]) < 40
        assert f"budget '{happened[name]['ended_by']}'" in happened[name]["message"]
        assert len([line for line in told["log"] if f"{name} has reached 100 %" in line]) == 1
    assert (happened["initech"]["calls"], happened["initech"]["alerts"]) == (2, [])
    assert len(told["log"]) == 4


def _steps(sessions: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        step for session in sessions for thread in session["threads"] for turn in thread["turns"]
        for step in turn["steps"]
    ]  # fmt: skip


def _of(step: dict[str, Any], told: dict[str, Any]) -> list[dict[str, Any]]:
    return [told["findings"][number] for number in step["findings"]]


def bare(session: dict[str, Any], findings: list[dict[str, Any]]) -> list[Any]:
    """A session less its ids and times. Findings have numbers of their own in each answer."""
    facts = ("cause", "open", "usage", "cost_usd", "cost_quality")
    return [
        [thread["kind"], *(turn[key] for key in facts), [bare_step(step, findings) for step in turn["steps"]]]
        for thread in session["threads"]
        for turn in thread["turns"]
    ]


def bare_step(step: dict[str, Any], findings: list[dict[str, Any]]) -> dict[str, Any]:
    kept = {key: step[key] for key in ("model", "stop_reason", "usage", "cost_usd", "cost_quality")}
    kept["findings"] = [(findings[n]["policy"], findings[n]["kind"]) for n in step["findings"]]
    kept["tool_calls"] = [(call["id"], call["name"]) for call in step["tool_calls"]]
    kept["tool_results"] = [(result["id"], result["is_error"]) for result in step["tool_results"]]
    return kept


def test_a_record_that_is_there_is_left_alone(told: dict[str, Any]) -> None:
    done = looptap("demo", "--keep", str(told["place"]))
    assert (done.returncode, done.stdout) == (1, "")
    assert "holds a record already" in done.stderr


def test_the_trees_are_printed_under_their_lessons() -> None:
    done = looptap("demo")
    assert done.returncode == 0
    assert "\x1b" not in done.stdout
    for agent in AGENTS:
        assert agent.lesson in done.stdout
    assert done.stdout.count("─ turn trn_") == len(AGENTS)
    assert done.stdout.count("deploy ") >= RUNAWAY.max_steps - 1
    assert "stopped by retries" in done.stdout
