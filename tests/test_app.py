"""The composition root: it starts over a damaged record, and loads changed settings once."""

import asyncio
from pathlib import Path

import pytest

from proxy import app
from proxy.config import ConfigError, Problem, Settings
from proxy.model import Record
from proxy.record.schema import FILE


def settings(data_dir: Path) -> Settings:
    return Settings.model_validate(
        {"listen": "127.0.0.1:0", "admin": "127.0.0.1:0", "store": {"path": str(data_dir)}}
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
    assert [FILE in warning for warning in warnings] == [True]


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
