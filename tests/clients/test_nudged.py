"""Real clients whose model calls the same again and again: a nudge reaches the model, and they go on."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.clients import task
from tests.clients.house import Client, run_client, running_proxy
from tests.clients.programs import PROGRAMS
from tests.clients.scripted import Reply, ScriptedUpstream, Wish
from tests.clients.test_sdks import SDKS, sdk

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]

AGAIN = Wish(task.SHELL, {"command": "cat README.md", "cmd": "cat README.md", "description": "Read it"})
SCRIPT = (
    *(Reply(None, f"Once more, {time}.", (AGAIN,)) for time in range(5)),
    Reply(task.FINAL, "Finished."),
)
PLACES = [3, 5]
"""Model calls of the loop, from 0, that are the first to carry a nudge."""
CLIENTS = [*(sdk(name) for name in SDKS), *(one for one in PROGRAMS if one.name in ("claude_code", "codex"))]


def history(body: dict[str, Any]) -> list[Any]:
    """The messages without what clients move along or write one way and the other."""
    listed = next(body[key] for key in ("messages", "input", "contents") if key in body)
    found: list[Any] = _bare(listed)
    return found


def _bare(value: Any) -> Any:
    if isinstance(value, list):
        return [_bare(one) for one in value]
    if not isinstance(value, dict):
        return value
    kept = {key: _bare(one) for key, one in value.items() if key != "cache_control"}
    if isinstance(kept.get("content"), str) and "role" in kept:
        kept["content"] = [{"type": "text", "text": kept["content"]}]
    return kept


def told(body: dict[str, Any]) -> int:
    text = json.dumps(history(body))
    return text.count("It will not change by itself") + text.count("Stop and reconsider: ")


@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)
def test_a_client_whose_model_is_nudged_goes_on(client: Client, tmp_path: Path) -> None:
    settings = {"policies": {"repeats": {"action": "nudge"}}}
    with (
        ScriptedUpstream(SCRIPT) as upstream,
        running_proxy(tmp_path / "data", upstream, **settings) as proxy,
    ):
        run = run_client(client, tmp_path / "run", proxy.port, upstream)
        turns = proxy.closed_turns()
    assert run.text == task.FINAL
    loop = [body for body in upstream.bodies() if body.get("tools")]
    assert [told(body) for body in loop] == [
        sum(number >= place for place in PLACES) for number in range(len(SCRIPT))
    ]
    for before, after in pairwise(loop):
        assert history(after)[: len(history(before))] == history(before)
    assert max(len(turn["steps"]) for turn in turns) == len(SCRIPT)
    assert not any(told(json.loads(request.body)) for request in run.sent if request.body)
