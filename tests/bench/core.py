"""What thinking about one small call costs, without sockets and without the record.

Run: ``python -m tests.bench.core [--profile]``. The same short request again and again, each a
session of its own: the dearest kind of call. No part of the test run.
"""

import argparse
import cProfile
import pstats
import statistics
import time

from proxy import dialects
from proxy.app import new_id
from proxy.chain import Chain
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
    b'{"model":"claude-sonnet-4-5","max_tokens":1024,"messages":[{"role":"user","content":"Say hello."}]}'
)
ANSWER = (
    b'{"id":"msg_1","type":"message","role":"assistant","model":"claude-sonnet-4-5","content":[{"type":"text",'
    b'"text":"Hello, and welcome."}],"stop_reason":"end_turn","usage":{"input_tokens":25,"output_tokens":40}}'
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


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--profile", action="store_true", help="print where the time goes")
    options = arguments.parse_args()
    sink = Nowhere()
    core = Core(
        dialects=dialects.match, library=Library(), tracker=Tracker(sink.put, new_id(), previews=True),
        chain=Chain(on_fault=fault), prices=Pricing(()), sink=sink, settings=CoreSettings(), on_fault=fault,
    )  # fmt: skip
    costs = [batch(core, number * BATCH) for number in range(40)][5:]
    print(f"{min(costs):.0f} us for one small call at best, median {statistics.median(costs):.0f}")
    if options.profile:
        with cProfile.Profile() as profile:
            batch(core, 100_000)
        pstats.Stats(profile).sort_stats("tottime").print_stats(30)


if __name__ == "__main__":
    main()
