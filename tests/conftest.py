"""What holds for every test: how hypothesis runs, and a Redis for those that need a real one.

No deadline and no check on how long data takes to make: both measure the machine, not the code.
In CI examples are the same each time, so that a red run can be repeated.
"""

import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from tests.stores.ledger.kit import RedisServer

settings.register_profile(
    "house",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=bool(os.environ.get("CI")),
)
settings.load_profile("house")


@pytest.fixture(scope="module")
def redis() -> Iterator[RedisServer]:
    """A private server that keeps what it has acknowledged."""
    server = RedisServer("--appendonly", "yes")
    try:
        server.start()
        yield server
    finally:
        server.close()
