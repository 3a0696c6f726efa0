"""Commands that wait: the event loop under them, and what they say where an address is taken."""

import asyncio
import errno
import re
from collections.abc import Coroutine
from typing import Any, TypeVar

from proxy.commands.options import Failed
from proxy.server import new_event_loop

_ADDRESS = re.compile(r"\('([^']+)', (\d+)")
"""Where asyncio says what it could not bind."""
_NO_PLACE = {
    errno.EADDRINUSE: "is in use: stop the other one, or use --listen or --admin",
    errno.EADDRNOTAVAIL: "is no address of this machine: --listen and --admin take one that it has",
    errno.EACCES: "is not for this user to listen on: take a port from 1024 on",
}
Result = TypeVar("Result")


def live(work: Coroutine[Any, Any, Result]) -> Result:
    """Run asynchronous work to its end, on the event loop that the proxy likes best."""
    try:
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            return runner.run(work)
    except OSError as error:
        why, found = _NO_PLACE.get(error.errno or 0), _ADDRESS.search(error.strerror or "")
        if why is None or (found is None and error.errno != errno.EADDRINUSE):
            raise
        where = f"{found[1]}:{found[2]}" if found is not None else "the address"
        raise Failed(f"{where} {why}") from None
