"""The self-check at start: an over-limit request through the whole proxy must be refused.

A private copy of the proxy is started from the very same settings (own ports, own empty directory, an
upstream that nobody listens on), with one more budget of a single step. Its second request has to be
refused; a cap that was configured and is not wired in would be worse than none.
"""

import asyncio
import json
from decimal import Decimal
from pathlib import Path
from tempfile import TemporaryDirectory

from proxy import app
from proxy.config import (
    BUILT_IN,
    Address,
    BudgetLimits,
    BudgetSettings,
    Duration,
    PriceRule,
    Settings,
    UpstreamSettings,
)

NOBODY = "http://127.0.0.1:9"
"""The discard port: nothing answers there."""
PATIENCE_S = 20.0
_MODEL = "looptap-self-check"
_LOOPBACK = Address("127.0.0.1", 0)


class NotEnforced(Exception):
    """What is configured does not hold."""


def enforces(settings: Settings) -> bool:
    """Whether any budget refuses anything."""
    return settings.mode == "enforce" and any(budget.acts for budget in settings.budgets)


async def prove(settings: Settings) -> None:
    """Raise NotEnforced unless a private copy of the proxy refuses what goes over a limit."""
    with TemporaryDirectory(prefix="looptap-check-") as place:
        running = await app.start(_private(settings, Path(place)))
        try:
            async with asyncio.timeout(PATIENCE_S):
                answers = [await _ask(running.data_url, number) for number in range(2)]
        except (OSError, TimeoutError, asyncio.IncompleteReadError) as error:
            raise NotEnforced(f"the self-check got no answer ({type(error).__name__})") from None
        finally:
            await running.stop(0)
    if b"x-looptap-refused:" not in answers[1].lower():
        raise NotEnforced("the self-check sent a request over a limit, and it was not refused")


def _private(settings: Settings, place: Path) -> Settings:
    probe = BudgetSettings(
        name="looptap-self-check", scope="org", window="total", limits=BudgetLimits(steps=1)
    )
    price = PriceRule(model=_MODEL, input=Decimal(1), output=Decimal(1))
    names = {**BUILT_IN, **settings.upstreams}
    nobody = {name: UpstreamSettings(url=NOBODY, api=one.api) for name, one in names.items()}
    return settings.model_copy(
        update={
            "listen": _LOOPBACK,
            "admin": _LOOPBACK,
            "store": settings.store.model_copy(update={"path": place}),
            "ledger": settings.ledger.model_copy(update={"url": None, "lease": None}),
            "upstreams": nobody,
            "budgets": (*settings.budgets, probe),
            "hold_for": Duration(1_000_000),  # no operator looks here: what would wait is refused
            "prices": (price, *settings.prices),
            "exporters": {},
            "webhooks": (),
        }
    )


async def _ask(url: str, number: int) -> bytes:
    """One model call; the head of its answer."""
    host, _, port = url.removeprefix("http://").rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        message = {"role": "user", "content": f"self-check {number}"}
        body = json.dumps({"model": _MODEL, "max_tokens": 1, "messages": [message]}).encode()
        head = (
            "POST /anthropic/v1/messages HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        )
        writer.write(head.encode() + body)
        return await reader.readuntil(b"\r\n\r\n")
    finally:
        writer.close()
