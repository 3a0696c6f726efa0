"""Prometheus itself on what is shipped: it reads ``/metrics``, the rules, and answers every panel's query."""

import asyncio
import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.deploy.kit import ALERTS, alerts, queries
from tests.live.kit import PATIENCE_S, stage
from tests.live.test_metrics import BUDGETS, ask, counted, streams
from tests.processes import free_port

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]


def promtool(*arguments: str, told: str = "") -> None:
    program = shutil.which("promtool")
    assert program is not None, "promtool is missing: it comes with prometheus"
    done = subprocess.run(
        [program, *arguments], input=told, capture_output=True, encoding="utf-8", timeout=120, check=False
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr


def test_the_rules_are_valid() -> None:
    promtool("check", "rules", str(ALERTS))


def test_every_rule_is_quiet_and_then_fires() -> None:
    promtool("test", "rules", str(ALERTS.with_name("alerts_test.yaml")))


def test_the_compose_files_own_configuration_is_valid(tmp_path: Path) -> None:
    for file in ALERTS.parent.glob("*.yaml"):
        shutil.copy(file, tmp_path)
    promtool("check", "config", str(tmp_path / "prometheus.yaml"))


class Prometheus:
    """A running Prometheus, asked over its API."""

    def __init__(self, url: str, http: aiohttp.ClientSession) -> None:
        self._url = url
        self._http = http

    async def ask(self, path: str, **parameters: str) -> Any:
        async with self._http.get(f"{self._url}/api/v1/{path}", params=parameters) as answer:
            told = await answer.json()
        assert told["status"] == "success", (parameters, told)
        return told["data"]

    async def value(self, expr: str) -> float | None:
        found = (await self.ask("query", query=expr))["result"]
        return float(found[0]["value"][1]) if found else None

    async def until(self, expr: str, value: float) -> None:
        """Wait until a query answers a value; bounded."""
        async with asyncio.timeout(3 * PATIENCE_S):
            while await self.value(expr) != value:
                await asyncio.sleep(0.2)


@asynccontextmanager
async def prometheus(place: Path, target: str) -> AsyncIterator[Prometheus]:
    """Prometheus with the shipped rules, scraping one looptap every second."""
    program = shutil.which("prometheus")
    assert program is not None, "prometheus is missing"
    shutil.copy(ALERTS, place / "alerts.yaml")
    config = place / "prometheus.yml"
    config.write_text(
        "global: {scrape_interval: 1s, evaluation_interval: 1s}\n"
        "rule_files: [alerts.yaml]\n"
        f"scrape_configs: [{{job_name: looptap, static_configs: [{{targets: ['{target}']}}]}}]\n"
    )
    port = free_port()
    log = (place / "prometheus.log").open("wb")
    process = await asyncio.create_subprocess_exec(
        program, f"--config.file={config}", f"--storage.tsdb.path={place / 'tsdb'}",
        f"--web.listen-address=127.0.0.1:{port}", stdout=log, stderr=log,
    )  # fmt: skip
    url = f"http://127.0.0.1:{port}"
    try:
        async with aiohttp.ClientSession() as http:
            async with asyncio.timeout(PATIENCE_S):
                while not await _is_ready(http, url):
                    assert process.returncode is None, (place / "prometheus.log").read_text()
                    await asyncio.sleep(0.1)
            yield Prometheus(url, http)
    finally:
        process.terminate()
        await process.wait()
        log.close()


async def _is_ready(http: aiohttp.ClientSession, url: str) -> bool:
    try:
        async with http.get(f"{url}/-/ready") as answer:
            return answer.status == 200
    except aiohttp.ClientConnectionError:
        return False


async def test_it_scrapes_a_running_proxy_and_evaluates_rules_and_panels(tmp_path: Path) -> None:
    async with stage(tmp_path, streams, budgets=BUDGETS) as here:
        assert [await ask(here, f"call {n}") for n in range(3)] == [200, 200, 402]
        await counted(here, 'looptap_turns_total{cause="completed"}', 2)
        await asyncio.to_thread(promtool, "check", "metrics", told=here.running.parts.metrics.render())
        admin = here.running.admin_url.partition("://")[2].partition("/")[0]
        async with prometheus(tmp_path, admin) as prom:
            await prom.until('sum(looptap_turns_total{cause="completed"})', 2)
            await prom.until('up{job="looptap"}', 1)
            await prom.until("count(rate(looptap_attempts_total[1m])) > bool 0", 1)
            shown = [bool((await prom.ask("query", query=expr))["result"]) for expr in queries()]
            assert sum(shown) > len(shown) * 0.7, [
                e for e, one in zip(queries(), shown, strict=True) if not one
            ]
            for rule in alerts():
                await prom.ask("query", query=rule["expr"])
            (target,) = (await prom.ask("targets"))["activeTargets"]
            assert (target["health"], target["lastError"]) == ("up", "")
            (group,) = (await prom.ask("rules"))["groups"]
            assert {rule["name"]: rule["lastError"] for rule in group["rules"] if rule.get("lastError")} == {}
            assert {rule["health"] for rule in group["rules"]} <= {"ok", "unknown"}
            assert await prom.value('max(looptap_budget_limit{budget="org"})') == 5
