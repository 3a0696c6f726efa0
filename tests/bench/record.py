"""What the record costs: microseconds of processor time per exchange, and bytes on disk.

Run: ``python -m tests.bench.record``. No part of the test run.
"""

import os
import random
import tempfile
import time
from pathlib import Path

from proxy.model import CaptureEnd, CaptureStart, Record, Splice
from proxy.outbox import Outbox
from proxy.record import Entry, Reader, RecordWriter

T = 1_700_000_000_000_000_000
WORDS = [f"word{n}" for n in range(2_000)]
HEADERS = (
    (b"Host", b"api.anthropic.com"), (b"User-Agent", b"claude-cli/2.1.0 (external, cli)"),
    (b"Accept", b"application/json"), (b"Content-Type", b"application/json"),
    (b"anthropic-version", b"2023-06-01"), (b"x-stainless-retry-count", b"0"),
    (b"x-stainless-runtime", b"node"), (b"Authorization", b"Bearer \xe2\x80\xa6"),
    (b"Content-Length", b"2048"), (b"Connection", b"keep-alive"),
)  # fmt: skip


def text(random_: random.Random, size: int) -> bytes:
    """About ``size`` bytes of words."""
    return " ".join(random_.choices(WORDS, k=size // 7)).encode()[:size]


def small_exchanges(count: int) -> list[list[Entry]]:
    """Exchanges of 2 kB each way, nine events each, in a few hundred sessions."""
    random_ = random.Random(7)
    request, answer = text(random_, 2_000), text(random_, 1_500)
    exchanges: list[list[Entry]] = []
    for n in range(count):
        ids = {
            "session": f"ses_{n % 300:020d}", "thread": f"thr_{n % 300:020d}", "turn": f"trn_{n // 4:020d}",
            "step": f"stp_{n:020d}",
        }  # fmt: skip
        exchange = f"exc_{random_.randbytes(10).hex()}"
        body = request[: 1_000 + n % 500] + text(random_, 200)
        item = {"direction": "in", "role": "user", "kind": "user", "form": "text", "chars": 812,
                "digest": "0123456789abcdef", "exchange": exchange, "preview": "x" * 120}  # fmt: skip
        attempt = {"attempt": 0, "exchange": exchange, "number": n, "outcome": "complete", "status": 200,
                   "model": "claude-sonnet-4-5", "stop_reason": "tool_use", "response_id": "msg_0123456789",
                   "usage": {"input_tokens": 1200, "output_tokens": 88, "cache_read_tokens": 1000},
                   "cost_usd": "0.00123", "cost_quality": "measured", "arrived_ns": T, "ended_ns": T + 9,
                   "streaming": True, "request_bytes": 2000, "response_bytes": 1500}  # fmt: skip
        start: list[Entry] = [Record(T + n, "turn/start", data={"index": 0}, **{**ids, "step": None})]
        start += [Record(T + n, "step/start", data={"index": n, "model": "claude-sonnet-4-5"}, **ids)]
        start += [Record(T + n, "item", data=item, **ids) for _ in range(2)]
        start += [
            CaptureStart(exchange, n, T + n, "anthropic", "anthropic", "api.anthropic.com", "POST",
                         "/v1/messages?beta=true", HEADERS, body, labels={"team": "search"}, **ids)
        ]  # fmt: skip
        end: list[Entry] = [Record(T + n, "step/attempt", data=attempt, **ids)]
        end += [Record(T + n, "item", data=item, **ids) for _ in range(3)]
        end += [Record(T + n, "step/end", data={"stop_reason": "tool_use", "attempts": 1}, **ids)]
        end += [CaptureEnd(exchange, T + n + 9, "complete", 200, HEADERS, answer, True, 2000, 1500)]
        exchanges.append(start + end)
    return exchanges


def measure_small(data_dir: Path, per_batch: int, bodies: bool, count: int = 6_000) -> None:
    """Processor time of the writing side for small exchanges."""
    exchanges = small_exchanges(count)
    if not bodies:
        exchanges = [[e for e in x if isinstance(e, Record)] for x in exchanges]
    writer = RecordWriter(data_dir)
    writer.write([])
    began = time.thread_time()
    for at in range(0, len(exchanges), per_batch):
        writer.write([entry for exchange in exchanges[at : at + per_batch] for entry in exchange])
    spent = time.thread_time() - began
    writer.close()
    size = (data_dir / "record.db").stat().st_size
    what = "with bodies" if bodies else "events only"
    print(
        f"{per_batch:5d} exchanges a batch, {what}: {spent / len(exchanges) * 1e6:6.1f} us and "
        f"{size / len(exchanges):6.0f} bytes per exchange"
    )


def measure_put(count: int = 3_000) -> None:
    """Cost of the traffic's side."""
    exchanges = small_exchanges(count)
    outbox = Outbox(_Null())
    began = time.perf_counter()
    for exchange in exchanges:
        for entry in exchange:
            if isinstance(entry, Record):
                outbox.put(entry)
            elif isinstance(entry, CaptureStart | CaptureEnd):
                outbox.capture(entry)
    spent = time.perf_counter() - began
    print(f"put or capture: {spent / sum(map(len, exchanges)) * 1e6:.2f} us each")


class _Null:
    def write(self, batch: object) -> None: ...
    def tidy(self) -> bool:
        return False

    def close(self) -> None: ...


def measure_thread(data_dir: Path, what: str, block: bytes) -> None:
    """A thread of 40 steps whose body grows to the size of ``block``."""
    writer = RecordWriter(data_dir)
    head, tail = b'{"model":"m","messages":[', b'],"tools":[' + b'{"name":"t"},' * 200 + b"{}]}"
    history, previous, spent = head, b"", 0.0
    for n in range(40):
        history += b'{"role":"user","content":"' + block[n * 50_000 : (n + 1) * 50_000] + b'"},'
        body = history + tail
        splice = None
        if previous:
            splice = Splice(f"exc_{n - 1}", len(previous) - len(tail), len(tail))
        began = time.process_time()
        writer.write([
            CaptureStart(f"exc_{n}", n, T + n, "p", "u", "h", "POST", "/x", HEADERS, body, splice,
                         session="ses_1", thread="thr_1", turn="trn_1", step=f"stp_{n}"),
            CaptureEnd(f"exc_{n}", T + n, "complete", 200, HEADERS, b"ok", True, 1, 1),
        ])  # fmt: skip
        spent += time.process_time() - began
        previous = body
    writer.close()
    size = (data_dir / "record.db").stat().st_size
    with Reader(data_dir) as reader:
        began = time.perf_counter()
        assert reader.request_body("exc_39") == previous
        took = time.perf_counter() - began
    print(
        f"{what}: last body {len(previous):,} bytes, on disk {size:,} ({size / len(previous):.2f}), "
        f"{spent / 40 * 1e3:.2f} ms of processor a step, {took * 1e3:.1f} ms to read the last"
    )


def main() -> None:
    """All figures."""
    measure_put()
    with tempfile.TemporaryDirectory() as place:
        for name, per_batch, bodies in (("a", 200, True), ("b", 20, True), ("c", 1, True), ("d", 200, False)):
            measure_small(Path(place) / name, per_batch, bodies)
        measure_thread(Path(place) / "hex", "random hex", os.urandom(1_000_000).hex().encode())
        measure_thread(Path(place) / "words", "words", text(random.Random(1), 2_000_000))


if __name__ == "__main__":
    main()
