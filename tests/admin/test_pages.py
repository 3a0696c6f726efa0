"""The dashboard's files: they stand alone, run nothing inline, and go out under a strict policy."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp.test_utils import TestClient

from proxy import admin
from tests.admin import kit

Client = TestClient[Any, Any]
STATIC = Path(admin.__file__).parent / "static"
FILES = sorted(path.name for path in STATIC.iterdir())


@pytest.fixture
async def client(tmp_path: Path, aiohttp_client: Callable[..., Any]) -> Client:
    made: Client = await aiohttp_client(admin.build(kit.parts(tmp_path)))
    return made


async def test_every_file_is_served_under_the_policy(client: Client) -> None:
    for path in ("/", *(f"/static/{name}" for name in FILES)):
        answer = await client.get(path, headers=kit.BEARER)
        assert answer.status == 200
        policy = answer.headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "script-src 'self';" in policy
        assert "unsafe" not in policy
        assert "require-trusted-types-for 'script'" in policy
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.headers["X-Frame-Options"] == "DENY"


@pytest.mark.parametrize("name", ["..%2f__init__.py", "%2e%2e/walls.py", "nothing.js", "base.css%00", ""])
async def test_nothing_else_is(client: Client, name: str) -> None:
    answer = await client.get(f"/static/{name}", headers=kit.BEARER)
    assert answer.status == 404
    assert (await client.get("/static/main.js")).status == 401


def test_the_files_ask_nobody_else() -> None:
    for name in FILES:
        text = (STATIC / name).read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"https?://|//[a-z0-9-]+\.[a-z]{2,}/|@import|url\(", text), name


def test_what_is_loaded_is_there() -> None:
    for name in FILES:
        text = (STATIC / name).read_text(encoding="utf-8")
        for wanted in re.findall(r"/static/([\w.-]+)", text) + re.findall(r'from "\./([\w.-]+)"', text):
            assert wanted in FILES, f"{name} wants {wanted}"


def test_nothing_is_run_or_written_as_markup() -> None:
    page = (STATIC / "index.html").read_text(encoding="utf-8")
    assert not re.search(r"<style|\sstyle=|\son[a-z]+=|<script(?![^>]*\ssrc=)", page)
    for name in FILES:
        if name.endswith(".js"):
            text = (STATIC / name).read_text(encoding="utf-8")
            found = re.search(
                r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", text
            )
            assert found is None, name


def test_the_files_can_be_read_in_a_sitting() -> None:
    for name in FILES:
        assert len((STATIC / name).read_text(encoding="utf-8").splitlines()) < 400, name
