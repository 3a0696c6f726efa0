"""The dashboard's files, as they lie in ``static``: read once, sent with their kind and nothing else.

No template and no build step: what a browser gets is what stands in the folder.
"""

from importlib.resources import files
from typing import Any

from aiohttp import web

_KINDS = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}


def _read() -> dict[str, tuple[str, bytes]]:
    folder: Any = files("proxy.admin") / "static"
    found = {}
    for file in sorted(folder.iterdir(), key=lambda one: str(one.name)):
        kind = _KINDS.get("." + str(file.name).rpartition(".")[2])
        if kind is not None:
            found[str(file.name)] = (kind, file.read_bytes())
    return found


class Pages:
    """The start page and what it loads."""

    def __init__(self) -> None:
        self._files = _read()

    async def index(self, request: web.Request) -> web.Response:
        return self._file("index.html")

    async def static(self, request: web.Request) -> web.Response:
        return self._file(request.match_info["name"])

    def _file(self, name: str) -> web.Response:
        if name not in self._files:
            raise web.HTTPNotFound(reason="no such page")
        kind, body = self._files[name]
        return web.Response(
            body=body, content_type=kind, charset="utf-8", headers={"Cache-Control": "no-cache"}
        )
