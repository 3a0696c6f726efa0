"""What a refusal costs in a storm of them, beside a small call through nginx and one through Looptap.

    python -m tests.bench.refusals [--seconds 3]

Sixteen connections, one request over and over, as fast as each target answers; figures are processor
time of all threads and children of the target, from /proc. ``same``: the client repeats one request
byte for byte; ``new``: each is a conversation of its own; ``going``: each is one more try of the same
conversation, in other words. Needs nginx and gcc.
"""

import argparse
import asyncio
import json
import os
import re
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path

from tests.bench.bench import KIT, PATH, build_kit, require
from tests.budgets.kit import Served, start, stop
from tests.live.kit import Json
from tests.processes import free_ports

CONNECTIONS = 16
TICK = os.sysconf("SC_CLK_TCK")
_LENGTH = re.compile(rb"content-length: (\d+)", re.IGNORECASE)
_BUDGET = {"name": "key", "scope": "key", "window": "total", "limits": {"steps": 1}}


def cpu_s(pid: int) -> float:
    """Processor time of a process and its children so far."""
    total = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(stat.parent.name) == pid or int(fields[1]) == pid:
            total += int(fields[11]) + int(fields[12])
    return total / TICK


def body(*messages: Json) -> bytes:
    """A small request."""
    return json.dumps({"model": "claude-sonnet-4-5", "max_tokens": 64, "messages": messages}).encode()


def user(text: str) -> Json:
    return {"role": "user", "content": text}


def bodies(kind: str, history: Sequence[Json] = ()) -> Iterator[bytes]:
    """Request bodies: one over and over, each with its own first words, or each with its own last words."""
    for number in count():
        if kind == "same":
            yield body(user("Say hello."))
        elif kind == "new":
            yield body(user(f"Say hello to number {number}."))
        else:
            yield body(*history, user(f"Please try again, for the {number}th time."))


async def caller(port: int, asked: Iterator[bytes], until_s: float, want: int) -> int:
    """Ask on one connection until the time is up; answers how often."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    done, now = 0, asyncio.get_running_loop().time
    while now() < until_s:
        body = next(asked)
        writer.write(
            b"POST /v1/messages HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\nx-api-key: k\r\n"
            b"anthropic-version: 2023-06-01\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)
        )
        head = await reader.readuntil(b"\r\n\r\n")
        length = _LENGTH.search(head)
        assert length is not None, head
        await reader.readexactly(int(length[1]))
        assert int(head[9:12]) == want, head
        done += 1
    writer.close()
    return done


async def _storm(port: int, asked: Iterator[bytes], seconds: float, want: int) -> int:
    until_s = asyncio.get_running_loop().time() + seconds
    return sum(await asyncio.gather(*(caller(port, asked, until_s, want) for _ in range(CONNECTIONS))))


def measure(
    pid: int, port: int, seconds: float, asked: Iterator[bytes], want: int = 200
) -> tuple[float, float]:
    """Microseconds of processor time for one request, and requests a second."""
    asyncio.run(_storm(port, asked, 0.5, want))
    before = cpu_s(pid)
    done = asyncio.run(_storm(port, asked, seconds, want))
    return (cpu_s(pid) - before) / done * 1e6, done / seconds


@contextmanager
def program(*command: str, port: int) -> Iterator[int]:
    """A program, once it answers on its port."""
    process = subprocess.Popen(command, env={**os.environ, "PATH": PATH}, stdout=subprocess.DEVNULL)
    try:
        for _ in range(1_000):
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=1).read()
                break
            except OSError:
                process.poll()
        yield process.pid
    finally:
        process.terminate()
        process.wait(10)


@contextmanager
def proxy(place: Path, upstream: int, **settings: object) -> Iterator[Served]:
    """Looptap with everything on."""
    place.mkdir()
    config = place / "looptap.yaml"
    told = {
        "listen": "127.0.0.1:0", "admin": "127.0.0.1:0", "exporters": {"prometheus": {}},
        "upstreams": {"anthropic": {"url": f"http://127.0.0.1:{upstream}", "api": "anthropic"}}, **settings,
    }  # fmt: skip
    config.write_text(json.dumps(told))
    served = start(place, config)
    try:
        yield served
    finally:
        stop(served)


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--seconds", type=float, default=3.0)
    seconds = arguments.parse_args().seconds
    require("gcc", "make", "nginx")
    build_kit()
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        place = Path(folder)
        model, front = free_ports(2)
        stack.enter_context(program(str(KIT / "upstream"), "--port", str(model), port=model))
        conf = (KIT / "conf" / "nginx.conf").read_text()
        words = {"{dir}": folder, "{port}": str(front), "{upstream_port}": str(model)}
        for name, value in words.items():
            conf = conf.replace(name, value)
        (place / "nginx.conf").write_text(conf)
        nginx = stack.enter_context(
            program("nginx", "-p", folder, "-e", "stderr", "-c", str(place / "nginx.conf"), port=front)
        )
        plain, _ = measure(nginx, front, seconds, bodies("same"))
        free = stack.enter_context(proxy(place / "free", model))
        call, _ = measure(free.process.pid, free.port, seconds, bodies("same"))
        capped = stack.enter_context(proxy(place / "capped", model, budgets=[_BUDGET]))
        first = capped.post("/v1/messages", body(user("first")))
        assert first.status == 200
        history = [user("first"), {"role": "assistant", "content": first.json["content"]}]
        print(f"small call: nginx {plain:.1f} us, looptap {call:.0f} us")
        for name in ("same", "new", "going"):
            cost, rate = measure(capped.process.pid, capped.port, seconds, bodies(name, history), want=402)
            share = f"{cost / plain:.1f} x nginx, {cost / call:.2f} x a relayed small call"
            print(
                f"refusal ({name}): CPU {cost:.0f} us, {share}; "
                f"{cost / 10:.0f} % of a core at 1,000 a second ({rate:.0f} a second here)"
            )
        lines = len(capped.log_lines("refused: budget"))
        print(f"log lines of all these refusals: {lines}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
