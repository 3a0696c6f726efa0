"""What must hold after a client did its task: the same outcome, the same bytes, the true tree."""

import json
import re
from collections.abc import Sequence
from typing import Any

from tests.clients import task
from tests.clients.house import Client, Run, run_client, running_proxy
from tests.clients.scripted import ScriptedUpstream
from tests.clients.wire import Message

# What differs between any two runs of the same client, and why. Everything else must be equal.
CHANGING = (
    (
        re.compile(r"(?<![0-9a-f])[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}(?![0-9a-f])"),
        "<uuid>",
    ),  # sessions, turns
    (re.compile(r"\b[0-9a-f]{40,64}\b"), "<hex>"),  # the device id that Claude Code draws in a new home
    (re.compile(r"\b20\d\d-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d+)?)?Z?"), "<time>"),
    (
        re.compile(r"run_shell_command_\d{13}_\d+"),
        "<gemini cli call>",
    ),  # invented from the clock and a counter
    (re.compile(r"(Wall time: )[\d.]+"), r"\1<s>"),  # Codex tells the model how long a command took
    (re.compile(r"(Process Group PGID: |Chunk ID: )\w+"), r"\1<n>"),
    (re.compile(r'("(?:turn_started_at_unix_ms|create_time)\\*":\s*)[\d.]+'), r"\1<ms>"),
    # The Agent SDK puts what is left of its allowance after the last result, whichever that is.
    (
        re.compile(
            r"(\\n)*<system-reminder>\\n<total_tokens>\d+ tokens left</total_tokens>\\n</system-reminder>"
        ),
        "",
    ),
    (re.compile(r"127\.0\.0\.1:\d+"), "127.0.0.1:<port>"),
)


def check_client(client: Client, root: Any) -> None:
    """Run a client directly and through the proxy, and compare all there is to compare."""
    with ScriptedUpstream(task.SCRIPT) as upstream:
        direct = run_client(client, root / "direct", upstream.port, upstream)
    with ScriptedUpstream(task.SCRIPT) as upstream, running_proxy(root / "data", upstream) as proxy:
        proxied = run_client(client, root / "proxied", proxy.port, upstream)
        turns = proxy.closed_turns()
        shown = proxy.ask("show", main_turn(turns)["id"])
    assert direct.text == proxied.text == task.FINAL
    same_bytes(proxied)
    same_requests(direct, proxied)
    the_tools_ran(proxied)
    the_tree_is_true(turns, proxied)
    assert [step["id"] for step in shown["steps"]] == [step["id"] for step in main_turn(turns)["steps"]]


def same_bytes(run: Run) -> None:
    """What the client wrote is what the model API read, and the other way round, byte for byte."""
    _equal(run.sent, run.arrived)
    _equal(run.answered, run.received)


def _equal(here: Sequence[Message], there: Sequence[Message]) -> None:
    # Connections run beside each other, so the order over all of them proves nothing.
    def key(message: Message) -> tuple[Any, ...]:
        return (message.start, message.body, message.fields)

    left = sorted((message.end_to_end() for message in here), key=key)
    right = sorted((message.end_to_end() for message in there), key=key)
    assert left == right


def same_requests(direct: Run, proxied: Run) -> None:
    """The client asked the same as without the proxy."""
    assert steadied(direct) == steadied(proxied)


def steadied(run: Run) -> list[tuple[str, Any]]:
    """The requests of a run without what changes from run to run by the client's own doing."""
    found = []
    for request in run.arrived:
        text = request.body.decode("utf-8").replace(str(run.root), "<root>")
        text = text.replace(
            re.sub(r"[/_.]", "-", str(run.root)), "<root>"
        )  # Claude Code's folder for the project
        for pattern, word in CHANGING:
            text = pattern.sub(word, text)
        found.append((request.start.decode(), _sorted_results(json.loads(text)) if text else None))
    return sorted(found, key=repr)


def _sorted_results(value: Any) -> Any:
    """Parallel results in an order of their own: Claude Code lists them as the commands ended."""
    if isinstance(value, dict):
        return {key: _sorted_results(inner) for key, inner in value.items()}
    if isinstance(value, list):
        inner = [_sorted_results(each) for each in value]
        results = all(isinstance(each, dict) and each.get("type") == "tool_result" for each in inner)
        if results and inner:
            # The cache mark sits on the last of them, so it moves with the order.
            return sorted(({**each, "cache_control": None} for each in inner), key=repr)
        return inner
    return value


def the_tools_ran(run: Run) -> None:
    """What the commands printed has reached the model."""
    last = json.loads(max((request.body for request in run.arrived), key=len))
    seen = "\n".join(_strings(last))
    assert [text for text in task.PRINTED if text not in seen] == []


def _strings(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [text for each in inner for text in _strings(each)]


def main_turn(turns: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The turn in which the agent worked; side calls (routing, titles) have turns of one step."""
    return max(turns, key=lambda turn: len(turn["steps"]))


def the_tree_is_true(turns: Sequence[dict[str, Any]], run: Run) -> None:
    """Steps, calls, results, counts, end and session are those of the script."""
    turn = main_turn(turns)
    assert turn["cause"] == "completed"
    assert [len(step["tool_calls"]) for step in turn["steps"]] == task.CALLS_PER_STEP
    for number, step in enumerate(turn["steps"]):
        the_results_are_those_of_the_calls(step)
        assert not any(result["is_error"] for result in step["tool_results"])
        read, cached, written = run.counted[number]
        usage = step["usage"]
        counts = (usage["input_tokens"], usage.get("cache_read_tokens", 0), usage["output_tokens"])
        assert counts == (read, cached, written)
    assert all(len(other["steps"]) == 1 for other in turns if other is not turn)
    assert len({each["session"] for each in turns}) == 1


def the_results_are_those_of_the_calls(step: dict[str, Any]) -> None:
    """One result for each call, by id where the provider gives ids (a client may make some up else)."""
    calls, results = ([each["id"] for each in step[name]] for name in ("tool_calls", "tool_results"))
    if None in calls:
        assert len(calls) == len(results), step
    else:
        assert sorted(calls) == sorted(results), step
