"""The walls of the admin port: who is let in, and what every answer carries.

In this order: the Host must be one that we serve (a page that rebinds its DNS name to this address
is turned away); a request that another site's page began is refused, also where that site is
another port of this machine, which cookies do not tell apart; and everything but ``/healthz``,
``/readyz`` and ``/metrics`` needs the token that was made at first start. Unauthenticated requests
learn nothing but that a token is wanted.

The cookie holds no token but a digest of it, under a name of its own per port, since browsers show
the cookies of a host to all its ports.
"""

import hmac
from collections.abc import Awaitable, Callable, Collection
from hashlib import blake2b
from ipaddress import ip_address
from typing import Any

from aiohttp import web

from proxy.admin.parts import AdminParts

_WANTED = "a token is wanted: open the admin URL that `looptap serve` printed"
_ELSEWHERE = "requests from other sites are not taken"

SAFE_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
"""On every answer, unless its handler says otherwise."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def walls(parts: AdminParts, open_paths: Collection[str]) -> Any:
    """The one middleware of the admin port. ``open_paths`` need no token."""

    @web.middleware
    async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
        response = _turned_away(request, parts, request.path in open_paths)
        if response is None:
            try:
                response = await handler(request)
            except web.HTTPException as error:
                response = plain(error.status, error.reason)
                if "Allow" in error.headers:
                    response.headers["Allow"] = error.headers["Allow"]
        if not response.prepared:
            for name, value in SAFE_HEADERS.items():
                response.headers.setdefault(name, value)
        return response

    return guard


def plain(status: int, text: str) -> web.Response:
    """An error: one line that a person can act on."""
    return web.json_response({"error": text}, status=status)


def _turned_away(request: web.Request, parts: AdminParts, is_open: bool) -> web.StreamResponse | None:
    if not _is_served(_host_name(request.host), parts, is_open):
        return plain(403, "this host name is not served here")
    if _from_elsewhere(request):
        return plain(403, _ELSEWHERE)
    if is_open:
        return None
    if request.method == "GET" and _same(request.query.get("token", ""), parts.token):
        return _into_cookie(request, parts.token)
    return None if _authorised(request, parts.token) else plain(401, _WANTED)


def _is_served(host: str, parts: AdminParts, is_open: bool) -> bool:
    """By its names; probes and scrapes also by whatever address it has, which no DNS name can stand for."""
    return host in parts.hosts or (is_open and _is_address(host))


def _from_elsewhere(request: web.Request) -> bool:
    """Whether a page that is not ours began this request."""
    origin = request.headers.get("Origin")
    if origin is not None and origin.partition("://")[2].lower() != request.host.lower():
        return True
    site = request.headers.get("Sec-Fetch-Site", "none")
    if site == "same-site":  # another port: its links may be followed, nothing else
        return request.method != "GET" or request.headers.get("Sec-Fetch-Mode") != "navigate"
    return site == "cross-site"


def _authorised(request: web.Request, token: str) -> bool:
    scheme, _, given = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() == "bearer" and _same(given.strip(), token):
        return True
    return _same(request.cookies.get(cookie_name(request.host), ""), cookie_value(token))


def cookie_name(host: str) -> str:
    """The session cookie of this port, so that two proxies on one machine keep apart."""
    port = host.rpartition(":")[2]
    return f"looptap_{port}" if port.isdigit() else "looptap"


def cookie_value(token: str) -> str:
    """What stands in the cookie: it opens this door, and does not tell the token."""
    return blake2b(b"cookie", key=token.encode()[:64], digest_size=24).hexdigest()


def _into_cookie(request: web.Request, token: str) -> web.Response:
    """Take the token out of the address bar and into a cookie that no other site can send."""
    rest = {k: v for k, v in request.query.items() if k != "token"}
    # One slash in front and no more: `//host` would lead away from here.
    path = "/" + request.rel_url.with_query(rest).raw_path_qs.lstrip("/\\")
    response = web.Response(status=303, headers={"Location": path})
    name, value = cookie_name(request.host), cookie_value(token)
    response.set_cookie(name, value, httponly=True, samesite="Strict", path="/")
    return response


def _same(given: str, wanted: str) -> bool:
    return hmac.compare_digest(given.encode("utf-8", "surrogateescape"), wanted.encode())


def _is_address(host: str) -> bool:
    try:
        ip_address(host.strip("[]"))
    except ValueError:
        return False
    return True


def _host_name(host: str) -> str:
    if host.startswith("["):
        return host.partition("]")[0].lower() + "]"
    return host.partition(":")[0].lower()
