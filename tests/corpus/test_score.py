"""Replays all recorded traffic and holds the outcome against its labels, column by column.

The recordings and the program that scores them lie outside this repository, in the folder that
``LOOPTAP_SHARED`` names (default: ``shared`` beside the repository). Where it is missing these tests fail.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.corpus.exceptions import CLIENT_TRAFFIC, CORPUS

pytestmark = [pytest.mark.real, pytest.mark.timeout(3000)]

SHARED = Path(os.environ.get("LOOPTAP_SHARED") or Path(__file__).parents[3] / "shared")
LEAST = 0.99
COLUMNS = (
    "thread",
    "turn",
    "step",
    "tool_calls",
    "tool_results",
    "usage",
    "usage_in_out",
    "stop_reason",
    "turn_end",
    "recognised",
)
CLIENT_COLUMNS = (*COLUMNS, "session", "kind", "parent")
ALL = "ALL (high, medium)"
LOW = "low, apart"


def score(*arguments: str) -> dict[str, Any]:
    """What the scoring program says about ``looptap replay --json``."""
    program = SHARED / "tools" / "eval_replay.py"
    assert program.exists(), f"{program} is missing: set LOOPTAP_SHARED to the folder with the recordings"
    replay = f"{sys.executable} -m proxy replay --json"
    command = [sys.executable, str(program), "--json", "--cmd", replay, *arguments]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=2900, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def misses(found: dict[str, Any], columns: tuple[str, ...]) -> list[str]:
    """Columns below the mark."""
    row = found["table"][ALL]
    return [f"{name}: {row[name]}" for name in columns if row[name] is not None and row[name] < LEAST]


def unexplained(found: dict[str, Any], exceptions: dict[str, str]) -> list[str]:
    """Recordings that are not wholly right and that nobody has argued for."""
    wrong = [f"{Path(each['file']).name}: {each['bad']} {each['crash'] or ''}" for each in found["worst"]]
    return [line for line in wrong if not any(line.startswith(name) for name in exceptions)]


def alarms(found: dict[str, Any]) -> dict[str, int]:
    """Crashes, false alarms and missed faults, the uncertain recordings included."""
    rows = (found["table"][ALL], found["table"][LOW])
    names = ("crashes", "false_alarms", "misses")
    return {name: sum(row[name] for row in rows) for name in names}


def test_recordings_of_many_libraries_are_read_right() -> None:
    found = score()
    assert misses(found, COLUMNS) == []
    assert alarms(found) == {"crashes": 0, "false_alarms": 0, "misses": 0}
    assert unexplained(found, CORPUS) == []


def test_traffic_of_real_agents_is_read_right() -> None:
    found = score("--dir", str(SHARED / "client-traffic"))
    assert misses(found, CLIENT_COLUMNS) == []
    assert alarms(found) == {"crashes": 0, "false_alarms": 0, "misses": 0}
    row = found["table"][ALL]
    assert row["loops_found"] == row["n_loops"]
    assert {name: row[name] for name in ("loops_early", "loop_false_alarms")} == {
        "loops_early": 0,
        "loop_false_alarms": 0,
    }
    assert {name: row[name] for name in ("violations_missed", "violation_false_alarms")} == {
        "violations_missed": 0,
        "violation_false_alarms": 0,
    }
    assert unexplained(found, CLIENT_TRAFFIC) == []
