"""The self-check at start: a cap that is configured and not wired in keeps the proxy from starting."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from proxy import probe
from proxy.cli import cli
from proxy.config import load
from proxy.money.treasury import Treasury

BUDGETS = [{"name": "turn", "scope": "turn", "limits": {"steps": 3}}]


def config(place: Path, **more: object) -> Path:
    file = place / "looptap.yaml"
    told = {"listen": "127.0.0.1:0", "admin": "127.0.0.1:0", "store": {"path": str(place / "data")}}
    file.write_text(json.dumps({**told, "budgets": BUDGETS, **more}))
    return file


async def test_BUD_08_a_request_over_a_limit_goes_through_the_whole_proxy_and_is_refused(
    tmp_path: Path,
) -> None:
    settings = load(config(tmp_path), environ={})
    assert probe.enforces(settings)
    await probe.prove(settings)


async def test_where_a_budget_would_wait_for_an_operator_the_check_waits_for_none(tmp_path: Path) -> None:
    budget = {"name": "key", "scope": "key", "window": "day", "limits": {"steps": 1}, "on_exhausted": "hold"}
    await probe.prove(load(config(tmp_path, budgets=[budget]), environ={}))


def test_BUD_08_a_cap_that_is_not_wired_in_ends_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Treasury, "_wire", lambda _self, _shell: None)
    done = CliRunner().invoke(cli, ["--config", str(config(tmp_path)), "serve"])
    assert done.exit_code == 1
    assert "the self-check sent a request over a limit, and it was not refused" in done.stderr
    assert done.stderr.count("\n") == 1


def test_what_only_observes_is_not_tried(tmp_path: Path) -> None:
    assert not probe.enforces(load(config(tmp_path, mode="observe"), environ={}))
    assert not probe.enforces(load(config(tmp_path, budgets=[]), environ={}))
