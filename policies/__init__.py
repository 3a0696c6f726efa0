"""Policies: pure rules over the views that the core hands them. Table name → class in ``TABLE``.

The order of the table is the order of the chain. A policy of one's own is named in the entry point
group ``looptap.policies`` and comes after these.
"""

from collections.abc import Mapping

from policies.base import Policy
from policies.repeats import Repeats

TABLE: Mapping[str, type[Policy]] = {
    "repeats": Repeats,
}
"""Name → class, one entry a line."""
