"""Records as lines of a file: complete, in order, the owner's alone, rotation-proof."""

import os
import stat
from decimal import Decimal
from pathlib import Path

import orjson
import pytest

from exporters.jsonl import JsonlExporter, line
from proxy.model import Record

T = 1_700_000_000_123_456_789


def lines(path: Path) -> list[dict[str, object]]:
    """The file, read."""
    return [orjson.loads(text) for text in path.read_bytes().splitlines()]


async def test_records_are_appended_in_order(tmp_path: Path) -> None:
    path = tmp_path / "new" / "events.jsonl"
    before = os.umask(0)
    try:
        exporter = JsonlExporter(path)
        await exporter.export([Record(T, "turn/start", "ses_1", "thr_1", "trn_1", None, {"index": 0})])
        await exporter.export([Record(T, "gap", data={"why": "queue full\n"})])
        await exporter.close()
        again = JsonlExporter(path)
        await again.export([Record(T, "turn/end", "ses_1")])
        await again.close()
    finally:
        os.umask(before)
    assert lines(path) == [
        {
            "time": "2023-11-14T22:13:20.123456Z", "type": "turn/start", "session": "ses_1",
            "thread": "thr_1", "turn": "trn_1", "data": {"index": 0},
        },
        {"time": "2023-11-14T22:13:20.123456Z", "type": "gap", "data": {"why": "queue full\n"}},
        {"time": "2023-11-14T22:13:20.123456Z", "type": "turn/end", "session": "ses_1", "data": {}},
    ]  # fmt: skip
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


async def test_a_rotated_file_is_followed_by_a_new_one(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    exporter = JsonlExporter(path)
    await exporter.export([Record(T, "item", data={"n": 1})])
    path.rename(tmp_path / "events.jsonl.1")
    await exporter.export([Record(T, "item", data={"n": 2})])
    path.unlink()
    await exporter.export([Record(T, "item", data={"n": 3})])
    await exporter.close()
    assert [entry["data"] for entry in lines(tmp_path / "events.jsonl.1")] == [{"n": 1}]
    assert [entry["data"] for entry in lines(path)] == [{"n": 3}]


async def test_a_file_that_cannot_be_written_is_an_error_and_may_heal(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_bytes(b"")
    exporter = JsonlExporter(blocked / "events.jsonl")
    with pytest.raises(OSError, match="file"):
        await exporter.export([Record(T, "item")])
    blocked.unlink()
    await exporter.export([Record(T, "item")])
    await exporter.close()
    assert len(lines(blocked / "events.jsonl")) == 1


def test_values_that_are_no_json_become_text() -> None:
    text = line(Record(T, "item", data={"usd": Decimal("0.000000125"), "pair": (1, 2), "odd": {3}}))
    assert orjson.loads(text)["data"] == {"usd": "0.000000125", "pair": [1, 2], "odd": [3]}
    assert text.endswith(b"\n")
