"""The routes that read: probes, and the record's JSON under ``/api/v1/``.

Reads go to the ``Catalog`` in a worker thread: a slow query never holds the loop that carries the
traffic.
"""

import asyncio
import time
from typing import get_args

from aiohttp import web

from proxy.admin import shapes
from proxy.admin.asking import LIMIT, Query, Route, asked, found, given, json
from proxy.admin.following import AFTER, follow
from proxy.admin.parts import AdminParts, Catalog
from proxy.model import Cause

JSON = "application/json"
_BEFORE = Query("before", "an id; only what began before it is listed (the next page)")
_LABEL = Query("label", "a label, as name or name=value")
_KEY = Query("key", "the key that pays")
_AGENT = Query("agent", "the agent or client")
_CAUSES = (*get_args(Cause), "open")
_OF_TURNS = (
    _AGENT,
    Query("model", "a model that answered"),
    _KEY,
    _LABEL,
    Query("cause", f"why the turn ended, or open: {', '.join(_CAUSES)}", pattern="|".join(_CAUSES)),
    Query("finding", "a policy, policy/kind, severity, or any"),
    Query("session", "a session"),
)
_OF_SESSIONS = (_AGENT, _KEY, _LABEL)
_SECONDS = Query("since", "only turns that began within the last so many seconds", whole=True, most=10**10)
_BY = Query(
    "by",
    "key, team, org, agent, model, session or label:NAME",
    default="key",
    pattern=r"key|team|org|agent|model|session|label:[A-Za-z0-9_.-]{1,64}",
)
_ATTEMPT = Query(
    "attempt", "which attempt, from 1; the last one unless told", whole=True, least=1, most=10**6
)


