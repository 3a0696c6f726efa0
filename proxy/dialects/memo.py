"""Readings of fields that do not change from step to step.

An agent resends its tools with every request, and ``reading`` hands over the very same parsed
object while their bytes are the same. So what was read from that object is not read again.

The one invariant: a remembered value belongs to the object itself (which is kept, so that its
identity cannot pass to another), never to one that looks alike.
"""

from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Generic, TypeVar

Value = TypeVar("Value")

_KEPT = 64


class Remembered(Generic[Value]):
    """A function of one parsed value with the results for the newest few."""

    __slots__ = ("_known", "_read")

    def __init__(self, read: Callable[[Any], Value]) -> None:
        self._read = read
        self._known: OrderedDict[int, tuple[Any, Value]] = OrderedDict()

    def __call__(self, raw: Any) -> Value:
        """What the value reads as."""
        if not isinstance(raw, (list, dict)):
            return self._read(raw)
        known = self._known.get(id(raw))
        if known is not None:
            self._known.move_to_end(id(raw))
            return known[1]
        value = self._read(raw)
        self._known[id(raw)] = (raw, value)
        if len(self._known) > _KEPT:
            self._known.popitem(last=False)
        return value
