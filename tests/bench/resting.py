"""What a session at rest holds in memory, and what one in use does: bytes, traced.

Run: ``python -m tests.bench.resting [--steps N] [--sessions N]``. Sessions of some steps with a tool call
each, judged by all built-in policies; readings and newest requests, which have bounds of their own, are
left out. No part of the test run.
"""

import argparse
import gc
import tracemalloc
from typing import Any
from unittest.mock import patch

import orjson

from proxy.core import Core
from proxy.tracking import shelf
from tests.bench import core

LIVELY = 30
"""Sessions in use meanwhile; a tenth of what the product keeps, for the sake of time."""
ASIDE = 1_000
"""Bytes for readings and requests."""


def run_session(thinker: Core, session: int, steps: int) -> None:
    """One task, worked on with a tool at each step but the last."""
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": f"task {session}: make this work, please" + " and that" * 40}
    ]
    for step in range(steps):
        call = {"type": "tool_use", "id": f"toolu_{session:05d}{step:05d}abc", "name": "bash",
                "input": {"command": f"ls {session} {step}"}}  # fmt: skip
        text = {"type": "text", "text": f"Let me look at {session} {step}. " * 5}
        last = step == steps - 1
        request = {"model": "claude-sonnet-4-5", "max_tokens": 1024, "messages": messages,
                   "tools": [{"name": "bash", "input_schema": {"type": "object"}}]}  # fmt: skip
        answer = {"id": f"msg_{session}_{step}", "type": "message", "role": "assistant",
                  "model": "claude-sonnet-4-5", "content": [text] if last else [text, call],
                  "stop_reason": "end_turn" if last else "tool_use",
                  "usage": {"input_tokens": 2_500, "output_tokens": 40}}  # fmt: skip
        with (
            patch.object(core, "REQUEST", orjson.dumps(request)),
            patch.object(core, "ANSWER", orjson.dumps(answer)),
        ):
            core.batch(thinker, session * 1_000 + step)
        result = {"type": "tool_result", "tool_use_id": call["id"], "content": f"{session} {step} " * 30}
        messages += [{"role": "assistant", "content": [text, call]}, {"role": "user", "content": [result]}]


def measure(steps: int, sessions: int) -> tuple[int, int]:
    """Bytes of one session in use, and of one at rest."""
    with patch.object(core, "BATCH", 1), patch.object(shelf, "LIVELY", LIVELY):
        thinker = core.core(policies=True)
        thinker.library.max_bytes = thinker.tracker.shelf._max_request_bytes = ASIDE

        def after(first: int, count: int) -> int:
            for session in range(first, first + count):
                run_session(thinker, session, steps)
            gc.collect()
            return tracemalloc.get_traced_memory()[0]

        tracemalloc.start()
        try:
            empty = after(0, 1)
            in_use = after(1, LIVELY - 1)
            turned = after(LIVELY, LIVELY)
            at_rest = after(2 * LIVELY, sessions)
        finally:
            tracemalloc.stop()
    return (in_use - empty) // (LIVELY - 1), (at_rest - turned) // sessions


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--steps", type=int, default=12)
    arguments.add_argument("--sessions", type=int, default=60)
    options = arguments.parse_args()
    in_use, at_rest = measure(options.steps, options.sessions)
    print(f"a session of {options.steps} steps: {in_use / 1e3:.1f} kB in use, {at_rest / 1e3:.1f} kB at rest")


if __name__ == "__main__":
    main()
