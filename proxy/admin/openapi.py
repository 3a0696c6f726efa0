"""The OpenAPI file, made from the table of routes, so that it cannot say what is not so."""

import re
from collections.abc import Iterable
from typing import Any

from proxy.admin import shapes
from proxy.admin.asking import Query, Route

Json = dict[str, Any]
_ERRORS = {
    400: "The request makes no sense; the line says which part",
    401: "No token, or a wrong one",
    403: "The Host is not served here, or another site's page began the request",
    404: "Nothing of that name",
    413: "No order is that long",
    415: "Orders are JSON",
    503: "Not now; the line says why",
}
_SECURITY: list[Json] = [{"bearer": []}, {"cookie": []}]


def document(routes: Iterable[Route]) -> Json:
    """The file, as JSON."""
    paths: dict[str, Json] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Looptap, admin port", "version": "1"},
        "paths": paths,
        "components": {
            "schemas": {**shapes.NAMED, "Error": shapes.ERROR},
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "cookie": {
                    "type": "apiKey",
                    "in": "cookie",
                    "name": "looptap_4041",
                    "description": "Set by opening the printed URL; named after the port.",
                },
            },
        },
    }


def _operation(route: Route) -> Json:
    names = re.findall(r"\{(\w+)\}", route.path)
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"},
         "description": "An id, or the beginning of one"}
        for name in names
    ]  # fmt: skip
    parameters += [_parameter(one) for one in route.query]
    fails = {403, *route.fails} | (set() if route.open else {400, 401})
    operation: Json = {
        "summary": route.about,
        "operationId": route.handler.__name__,
        "responses": {
            "200": {
                "description": "As asked",
                "content": {kind: {"schema": schema} for kind, schema in route.answers.items()},
            },
            **{str(status): _error(route, status) for status in sorted(fails)},
        },
        "security": [] if route.open else _SECURITY,
    }
    if parameters:
        operation["parameters"] = parameters
    if route.takes is not None:
        operation["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": route.takes}},
        }
    return operation


def _parameter(one: Query) -> Json:
    return {
        "name": one.name,
        "in": "query",
        "required": False,
        "schema": one.schema(),
        "description": one.about,
    }


def _error(route: Route, status: int) -> Json:
    if route.open and status == 503:
        return {
            "description": _ERRORS[status],
            "content": {k: {"schema": s} for k, s in route.answers.items()},
        }
    return {
        "description": _ERRORS[status],
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
    }