class Reading:
    """Everything that changes nothing."""

    def __init__(self, parts: AdminParts) -> None:
        self._parts = parts
        self._catalog: Catalog = parts.catalog
        self._reporting = asyncio.Lock()

    def routes(self) -> list[Route]:
        """The table of these routes."""
        api = "/api/v1"
        return [
            Route("GET", "/healthz", self.healthz, "The process lives", {JSON: shapes.HEALTH}, open=True),
            Route("GET", "/readyz", self.readyz, "Traffic is taken; what is enforced",
                  {JSON: shapes.READY}, fails=(503,), open=True),
            Route("GET", "/metrics", self.metrics, "For Prometheus", {"text/plain": shapes.TEXT}, open=True),
            Route("GET", f"{api}/sessions", self.sessions, "Sessions, newest first",
                  {JSON: shapes.many(shapes.SESSION)}, (LIMIT, _BEFORE, *_OF_SESSIONS)),
            Route("GET", f"{api}/turns", self.turns, "Turns, newest first",
                  {JSON: shapes.many(shapes.TURN_ROW)}, (LIMIT, _BEFORE, *_OF_TURNS)),
            Route("GET", f"{api}/turns/{{id}}", self.turn,
                  "A turn: steps, sub-agents' threads, findings, growth", {JSON: shapes.TURN}, fails=(404,)),
            Route("GET", f"{api}/turns/{{id}}/events", self.turn_events, "The turn's events, in order",
                  {JSON: shapes.many(shapes.EVENT)}, (AFTER, LIMIT), fails=(404,)),
            Route("GET", f"{api}/steps/{{id}}", self.step, "A step", {JSON: shapes.STEP}, fails=(404,)),
            Route("GET", f"{api}/steps/{{id}}/seen", self.seen,
                  "What the model saw at this step, what of it is new", {JSON: shapes.SEEN}, fails=(404,)),
            Route("GET", f"{api}/steps/{{id}}/changes", self.changes,
                  "What of the history before this step came back dropped or changed",
                  {JSON: shapes.CHANGES}, fails=(404,)),
            Route("GET", f"{api}/steps/{{id}}/request", self.request, "The exact bytes that went out",
                  {"application/octet-stream": shapes.BYTES}, (_ATTEMPT,), fails=(404,)),
            Route("GET", f"{api}/steps/{{id}}/response", self.response, "The exact bytes that came back",
                  {"application/octet-stream": shapes.BYTES}, (_ATTEMPT,), fails=(404,)),
            Route("GET", f"{api}/findings", self.findings, "Findings, newest first",
                  {JSON: shapes.many(shapes.EVENT)}, (LIMIT,)),
            Route("GET", f"{api}/alerts", self.alerts,
                  "Budgets that reached a share or their end, and interventions, newest first",
                  {JSON: shapes.many(shapes.EVENT)}, (LIMIT,)),
            Route("GET", f"{api}/spenders", self.spenders, "Who spent most",
                  {JSON: shapes.many(shapes.SPENDER)}, (_BY, _SECONDS, LIMIT)),
            Route("GET", f"{api}/report", self.report, "What `looptap report --json` tells",
                  {JSON: shapes.REPORT}, (_SECONDS,)),
            Route("GET", f"{api}/events", self.events, "Events as they come (server-sent)",
                  {"text/event-stream": shapes.TEXT}, (AFTER,)),
        ]  # fmt: skip

    async def healthz(self, request: web.Request) -> web.Response:
        return json({"status": "ok"})

    async def readyz(self, request: web.Request) -> web.Response:
        ready, detail = self._parts.ready()
        response = json(detail)
        if not ready:
            response.set_status(503)
        return response

    async def metrics(self, request: web.Request) -> web.Response:
        kind = "text/plain; version=0.0.4; charset=utf-8"
        return web.Response(text=self._parts.metrics(), headers={"Content-Type": kind})

    async def sessions(self, request: web.Request) -> web.Response:
        page = asked(request, LIMIT, _BEFORE)
        filters = given(request, *_OF_SESSIONS)
        return json(await asyncio.to_thread(self._catalog.sessions, page["limit"], page["before"], filters))

    async def turns(self, request: web.Request) -> web.Response:
        page = asked(request, LIMIT, _BEFORE)
        filters = given(request, *_OF_TURNS)
        rows = await asyncio.to_thread(self._catalog.turns, page["limit"], page["before"], filters)
        held = {wait.get("turn") for wait in self._parts.held()}
        return json([{**row, "held": True} if row["id"] in held else row for row in rows] if held else rows)

    async def turn(self, request: web.Request) -> web.Response:
        turn = await asyncio.to_thread(self._catalog.turn, request.match_info["id"])
        if turn is not None:
            if self._parts.trace_url is not None and (url := self._parts.trace_url(turn["id"])):
                turn["trace_url"] = url
            if held := [wait for wait in self._parts.held() if wait.get("turn") == turn["id"]]:
                turn["held"] = held
            if turn["open"] and self._parts.orders is not None:
                turn["forecast"] = await self._parts.orders().forecast(turn)
        return found(turn)

    async def turn_events(self, request: web.Request) -> web.Response:
        page = asked(request, AFTER, LIMIT)
        name, after = request.match_info["id"], page["after"] or 0
        return found(await asyncio.to_thread(self._catalog.turn_events, name, after, page["limit"]))

    async def step(self, request: web.Request) -> web.Response:
        return found(await asyncio.to_thread(self._catalog.step, request.match_info["id"]))

    async def seen(self, request: web.Request) -> web.Response:
        return found(await asyncio.to_thread(self._catalog.seen, request.match_info["id"]))

    async def changes(self, request: web.Request) -> web.Response:
        return found(await asyncio.to_thread(self._catalog.changes, request.match_info["id"]))

    async def request(self, request: web.Request) -> web.Response:
        return await self._body(request, "request")

    async def response(self, request: web.Request) -> web.Response:
        return await self._body(request, "response")

    async def _body(self, request: web.Request, which: str) -> web.Response:
        attempt = _ATTEMPT.read(request.query)
        step = request.match_info["id"]
        data = await asyncio.to_thread(self._catalog.body, step, which, attempt)
        if data is None:
            raise web.HTTPNotFound(reason=f"no {which} of that step in the record")
        # Inert on purpose: whatever a provider or a tool wrote is never rendered as a page.
        return web.Response(
            body=data,
            content_type="application/octet-stream",
            headers={"Content-Disposition": f'attachment; filename="{which}.bin"'},
        )

    async def findings(self, request: web.Request) -> web.Response:
        return json(await self._newest(request, "finding"))

    async def alerts(self, request: web.Request) -> web.Response:
        return json(await self._newest(request, "budget/alert", "budget/exhausted", "intervention"))

    async def _newest(self, request: web.Request, *types: str) -> object:
        return await asyncio.to_thread(self._catalog.newest, types, LIMIT.read(request.query))

    async def spenders(self, request: web.Request) -> web.Response:
        page = asked(request, _BY, _SECONDS, LIMIT)
        since_ns = _since_ns(page["since"])
        return json(await asyncio.to_thread(self._catalog.spenders, page["by"], since_ns, page["limit"]))

    async def report(self, request: web.Request) -> web.Response:
        since_ns = _since_ns(_SECONDS.read(request.query))
        async with self._reporting:  # it takes long: whoever else asks waits here and in no thread
            return json(await asyncio.to_thread(self._catalog.report, since_ns))

    async def events(self, request: web.Request) -> web.StreamResponse:
        return await follow(request, self._catalog)


def _since_ns(seconds: int | None) -> int:
    return 0 if seconds is None else max(0, time.time_ns() - seconds * 1_000_000_000)
