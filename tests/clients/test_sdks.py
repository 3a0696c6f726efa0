"""The official SDKs, each in a tool loop of its own process, through a live proxy."""

import json
import sys
from pathlib import Path

import pytest

from tests.clients.checks import check_client
from tests.clients.house import AGENTS, Client

SDKS = ("anthropic_sdk", "openai_chat_sdk", "openai_responses_sdk", "google_sdk")
_HEAVY = SDKS[2:]
"""Two imports of an SDK take seconds: these run with the other clients."""


def sdk(name: str) -> Client:
    return Client(
        name,
        command=lambda _home, _url: [sys.executable, str(AGENTS / f"{name}.py")],
        environment=lambda _url: {},
        text=lambda printed: str(json.loads(printed)["text"]),
    )


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.real if name in _HEAVY else ()) for name in SDKS]
)
def test_sdk_loop_through_the_proxy_is_the_direct_one(name: str, tmp_path: Path) -> None:
    check_client(sdk(name), tmp_path)
