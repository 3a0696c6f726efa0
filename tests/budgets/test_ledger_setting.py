"""Which ledger the settings open. A leased one counts in its server's time, as the unleased does."""

from pathlib import Path
from typing import Any

import pytest

from proxy.config import Settings
from proxy.money.treasury import ledger_of
from proxy.stores.ledger_lease import LeasedLedger
from proxy.stores.ledger_redis import RedisLedger
from proxy.stores.ledger_sqlite import SqliteLedger

REDIS = "redis://127.0.0.1:1"


def settings(data_dir: Path, ledger: dict[str, Any]) -> Settings:
    return Settings.model_validate({"store": {"path": str(data_dir)}, "ledger": ledger})


@pytest.mark.parametrize(
    ("ledger", "kind"),
    [({}, SqliteLedger), ({"url": REDIS}, RedisLedger), ({"url": REDIS, "lease": 1}, LeasedLedger)],
)
async def test_settings_name_the_ledger(tmp_path: Path, ledger: dict[str, Any], kind: type) -> None:
    opened = ledger_of(settings(tmp_path, ledger))
    assert type(opened) is kind
    await opened.close()


async def test_a_leased_ledger_counts_in_its_servers_time(tmp_path: Path) -> None:
    leased = ledger_of(settings(tmp_path, {"url": REDIS, "lease": 1}))
    assert isinstance(leased, LeasedLedger)
    assert isinstance(leased.below, RedisLedger)
    assert leased.now == leased.below.now
    await leased.close()
