"""``/metrics`` of a running proxy: what passed is told, and what it tells does not grow with its clients."""

import asyncio
import json
from pathlib import Path

import aiohttp
import pytest

from tests.exporters.otel.collector import collecting
from tests.live.kit import LAST, Message, Peer, Stage, answer_head, frame, sse, stage

USAGE = {"input_tokens": 100, "cache_read_input_tokens": 40, "output_tokens": 1}
STREAM = sse(
    {"type": "message_start", "message": {
        "id": "msg_1", "type": "message", "role": "assistant", "model": "claude-sonnet-4-5", "content": [],
        "stop_reason": None, "usage": USAGE,
    }},
    {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Done."}},
    {"type": "content_block_stop", "index": 0},
    {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 3}},
    {"type": "message_stop"},
)  # fmt: skip


async def streams(message: Message, peer: Peer) -> None:
    """The reply in two chunks, with the loop turning between them."""
    await peer.send(answer_head(200, [("content-type", "text/event-stream")], None))
    await peer.send(frame(STREAM[:400]))
    await asyncio.sleep(0.01)
    await peer.send(frame(STREAM[400:]) + LAST)


async def ask(here: Stage, text: str, label: str = "a") -> int:
    body = {
        "model": "claude-sonnet-4-5", "max_tokens": 100, "stream": True,
        "messages": [{"role": "user", "content": text}],
    }  # fmt: skip
    fields = [("content-type", "application/json"), ("x-looptap-label-customer", label)]
    return (await here.ask("/v1/messages", json.dumps(body).encode(), fields)).status


async def scrape(here: Stage) -> dict[str, float]:
    """The figures by name and labels."""
    url = here.running.admin_url.partition("?")[0] + "metrics"
    async with aiohttp.ClientSession() as session, session.get(url) as answer:
        text = await answer.text()
    rows = (line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    return {name: float(value) for name, value in rows}


async def counted(here: Stage, name: str, value: float) -> dict[str, float]:
    """The figures, once one of them has come to a value: exporters and ledgers follow the traffic."""
    async with asyncio.timeout(20):
        while (seen := await scrape(here)).get(name) != value:
            await asyncio.sleep(0.05)
    return seen


BUDGETS = [
    {"name": "org", "scope": "org", "window": "month", "limits": {"spend_usd": 5}},
    {"name": "customer", "scope": "label:customer", "window": "day", "limits": {"steps": 2}},
]


async def test_what_passed_is_told(tmp_path: Path) -> None:
    async with stage(tmp_path, streams, budgets=BUDGETS) as here:
        assert [await ask(here, f"call {n}") for n in range(3)] == [200, 200, 402]
        row = 'budget="org",dimension="spend_usd",scope="org",subject="default",window="month"'
        seen = await counted(here, f"looptap_budget_reserved{{{row}}}", 0)
        assert seen[f"looptap_budget_limit{{{row}}}"] == 5
        assert seen[f"looptap_budget_used{{{row}}}"] == pytest.approx(2 * (100 * 3 + 40 * 0.3 + 3 * 15) / 1e6)
        seen = await counted(here, 'looptap_turns_total{cause="completed"}', 2)
        assert seen['looptap_tokens_total{kind="input",model="claude-sonnet-4-5"}'] > 0
        refused = 'acted="true",budget="customer",code="looptap_step_limit"'
        assert seen[f"looptap_budget_refusals_total{{{refused}}}"] == 1
        assert seen['looptap_time_to_first_chunk_seconds_count{upstream="anthropic"}'] == 2
        assert seen['looptap_time_between_chunks_seconds_count{upstream="anthropic"}'] >= 2
        assert seen['looptap_added_seconds_count{phase="request"}'] == 2
        assert seen['looptap_added_seconds_count{phase="chunk"}'] >= 4
        assert seen["looptap_open_streams"] == 0
        assert seen["looptap_ledger_away"] == 0


async def test_OBS_07_more_clients_add_no_series(tmp_path: Path) -> None:
    async with stage(tmp_path, streams, budgets=BUDGETS) as here:
        await ask(here, "the first")
        await counted(here, 'looptap_turns_total{cause="completed"}', 1)
        row = 'budget="org",dimension="spend_usd",scope="org",subject="default",window="month"'
        before = await counted(here, f"looptap_budget_reserved{{{row}}}", 0)  # budgets are counted later
        for number in range(20):
            await ask(here, f"session {number}", f"customer-{number}")
        after = await counted(here, 'looptap_turns_total{cause="completed"}', 21)
        assert set(after) == set(before)


async def test_probes_and_scrapes_come_by_address_everything_else_by_a_name_that_is_known(
    tmp_path: Path,
) -> None:
    async with stage(tmp_path, streams) as here, aiohttp.ClientSession() as session:
        base = here.running.admin_url.partition("/?")[0]
        token = here.running.admin_url.partition("token=")[2]
        seen = {}
        for host in ("10.2.3.4:4041", "[fd00::7]:4041", "looptap.evil.example:4041"):
            for path in ("/healthz", "/readyz", "/metrics", "/api/v1/turns"):
                fields = {"Host": host, "Authorization": f"Bearer {token}"}
                async with session.get(base + path, headers=fields) as answer:
                    seen[host, path] = answer.status
        assert {path for (host, path), status in seen.items() if status == 200 and "evil" not in host} == {
            "/healthz", "/readyz", "/metrics",
        }  # fmt: skip
        assert {status for (host, path), status in seen.items() if "evil" in host or "api" in path} == {403}


async def test_the_same_figures_and_the_conventions_own_go_to_a_collector(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "200")
    async with collecting() as collector:
        told = {"otlp": {"endpoint": collector.url}}
        async with stage(tmp_path, streams, budgets=BUDGETS, exporters=told) as here:
            assert await ask(here, "once") == 200
            scraped = await counted(here, 'looptap_turns_total{cause="completed"}', 1)
            await collector.until(lambda c: "gen_ai.client.token.usage" in c.metrics)
            await collector.until(lambda c: "gen_ai.invoke_agent.duration" in c.metrics)
        assert here.warnings == []
    ((attributes, (calls, _)),) = collector.points("gen_ai.client.inference.duration")
    assert (attributes["gen_ai.request.model"], calls) == ("claude-sonnet-4-5", 1)
    assert dict(collector.points("looptap.turns")[0][0]) == {"cause": "completed"}
    names = {
        name.removeprefix("looptap_").partition("{")[0] for name in scraped if name.startswith("looptap_")
    }
    there = {name.removeprefix("looptap.") for name in collector.metrics if name.startswith("looptap.")}
    plain = {
        n.removesuffix("_total").removesuffix("_bytes")
        for n in names
        if not n.endswith(("_bucket", "_sum", "_count"))
    }
    assert {name.removesuffix("_seconds") for name in plain} <= there


async def test_metrics_may_be_kept_from_the_collector(tmp_path: Path) -> None:
    async with collecting() as collector:
        told = {"otlp": {"endpoint": collector.url, "signals": ["traces", "logs"]}}
        async with stage(tmp_path, streams, exporters=told) as here:
            assert await ask(here, "once") == 200
    assert collector.spans
    assert collector.metrics == {}
