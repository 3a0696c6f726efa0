"""What judging one exchange costs, by the length of the history that it carries.

Run: ``python -m tests.bench.judge [--profile]``; ``make bench`` prints it, too. An agent loop grows message
by message, as real clients send it: whole histories, signed thinking, a cache mark that moves, tools behind
the messages, a result of 2 kB a step. Timed are the policies alone (``step_start`` and ``step_end``, all of
them, and two budgets to look at), in processor time. What they cost must follow the new part of a request,
not its history. No part of the test run.
"""

import argparse
import copy
import cProfile
import json
import pstats
import statistics
import time
from collections.abc import Mapping
from typing import Any

from policies import TABLE
from policies.budgets import Budget, Budgets
from proxy import dialects
from proxy.app import new_id
from proxy.chain import Chain, Link, Point, Ruling
from proxy.core import Core, CoreSettings
from proxy.model import CaptureEnd, CaptureStart, Exchange, Head, Record, ResponseHead, Upstream
from proxy.money.standing import Standing
from proxy.ports import View
from proxy.pricing import Pricing
from proxy.reading.library import Library
from proxy.tracker import Tracker

UPSTREAM = Upstream("anthropic", "http://127.0.0.1:1", "anthropic", "anthropic")
HEADERS = ((b"content-type", b"application/json"),)
LENGTHS = (20, 50, 100, 200, 400)
NEAR = 10
"""Messages more or less that count as a length."""
LOOPS = 5
TOOLS = [
    {"name": name, "description": f"What {name} does. " * 20, "input_schema": {"type": "object"}}
    for name in ("Bash", "Read", "Edit", "Grep", "Glob", "Task", "TodoWrite", "WebFetch")
]


class Nowhere:
    """A sink that forgets."""

    def put(self, record: Record) -> None: ...
    def capture(self, capture: CaptureStart | CaptureEnd) -> None: ...


class Timed(Chain):
    """The chain, with what it took since it was asked last."""

    spent = 0.0

    def judge(self, point: Point, view: View, memories: Mapping[str, Mapping[str, Any]]) -> Ruling:
        began = time.thread_time()
        try:
            return super().judge(point, view, memories)
        finally:
            self.spent += time.thread_time() - began


def fault(where: str, error: BaseException) -> None:
    raise error


def core() -> tuple[Core, Timed]:
    sink = Nowhere()
    chain = Timed([Link(cls()) for cls in TABLE.values()], on_fault=fault)  # type: ignore[arg-type]
    budgets = [
        Budget("turn", "turn", "life", {"steps": 10_000, "spend_usd": 10**12}),
        Budget("day", "thread", "day", {"total_tokens": 10**9}),
    ]
    made = Core(
        dialects=dialects.match, library=Library(), tracker=Tracker(sink.put, new_id(), previews=True),
        chain=chain, prices=Pricing(()), sink=sink, settings=CoreSettings(), on_fault=fault,
        standing=Standing(Budgets(budgets)),
    )  # fmt: skip
    return made, chain


def step(number: int) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """What the model says in a step, and what the client answers."""
    said = [
        {"type": "thinking", "thinking": "", "signature": f"{number:08d}" + "Qx7" * 300},
        {"type": "text", "text": f"Now for part {number}."},
        {
            "type": "tool_use",
            "id": f"toolu_{number:020d}",
            "name": "Bash",
            "input": {"command": f"ls {number}"},
        },
    ]
    result = {"type": "tool_result", "tool_use_id": f"toolu_{number:020d}"}
    return said, {**result, "content": f"line of part {number} at 12:00:{number % 60:02d}\n" * 60}


def bodies(messages: int) -> list[tuple[bytes, bytes, int]]:
    """A loop's requests with their replies, and how many messages each carries."""
    history: list[dict[str, Any]] = [{"role": "user", "content": [{"type": "text", "text": "Go on."}]}]
    made = []
    while len(history) <= messages:
        said, result = step(len(made))
        marked = copy.deepcopy(history[-1])
        marked["content"][-1]["cache_control"] = {"type": "ephemeral"}
        request = {
            "model": "claude-opus-4-6", "max_tokens": 8_000, "thinking": {"type": "adaptive"},
            "system": [{"type": "text", "text": "You are an agent. " * 200}],
            "messages": [*history[:-1], marked], "tools": TOOLS,
        }  # fmt: skip
        reply = {
            "id": f"msg_{len(made)}", "type": "message", "role": "assistant", "model": "claude-opus-4-6",
            "content": said, "stop_reason": "tool_use",
            "usage": {"input_tokens": 400 * len(history), "output_tokens": 90},
        }  # fmt: skip
        made.append((json.dumps(request).encode(), json.dumps(reply).encode(), len(history)))
        history += [{"role": "assistant", "content": said}, {"role": "user", "content": [result]}]
    return made


def loop(play: list[tuple[bytes, bytes, int]], began: int) -> list[tuple[int, float]]:
    """Messages and judging time of each exchange of one loop."""
    thinker, chain = core()
    told = []
    for at, (request, reply, messages) in enumerate(play, began):
        now_ns = time.time_ns()
        chain.spent = 0.0
        head = Head("POST", "/v1/messages", HEADERS)
        exchange = Exchange(f"exc_{at:020d}", at, head, UPSTREAM, "/v1/messages", now_ns)
        opened = thinker.open(exchange, request, now_ns)
        opened.respond(ResponseHead(200, b"OK", HEADERS), now_ns)
        opened.feed(reply, now_ns)
        opened.close("complete", now_ns)
        told.append((messages, chain.spent))
    return told


def figures() -> dict[int, tuple[float, float]]:
    """Median and 90th percentile of the judging time by the length of the history, in microseconds."""
    play = bodies(max(LENGTHS) + NEAR)
    told = [one for number in range(LOOPS) for one in loop(play, number * len(play))]
    found = {}
    for length in LENGTHS:
        near = sorted(spent * 1e6 for messages, spent in told if abs(messages - length) <= NEAR)
        found[length] = (statistics.median(near), near[int(0.9 * (len(near) - 1))])
    return found


def report() -> None:
    """Print the figures, one line a length."""
    for length, (median, tail) in figures().items():
        print(f"judging an exchange at {length:3d} messages: p50 {median:5.0f} us, p90 {tail:5.0f} us")


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--profile", action="store_true", help="print where the time goes")
    options = arguments.parse_args()
    report()
    if options.profile:
        play = bodies(200)
        with cProfile.Profile() as profile:
            loop(play, 0)
        pstats.Stats(profile).sort_stats("tottime").print_stats(30)


if __name__ == "__main__":
    main()
