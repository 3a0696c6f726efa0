"""A model call that was looked at and not placed: what may be refused without a record of its own.

The one invariant: nothing remembers it, so that a storm of such calls drives out nothing of use.
"""

from dataclasses import dataclass

from proxy.model import Cause, ModelRequest, Splice
from proxy.ports import Dialect


@dataclass(frozen=True, slots=True)
class Glance:
    """What can be said of a request at the door."""

    dialect: Dialect
    request: ModelRequest
    splice: Splice | None
    """How its body grew from one that is remembered."""
    ended_by: Cause | None
    """Why the turn ended that it would go on with, refused just before; None: it begins a conversation
    tied to nothing known."""
