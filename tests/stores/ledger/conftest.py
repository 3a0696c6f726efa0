"""Every ledger, opened fresh for each test."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from proxy.ports import Ledger
from proxy.stores.ledger_memory import MemoryLedger
from proxy.stores.ledger_redis import RedisLedger
from proxy.stores.ledger_sqlite import SqliteLedger
from tests.stores.ledger.kit import RedisServer, Till

KINDS = ["memory", "sqlite", pytest.param("redis", marks=pytest.mark.real)]


@pytest.fixture(params=KINDS)
async def ledger(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Ledger]:
    opened: Ledger
    if request.param == "memory":
        opened = MemoryLedger(zone="Europe/Berlin")
    elif request.param == "sqlite":
        opened = SqliteLedger(tmp_path, zone="Europe/Berlin")
    else:
        server: RedisServer = request.getfixturevalue("redis_server")
        server.command("FLUSHALL")
        opened = RedisLedger(server.url, zone="Europe/Berlin", server_time=False, patience_s=0)
    yield opened
    await opened.close()


@pytest.fixture
def till(ledger: Ledger) -> Till:
    return Till(ledger)
