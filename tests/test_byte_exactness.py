"""The outside check of byte-exactness, run against the installed command: no difference at all."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SHARED = Path(os.environ.get("LOOPTAP_SHARED") or Path(__file__).parents[2] / "shared")


@pytest.mark.real
@pytest.mark.timeout(900)
def test_no_byte_differs_from_a_direct_exchange() -> None:
    program = SHARED / "tools" / "bytes_diff.py"
    assert program.exists(), f"{program} is missing: set LOOPTAP_SHARED to the folder that holds it"
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        [sys.executable, str(program)],
        env=os.environ | {"PATH": path, "SHOW": "40"},
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        timeout=880,
        check=False,
    )
    last = (done.stdout.strip().splitlines() or [done.stderr[-500:]])[-1]
    assert ", 0 differences, 0 kinds" in last, done.stdout[-6000:] + done.stderr[-2000:]
