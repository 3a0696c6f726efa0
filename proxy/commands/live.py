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
Result = TypeVar("Result")


def live(work: Coroutine[Any, Any, Result]) -> Result:
    """Run asynchronous work to its end, on the event loop that the proxy likes best."""
    try:
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            return runner.run(work)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            found = _ADDRESS.search(error.strerror or "")
            where = f"{found[1]}:{found[2]}" if found is not None else "the address"
            raise Failed(f"{where} is in use: stop the other one, or use --listen or --admin") from None
        raise
