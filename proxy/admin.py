"""The admin port: health, readiness, metrics and the reading API, on aiohttp, never on the data port.

Three walls, in this order: the Host must be one that we serve (a page that rebinds its DNS name
to this address is turned away), a foreign Origin is refused, and everything but ``/healthz``,
``/readyz`` and ``/metrics`` needs the token that was made at first start. Unauthenticated
requests learn nothing but that a token is wanted.

Reads go to a ``Library`` of the record (SQLite) in a worker thread: a slow query never holds the
loop that carries the traffic.
"""

import asyncio
import hmac
import logging
import os
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import orjson
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from proxy.ports import LedgerAway

TOKEN_FILE = "admin-token"
_COOKIE = "looptap_token"
_OPEN_PATHS = frozenset({"/healthz", "/readyz", "/metrics"})
_FILTERS = frozenset({"agent", "model", "cause", "label", "session"})
_TAIL_S = 0.25
_PAGE = 200
"""Most rows that one page of a listing holds."""


class Catalog(Protocol):
    """What the admin port reads: the public JSON of the record, by id."""

    def sessions(self, limit: int) -> list[dict[str, Any]]: ...
    def turns(self, limit: int, filters: Mapping[str, str]) -> list[dict[str, Any]]: ...
    def turn(self, turn_id: str) -> dict[str, Any] | None: ...
    def step(self, step_id: str) -> dict[str, Any] | None: ...
    def body(self, step_id: str, which: str, attempt: int | None) -> bytes | None: ...
    def findings(self, limit: int) -> list[dict[str, Any]]: ...
    def events(self, after_seq: int, limit: int) -> list[dict[str, Any]]: ...
    def last_seq(self) -> int: ...


class Orders(Protocol):
    """What may be ordered here. Raises ValueError in words for a person."""

    async def budgets(self) -> list[dict[str, Any]]: ...
    async def stop(self, name: str, *, lift: bool = False) -> str: ...
    async def topup(
        self, name: str, add: str, *, subject: str | None = None, dimension: str | None = None
    ) -> dict[str, Any]: ...


@dataclass(frozen=True, slots=True)
class AdminParts:
    """What the admin port is made of. ``ready`` answers the JSON of ``/readyz`` and its verdict."""

    catalog: Catalog
    token: str
    hosts: frozenset[str]
    """Names under which this port may be asked, lower case, without port."""
    ready: Callable[[], tuple[bool, dict[str, Any]]]
    metrics: Callable[[], str]
    orders: Callable[[], Orders] | None = None
    """Asked for at each order, since the settings behind it may have changed."""


def read_or_make_token(data_dir: Path, warn: Callable[[str], None]) -> str:
    """The admin token of this data directory; made at first start, readable by the owner only.

    Where the directory cannot be written the token holds for this process alone.
    """
    path = data_dir / TOKEN_FILE
    with suppress(OSError, UnicodeDecodeError):
        token = path.read_text(encoding="ascii").strip()
        if token:
            return token
    token = secrets.token_urlsafe(24)
    try:
        data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(fd, "w", encoding="ascii") as file:
            file.write(token + "\n")
    except OSError as error:
        warn(f"{path}: {error.strerror}; the admin token will change with the next start")
    return token


def build(parts: AdminParts) -> web.Application:
    """The aiohttp application of the admin port."""
    app = web.Application(middlewares=[_walls(parts)])
    routes = _Routes(parts)
    app.router.add_get("/healthz", routes.healthz)
    app.router.add_get("/readyz", routes.readyz)
    app.router.add_get("/metrics", routes.metrics)
    app.router.add_get("/", routes.index)
    app.router.add_get("/api/v1/sessions", routes.sessions)
    app.router.add_get("/api/v1/turns", routes.turns)
    app.router.add_get("/api/v1/turns/{id}", routes.turn)
    app.router.add_get("/api/v1/steps/{id}", routes.step)
    app.router.add_get("/api/v1/steps/{id}/{which:request|response}", routes.body)
    app.router.add_get("/api/v1/findings", routes.findings)
    app.router.add_get("/api/v1/events", routes.events)
    app.router.add_get("/api/v1/budgets", routes.budgets)
    app.router.add_post("/api/v1/stop", routes.stop)
    app.router.add_post("/api/v1/topup", routes.topup)
    return app


