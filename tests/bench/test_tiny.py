"""Each measurement still fits what it measures: run at a tiny size, whatever the figures are."""

from pathlib import Path

import pytest

from proxy.stores.ledger_memory import MemoryLedger
from tests.bench import along, core, judge, ledger, reading, record, refusals, resting


def test_the_record(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record.measure_put(2)
    record.measure_small(tmp_path / "small", 1, bodies=True, count=2)
    record.measure_thread(tmp_path / "thread", "a word", b"word" * 100)
    assert capsys.readouterr().out.count("\n") == 3


def test_thinking_and_judging(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core, "BATCH", 1)
    assert core.batch(core.core(policies=True), 0) > 0
    assert [messages for messages, _ in judge.loop(judge.bodies(5), 0)] == [1, 3, 5]


def test_sessions_at_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resting, "LIVELY", 4)
    in_use, at_rest = resting.measure(4, 4)
    assert 0 < at_rest < in_use


def test_reading_a_history() -> None:
    assert min(reading.run("marks", 0.01)) > 0


@pytest.mark.parametrize("name", along.STREAMS)
def test_reading_along(name: str) -> None:
    assert along.measure(name, runs=1).startswith(name)


async def test_a_ledger_and_what_storms_ask() -> None:
    assert "32 at once" in await ledger.measure(MemoryLedger, 32, 32)
    assert next(refusals.bodies("same")) != next(refusals.bodies("new"))
