"""`make soak`: 200,000 streamed exchanges of 2,000 sessions through Looptap; its memory must stay flat.

Memory is read while the load runs, with the number of exchanges that were answered by then. The process
may grow while its caches fill, so the middle third of the exchanges is compared with the last third;
growth there, per exchange, would be a leak. Exit 1 if it grew or if an exchange failed.
"""

import argparse
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

from tests.bench.bench import KIT, build_kit, require
from tests.processes import free_ports

ROOT = Path(__file__).parents[2]
MAX_S = 1500
MAX_GROWTH_PER_EXCHANGE = 40
"""Bytes. Of 100,000 exchanges a leak of one small object each would show as three times that."""
SLACK_MB = 12
"""The allocator's own unrest."""


def resident_mb(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def await_ready(url: str, process: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and process.poll() is None:
        try:
            urllib.request.urlopen(url, timeout=2).close()
            return
        except OSError:
            time.sleep(0.1)
    sys.exit(f"soak: nothing answers at {url}")


Sample = tuple[int, float]
"""Exchanges answered, and the process's megabytes by then."""


def verdict(samples: list[Sample], exchanges: int) -> tuple[bool, str]:
    """Whether memory stayed flat, and the figures in words."""
    thirds: list[list[float]] = [[], [], []]
    for done, megabytes in samples:
        thirds[min(2, 3 * done // exchanges)].append(megabytes)
    if not all(thirds):
        return False, f"memory was not read in every third of {exchanges} exchanges"
    middle, last = statistics.median(thirds[1]), statistics.median(thirds[2])
    allowed = SLACK_MB + MAX_GROWTH_PER_EXCHANGE * exchanges / 3 / 1e6
    words = (
        f"memory {samples[0][1]:.0f} MB at the start, {middle:.1f} MB in the middle, {last:.1f} MB at the end"
    )
    most = max(megabytes for _, megabytes in samples)
    return (
        last - middle <= allowed,
        f"{words}, at most {most:.1f} MB; growth of {allowed:.0f} MB is allowed",
    )


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--sessions", type=int, default=2000)
    arguments.add_argument("--steps", type=int, default=100)
    arguments.add_argument("--connections", type=int, default=50)
    arguments.add_argument("--step-bytes", type=int, default=600)
    options = arguments.parse_args()
    require("gcc", "make")
    build_kit()
    upstream_port, port, admin = free_ports(3)
    with tempfile.TemporaryDirectory(prefix="looptap-soak-") as folder:
        upstream = subprocess.Popen([str(KIT / "upstream"), "--port", str(upstream_port), "--chunks", "10"])
        Path(folder, "looptap.yaml").write_text("exporters: {prometheus: {}}\n", encoding="utf-8")
        serve = [sys.executable, "-m", "proxy", "--config", f"{folder}/looptap.yaml"]
        serve += ["--data-dir", f"{folder}/data", "serve"]
        serve += ["--listen", f"127.0.0.1:{port}", "--admin", f"127.0.0.1:{admin}"]
        serve += ["--upstream", f"anthropic=http://127.0.0.1:{upstream_port}"]
        with Path(folder, "log").open("wb") as log:
            proxy = subprocess.Popen(
                serve, cwd=ROOT, env=os.environ | {"HOME": folder}, stdout=log, stderr=log
            )
        try:
            await_ready(f"http://127.0.0.1:{admin}/readyz", proxy)
            samples, result = soak(options, port, admin, proxy.pid)
        finally:
            for process in (proxy, upstream):
                process.send_signal(signal.SIGTERM)
            for process in (proxy, upstream):
                process.wait(30)
    return report(options, samples, result)


def answered(admin: int) -> int:
    """Exchanges answered so far, as the process counts them itself."""
    with urllib.request.urlopen(f"http://127.0.0.1:{admin}/metrics", timeout=30) as page:
        told = re.findall(rb"^looptap_attempts_total\{.*\} ([0-9.e+]+)$", page.read(), re.MULTILINE)
    return sum(int(float(count)) for count in told)


def soak(
    options: argparse.Namespace, port: int, admin: int, pid: int
) -> tuple[list[Sample], dict[str, float]]:
    """Drive the load to its end and watch the memory of a process meanwhile."""
    loops = options.sessions // options.connections
    load = [str(KIT / "load"), "--url", f"http://127.0.0.1:{port}", "--mode", "growing", "--stream", "1"]
    load += ["--shape", "marks", "--distinct", "1", "--expect-chunks", "10", "--max-s", str(MAX_S)]
    load += ["--conns", str(options.connections), "--loops", str(loops)]
    load += ["--steps", str(options.steps), "--grow-bytes", str(options.step_bytes)]
    samples = [(0, resident_mb(pid))]
    with subprocess.Popen(load, stdout=subprocess.PIPE) as client:
        while client.poll() is None:
            time.sleep(0.5)
            samples.append((answered(admin), resident_mb(pid)))
        out, _ = client.communicate()
    result: dict[str, float] = json.loads(out)
    return samples, result


def report(options: argparse.Namespace, samples: list[Sample], result: dict[str, float]) -> int:
    expected = options.sessions // options.connections * options.connections * options.steps
    done, failed = int(result["total_requests"]), int(result["errors"] + result["unfinished"])
    flat, words = verdict(samples, expected)
    pace = f"{result['elapsed_s']:.0f} s, {result['rps']:.0f} a second"
    print(f"{done} of {expected} exchanges in {pace}, {failed} failed")
    print(words)
    print("flat" if flat else "IT GREW")
    return 0 if flat and done == expected and not failed else 1


if __name__ == "__main__":
    sys.exit(main())
