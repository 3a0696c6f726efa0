"""Two instances behind nginx are restarted in turn under load: nothing is lost, nothing charged twice.

nginx is as people have it: it tries the other instance where a connection is refused, and never sends a
request again that it has sent.
"""

import asyncio
import json
import os
import shutil
import signal
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import pytest

from proxy.record import Reader
from proxy.stores.ledger_redis import RedisLedger
from tests.live.kit import LAST, Message, Peer, Upstream, answer_head, frame, sse
from tests.live.test_restart import Process, serving
from tests.processes import free_ports
from tests.stores.ledger.kit import RedisServer

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]
CLIENTS = 8
BETWEEN = 25
"""Answers to wait for between two restarts."""
USED = {"output_tokens": 3}
NANO_EACH = 103_000
"""100 tokens in, 3 out, at a dollar per million."""
NGINX = """
{user}
worker_processes 1; daemon off; pid {place}/nginx.pid; error_log {place}/error.log;
events {{ worker_connections 512; }}
http {{
  access_log off;
  client_body_temp_path {place}/body; proxy_temp_path {place}/proxy; fastcgi_temp_path {place}/fastcgi;
  uwsgi_temp_path {place}/uwsgi; scgi_temp_path {place}/scgi;
  upstream looptap {{ {servers} }}
  server {{
    listen 127.0.0.1:{port};
    location / {{
      proxy_pass http://looptap; proxy_http_version 1.1; proxy_set_header Connection "{connection}";
      proxy_buffering off; proxy_next_upstream {again};
    }}
  }}
}}
"""


@dataclass
class Load:
    """Agents that ask through nginx, each request a different one, and the model that answers them."""

    url: str = ""
    asked: int = 0
    served: Counter[str] = field(default_factory=Counter)
    """By request: how often the model was asked."""
    answered: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    over: bool = False
    came: asyncio.Event = field(default_factory=asyncio.Event)

    async def respond(self, message: Message, peer: Peer) -> None:
        """A stream that takes its time."""
        text = message.json()["messages"][0]["content"]
        self.served[text] += 1
        begin = {
            "id": f"msg_{text}", "type": "message", "role": "assistant", "model": "claude-x", "content": [],
            "stop_reason": None, "usage": {"input_tokens": 100, "output_tokens": 1},
        }  # fmt: skip
        parts = [
            sse({"type": "message_start", "message": begin}),
            sse({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}),
            sse({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}}),
            sse(
                {"type": "content_block_stop", "index": 0},
                {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": USED},
                {"type": "message_stop"},
            ),
        ]  # fmt: skip
        await peer.send(answer_head(200, [("content-type", "text/event-stream")], None))
        for part in parts:
            await peer.send(frame(part))
            await asyncio.sleep(0.05)
        await peer.send(LAST)

    async def client(self, http: aiohttp.ClientSession) -> None:
        while not self.over:
            text = f"request {self.asked}"
            self.asked += 1
            body = {
                "model": "claude-x", "max_tokens": 50, "stream": True,
                "messages": [{"role": "user", "content": text}],
            }  # fmt: skip
            try:
                async with http.post(f"{self.url}/anthropic/v1/messages", json=body) as answer:
                    told = await answer.read()
                whole = answer.status == 200 and b"message_stop" in told and text.encode() in told
                if not whole:
                    self.failed.append(f"{text}: {answer.status} {told[-300:]!r}")
            except (aiohttp.ClientError, OSError) as error:
                whole = False
                self.failed.append(f"{text}: {error!r}")
            if whole:
                self.answered.append(text)
            self.came.set()

    async def more(self, count: int) -> None:
        """Wait for so many further answers; bounded."""
        until = len(self.answered) + count
        async with asyncio.timeout(60):
            while len(self.answered) < until and not self.failed:
                self.came.clear()
                await self.came.wait()


@asynccontextmanager
async def loaded(url: str, load: Load) -> AsyncIterator[None]:
    """All clients at work."""
    load.url = url
    http = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
    async with http, asyncio.TaskGroup() as group:
        for _ in range(CLIENTS):
            group.create_task(load.client(http))
        try:
            await load.more(BETWEEN)
            yield
        finally:
            load.over = True


