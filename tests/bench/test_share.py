"""What a cap lets through and what a hold weighs, as ``share`` and ``holds`` measure it."""

from pathlib import Path

import pytest

from tests.bench import holds, share


@pytest.mark.parametrize("clamp", [True, pytest.param(False, marks=pytest.mark.real)])
async def test_a_clamp_lets_a_sequential_agent_use_95_percent_of_a_cap(clamp: bool, tmp_path: Path) -> None:
    used = await share.use_up(tmp_path, clamp=clamp, grows=False)
    assert (float(used.used) >= 0.95 * share.CAP) is clamp
    assert (used.lowered > 0) is clamp


@pytest.mark.real
@pytest.mark.parametrize(("ttl", "least"), [("1h", 0.8), ("5m", 0.85), (None, 0.95)])
async def test_a_growing_history_uses_what_its_cold_cache_would_not_cost(
    ttl: str | None, least: float
) -> None:
    used = await share.use_up_marked(ttl)
    assert least <= float(used.used) / share.CAP <= 1


@pytest.mark.real
def test_no_recorded_call_took_more_than_would_have_been_held() -> None:
    ratios = holds.weigh(sorted(holds.RECORDINGS.glob("*/*.jsonl")))
    assert len(ratios.calls) > 100
    assert ratios.below == 0