class ServerLog(logging.Handler):
    """What the web server would print as a traceback: our bugs are told as such, bad requests not at all."""

    def __init__(self, on_fault: Callable[[str, BaseException], None]) -> None:
        super().__init__()
        self._on_fault = on_fault

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        if error is not None and not isinstance(error, HttpProcessingError | ConnectionError):
            self._on_fault("admin", error)

    def logger(self) -> logging.Logger:
        """A logger that tells nobody else."""
        logger = logging.Logger("looptap.admin")
        logger.addHandler(self)
        return logger


Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def _walls(parts: AdminParts) -> Any:
    @web.middleware
    async def walls(request: web.Request, handler: Handler) -> web.StreamResponse:
        if _host_name(request.host) not in parts.hosts:
            return _plain(403, "this host name is not served here")
        origin = request.headers.get("Origin")
        if (
            origin is not None
            and origin != "null"
            and _host_name(origin.partition("://")[2]) not in parts.hosts
        ):
            return _plain(403, "requests from other sites are not taken")
        if origin == "null" or request.headers.get("Sec-Fetch-Site") == "cross-site":
            return _plain(403, "requests from other sites are not taken")
        if request.path not in _OPEN_PATHS:
            if (
                "token" in request.query
                and request.method == "GET"
                and _same(request.query["token"], parts.token)
            ):
                return _into_cookie(request, parts.token)
            if not _authorised(request, parts.token):
                return _plain(401, "a token is wanted: open the admin URL that `looptap serve` printed")
        try:
            response = await handler(request)
        except web.HTTPException as error:
            return _plain(error.status, error.reason)
        response.headers.setdefault("Cache-Control", "no-store")
        response.headers.setdefault("X-Content-Type-Options", "nosniff")
        response.headers.setdefault("Referrer-Policy", "no-referrer")
        return response

    return walls


def _authorised(request: web.Request, token: str) -> bool:
    scheme, _, given = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() == "bearer" and _same(given.strip(), token):
        return True
    return _same(request.cookies.get(_COOKIE, ""), token)


def _into_cookie(request: web.Request, token: str) -> web.Response:
    """Take the token out of the address bar and into a cookie that no other site can send."""
    rest = {k: v for k, v in request.query.items() if k != "token"}
    response = web.Response(status=303, headers={"Location": str(request.rel_url.with_query(rest))})
    response.set_cookie(_COOKIE, token, httponly=True, samesite="Strict", path="/")
    return response


def _same(given: str, token: str) -> bool:
    return hmac.compare_digest(given.encode("utf-8", "surrogateescape"), token.encode())


def _host_name(host: str) -> str:
    if host.startswith("["):
        return host.partition("]")[0].lower() + "]"
    return host.partition(":")[0].lower()


def _plain(status: int, text: str) -> web.Response:
    return web.json_response({"error": text}, status=status, headers={"Cache-Control": "no-store"})


def _json(value: Any) -> web.Response:
    return web.Response(body=orjson.dumps(value), content_type="application/json")


