"""The composition root: it starts over a damaged record, and loads changed settings once."""

import asyncio
import json
import os
import signal
import socket
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from click.testing import CliRunner

from proxy import app, replay
from proxy.cli import cli
from proxy.config import ConfigError, Problem, Settings
from proxy.model import Record
from proxy.record.schema import FILE


def settings(data_dir: Path, **more: Any) -> Settings:
    return Settings.model_validate(
        {"listen": "127.0.0.1:0", "admin": "127.0.0.1:0", "store": {"path": str(data_dir)}, **more}
    )


async def test_a_damaged_record_keeps_nobody_from_starting(tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(b"no database at all " * 500)
    warnings: list[str] = []
    running = await app.start(settings(tmp_path), warnings.append)
    try:
        running.parts.outbox.put(Record(1, "session/start", "ses_" + "0" * 20))
        await running.flush()
    finally:
        await running.stop(0)
    assert [FILE in warning for warning in warnings] == [True, True]
    assert "what was known of threads cannot be read" in warnings[0]


async def test_settings_that_changed_and_were_pointed_at_are_loaded_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "_WATCH_S", 0.01)
    file = tmp_path / "looptap.yaml"
    file.write_text("idle_after: 30m\n")
    running = await app.start(settings(tmp_path / "data"))
    again, tries, warnings = asyncio.Event(), asyncio.Queue[None](), list[str]()

    def load_again(old: Settings) -> Settings:
        tries.put_nowait(None)
        raise ConfigError((Problem(str(file), 1, 1, "idle_after", "is no duration", ""),))

    async with asyncio.TaskGroup() as group:
        following = group.create_task(app._follow(running, again, file, load_again, warnings.append))
        await asyncio.sleep(0.05)  # the file as it was has been seen
        assert tries.empty()
        file.write_text("idle_after: soon, some day\n")
        again.set()
        await asyncio.wait_for(tries.get(), 10)
        await asyncio.sleep(0.2)  # twenty looks at the file
        following.cancel()
    await running.stop(0)
    assert tries.empty()
    assert [warning.endswith("the settings in force stay as they were") for warning in warnings] == [True]


async def test_a_reload_holds_the_very_next_request_and_one_that_fails_ends_nothing(tmp_path: Path) -> None:
    warnings: list[str] = []
    running = await app.start(settings(tmp_path), warnings.append)
    budget = {"name": "key", "scope": "key", "window": "day", "limits": {"steps": 1}}

    def with_budget(old: Settings) -> Settings:
        return settings(tmp_path, budgets=[budget])

    def fails(old: Settings) -> Settings:
        raise RuntimeError("of a policy")

    shell = running.parts.server.shell
    try:
        assert shell.admit is None
        app._reload(running, with_budget, warnings.append)
        assert shell.admit is not None
        assert running.parts.core.reserves
        app._reload(running, fails, warnings.append)
        assert running.parts.settings.budgets
    finally:
        await running.stop(0)
    assert warnings[0] == "settings loaded again"
    assert "reload (RuntimeError)" in warnings[1]


async def test_why_an_upstream_could_not_be_reached_is_logged_once_and_stands_in_the_tree(
    tmp_path: Path,
) -> None:
    with socket.socket() as taken:  # bound and not listening: nobody answers there
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        warnings: list[str] = []
        upstreams = {"anthropic": {"url": url, "api": "anthropic"}}
        running = await app.start(settings(tmp_path, upstreams=upstreams), warnings.append)
        body = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}
        try:
            async with aiohttp.ClientSession() as client:
                for _ in range(3):
                    async with client.post(f"{running.data_url}/v1/messages", json=body) as answer:
                        assert answer.status == 502
            await running.flush()
        finally:
            await running.stop(0)
    assert len(warnings) == 1
    assert warnings[0].startswith("upstream 'anthropic' failed: ")
    why = warnings[0].removeprefix("upstream 'anthropic' failed: ")

    def looptap(*arguments: str) -> str:
        return CliRunner().invoke(cli, ["--data-dir", str(tmp_path), *arguments]).output

    assert f"attempt 1 failed: {why}" in looptap("show")
    assert why in looptap("show", "--json")
    lost = CliRunner().invoke(cli, ["--data-dir", str(tmp_path), "show", "--response"])
    assert lost.exit_code == 1
    assert why in str(lost.exception)


async def test_a_second_ctrl_c_cuts_what_still_streams_and_the_record_says_who_ended_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "_ONE_PRESS_S", 0.0)
    asked, up, stopping = asyncio.Event(), asyncio.Queue[app.Running](), asyncio.Queue[str]()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        asked.set()
        await reader.read()
        writer.close()

    upstream = await asyncio.start_server(silent, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{upstream.sockets[0].getsockname()[1]}"
    body = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}
    async with upstream, asyncio.timeout(20), aiohttp.ClientSession() as client, asyncio.TaskGroup() as group:
        serving = group.create_task(
            app.serve(
                settings(tmp_path, upstreams={"anthropic": {"url": url, "api": "anthropic"}}),
                announce=up.put_nowait,
                warn=stopping.put_nowait,
            )
        )
        running = await up.get()
        asking = group.create_task(_broken(client, f"{running.data_url}/v1/messages", body))
        await asked.wait()
        os.kill(os.getpid(), signal.SIGINT)
        assert (await stopping.get()).startswith("stopping: 1 under way")
        os.kill(os.getpid(), signal.SIGINT)
        await serving
        assert await asking
    told = CliRunner().invoke(cli, ["--data-dir", str(tmp_path), "show"])
    assert "attempt 1 broken off: looptap was stopped" in told.output
    assert "interrupted by shutdown" in told.output
    (turn,) = json.loads(CliRunner().invoke(cli, ["--data-dir", str(tmp_path), "--json", "turns"]).stdout)
    assert (turn["cause"], turn["by"]) == ("interrupted", "shutdown")
    log = (
        CliRunner().invoke(cli, ["--data-dir", str(tmp_path), "show", turn["id"], "--exchanges"]).stdout_bytes
    )
    (tmp_path / "log.jsonl").write_bytes(log)
    tree, problems = replay.run([tmp_path / "log.jsonl"])
    (again,) = tree["sessions"][0]["threads"][0]["turns"]
    assert (again["cause"], again["by"], problems) == ("interrupted", "shutdown", [])


async def _broken(client: aiohttp.ClientSession, url: str, body: Any) -> bool:
    try:
        async with client.post(url, json=body):
            return False
    except aiohttp.ClientError:
        return True


async def test_a_websocket_that_passed_unread_is_told_once_per_upstream(tmp_path: Path) -> None:
    warnings: list[str] = []
    running = await app.start(settings(tmp_path), warnings.append)
    tell = running.parts.server.shell.unread
    assert tell is not None
    for upstream in ("openai", "openai", "acme"):
        tell(upstream)
    await running.stop(0)
    assert [line.partition(" passed unread: ")[0] for line in warnings] == [
        "a WebSocket to 'openai'",
        "a WebSocket to 'acme'",
    ]
