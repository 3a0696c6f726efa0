"""The OpenAPI file: every route is in it, and what the routes answer is what it says."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp.test_utils import TestClient

from proxy import admin
from tests.admin import kit

Client = TestClient[Any, Any]
BESIDE = {"/", "/static/{name}", "/openapi.json"}
"""Pages, and the file itself."""


@pytest.fixture
async def client(tmp_path: Path, aiohttp_client: Callable[..., Any]) -> Client:
    kit.two_turns(tmp_path)
    made: Client = await aiohttp_client(admin.build(kit.parts(tmp_path)))
    return made


async def document(client: Client) -> dict[str, Any]:
    told = await client.get("/openapi.json", headers=kit.BEARER)
    assert told.status == 200
    found: dict[str, Any] = await told.json()
    return found


async def test_every_route_is_told(client: Client) -> None:
    told = await document(client)
    served = {
        (route.method.lower(), route.resource.canonical)
        for route in client.app.router.routes()
        if route.resource is not None and route.method != "HEAD" and route.resource.canonical not in BESIDE
    }
    assert {(method, path) for path, entry in told["paths"].items() for method in entry} == served


async def test_the_file_is_not_for_strangers(client: Client) -> None:
    assert (await client.get("/openapi.json")).status == 401


@pytest.mark.parametrize(
    "path",
    [
        "/healthz",
        "/readyz",
        "/api/v1/sessions",
        "/api/v1/turns",
        "/api/v1/turns/trn_00000000000000000001",
        "/api/v1/turns/trn_00000000000000000001/events",
        "/api/v1/steps/stp_00000000000000000011",
        "/api/v1/steps/stp_00000000000000000011/seen",
        "/api/v1/steps/stp_00000000000000000011/changes",
        "/api/v1/findings",
        "/api/v1/alerts",
        "/api/v1/spenders?by=label:env",
        "/api/v1/report",
    ],
)
async def test_answers_are_as_they_are_told(client: Client, path: str) -> None:
    told = await document(client)
    answer = await client.get(path, headers=kit.BEARER)
    assert answer.status == 200
    plain = path.partition("?")[0]
    entry = next(e for p, e in told["paths"].items() if re.fullmatch(re.sub(r"\{\w+\}", "[^/]+", p), plain))
    schema = entry["get"]["responses"]["200"]["content"]["application/json"]["schema"]
    value = await answer.json()
    assert value
    assert list(strays(value, schema, told, "$")) == []


async def test_errors_are_as_they_are_told(client: Client) -> None:
    told = await document(client)
    schema = told["components"]["schemas"]["Error"]
    for path, status in (
        ("/api/v1/turns/x", 404),
        ("/api/v1/turns?limit=0", 400),
        ("/api/v1/spenders?by=me", 400),
        ("/api/v1/turns?colour=red", 400),
    ):
        answer = await client.get(path, headers=kit.BEARER)
        assert answer.status == status
        assert list(strays(await answer.json(), schema, told, "$")) == []


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        (
            "turns?limit=1&agnet=ci",
            "no query parameter is called 'agnet' here: known are limit, before, agent, ",
        ),
        ("events?limit=1", "no query parameter is called 'limit' here: known are after"),
        ("budgets?key=ci", "no query parameter is called 'key' here: it takes none"),
        ("findings?%0A%1B=1", r"no query parameter is called '\n\x1b' here: known are limit"),
    ],
)
async def test_a_parameter_that_the_route_does_not_know_is_named(
    client: Client, asked: str, says: str
) -> None:
    answer = await client.get(f"/api/v1/{asked}", headers=kit.BEARER)
    assert answer.status == 400
    assert (await answer.json())["error"].startswith(says)


async def test_probes_are_called_as_their_callers_like(client: Client) -> None:
    assert {(await client.get(f"/{probe}?verbose")).status for probe in ("healthz", "readyz")} == {200}


def strays(value: Any, schema: Any, told: Any, at: str) -> Iterator[str]:
    """Where a value is not what its schema says; of JSON Schema as much as the file uses."""
    if "$ref" in schema:
        schema = told["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    kinds = {
        "string": str,
        "integer": int,
        "number": (int, float),
        "boolean": bool,
        "array": list,
        "object": dict,
    }
    wanted = schema.get("type", [])
    wanted = [wanted] if isinstance(wanted, str) else wanted
    if wanted and not any(
        value is None if name == "null" else isinstance(value, kinds[name]) for name in wanted
    ):
        yield f"{at}: {value!r} is no {wanted}"
        return
    if "enum" in schema and value not in schema["enum"]:
        yield f"{at}: {value!r} is none of {schema['enum']}"
    if isinstance(value, str) and "pattern" in schema and not re.search(schema["pattern"], value):
        yield f"{at}: {value!r} does not look like {schema['pattern']}"
    if isinstance(value, list):
        for n, one in enumerate(value):
            yield from strays(one, schema.get("items", {}), told, f"{at}[{n}]")
    if isinstance(value, dict):
        yield from (f"{at}: no {name}" for name in schema.get("required", ()) if name not in value)
        for name, one in value.items():
            more = schema.get("additionalProperties", {})
            yield from strays(one, schema.get("properties", {}).get(name, more or {}), told, f"{at}.{name}")
