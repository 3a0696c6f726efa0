"""The routes that act: counters, what waits; stop, yes, top-up. Each order carried out leaves an event.

An order that names nothing known is refused in words, and nothing is written.
"""

from collections.abc import Awaitable
from typing import Any

from aiohttp import web

from proxy.admin import shapes
from proxy.admin.asking import Route, json, text, told
from proxy.admin.parts import AdminParts, Orders
from proxy.ports import LedgerAway

JSON = "application/json"


class Ordering:
    """Budgets and what may be done about them."""

    def __init__(self, parts: AdminParts) -> None:
        self._parts = parts

    def routes(self) -> list[Route]:
        """The table of these routes."""
        return [
            Route("GET", "/api/v1/budgets", self.budgets, "Every live counter",
                  {JSON: shapes.many(shapes.COUNTER)}, fails=(503,)),
            Route("POST", "/api/v1/stop", self.stop,
                  "Refuse what a turn, thread, session or key asks from now on; `lift` lets it go on",
                  {JSON: shapes.STOPPED}, takes=shapes.STOP, fails=(404, 413, 415, 503)),
            Route("GET", "/api/v1/held", self.held, "Requests that wait for an operator here, longest first",
                  {JSON: shapes.many(shapes.WAIT)}),
            Route("POST", "/api/v1/allow", self.allow,
                  "Let one request that waits go on; under a budget its limit is raised by what it needs",
                  {JSON: shapes.ALLOWED}, takes=shapes.ALLOW, fails=(404, 413, 415, 503)),
            Route("POST", "/api/v1/topup", self.topup, "Raise a limit in its current window",
                  {JSON: shapes.TOPPED_UP}, takes=shapes.TOPUP, fails=(404, 413, 415, 503)),
        ]  # fmt: skip

    async def budgets(self, request: web.Request) -> web.Response:
        return json(await _carried_out(self._orders().budgets()))

    async def stop(self, request: web.Request) -> web.Response:
        order = await told(request, frozenset({"id", "lift"}))
        lift = order.get("lift", False)
        if not isinstance(lift, bool):
            raise web.HTTPBadRequest(reason="lift must be true or false")
        whole = await _carried_out(self._orders().stop(text(order, "id"), lift=lift))
        self._parts.audit("go_on" if lift else "stop", {"id": whole})
        return json({"id": whole, "stopped": not lift})

    async def held(self, request: web.Request) -> web.Response:
        return json(self._parts.held())

    async def allow(self, request: web.Request) -> web.Response:
        order = await told(request, frozenset({"id"}))
        allowed = await _carried_out(self._orders().allow(text(order, "id")))
        self._parts.audit("allow", {name: value for name, value in allowed.items() if name != "allowed"})
        return json(allowed)

    async def topup(self, request: web.Request) -> web.Response:
        order = await told(request, frozenset({"budget", "subject", "add", "dimension"}))
        optional = {
            name: text(order, name) for name in ("subject", "dimension") if order.get(name) is not None
        }
        budget, add = text(order, "budget"), text(order, "add")
        counter = await _carried_out(self._orders().topup(budget, add, **optional))
        facts = {name: counter[name] for name in ("scope", "subject", "window", "dimension", "limit")}
        self._parts.audit("topup", {"budget": budget, "add": add, **facts})
        return json(counter)

    def _orders(self) -> Orders:
        if self._parts.orders is None:
            raise web.HTTPServiceUnavailable(reason="nothing can be ordered here")
        return self._parts.orders()


async def _carried_out(work: Awaitable[Any]) -> Any:
    try:
        return await work
    except LedgerAway as error:
        raise web.HTTPServiceUnavailable(reason=_line(error)) from None
    except LookupError as error:
        raise web.HTTPNotFound(reason=_line(error)) from None
    except ValueError as error:
        raise web.HTTPBadRequest(reason=_line(error)) from None


def _line(error: Exception) -> str:
    return " ".join(str(error).split())
