"""What every policy is built on: a class that answers "nothing" to every hook.

A policy is a pure rule over a ``View``: it keeps nothing but its options, and what it wants to know
at the thread's next request it hands back as ``Decision.memory`` (JSON values, small: the memory is
stored with the thread after every step). What it may do is not its business: the chain decides.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from proxy.model import Event
from proxy.ports import View
from proxy.verdict import Claim, Decision

NOTHING = Decision()

Hook = TypeVar("Hook", bound=Callable[..., Any])


def says_nothing(hook: Hook) -> Hook:
    """Mark a hook that never has an answer: the chain does not ask, and makes no view for it."""
    hook.says_nothing = True  # type: ignore[attr-defined]
    return hook


@dataclass(frozen=True, slots=True)
class NoOptions:
    """Options of a policy that has none."""


class Policy:
    """Base class. Override the points that matter; ``Options`` is a dataclass or pydantic model."""

    name: str = ""
    wants_deltas: bool = False
    Options: ClassVar[type[Any]] = NoOptions

    def __init__(self, options: Any = None) -> None:
        self.options = options if options is not None else self.Options()

    @says_nothing
    def turn_start(self, view: View) -> Decision:
        """A turn begins; ``step_start`` follows."""
        return NOTHING

    @says_nothing
    def claims(self, view: View) -> Sequence[Claim]:
        """What must be held before the request goes out (``view.demand``); asked after ``step_start``."""
        return ()

    @says_nothing
    def step_start(self, view: View) -> Decision:
        """Before a request goes out; asked again for every attempt."""
        return NOTHING

    def delta(self, view: View, event: Event) -> Decision:
        """While a reply streams; only with ``wants_deltas``."""
        return NOTHING

    @says_nothing
    def step_end(self, view: View) -> Decision:
        """An attempt is over, one way or another (``view.attempt``)."""
        return NOTHING

    @says_nothing
    def turn_end(self, view: View) -> Decision:
        """The turn is over."""
        return NOTHING
