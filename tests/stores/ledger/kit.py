"""What the ledger's tests share: claims in few words, a clock by hand, a private Redis server."""

import asyncio
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

from proxy.ports import Ledger
from proxy.verdict import Balance, Claim, Grant, to_nano
from tests.processes import free_port

SECOND = 1_000_000_000
MINUTE, HOUR, DAY = 60 * SECOND, 3600 * SECOND, 86_400 * SECOND
NOON = int(datetime(2026, 3, 11, 12, tzinfo=UTC).timestamp()) * SECOND
"""A Wednesday."""
TTL_S = 900


def usd(text: str) -> int:
    """Dollars as the ledger counts them."""
    return to_nano(Decimal(text))


def claim(amount: int = 1, limit: int = 10, **more: Any) -> Claim:
    """A claim on the day's steps of key ``k``, unless it says otherwise."""
    words = {"budget": "b", "scope": "key", "subject": "k", "dimension": "steps", "window": "day"}
    return Claim(**{**words, "amount": amount, "limit": limit, **more})


def money(amount: str, limit: str, **more: Any) -> Claim:
    """A claim on dollars."""
    return claim(usd(amount), usd(limit), dimension="spend_usd", **more)


class Till:
    """A ledger with a clock that the test moves."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.now = NOON

    async def reserve(self, *claims: Claim, ttl_s: int = TTL_S, names: Sequence[str] = ()) -> Grant:
        return await self.ledger.reserve(claims, ttl_s=ttl_s, now_ns=self.now, names=names)

    async def settle(self, grant: Grant, actual: Mapping[str, int | None] | Sequence[int | None]) -> Any:
        return await self.ledger.settle(grant, actual, now_ns=self.now)

    async def release(self, grant: Grant) -> Any:
        return await self.ledger.release(grant, now_ns=self.now)

    async def topup(self, claim: Claim, add: int) -> Balance:
        return await self.ledger.topup(claim, add, now_ns=self.now)

    async def sweep(self) -> Any:
        return await self.ledger.sweep(now_ns=self.now)

    async def balances(self, *, lasting: bool = False) -> Sequence[Balance]:
        return await self.ledger.balances(now_ns=self.now, lasting=lasting)

    async def balance(self, **which: Any) -> Balance:
        """The one live counter that fits."""
        found = [
            one
            for one in await self.balances()
            if all(getattr(one, name) == value for name, value in which.items())
        ]
        assert len(found) == 1, found
        return found[0]


class RedisServer:
    """A Redis server of our own in a directory of its own."""

    def __init__(self, *options: str) -> None:
        program = shutil.which("redis-server")
        assert program is not None, "install redis-server: these tests run a private one"
        self._program = program
        self._options = options
        self.directory = Path(tempfile.mkdtemp(prefix="looptap-redis-"))
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start, and return when it answers."""
        self._process = subprocess.Popen(
            [
                self._program, "--port", str(self.port), "--bind", "127.0.0.1",
                "--dir", str(self.directory), "--save", "", *self._options,
            ],
            stdout=subprocess.DEVNULL,
        )  # fmt: skip
        wait_until(self.answers, "the redis server answers")

    def answers(self) -> bool:
        """Whether it takes commands."""
        try:
            return self.command("PING").startswith((b"+PONG", b"-NOAUTH"))
        except OSError:
            return False

    def command(self, *words: str) -> bytes:
        """One command over a connection of its own; returns the first piece of the answer."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=5) as connection:
            connection.sendall((" ".join(words) + "\r\n").encode())
            return connection.recv(65_536)

    def kill(self) -> None:
        """End it without a word."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(10)
            self._process = None

    def wipe(self) -> None:
        """Forget everything, as a server without a file does."""
        for path in self.directory.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    def close(self) -> None:
        """End it and its directory."""
        self.kill()
        shutil.rmtree(self.directory, ignore_errors=True)


def wait_until(true: Callable[[], bool], what: str, seconds: float = 20) -> None:
    """Wait for something that another process does."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, f"waited {seconds} s until {what}"
        time.sleep(0.01)


async def wait_for(true: Callable[[], Any], what: str, seconds: float = 20) -> None:
    """The same on the event loop; ``true`` may be a coroutine function."""
    end = time.monotonic() + seconds
    while True:
        answer = true()
        if asyncio.iscoroutine(answer):
            answer = await answer
        if answer:
            return
        assert time.monotonic() < end, f"waited {seconds} s until {what}"
        await asyncio.sleep(0.01)


def environment() -> dict[str, str]:
    """For child processes: this tree first."""
    return {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
