"""What reading costs as an agent's history grows: milliseconds per megabyte of body, by shape.

    python tests/bench/reading.py [--megabytes 2]

Shapes: ``append`` (bytes only ever follow), ``marks`` (the cache mark moves, so the old last
message changes), ``after`` (tools and other fields stand behind the message list), ``fields``
(a field before the list differs in every request), ``first`` (a history seen for the first time).
"""

import argparse
import statistics
import time
from typing import Any

import orjson

from proxy import dialects
from proxy.model import Exchange, Head, Upstream
from proxy.reading.library import Library

UPSTREAM = Upstream("anthropic", "https://api.anthropic.com", "anthropic")
TOOLS = [
    {"name": f"tool_{n}", "description": "d" * 2_000, "input_schema": {"type": "object"}} for n in range(20)
]


def step(number: int) -> list[dict[str, Any]]:
    """A reply with a call and its result, about four kilobytes."""
    call = {"type": "tool_use", "id": f"toolu_{number:08d}", "name": "bash", "input": {"command": "ls"}}
    result = {"type": "tool_result", "tool_use_id": call["id"], "content": f"{number} line of output\n" * 180}
    return [
        {"role": "assistant", "content": [{"type": "text", "text": "Let me look."}, call]},
        {"role": "user", "content": [result]},
    ]


def body(shape: str, messages: list[dict[str, Any]], number: int) -> bytes:
    """The request of one step."""
    if shape == "marks":
        last = messages[-1]
        block = {**last["content"][-1], "cache_control": {"type": "ephemeral"}}
        messages = [*messages[:-1], {**last, "content": [*last["content"][:-1], block]}]
    listed = {"messages": messages}
    before: dict[str, Any] = {"model": "claude-opus-5-5", "max_tokens": 32_000}
    behind: dict[str, Any] = {"system": "You are an agent.", "tools": TOOLS, "stream": True}
    if shape == "fields":
        before["metadata"] = {"user_id": f"turn {number}" + "x" * (number % 3)}
    return orjson.dumps(
        {**before, **listed, **behind} if shape != "append" else {**before, **behind, **listed}
    )


def run(shape: str, megabytes: float) -> tuple[float, float]:
    """Milliseconds per megabyte at the end of a growing loop: the best and the median of 40 steps."""
    library = Library(1_000_000_000)
    messages: list[dict[str, Any]] = [{"role": "user", "content": [{"type": "text", "text": "Go. " * 40}]}]
    for number in range(int(megabytes * 1_000_000 / 4_200)):
        messages.extend(step(number))
    costs = []
    for number in range(100_000, 100_048):
        messages.extend(step(number))
        raw = body(shape, messages, number)
        head = Head("POST", "/v1/messages")
        exchange = Exchange(f"exc_{number}", number, head, UPSTREAM, "/v1/messages", 0)
        dialect = dialects.match("POST", "/v1/messages", UPSTREAM, head)
        assert dialect is not None
        if shape == "first":
            library = Library()
        begun = time.perf_counter()
        library.read(dialect, exchange, raw)
        costs.append((time.perf_counter() - begun) * 1_000 / (len(raw) / 1_000_000))
    return min(costs[8:]), statistics.median(costs[8:])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--megabytes", type=float, default=2.0)
    megabytes = parser.parse_args().megabytes
    for shape in ("append", "marks", "after", "fields", "first"):
        best, median = run(shape, megabytes)
        print(f"{shape:8} {best:7.3f} ms per MB of body (median {median:.3f})")


if __name__ == "__main__":
    main()
