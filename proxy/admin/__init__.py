"""The admin port: health, readiness, metrics, the API and the dashboard, on aiohttp, never on the data port.

What is where: ``parts`` says what the port is made of, ``walls`` who is let in. ``asking`` is the
table's row: what a route takes and answers. The routes themselves: ``reading`` (the record),
``following`` (events as they come), ``ordering`` (stop, top-up), ``pages`` (the dashboard, whose
files lie in ``static``). ``openapi`` and ``shapes`` tell all of that to machines.
"""

import logging
from collections.abc import Callable

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from proxy.admin import openapi
from proxy.admin.asking import Route, json
from proxy.admin.ordering import Ordering
from proxy.admin.pages import Pages
from proxy.admin.parts import TOKEN_FILE, AdminParts, Catalog, Orders, read_or_make_token
from proxy.admin.reading import Reading
from proxy.admin.walls import walls

__all__ = ["TOKEN_FILE", "AdminParts", "Catalog", "Orders", "ServerLog", "build", "read_or_make_token"]


def build(parts: AdminParts) -> web.Application:
    """The aiohttp application of the admin port."""
    table: list[Route] = [*Reading(parts).routes(), *Ordering(parts).routes()]
    open_paths = frozenset(route.path for route in table if route.open)
    app = web.Application(middlewares=[walls(parts, open_paths)], client_max_size=1 << 20)
    document = openapi.document(table)

    async def told(request: web.Request) -> web.Response:
        return json(document)

    pages = Pages()
    app.router.add_get("/", pages.index)
    app.router.add_get("/static/{name}", pages.static)
    app.router.add_get("/openapi.json", told)
    for route in table:
        app.router.add_route(route.method, route.path, route.answer)

    async def closed(app: web.Application) -> None:
        parts.catalog.close()

    app.on_cleanup.append(closed)
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
