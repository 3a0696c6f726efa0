"""What thinking about one small call costs, without sockets and without the record.

Run: ``python -m tests.bench.core [--policies] [--profile | --counted]``. The same short request again and
again, each a session of its own: the dearest kind of call. ``--counted`` (needs valgrind, takes a minute)
gives instructions instead of time: the figure to compare by where others use the machine, within 1 %.
No part of the test run.
"""

import argparse
import cProfile
import pstats
import re
import statistics
import subprocess
import sys
import time

from policies import TABLE
from proxy import dialects
from proxy.app import new_id
from proxy.chain import Chain, Link
from proxy.circles import Circles
from proxy.core import Core, CoreSettings
from proxy.model import CaptureEnd, CaptureStart, Exchange, Head, Record, ResponseHead, Upstream
from proxy.pricing import Pricing
from proxy.reading.library import Library
from proxy.tracker import Tracker

UPSTREAM = Upstream("anthropic", "http://127.0.0.1:1", "anthropic", "anthropic")
HEADERS = (
    (b"Host", b"127.0.0.1:9000"), (b"User-Agent", b"Anthropic/Python 0.76.0"),
    (b"Accept", b"application/json"), (b"Content-Type", b"application/json"),
    (b"anthropic-version", b"2023-06-01"), (b"x-api-key", b"none"),
    (b"X-Stainless-Lang", b"python"), (b"X-Stainless-OS", b"Linux"), (b"X-Stainless-Arch", b"x64"),
    (b"X-Stainless-Runtime", b"CPython"), (b"x-stainless-retry-count", b"0"), (b"Content-Length", b"126"),
)  # fmt: skip
REQUEST = (
    b'{"model":"claude-sonnet-4-5","max_tokens":1024,"messages":[{"role":"user","content":'
    b'"Fix the failing test and explain the cause."}]}'
)
_SAID = b"; ".join([b"the agent reads the file, edits one line and runs the tests again"] * 6)
ANSWER = (
    b'{"id":"msg_1","type":"message","role":"assistant","model":"claude-sonnet-4-5","content":[{"type":"text",'
    b'"text":"%s"}],"stop_reason":"end_turn","usage":{"input_tokens":25,"output_tokens":101}}' % _SAID
)
BATCH = 150


class Nowhere:
    """A sink that forgets."""

    def put(self, record: Record) -> None: ...
    def capture(self, capture: CaptureStart | CaptureEnd) -> None: ...


def fault(where: str, error: BaseException) -> None:
    raise error


def batch(core: Core, number: int) -> float:
    """Microseconds of processor time for one exchange."""
    began = time.thread_time()
    for at in range(number, number + BATCH):
        now_ns = time.time_ns()
        head = Head("POST", "/v1/messages", HEADERS)
        opened = core.open(
            Exchange(f"exc_{at:020d}", at, head, UPSTREAM, "/v1/messages", now_ns), REQUEST, now_ns
        )
        opened.respond(ResponseHead(200, b"OK", ((b"Content-Type", b"application/json"),)), now_ns)
        opened.feed(ANSWER, now_ns)
        opened.close("complete", now_ns)
    return (time.thread_time() - began) / BATCH * 1e6


def core(*, policies: bool) -> Core:
    """Everything that thinks, with or without the built-in policies (observing)."""
    sink = Nowhere()
    links = [Link(cls()) for cls in TABLE.values()] if policies else []  # type: ignore[arg-type]
    return Core(
        dialects=dialects.match, library=Library(), tracker=Tracker(sink.put, new_id(), previews=True),
        chain=Chain(links, on_fault=fault), prices=Pricing(()), sink=sink, settings=CoreSettings(),
        on_fault=fault,
    )  # fmt: skip


def instructions(*more: str) -> int:
    """Instructions of one exchange, counted by valgrind in a process of its own."""
    watched = ["valgrind", "--tool=callgrind", "--instr-atstart=no", "--callgrind-out-file=/dev/null"]
    command = [*watched, sys.executable, "-m", "tests.bench.core", "--waiting", *more]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for switch in ("on", "off"):
            process.stdout.readline()  # warm, then done
            control = ["callgrind_control", "-i", switch, str(process.pid)]
            subprocess.run(control, check=True, capture_output=True)
            process.stdin.write("\n")
            process.stdin.flush()
        told = re.search(r"Collected : (\d+)", process.communicate()[1])
    assert told is not None
    return int(told[1]) // BATCH


def wait_between(thinker: Core) -> None:
    """Warm up, then do one batch when told to: what ``instructions`` counts."""
    for number in range(8):
        batch(thinker, number * BATCH)
    print("warm", flush=True)
    sys.stdin.readline()
    batch(thinker, 8 * BATCH)
    print("done", flush=True)
    sys.stdin.readline()


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--policies", action="store_true", help="with the built-in policies")
    arguments.add_argument("--profile", action="store_true", help="print where the time goes")
    arguments.add_argument("--counted", action="store_true", help="instructions instead of time")
    arguments.add_argument("--waiting", action="store_true", help=argparse.SUPPRESS)
    options = arguments.parse_args()
    more = ["--policies"] if options.policies else []
    if options.counted:
        print(f"{instructions(*more) / 1_000:.0f} thousand instructions for one small call")
        return
    thinker = core(policies=options.policies)
    Circles().start()
    if options.waiting:
        wait_between(thinker)
        return
    costs = [batch(thinker, number * BATCH) for number in range(40)][5:]
    print(f"{min(costs):.0f} us for one small call at best, median {statistics.median(costs):.0f}")
    if options.profile:
        with cProfile.Profile() as profile:
            batch(thinker, 100_000)
        pstats.Stats(profile).sort_stats("tottime").print_stats(30)


if __name__ == "__main__":
    main()
