"""What `docker compose up` promises, with its own configuration: an agent's turn is there to see in Jaeger.

The configuration is the shipped one, but for the names of the services, which stand for addresses.
"""

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from proxy import app
from proxy.config import load
from tests.clients.test_jaeger import Jaeger, jaeger
from tests.deploy.kit import DEPLOY, ROOT
from tests.processes import free_port
from tests.stores.ledger.kit import RedisServer

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]
__all__ = ["jaeger"]


async def test_an_agents_turn_is_seen_in_jaeger(tmp_path: Path, redis: RedisServer, jaeger: Jaeger) -> None:
    model = free_port()
    text = (DEPLOY / "compose" / "looptap.yaml").read_text()
    for shipped, here in (
        ("0.0.0.0:404", "127.0.0.1:404"),
        ("127.0.0.1:4040", "127.0.0.1:0"),
        ("127.0.0.1:4041", "127.0.0.1:0"),
        ("/var/lib/looptap", str(tmp_path / "data")),
        ("redis://redis:6379/0", redis.url),
        ("agents:9000", f"127.0.0.1:{model}"),
        ("http://jaeger:4318", jaeger.http),
    ):
        assert shipped in text, shipped
        text = text.replace(shipped, here)
    (tmp_path / "looptap.yaml").write_text(text)
    warnings: list[str] = []
    running = await app.start(load(tmp_path / "looptap.yaml", environ={}), warnings.append)
    try:
        told = {
            **os.environ, "PYTHONPATH": str(ROOT), "LOOPTAP_URL": running.data_url,
            "ROUNDS": "1", "REST_S": "0", "MODEL_HOST": "127.0.0.1", "MODEL_PORT": str(model),
        }  # fmt: skip
        agents = await asyncio.create_subprocess_exec(
            sys.executable, DEPLOY / "compose" / "agents.py", env=told
        )
        assert await asyncio.wait_for(agents.wait(), 120) == 0
    finally:
        await running.stop(0)
    assert warnings == []
    traces: list[dict[str, Any]] = jaeger.get("/api/traces?service=looptap&limit=100")["data"]
    turns = [
        one for one in traces if any(s["operationName"].startswith("invoke_agent") for s in one["spans"])
    ]
    assert len(turns) >= 4
    assert any(len(one["spans"]) > 5 for one in turns)
