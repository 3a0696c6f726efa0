"""A turn's last step: words to sum up and stop, and no calls; afterwards nothing of its turn goes out.

Made only where it is wanted. What a budget ends the ledger knows as well, and refuses; what a policy ends
is refused here. Another attempt of the last step is again the last step.

The one invariant: no request goes out as a last step without its words, or with tools that may be called.
"""

from collections.abc import Mapping
from typing import Any

from proxy.core.parts import Parts
from proxy.core.reminders import Reminders
from proxy.core.scribe import Scribe
from proxy.outgoing import Outgoing
from proxy.ports import Dialect
from proxy.tracking import landing
from proxy.verdict import Edit, Terminal

WORDS = (
    "This is the last step of this turn: a limit has been reached, and tools can no longer be called."
    " Answer in words, and begin nothing new. Say what was done, what was found out, and what is still open,"
    " so that somebody can go on from there; then stop."
)
"""They quote nothing of the traffic, so that they may be kept wherever a thread is."""
_AROUND = 300
"""More bytes than any dialect puts around them."""
BUDGETS = "budgets"


class Landing:
    """One per exchange that may be, or comes behind, its turn's last step."""

    __slots__ = ("_again", "_dialect", "_out", "_parts", "_reminders", "_scribe", "_wish", "why")

    def __init__(
        self, parts: Parts, scribe: Scribe, out: Outgoing, reminders: Reminders, dialect: Dialect
    ) -> None:
        self._parts = parts
        self._scribe = scribe
        self._out = out
        self._reminders = reminders
        self._dialect = dialect
        self._wish: Edit | None = None
        self._again: Terminal | None = None
        self.why: Terminal | None = None
        """Why this is the last step, where it is."""

    @property
    def possible(self) -> bool:
        """Whether this request can go out as the last step, or does already."""
        if self.why is not None:
            return True
        placement = self._scribe.placement
        known = not self._out.coded and self._parts.tracker.may_end(placement)
        return known and self._dialect.nudge(placement.request, WORDS) is not None

    @property
    def room(self) -> int:
        """Bytes that its words take at the most."""
        return len(WORDS.encode()) + _AROUND if self.why is None else 0

    def follows(self, told: Mapping[str, Any]) -> Terminal | None:
        """The turn was given its last step. Why this request is refused, if it is."""
        if self._parts.chain.mode != "enforce" or told["recorded"]:
            return None
        step, why = self._scribe.placement.step_state, landing.reason(told)
        if not landing.is_last(step, told):
            return why if told["policy"] != BUDGETS else None
        self._again = why if step.started else None
        return None

    def wish(self, edit: Edit) -> None:
        """A policy wants this to be the last step."""
        self._wish = self._wish or edit

    def settle(self, now_ns: int) -> Terminal | None:
        """All that is said stands in the body: make this the last step where it is to be.

        Answers why it is refused where that cannot be.
        """
        if self._again is not None:
            return self._once_more(self._again, now_ns)
        if self._wish is None:
            return None
        why = _reason(self._wish)
        return None if self.land(why, now_ns, self._wish.text) else why

    def land(self, why: Terminal, now_ns: int, text: str = "") -> bool:
        """Have the model sum up and stop, without tools. False: that cannot be done lawfully."""
        placement = self._scribe.placement
        evidence: dict[str, Any] = {"code": why.code, "cause": why.cause, **why.fields}
        evidence.pop("how_to_go_on", None)
        if self.why is not None:  # it is already, for another reason
            self._scribe.intervened(why.policy, "land", evidence, now_ns)
            return True
        if not self.possible or not self._out.forbid_calls(self._dialect, placement.request):
            return False
        self.why = why
        self._parts.tracker.remember(placement, landing.written(placement.step_state, why))
        wish = Edit("land", text or WORDS, data={"evidence": evidence}, policy=why.policy)
        if not self._reminders.end(self._dialect, wish, now_ns):
            self._forget()
        return self.why is not None

    def stored(self) -> Terminal | None:
        """Its words were to be stored. Where they could not be it is no last step: why a policy then wants
        it refused; the purse looks for itself."""
        why = self.why
        if why is None or self._reminders.ends:
            return None
        self._forget()
        return why if why.policy != BUDGETS else None

    def refused(self) -> None:
        """It does not go out after all: its turn was given nothing, and its words were never said."""
        if self.why is not None and self._again is None:
            self._reminders.unsay()
            self._forget()

    def _once_more(self, why: Terminal, now_ns: int) -> Terminal | None:
        """Another attempt: its words stand there again, and tools are forbidden again."""
        request = self._scribe.placement.request
        if self._out.unread is None or not self._out.forbid_calls(self._dialect, request):
            return why
        self.why = why
        data = {"code": why.code, "cause": why.cause, **why.fields, "again": True}
        self._scribe.intervened(why.policy, "land", data, now_ns)
        return None

    def _forget(self) -> None:
        self.why = None
        self._parts.tracker.remember(self._scribe.placement, {landing.MEMORY: {}})


def _reason(edit: Edit) -> Terminal:
    """Why a policy wants a last step: what it would else refuse for."""
    why = edit.data.get("why")
    if isinstance(why, Terminal):
        return why
    message = f"Policy {edit.policy!r} has ended this turn; a new message from the user begins another."
    return Terminal("deny", edit.policy, "looptap_last_step", message, fields={"policy": edit.policy})
