"""Memory that the allocator keeps: given back to the system once traffic has paused.

Bodies of megabytes and thousands of small objects come and go between what stays, so what is free after
a busy hour lies in the middle of the heap, where glibc by itself never gives it back. Asking for it walks
through the whole heap (12 ms where 300 MB are held, 50 ms where most of that is free), so it is asked for
only after a pause, once for each stretch of traffic. Other allocators have no such call and need none.
"""

import ctypes
from collections.abc import Callable

_PAUSE_S = 2.0
"""A pause that is one: a loop of an agent rests shorter between its steps, or longer than it takes."""


class Slack:
    """What is to be given back. ``beat`` is called now and then."""

    def __init__(self, give_back: Callable[[], None] | None = None) -> None:
        self._give_back = give_back if give_back is not None else _of_glibc()
        self._carried = 0
        """Exchanges that had begun at the last beat."""
        self._since: float | None = None
        """When the pause began; None: nothing was carried since memory was given back."""

    def beat(self, now: float, *, carried: int, quiet: bool) -> None:
        """``carried``: exchanges begun so far. ``quiet``: none is under way."""
        if carried != self._carried or not quiet:
            self._carried, self._since = carried, now
        elif self._since is not None and now - self._since >= _PAUSE_S:
            self._since = None
            self._give_back()


def _of_glibc() -> Callable[[], None]:
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError, TypeError):  # musl, macOS, Windows
        return lambda: None
    return lambda: trim(0)