class _Routes:
    def __init__(self, parts: AdminParts) -> None:
        self._parts = parts
        self._catalog = parts.catalog

    async def healthz(self, request: web.Request) -> web.Response:
        return _json({"status": "ok"})

    async def readyz(self, request: web.Request) -> web.Response:
        ready, detail = self._parts.ready()
        response = _json(detail)
        if not ready:
            response.set_status(503)
        return response

    async def metrics(self, request: web.Request) -> web.Response:
        return web.Response(
            text=self._parts.metrics(), headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}
        )

    async def index(self, request: web.Request) -> web.Response:
        return _json({"api": ["/api/v1/sessions", "/api/v1/turns", "/api/v1/findings", "/api/v1/events"]})

    async def sessions(self, request: web.Request) -> web.Response:
        return _json(await asyncio.to_thread(self._catalog.sessions, _limit(request)))

    async def turns(self, request: web.Request) -> web.Response:
        filters = {
            k: v for k, v in request.query.items() if k in ("agent", "model", "cause", "label", "session")
        }
        return _json(await asyncio.to_thread(self._catalog.turns, _limit(request), filters))

    async def turn(self, request: web.Request) -> web.Response:
        return _found(await asyncio.to_thread(self._catalog.turn, request.match_info["id"]))

    async def step(self, request: web.Request) -> web.Response:
        return _found(await asyncio.to_thread(self._catalog.step, request.match_info["id"]))

    async def body(self, request: web.Request) -> web.Response:
        attempt = _whole_number(request, "attempt", None)
        info = request.match_info
        data = await asyncio.to_thread(self._catalog.body, info["id"], info["which"], attempt)
        if data is None:
            raise web.HTTPNotFound(reason=f"no {info['which']} of that step in the record")
        # Inert on purpose: whatever a provider or a tool wrote is never rendered as a page.
        return web.Response(
            body=data,
            content_type="application/octet-stream",
            headers={"Content-Disposition": f'attachment; filename="{info["which"]}.bin"'},
        )

    async def findings(self, request: web.Request) -> web.Response:
        return _json(await asyncio.to_thread(self._catalog.findings, _limit(request)))

    async def budgets(self, request: web.Request) -> web.Response:
        return _json(await _carried_out(self._orders().budgets()))

    async def stop(self, request: web.Request) -> web.Response:
        told = await _object(request, {"id", "lift"})
        lift = told.get("lift") is True
        return _json(
            {"id": await _carried_out(self._orders().stop(_text(told, "id"), lift=lift)), "stopped": not lift}
        )

    async def topup(self, request: web.Request) -> web.Response:
        told = await _object(request, {"budget", "subject", "add", "dimension"})
        optional = {
            name: _text(told, name) for name in ("subject", "dimension") if told.get(name) is not None
        }
        work = self._orders().topup(_text(told, "budget"), _text(told, "add"), **optional)
        return _json(await _carried_out(work))

    def _orders(self) -> Orders:
        if self._parts.orders is None:
            raise web.HTTPServiceUnavailable(reason="nothing can be ordered here")
        return self._parts.orders()

    async def events(self, request: web.Request) -> web.StreamResponse:
        after = _whole_number(request, "after", None)
        response = web.StreamResponse(
            headers={"Content-Type": "text/event-stream", "Cache-Control": "no-store"}
        )
        with suppress(ConnectionError):  # whoever followed has gone
            await response.prepare(request)
            async for frame in self._follow(after):
                await response.write(frame)
        return response

    async def _follow(self, after: int | None) -> AsyncIterator[bytes]:
        seq = after if after is not None else await asyncio.to_thread(self._catalog.last_seq)
        quiet = 0.0
        yield b": looptap\n\n"
        while True:
            batch = await asyncio.to_thread(self._catalog.events, seq, _PAGE)
            for event in batch:
                seq = event["seq"]
                yield b"id: %d\ndata: %s\n\n" % (seq, orjson.dumps(event))
            quiet = 0.0 if batch else quiet + _TAIL_S
            if quiet >= 15:
                quiet = 0.0
                yield b": still here\n\n"
            if not batch:
                await asyncio.sleep(_TAIL_S)


async def _object(request: web.Request, known: set[str]) -> dict[str, Any]:
    """The JSON object of an order."""
    try:
        value = orjson.loads(await request.read())
    except orjson.JSONDecodeError:
        raise web.HTTPBadRequest(reason="the body is no JSON") from None
    if not isinstance(value, dict) or not value.keys() <= known:
        raise web.HTTPBadRequest(reason=f"the body takes {', '.join(sorted(known))}")
    return value


def _text(told: Mapping[str, Any], name: str) -> str:
    value = told.get(name)
    if isinstance(value, bool) or not isinstance(value, str | int) or value == "":
        raise web.HTTPBadRequest(reason=f"{name} must be a text")
    return str(value)


async def _carried_out(work: Awaitable[Any]) -> Any:
    try:
        return await work
    except LedgerAway as error:
        raise web.HTTPServiceUnavailable(reason=str(error)) from None
    except ValueError as error:
        raise web.HTTPBadRequest(reason=str(error).replace("\n", " ")) from None


def _found(value: dict[str, Any] | None) -> web.Response:
    if value is None:
        raise web.HTTPNotFound(reason="no such id in the record")
    return _json(value)


def _limit(request: web.Request) -> int:
    value = _whole_number(request, "limit", 50)
    assert value is not None
    return min(max(value, 1), 10_000)


def _whole_number(request: web.Request, name: str, default: int | None) -> int | None:
    text = request.query.get(name)
    if text is None:
        return default
    if not text.isascii() or not text.isdigit() or len(text) > 15:
        raise web.HTTPBadRequest(reason=f"{name} takes a whole number")
    return int(text)
