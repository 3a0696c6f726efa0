"""Events as they come, for whoever follows: server-sent, from a ``seq`` on.

The record is asked again after a short pause; a follower who is away for a while goes on where it
was (``Last-Event-ID``).
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress

import orjson
from aiohttp import web

from proxy.admin.asking import Query
from proxy.admin.parts import Catalog

AFTER = Query("after", "the seq after which to begin; without it only what is new", whole=True)
_TAIL_S = 0.25
_ALIVE_S = 15.0
_PAGE = 200


async def follow(request: web.Request, catalog: Catalog) -> web.StreamResponse:
    """Answer with a stream that ends when the follower leaves."""
    after = AFTER.read(request.query)
    again = request.headers.get("Last-Event-ID", "")
    if again.isascii() and again.isdigit() and len(again) <= 15:
        after = int(again)
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-store"})
    with suppress(ConnectionError):  # whoever followed has gone
        await response.prepare(request)
        async for frame in _frames(catalog, after):
            await response.write(frame)
    return response


async def _frames(catalog: Catalog, after: int | None) -> AsyncIterator[bytes]:
    seq = after if after is not None else await asyncio.to_thread(catalog.last_seq)
    quiet = 0.0
    yield b": looptap\n\n"
    while True:
        batch = await asyncio.to_thread(catalog.events, seq, _PAGE)
        for event in batch:
            seq = event["seq"]
            yield b"id: %d\ndata: %s\n\n" % (seq, orjson.dumps(event))
        quiet = 0.0 if batch else quiet + _TAIL_S
        if quiet >= _ALIVE_S:
            quiet = 0.0
            yield b": still here\n\n"
        if not batch:
            await asyncio.sleep(_TAIL_S)
