"""A bare relay on aiohttp and uvloop: the cheapest proxy that one writes in an afternoon, for comparison.

It streams both ways, keeps its connections and looks at nothing. `bare_aiohttp.py PORT UPSTREAM_URL`.
"""

import asyncio
import sys
from collections.abc import AsyncIterator

import uvloop
from aiohttp import ClientSession, ClientTimeout, DummyCookieJar, TCPConnector, web

DROPPED = frozenset({"host", "connection", "transfer-encoding", "keep-alive", "content-length"})
MAX_BODY = 64 << 20


async def session(app: web.Application) -> AsyncIterator[None]:
    """One client session for the whole run; no limit, no cookies, nothing undone."""
    connector = TCPConnector(limit=0, keepalive_timeout=600)
    async with ClientSession(
        connector=connector,
        auto_decompress=False,
        timeout=ClientTimeout(total=None),
        cookie_jar=DummyCookieJar(),
        skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding"),
    ) as client:
        app[SESSION] = client
        yield


SESSION = web.AppKey("session", ClientSession)


def relay(upstream: str) -> web.Application:
    async def handle(request: web.Request) -> web.StreamResponse:
        headers = [(name, value) for name, value in request.headers.items() if name.lower() not in DROPPED]
        body = await request.read() if request.can_read_body else None
        client = request.app[SESSION]
        async with client.request(
            request.method, upstream + request.path_qs, headers=headers, data=body
        ) as got:
            answer = web.StreamResponse(status=got.status, reason=got.reason)
            for name, value in got.headers.items():
                if name.lower() not in DROPPED:
                    answer.headers.add(name, value)
            if got.content_length is not None:
                answer.content_length = got.content_length
            await answer.prepare(request)
            async for data in got.content.iter_any():
                await answer.write(data)
            await answer.write_eof()
            return answer

    app = web.Application(client_max_size=MAX_BODY)
    app.cleanup_ctx.append(session)
    app.router.add_route("*", "/{tail:.*}", handle)
    return app


def main() -> None:
    loop = uvloop.new_event_loop()
    asyncio.set_event_loop(loop)
    web.run_app(
        relay(sys.argv[2].rstrip("/")),
        host="127.0.0.1",
        port=int(sys.argv[1]),
        access_log=None,
        keepalive_timeout=600,
        backlog=4096,
        loop=loop,
        print=lambda *_: None,
    )


if __name__ == "__main__":
    main()
