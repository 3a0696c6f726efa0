"""Policies: pure rules over the views that the core hands them. Table name → class in ``TABLE``.

The order of the table is the order of the chain. A policy of one's own is named in the entry point
group ``looptap.policies`` and comes after these.
"""

from collections.abc import Mapping

from policies.base import Policy
from policies.growth import Growth
from policies.history import History
from policies.pairing import Pairing
from policies.repeats import Repeats
from policies.thinking import Thinking
from policies.tool_errors import ToolErrors
from policies.tools import Tools

TABLE: Mapping[str, type[Policy]] = {
    "repeats": Repeats,
    "thinking": Thinking,
    "history": History,
    "pairing": Pairing,
    "tool_errors": ToolErrors,
    "tools": Tools,
    "growth": Growth,
}
"""Name → class, one entry a line."""
