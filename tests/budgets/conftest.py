"""A real Redis for the tests that share a ledger."""

from collections.abc import Iterator

import pytest

from tests.stores.ledger.kit import RedisServer


@pytest.fixture
def redis() -> Iterator[RedisServer]:
    server = RedisServer("--appendonly", "yes")
    server.start()
    try:
        yield server
    finally:
        server.close()
