"""Real agents and frameworks through a live proxy: each does its task as it does without."""

from pathlib import Path

import pytest

from tests.clients.checks import check_client
from tests.clients.house import Client
from tests.clients.programs import FRAMEWORKS, PROGRAMS

pytestmark = pytest.mark.real


@pytest.mark.timeout(900)
@pytest.mark.parametrize("client", [*FRAMEWORKS, *PROGRAMS], ids=lambda client: client.name)
def test_agent_through_the_proxy_is_the_direct_one(client: Client, tmp_path: Path) -> None:
    check_client(client, tmp_path)
