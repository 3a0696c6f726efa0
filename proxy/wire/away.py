"""Upstreams that cannot be reached, told to the operator: one line each a minute, however many ask.

The one invariant: a storm of failures costs one line; how many there were is told with the next.
"""

import time
from collections.abc import Callable

QUIET_S = 60.0


class Away:
    """One per server. ``clock`` counts seconds."""

    def __init__(self, warn: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._warn = warn
        self._clock = clock
        self._told: dict[str, tuple[float, int]] = {}
        """When each was last told of, and how often it failed since."""

    def failed(self, upstream: str, words: str) -> None:
        """A request came to nothing; ``words`` say why and carry no credential."""
        now = self._clock()
        told, since = self._told.get(upstream, (now - QUIET_S, 0))
        if now - told < QUIET_S:
            self._told[upstream] = (told, since + 1)
            return
        self._told[upstream] = (now, 0)
        more = f" ({since} more since the last line)" if since else ""
        self._warn(f"upstream {upstream!r} failed: {words}{more}")
