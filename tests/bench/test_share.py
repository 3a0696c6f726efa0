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
def test_no_recorded_call_took_more_than_would_have_been_held() -> None:
    ratios = holds.weigh(sorted(holds.RECORDINGS.glob("*/*.jsonl")))
    assert len(ratios.calls) > 100
    assert ratios.below == 0
