"""Caps hold, with real processes: a thousand calls at once, instances killed, a shared ledger in trouble."""

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from tests.budgets import kit
from tests.stores.ledger.kit import RedisServer
from tests.stores.ledger.test_redis import Slow

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]

FLAT = [{"model": "acme-*", "input": 0, "output": 1000}]
"""Only output costs: a request holds max_tokens × 0.001 USD."""
HOLD_TOKENS = 100


def settings(limit: str, **ledger: Any) -> dict[str, Any]:
    budget = {"name": "key", "scope": "key", "window": "total", "limits": {"spend_usd": limit}}
    return {"prices": FLAT, "budgets": [budget], "ledger": {"ttl": "900s", **ledger}}


def ask(proxy: kit.Served, name: str, tokens: int = 10) -> kit.Said:
    """One call that holds 0.10 USD and takes ``tokens`` thousandths of one."""
    return proxy.post("/v1/messages", kit.request(name, max_tokens=HOLD_TOKENS), x_tokens=str(tokens))


def counter(proxy: kit.Served) -> tuple[Decimal, Decimal]:
    """Used and reserved of the one budget."""
    (one,) = proxy.budgets(name="key")
    return Decimal(one["used"]), Decimal(one["reserved"])


def use_up(proxies: list[kit.Served], tokens: int, workers: int) -> None:
    """Sustained demand: each worker goes on until it is refused while nobody holds anything."""

    def work(worker: int) -> None:
        deadline = time.monotonic() + 120
        number = 0
        while time.monotonic() < deadline:
            said = ask(proxies[worker % len(proxies)], f"worker {worker}, call {number}", tokens)
            number += 1
            if said.status != 200 and said.fields.get("reserved") == "0":
                return
        raise AssertionError("the budget was not used up")

    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(work, range(workers)))


def booked(proxies: list[kit.Served]) -> Decimal:
    """What the records of all instances say was spent."""
    costs = [e["cost_usd"] for proxy in proxies for e in kit.events(proxy.data, "step/attempt")]
    return sum(map(Decimal, costs), Decimal(0))


# -- (a)


async def _thousand(port: int, said: list[int]) -> None:
    """A thousand calls, all connected before any is sent; each status as it comes."""
    connections = [await asyncio.open_connection("127.0.0.1", port) for _ in range(1000)]

    async def one(number: int) -> None:
        reader, writer = connections[number]
        body = json.dumps(kit.request(f"question {number}", max_tokens=HOLD_TOKENS)).encode()
        head = (
            "POST /v1/messages HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n"
            "content-type: application/json\r\nx-api-key: sk-client\r\nx-tokens: 30\r\n"
            f"content-length: {len(body)}\r\n\r\n"
        )
        writer.write(head.encode() + body)
        answer = await reader.read()
        said.append(int(answer.split(b" ")[1]))
        writer.close()

    await asyncio.gather(*(one(number) for number in range(1000)))


def test_BUD_01_a_thousand_calls_at_once_admit_fifty_and_demand_uses_up_95_percent(tmp_path: Path) -> None:
    with kit.model() as model, kit.serve(tmp_path, model, **settings("5.00")) as proxy:
        model.gate.clear()
        said: list[int] = []
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(asyncio.run, _thousand(proxy.port, said))
            kit.eventually(lambda: len(model.asked) == 50, "fifty were to go out")
            kit.eventually(lambda: said == [402] * 950, "the rest were to be refused")
            assert counter(proxy) == (0, 5)
            assert len(model.asked) == 50
            model.gate.set()
            running.result(kit.WAIT_S)
        assert said[950:] == [200] * 50
        proxy.idle()
        assert counter(proxy) == (Decimal("1.5"), 0)
        use_up([proxy], tokens=30, workers=16)
        used, reserved = counter(proxy)
        assert reserved == 0
        assert Decimal("4.75") <= used <= 5
        kit.eventually(lambda: booked([proxy]) == used, "the record was to say the same")


# -- (d)


def test_BUD_02_of_instances_that_are_killed_nothing_stays_held_and_no_cap_is_crossed(
    tmp_path: Path,
) -> None:
    with shared("aof") as redis, kit.model() as model, ExitStack() as stack:
        given = settings("3.00", url=redis.url, ttl="5s")
        proxies = [stack.enter_context(kit.serve(tmp_path / name, model, **given)) for name in "abc"]
        model.gate.clear()
        with ThreadPoolExecutor(24) as pool:
            running = [pool.submit(ask, proxies[n % 3], f"question {n}") for n in range(24)]
            kit.eventually(lambda: len(model.asked) == 24, "all were to be on their way")
            assert counter(proxies[0]) == (0, Decimal("2.4"))
            for proxy in proxies[1:]:
                proxy.process.kill()
            killed = [one for n, one in enumerate(running) if n % 3]
            assert all(one.exception(kit.WAIT_S) is not None for one in killed)
            model.gate.set()
            assert [one.result().status for n, one in enumerate(running) if not n % 3] == [200] * 8
        survivor = proxies[0]
        survivor.idle()
        # Eight were settled at a cent; sixteen are charged as they were held.
        assert counter(survivor) == (Decimal("1.68"), 0)
        use_up([survivor], tokens=10, workers=8)
        used, reserved = counter(survivor)
        assert reserved == 0
        assert Decimal("2.85") <= used <= 3


# -- (e)


@contextmanager
def shared(kind: str) -> Iterator[RedisServer]:
    server = RedisServer(*(("--appendonly", "yes", "--appendfsync", "always") if kind == "aof" else ()))
    server.start()
    try:
        yield server
    finally:
        server.close()


@contextmanager
def delayed(server: RedisServer, delay_s: float) -> Iterator[str]:
    """The same server, each answer later; the URL of the way there."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    relay = Slow(server.port, delay_s)
    try:
        yield asyncio.run_coroutine_threadsafe(relay.start(), loop).result(kit.WAIT_S)
    finally:
        asyncio.run_coroutine_threadsafe(relay.close(), loop).result(kit.WAIT_S)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(kit.WAIT_S)
        loop.close()


def _trouble(redis: RedisServer, model: kit.Model) -> Callable[[], None]:
    """Kills the server in the middle of the load and starts it again."""

    def happen() -> None:
        kit.eventually(lambda: len(model.asked) >= 60, "the load was to begin")
        redis.kill()
        kit.wait_s(1.5)
        redis.start()

    return happen


@pytest.mark.parametrize("kind", ["empty", "aof", "slow"])
def test_BUD_05_a_shared_ledger_in_trouble_under_load_loses_nothing_and_is_not_crossed(
    kind: str, tmp_path: Path
) -> None:
    with shared("empty" if kind == "empty" else "aof") as redis, kit.model() as model, ExitStack() as stack:
        url = stack.enter_context(delayed(redis, 0.05)) if kind == "slow" else redis.url
        given = settings("4.00", url=url)
        proxies = [stack.enter_context(kit.serve(tmp_path / name, model, **given)) for name in "ab"]
        with ThreadPoolExecutor(1) as pool:
            trouble = pool.submit(_trouble(redis, model)) if kind != "slow" else None
            use_up(proxies, tokens=10, workers=8)
            assert trouble is None or trouble.result(60) is None
        for proxy in proxies:
            proxy.idle()
        (used, reserved), other = counter(proxies[0]), counter(proxies[1])
        assert other == (used, reserved) == (used, 0)
        kit.eventually(lambda: booked(proxies) == used, "the records were to say the same")
        assert Decimal("3.8") <= used <= 4
