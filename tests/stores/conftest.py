"""A Redis for the stores that several instances share."""

from collections.abc import Iterator

import pytest

from tests.stores.ledger.kit import RedisServer


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    """A private server that keeps nothing."""
    server = RedisServer()
    try:
        server.start()
        yield server
    finally:
        server.close()
