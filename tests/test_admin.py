"""The admin port: its three walls, its JSON, and that it never renders what others wrote."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient

from proxy import admin
from proxy.catalog import RecordCatalog
from proxy.model import CaptureEnd, CaptureStart, Record
from proxy.record import RecordWriter

TOKEN = "correct-horse"
BODY = b'{"messages": ["<script>alert(1)</script>"]}'


def write_a_turn(data_dir: Path) -> None:
    writer = RecordWriter(data_dir)
    ids = ("ses_" + "1" * 20, "thr_" + "2" * 20, "trn_" + "3" * 20, "stp_" + "4" * 20)
    exchange = "exc_" + "5" * 20
    attempt = {
        "attempt": 0, "exchange": exchange, "number": 0, "outcome": "complete", "status": 200, "model": "m",
        "stop_reason": "end_turn", "usage": {"input_tokens": 5}, "cost_usd": "0.01",
        "cost_quality": "measured", "arrived_ns": 1, "ended_ns": 2,
    }  # fmt: skip
    session = {"client": "tests", "by": "content", "key": "unnamed", "team": "t", "org": "o", "labels": {}}
    thread = {"kind": "main", "partial": False, "matched_by": "prefix", "dialect": "anthropic"}
    start = {"index": 0, "model": "m", "epoch": 0, "matched_by": "prefix", "exchange": exchange, "number": 0}
    end = {"cause": "completed", "steps": 1, "usage": {}, "cost_usd": "0.01", "cost_quality": "measured"}
    writer.write(
        [
            Record(1, "session/start", ids[0], data=session),
            Record(1, "thread/start", *ids[:2], data=thread),
            Record(1, "turn/start", *ids[:3], data={"index": 0}),
            Record(1, "step/start", *ids, data=start),
            CaptureStart(
                exchange, 0, 1, "p", "up", "h", "POST", "/v1/messages", (), BODY,
                session=ids[0], thread=ids[1], turn=ids[2], step=ids[3],
            ),
            Record(2, "step/attempt", *ids, data=attempt),
            Record(2, "turn/end", *ids[:3], data=end),
            CaptureEnd(exchange, 2, "complete", 200, (), b"answer"),
        ]
    )  # fmt: skip
    writer.close()


@pytest.fixture
async def client(tmp_path: Path, aiohttp_client: Callable[..., Any]) -> TestClient[Any, Any]:
    write_a_turn(tmp_path)
    hosts = frozenset({"127.0.0.1", "localhost"})
    parts = admin.AdminParts(
        RecordCatalog(tmp_path), TOKEN, hosts, lambda: (True, {"ready": True}), lambda: "looptap_up 1\n"
    )
    found: TestClient[Any, Any] = await aiohttp_client(admin.build(parts))
    return found


BEARER = {"Authorization": f"Bearer {TOKEN}"}
PATHS = [
    "/",
    "/api/v1/sessions",
    "/api/v1/turns",
    "/api/v1/findings",
    "/api/v1/events",
    "/api/v1/turns/x",
    "/nowhere",
]


@pytest.mark.parametrize("path", PATHS)
async def test_without_the_token_every_path_says_the_same(client: TestClient[Any, Any], path: str) -> None:
    answers = [await client.get(path), await client.get(path, headers={"Authorization": "Bearer wrong"})]
    assert [a.status for a in answers] == [401, 401]
    assert {await a.text() for a in answers} == {
        '{"error": "a token is wanted: open the admin URL that `looptap serve` printed"}'
    }


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/metrics"])
async def test_probes_need_no_token(client: TestClient[Any, Any], path: str) -> None:
    assert (await client.get(path)).status == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "rebound.example"},
        {"Host": "rebound.example:4041"},
        {"Origin": "https://elsewhere.example"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
    ],
)
async def test_other_sites_and_rebound_names_are_turned_away(
    client: TestClient[Any, Any], headers: dict[str, str]
) -> None:
    for path in ("/api/v1/turns", "/healthz"):
        assert (await client.get(path, headers={**BEARER, **headers})).status == 403


async def test_the_printed_url_turns_its_token_into_a_cookie(client: TestClient[Any, Any]) -> None:
    answer = await client.get(f"/api/v1/turns?token={TOKEN}&limit=1", allow_redirects=False)
    assert answer.status == 303
    assert answer.headers["Location"] == "/api/v1/turns?limit=1"
    cookie = answer.headers["Set-Cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    assert TOKEN not in cookie
    name, value = cookie.partition(";")[0].split("=")
    assert name == f"looptap_{client.port}"
    client.session.cookie_jar.clear()
    for cookies, status in (({name: value}, 200), ({name: TOKEN}, 401), ({"looptap_1": value}, 401)):
        headers = {"Cookie": "; ".join(f"{k}={v}" for k, v in cookies.items())}
        assert (await client.get("/api/v1/turns", headers=headers)).status == status


async def test_turns_steps_and_bodies_are_read_by_id(client: TestClient[Any, Any]) -> None:
    turns = await (await client.get("/api/v1/turns", headers=BEARER)).json()
    assert [t["cause"] for t in turns] == ["completed"]
    turn = await (await client.get(f"/api/v1/turns/{turns[0]['id']}", headers=BEARER)).json()
    step = turn["steps"][0]
    assert step["model"] == "m"
    assert step["usage"] == {"input_tokens": 5}
    body = await client.get(f"/api/v1/steps/{step['id']}/request", headers=BEARER)
    assert await body.read() == BODY
    assert body.headers["Content-Type"] == "application/octet-stream"
    assert body.headers["Content-Disposition"].startswith("attachment")
    assert body.headers["X-Content-Type-Options"] == "nosniff"
    assert (
        await (await client.get(f"/api/v1/steps/{step['id']}/response", headers=BEARER)).read() == b"answer"
    )


@pytest.mark.parametrize(
    "path",
    [
        "/api/v1/turns/trn_nothing",
        "/api/v1/steps/trn_" + "3" * 20,
        "/api/v1/steps/stp_" + "4" * 20 + "/request?attempt=9",
        "/api/v1/steps/%00/response",
        "/api/v1/turns/" + "x" * 5000,
    ],
)
async def test_what_does_not_exist_is_a_404_of_one_line(client: TestClient[Any, Any], path: str) -> None:
    answer = await client.get(path, headers=BEARER)
    assert answer.status == 404
    assert "\n" not in await answer.text()


@pytest.mark.parametrize("query", ["limit=x", "limit=-1", "limit=1e3", "limit=" + "9" * 40])
async def test_odd_numbers_are_refused_in_words(client: TestClient[Any, Any], query: str) -> None:
    answer = await client.get(f"/api/v1/turns?{query}", headers=BEARER)
    assert answer.status == 400
    assert "whole number" in await answer.text()


async def test_a_cause_that_no_turn_can_have_is_refused_with_those_that_there_are(
    client: TestClient[Any, Any],
) -> None:
    answer = await client.get("/api/v1/turns?cause=eror", headers=BEARER)
    assert answer.status == 400
    assert "cause takes why the turn ended, or open: completed, " in await answer.text()
    assert await (await client.get("/api/v1/turns?cause=error", headers=BEARER)).json() == []


async def test_events_follow_from_a_seq(client: TestClient[Any, Any]) -> None:
    async with client.get("/api/v1/events?after=0", headers=BEARER) as answer:
        assert answer.headers["Content-Type"].startswith("text/event-stream")
        seen: list[str] = []
        async for line in answer.content:
            if line.startswith(b"data: "):
                seen.append(json.loads(line[6:])["type"])
            if len(seen) == 6:
                break
    assert seen == ["session/start", "thread/start", "turn/start", "step/start", "step/attempt", "turn/end"]


def test_the_token_is_made_once_and_owner_only(tmp_path: Path) -> None:
    warnings: list[str] = []
    token = admin.read_or_make_token(tmp_path / "new", warnings.append)
    assert len(token) >= 24
    assert token == admin.read_or_make_token(tmp_path / "new", warnings.append)
    assert (tmp_path / "new" / admin.TOKEN_FILE).stat().st_mode & 0o777 == 0o600
    assert warnings == []


def test_where_nothing_can_be_written_the_token_still_works(tmp_path: Path) -> None:
    warnings: list[str] = []
    (tmp_path / "file").write_text("in the way")
    assert admin.read_or_make_token(tmp_path / "file", warnings.append)
    assert len(warnings) == 1
    assert "admin token" in warnings[0]


async def test_a_follower_who_leaves_and_a_request_that_is_none_leave_no_traceback(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    write_a_turn(tmp_path)
    faults: list[str] = []
    log = admin.ServerLog(lambda where, error: faults.append(type(error).__name__)).logger()
    parts = admin.AdminParts(
        RecordCatalog(tmp_path), TOKEN, frozenset({"127.0.0.1"}), lambda: (True, {}), lambda: str(1 // 0)
    )
    runner = web.AppRunner(admin.build(parts), access_log=None, logger=log)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    port = runner.addresses[0][1]
    head = f"Host: 127.0.0.1\r\nAuthorization: Bearer {TOKEN}\r\n\r\n"
    try:
        for target in ("/api/v1/events?after=0", "/" + "x" * 70_000, "/metrics"):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(f"GET {target} HTTP/1.1\r\n{head}".encode())
            assert await reader.read(20)
            writer.transport.abort()
        await asyncio.sleep(0.6)  # the follower is written to again
    finally:
        await runner.cleanup()
    assert faults == ["ZeroDivisionError"]
    assert capfd.readouterr().err == ""
