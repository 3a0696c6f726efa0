"""Over all recorded traffic: loops are told where there are some, and nowhere else."""

import os
from pathlib import Path

import pytest

from policies.repeats import Repeats
from proxy.chain import Chain, Link
from proxy.replay import run
from tests.corpus.exceptions import LOOPS

SHARED = Path(os.environ.get("LOOPTAP_SHARED") or Path(__file__).parents[3] / "shared")

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]


def test_loops_are_told_in_the_recordings_that_loop_and_in_no_other() -> None:
    files = [*SHARED.glob("corpus/recordings/*.jsonl"), *SHARED.glob("client-traffic/*.jsonl")]
    files = sorted(path for path in files if path.name != "labels.jsonl")
    assert len(files) > 400, "set LOOPTAP_SHARED to the folder that holds corpus and client-traffic"
    told = []
    for path in files:
        tree, problems = run([path], chain=Chain([Link(Repeats())]))
        assert not any("fault" in problem for problem in problems)
        if tree["findings"]:
            told.append(path.name)
    assert sorted(name for name in LOOPS if not any(file.startswith(name) for file in told)) == []
    assert [file for file in told if not any(file.startswith(name) for name in LOOPS)] == []
