"""Started while what it leans on is not there: it serves as configured, and says what is missing."""

from pathlib import Path

import aiohttp
import pytest

from tests.exporters.otel.collector import collecting
from tests.live.kit import Json, Stage, stage, until
from tests.live.test_metrics import BUDGETS, ask, scrape, streams
from tests.processes import free_port

pytestmark = pytest.mark.real  # a start waits ten seconds for the ledger


async def ready(here: Stage) -> Json:
    url = here.running.admin_url.partition("?")[0] + "readyz"
    async with aiohttp.ClientSession() as session, session.get(url) as answer:
        assert answer.status == 200
        told: Json = await answer.json()
        return told


@pytest.mark.parametrize(("away", "status"), [("closed", 402), ("open", 200)])
async def test_PERF_08_without_ledger_and_collector_it_serves_as_configured(
    tmp_path: Path, away: str, status: int
) -> None:
    told = {
        "ledger": {"url": f"redis://127.0.0.1:{free_port()}/0", "away": away},
        "exporters": {"otlp": {"endpoint": f"http://127.0.0.1:{free_port()}"}},
    }
    async with stage(tmp_path, streams, budgets=BUDGETS, **told) as here:
        assert "cannot reach" in (await ready(here))["ledger"]
        assert await ask(here, "go on") == status
        figures = await scrape(here)
        assert figures["looptap_ledger_away"] == 1
        assert figures['looptap_ledger_errors_total{operation="reserve"}'] >= 1
        assert await ask(here, "and on") == status


async def test_PERF_08_without_a_place_for_the_record_it_serves_and_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no directory")
    async with collecting() as collector:
        told = {
            "store": {"path": str(tmp_path / "file" / "data")},
            "exporters": {"otlp": {"endpoint": collector.url}},
        }
        async with stage(tmp_path, streams, **told) as here:
            assert await ask(here, "go on") == 200
            await until(lambda: here.running.parts.outbox.readings().away)
            assert (await ready(here))["record"] != "ok"
            assert (await scrape(here))["looptap_record_away"] == 1
            await collector.until(lambda c: c.named("invoke_agent"))  # what passed is told all the same
