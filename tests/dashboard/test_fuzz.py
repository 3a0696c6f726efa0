"""The admin API against its own OpenAPI file, by a fuzzer: never a 5xx, never a traceback, never untrue."""

import subprocess
from pathlib import Path

import pytest

from tests.budgets import kit

FUZZER = Path(__file__).parents[2] / ".artifacts" / "fuzz" / "venv" / "bin" / "st"
BUDGET = {"name": "turn", "scope": "turn", "limits": {"steps": 50, "spend_usd": 5}}

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]


def test_the_api_is_as_its_file_says_whatever_is_asked(tmp_path: Path) -> None:
    assert FUZZER.exists(), f"{FUZZER} is missing: .ci/run installs the fuzzer"
    with kit.model() as model, kit.serve(tmp_path, model, budgets=[BUDGET]) as proxy:
        body = kit.request("go")
        for _ in range(3):
            body = kit.grown(body, proxy.post("/v1/messages", body, x_calls="2").json, error=True)
        assert proxy.ask("hello", x_ending="500").status == 500
        turn = proxy.told("turns")[-1]
        step = turn["steps"][-1]["id"]
        (tmp_path / "schemathesis.toml").write_text(_known_ids(turn["id"], step))
        done = subprocess.run(
            [
                str(FUZZER), "run", f"{proxy.admin}/openapi.json", "--url", proxy.admin,
                "--header", f"Authorization: Bearer {proxy.token}", "--checks", "all",
                "--exclude-path", "/api/v1/events",  # it never ends
                "--phases", "examples,coverage,fuzzing", "--max-examples", "40", "--seed", "1",
                "--continue-on-failure", "--no-color",
            ],
            cwd=tmp_path, capture_output=True, text=True, timeout=540, check=False,
        )  # fmt: skip
        print(done.stdout[-6000:], done.stderr[-1000:])
        assert done.returncode == 0
        assert proxy.log_lines("fault") == []
        assert proxy.log_lines("Traceback") == []


def _known_ids(turn: str, step: str) -> str:
    """Lets the fuzzer reach what lies behind an id; unknown ones have tests of their own."""
    api = "/api/v1"
    paths = {f"{api}/turns/{{id}}": turn, f"{api}/turns/{{id}}/events": turn, f"{api}/steps/{{id}}": step}
    paths |= {f"{api}/steps/{{id}}/{part}": step for part in ("seen", "changes", "request", "response")}
    return "".join(
        f'[[operations]]\ninclude-path = "{path}"\nparameters = {{ "path.id" = "{name}" }}\n'
        for path, name in paths.items()
    )
