"""A policy of one's own that has something held: each key has so many requests with a long prompt an hour."""

from collections.abc import Sequence
from dataclasses import dataclass

from policies.base import Policy
from proxy.ports import View
from proxy.verdict import Claim


@dataclass(frozen=True, slots=True)
class LongPromptsOptions:
    """``policies.long_prompts`` in the configuration."""

    tokens: int = 100_000
    """From here on a prompt is long."""
    most: int = 10


class LongPrompts(Policy):
    """See the module."""

    name = "long_prompts"
    Options = LongPromptsOptions

    def claims(self, view: View) -> Sequence[Claim]:
        """One of the hour's, where the prompt may be as long as that."""
        demand = view.demand
        if demand is None or demand.input_tokens < self.options.tokens:
            return ()
        key = demand.subjects["key"]
        return [Claim("hourly", "key", key, "long_prompts", "hour", amount=1, limit=self.options.most)]
