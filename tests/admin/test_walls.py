"""Who is let in: other ports of this machine are other sites, and a cookie alone carries no form."""

import asyncio
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp.test_utils import TestClient

from proxy import admin
from proxy.config import Settings
from proxy.money.orders import Operator
from proxy.stores.ledger_memory import MemoryLedger
from tests.admin import kit

Client = TestClient[Any, Any]


@pytest.fixture
def ledger() -> MemoryLedger:
    return MemoryLedger()


@pytest.fixture
def audit() -> list[Any]:
    return []


@pytest.fixture
async def client(
    tmp_path: Path, aiohttp_client: Callable[..., Any], ledger: MemoryLedger, audit: list[Any]
) -> Client:
    orders = Operator(Settings.model_validate({"store": {"path": str(tmp_path)}}), ledger)
    parts = kit.parts(tmp_path, orders=lambda: orders, audit=lambda kind, data: audit.append((kind, data)))
    made: Client = await aiohttp_client(admin.build(parts))
    return made


async def cookie(client: Client) -> dict[str, str]:
    answer = await client.get(f"/?token={kit.TOKEN}", allow_redirects=False)
    client.session.cookie_jar.clear()
    return {"Cookie": answer.headers["Set-Cookie"].partition(";")[0]}


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://127.0.0.1:9"},
        {"Origin": "http://localhost:9"},
        {"Origin": "https://elsewhere.example"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Host": "rebound.example"},
    ],
)
async def test_another_page_orders_nothing(
    client: Client, ledger: MemoryLedger, audit: list[Any], headers: dict[str, str]
) -> None:
    headers |= await cookie(client)
    answer = await client.post("/api/v1/stop", json={"id": "unnamed"}, headers=headers)
    assert answer.status == 403
    assert (await ledger.stops(), audit) == ({}, [])


async def test_a_form_orders_nothing(client: Client, ledger: MemoryLedger) -> None:
    for kind in ("text/plain", "application/x-www-form-urlencoded"):
        headers = {**await cookie(client), "Content-Type": kind}
        answer = await client.post("/api/v1/stop", data=b'{"id": "unnamed"}', headers=headers)
        assert answer.status == 415
    assert await ledger.stops() == {}


async def test_our_own_page_orders_and_it_is_written_down(
    client: Client, ledger: MemoryLedger, audit: list[Any]
) -> None:
    origin = str(client.make_url("/")).rstrip("/")
    headers = {**await cookie(client), "Origin": origin, "Sec-Fetch-Site": "same-origin"}
    answer = await client.post("/api/v1/stop", json={"id": "unnamed"}, headers=headers)
    assert (answer.status, await answer.json()) == (200, {"id": "unnamed", "stopped": True})
    assert set(await ledger.stops()) == {"unnamed"}
    assert audit == [("stop", {"id": "unnamed"})]


async def test_what_is_refused_is_one_line_and_not_written_down(client: Client, audit: list[Any]) -> None:
    answer = await client.post("/api/v1/stop", json={"id": "nobody"}, headers=kit.BEARER)
    assert answer.status == 404
    assert "nothing is called 'nobody'" in (await answer.json())["error"]
    assert audit == []


async def test_a_link_on_another_port_may_be_followed(client: Client) -> None:
    headers = {**await cookie(client), "Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "navigate"}
    assert (await client.get("/", headers=headers)).status == 200
    headers["Sec-Fetch-Mode"] = "cors"
    assert (await client.get("/api/v1/turns", headers=headers)).status == 403


async def test_the_token_leads_nowhere_else(client: Client) -> None:
    host = f"127.0.0.1:{client.port}"
    for target in (f"//elsewhere.example/?token={kit.TOKEN}", f"/\\elsewhere.example?token={kit.TOKEN}"):
        reader, writer = await asyncio.open_connection("127.0.0.1", client.port)
        writer.write(f"GET {target} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
        told = (await reader.read()).decode()
        writer.close()
        for location in re.findall(r"(?im)^location: (.*?)\r$", told):
            assert re.match(r"/(?![/\\])", location), location