@asynccontextmanager
async def nginx(place: Path, ports: list[int], *, keepalive: bool) -> AsyncIterator[str]:
    """nginx in front of the instances; its URL."""
    program = shutil.which("nginx") or "/usr/sbin/nginx"
    (port,) = free_ports(1)
    servers = " ".join(f"server 127.0.0.1:{one} max_fails=0;" for one in ports)
    told = NGINX.format(
        user="user root;" if os.geteuid() == 0 else "",
        place=place,
        port=port,
        servers=servers + (" keepalive 16;" if keepalive else ""),
        connection="" if keepalive else "close",
        again="error timeout non_idempotent" if keepalive else "error timeout",
    )
    config = place / "nginx.conf"
    config.write_text(told)
    process = await asyncio.create_subprocess_exec(program, "-e", f"{place}/error.log", "-c", str(config))
    try:
        async with asyncio.timeout(20):
            while not await _listens(port):
                assert process.returncode is None, (place / "error.log").read_text()
                await asyncio.sleep(0.02)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.send_signal(signal.SIGQUIT)
        await process.wait()


async def _listens(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.close()
    return True


def configured(place: Path, at: int, port: int, upstream: Upstream, redis: RedisServer) -> Path:
    config = place / f"looptap{at}.yaml"
    told = {
        "listen": f"127.0.0.1:{port}",
        "admin": "127.0.0.1:0",
        "upstreams": {"anthropic": {"url": upstream.url, "api": "anthropic"}},
        "store": {"path": str(place / f"data{at}")},
        "ledger": {"url": redis.url},
        "prices": [{"model": "*", "input": 1, "output": 1}],
        "budgets": [{"name": "org", "scope": "org", "window": "total", "limits": {"spend_usd": 1000}}],
    }
    config.write_text(json.dumps(told))
    return config


@dataclass
class Fleet:
    """Instances on ports of their own, each of which can be restarted."""

    configs: list[Path]
    stack: AsyncExitStack
    running: list[Process] = field(default_factory=list)

    async def start(self) -> None:
        for config in self.configs:
            self.running.append(await self.stack.enter_async_context(serving(config)))

    async def restart(self, at: int) -> None:
        """As a deployment does it: ask it to stop, wait until it has, start the next one."""
        process = self.running[at].process
        process.terminate()
        async with asyncio.timeout(60):
            assert await process.wait() == 0
        self.running[at] = await self.stack.enter_async_context(serving(self.configs[at]))


@pytest.mark.parametrize("keepalive", [False, True], ids=["a connection each", "kept connections"])
async def test_a_rolling_restart_loses_nothing_and_charges_nothing_twice(
    tmp_path: Path, redis: RedisServer, keepalive: bool
) -> None:
    redis.command("FLUSHALL")
    load = Load()
    upstream = Upstream(load.respond)
    await upstream.start()
    ports = free_ports(2)
    configs = [configured(tmp_path, at, port, upstream, redis) for at, port in enumerate(ports)]
    async with AsyncExitStack() as stack:
        fleet = Fleet(configs, stack)
        await fleet.start()
        async with nginx(tmp_path, ports, keepalive=keepalive) as url, loaded(url, load):
            for at in (0, 1, 0, 1):
                await fleet.restart(at)
                await load.more(BETWEEN)
        for one in fleet.running:
            one.process.terminate()
            assert await one.process.wait() == 0
    await upstream.stop()
    assert load.failed == [], (tmp_path / "error.log").read_text()[-2000:]
    assert sorted(load.answered) == sorted(load.served)
    assert max(load.served.values()) == 1
    await _charged_once(redis, len(load.answered))
    assert sum(map(_complete_attempts, (tmp_path / "data0", tmp_path / "data1"))) == len(load.answered)


async def _charged_once(redis: RedisServer, requests: int) -> None:
    ledger = RedisLedger(redis.url)
    await ledger.ready()
    (balance,) = await ledger.balances(now_ns=0)
    await ledger.close()
    assert (balance.used, balance.reserved, balance.assumed) == (requests * NANO_EACH, 0, 0)


def _complete_attempts(data_dir: Path) -> int:
    with Reader(data_dir) as reader:
        return sum(
            record.type == "step/attempt" and record.data["outcome"] == "complete"
            for _, record in reader.events()
        )
