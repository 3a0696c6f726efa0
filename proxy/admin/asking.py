"""What a route takes and answers, said once: the same table reads requests and makes the OpenAPI file.

A parameter that is not of its kind is refused in words, and so is one that the route does not know: a
misspelt filter would answer with more than was asked for. Only the probes, which others call in their own
way, pass it over.
"""

import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import orjson
from aiohttp import web

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Query:
    """One query parameter. ``whole`` numbers lie between 0 or ``least`` and ``most``."""

    name: str
    about: str
    whole: bool = False
    least: int = 0
    most: int = 10**15 - 1
    default: int | str | None = None
    pattern: str | None = None
    """What a text must look like, whole."""

    def read(self, query: Mapping[str, str]) -> Any:
        """The value, or the default. Raises HTTPBadRequest."""
        text = query.get(self.name)
        if text is None:
            return self.default
        if self.whole:
            if not text.isascii() or not text.isdigit() or len(text) > 15:
                raise web.HTTPBadRequest(reason=f"{self.name} takes a whole number")
            if not self.least <= int(text) <= self.most:
                raise web.HTTPBadRequest(
                    reason=f"{self.name} takes a whole number from {self.least} to {self.most}"
                )
            return int(text)
        if self.pattern is not None and re.fullmatch(self.pattern, text) is None:
            raise web.HTTPBadRequest(reason=f"{self.name} takes {self.about}")
        return text

    def schema(self) -> Json:
        """As JSON Schema."""
        schema: Json = {"type": "integer" if self.whole else "string"}
        if self.whole:
            schema |= {"minimum": self.least, "maximum": self.most}
        if self.pattern is not None:
            schema["pattern"] = f"^(?:{self.pattern})$"
        if self.default is not None:
            schema["default"] = self.default
        return schema


Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True)
class Route:
    """One route of the admin port, with everything that its OpenAPI entry says."""

    method: str
    path: str
    handler: Answer
    about: str
    answers: Json
    """Media type → schema of the good answer."""
    query: tuple[Query, ...] = ()
    takes: Json | None = None
    """Schema of the JSON body."""
    fails: tuple[int, ...] = ()
    open: bool = False
    """Needs no token."""

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """The handler's answer. Raises HTTPBadRequest where a parameter is none of this route."""
        known = [one.name for one in self.query]
        stranger = next((name for name in request.query if name not in known), None)
        if stranger is not None and not self.open:
            takes = f"known are {', '.join(known)}" if known else "it takes none"
            raise web.HTTPBadRequest(reason=f"no query parameter is called {stranger[:60]!r} here: {takes}")
        return await self.handler(request)


LIMIT = Query("limit", "most rows", whole=True, least=1, most=10_000, default=50)


def asked(request: web.Request, *known: Query) -> dict[str, Any]:
    """The parameters of a request, by name."""
    return {one.name: one.read(request.query) for one in known}


def given(request: web.Request, *known: Query) -> dict[str, str]:
    """Those text parameters that the request names."""
    return {one.name: one.read(request.query) for one in known if one.name in request.query}


async def told(request: web.Request, known: frozenset[str]) -> Json:
    """The JSON object of an order."""
    if "Authorization" not in request.headers and request.content_type != "application/json":
        # A form of another page can send a cookie along, but no JSON.
        raise web.HTTPUnsupportedMediaType(reason="orders are taken as application/json")
    try:
        value = orjson.loads(await request.read())
    except orjson.JSONDecodeError:
        raise web.HTTPBadRequest(reason="the body is no JSON") from None
    if not isinstance(value, dict) or not value.keys() <= known:
        raise web.HTTPBadRequest(reason=f"the body takes {', '.join(sorted(known))}")
    return value


def text(order: Mapping[str, Any], name: str) -> str:
    """A field of an order; numbers may stand for their text."""
    value = order.get(name)
    if isinstance(value, bool) or not isinstance(value, str | int) or value == "":
        raise web.HTTPBadRequest(reason=f"{name} must be a text")
    return str(value)


def json(value: Any) -> web.Response:
    """A value as the answer."""
    return web.Response(body=orjson.dumps(value), content_type="application/json")


def found(value: Json | list[Json] | None) -> web.Response:
    """The same for what may not exist."""
    if value is None:
        raise web.HTTPNotFound(reason="no such id in the record")
    return json(value)
