"""Time that requests waited for an operator: no clock of a step, turn, thread or session runs meanwhile.

Times are nanoseconds since the epoch. Requests that wait at the same time stop a clock once: what counts
is how long any of them waited.
"""

from typing import Protocol

from proxy.structs import struct


@struct(slots=True)
class Waits:
    """What one step, turn, thread or session has waited. Made at its first wait."""

    ns: int = 0
    """Waits that are over."""
    now: int = 0
    """Requests that wait."""
    since_ns: int = 0
    """When the first of those began."""


class Waiting(Protocol):
    """Whatever has such a clock."""

    waits: Waits | None


def begin(one: Waiting, now_ns: int) -> None:
    """A request of it begins to wait."""
    waits = one.waits
    if waits is None:
        waits = one.waits = Waits()
    if not waits.now:
        waits.since_ns = now_ns
    waits.now += 1


def end(one: Waiting, now_ns: int) -> None:
    """A request of it waits no longer."""
    waits = one.waits
    if waits is None or not waits.now:
        return
    waits.now -= 1
    if not waits.now:
        waits.ns += max(0, now_ns - waits.since_ns)


def waited_ns(one: Waiting | None, now_ns: int) -> int:
    """How long any request of it has waited."""
    waits = one.waits if one is not None else None
    if waits is None:
        return 0
    return waits.ns + (max(0, now_ns - waits.since_ns) if waits.now else 0)


def told(one: Waiting | None) -> int:
    """What a head says of it: waits that are over."""
    return one.waits.ns if one is not None and one.waits is not None else 0


def take(one: Waiting | None, ns: int) -> None:
    """What a head says of it. Of two that know different waits, who knows more is believed."""
    if one is None or not ns:
        return
    if one.waits is None:
        one.waits = Waits()
    one.waits.ns = max(one.waits.ns, ns)
