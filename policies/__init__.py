"""Policies: pure rules over the views that the core hands them. Table name → class in ``TABLE``.

The order of the table is the order of the chain. A policy of one's own is named in the entry point
group ``looptap.policies`` and comes after these.

What is where: ``base`` is what every policy is built on. ``budgets`` says what a request has to have
held. ``repeats`` (its counts: ``loops``), ``tool_errors`` and ``tools`` look at tools, by ``calls`` and by
``fingerprints`` of results; ``growth`` at how requests grow; ``pairing`` at calls and their answers;
``history`` at what was sent before. These walk a message list by ``transcript``. ``thinking`` looks at
reasoning that comes back: ``thinking_rules`` are the providers' demands, ``thinking_request`` the request
under judgement, ``thinking_places`` where its replies stand, ``thinking_faults`` and ``thinking_marks`` what
is the case with them, ``thinking_words`` how that is said, ``thinking_repair`` what may be put back;
``proofs`` and ``replies`` are what it remembers, ``verdicts`` what the provider itself says.
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
