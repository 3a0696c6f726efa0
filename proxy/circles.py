"""When Python's garbage collector runs: on a few objects at a time, so that no stream waits for it.

An exchange leaves hundreds of small objects that live on for hours in the tracker; left to itself Python
walks 50,000 and then 500,000 of them in one go (5 ms, 60 ms). Here each is looked at once, soon after it
was made and among few others, then never again. Our own traffic leaves no reference cycles ("circles";
tests hold it to that), so what is missed that way is little, and is looked for while no exchange is under
way.
"""

import gc
from collections.abc import Mapping
from typing import Any

_SLICE = 2_000
"""New objects that are looked at in one go: 0.1 ms."""
_ALL = 250
"""Slices after which everything is looked at in a moment without traffic."""
_AT_LAST = 5_000
"""Slices after which it is looked at although there was no such moment."""
_NEVER = 1 << 30


class Circles:
    """The process's garbage collection from ``start`` to ``stop``."""

    def __init__(self) -> None:
        self._slices = 0
        self._before = gc.get_threshold()

    def start(self) -> None:
        """What is there now stays: modules, classes, settings."""
        gc.freeze()
        gc.callbacks.append(self._looked)
        gc.set_threshold(_SLICE, _NEVER, _NEVER)

    def stop(self) -> None:
        """As Python would have it."""
        gc.callbacks.remove(self._looked)
        gc.set_threshold(*self._before)
        gc.unfreeze()

    def _looked(self, phase: str, info: Mapping[str, Any]) -> None:
        if phase == "stop":
            self._slices += 1
            gc.freeze()  # what is alive now is not looked at again

    def beat(self, *, quiet: bool) -> None:
        """Look at everything, if it is time. ``quiet``: no exchange is under way."""
        if self._slices >= (_ALL if quiet else _AT_LAST):
            gc.unfreeze()
            gc.collect()
            self._slices = 0
