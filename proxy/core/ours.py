"""What of ours goes along with one request: nudges, reasoning put back, the words of a last step.

Each of them knows its own part; here stands in which order they come. Made where a request has its place
in a thread, and without a part that nobody asks for.

The one invariant: what is not stored with its thread, where threads are stored, does not go out.
"""

from proxy.core.landing import Landing
from proxy.core.parts import Parts
from proxy.core.reminders import Reminders
from proxy.core.repairs import Repairs
from proxy.core.scribe import Scribe
from proxy.model import Attempt, Exchange
from proxy.outgoing import Outgoing
from proxy.ports import Dialect
from proxy.reading.library import Reading
from proxy.tracking import landing
from proxy.tracking.placement import Placement
from proxy.verdict import Edit, Terminal

_NONE: frozenset[str] = frozenset()


class Ours:
    """One per exchange that has its place in a thread."""

    __slots__ = ("_dialect", "_landing", "_out", "_parts", "_reminders", "_repairs", "_scribe")

    def __init__(
        self, parts: Parts, scribe: Scribe, out: Outgoing, exchange: Exchange, dialect: Dialect
    ) -> None:
        self._parts = parts
        self._scribe = scribe
        self._out = out
        self._dialect = dialect
        self._reminders = Reminders(parts, scribe, out)
        self._repairs: Repairs | None = None
        """Only where a policy may repair, or something was put back before."""
        if parts.chain.repairs or scribe.placement.thread_state.kept:
            self._repairs = Repairs(parts, scribe, out, exchange)
        self._landing: Landing | None = None
        """Only where this may be its turn's last step, or comes behind that."""

    @property
    def placement(self) -> Placement:
        """Where its request stands."""
        return self._scribe.placement

    # -- what is wanted

    def behind(self) -> Terminal | None:
        """Why it is refused, where its turn was given its last step already."""
        told = landing.given(self._scribe.placement.step_state)
        return self._lands.follows(told) if told is not None else None

    def wish(self, edit: Edit) -> bool:
        """A policy wants something said, put back, or this to be the last step. False: that cannot be."""
        if edit.kind == "nudge":
            return self._reminders.wish(edit)
        if edit.kind == "repair":
            return self._repairs is not None and self._repairs.wish(edit)
        if edit.kind != "land" or self.made_up:
            return False
        self._lands.wish(edit)
        return True

    @property
    def made_up(self) -> bool:
        """The body is as it will be."""
        return self._reminders.made_up

    # -- into the body

    def say(self, reading: Reading, now_ns: int) -> None:
        """Put in what was said and put back before, and what is wanted now."""
        self._reminders.say(self._dialect, reading, now_ns)
        if self._repairs is not None:
            self._repairs.put_back(self._dialect, reading, now_ns)

    def end(self, now_ns: int) -> Terminal | None:
        """Make it the last step where that is wanted; why it is refused where it cannot be."""
        return self._landing.settle(now_ns) if self._landing is not None else None

    @property
    def unsaved(self) -> bool:
        """Something new stands in it that is not stored yet; ``stored`` follows."""
        return self._reminders.unsaved or (self._repairs is not None and self._repairs.unsaved)

    def stored(self, now_ns: int, *, safe: bool) -> Terminal | None:
        """What is new is stored with its thread, or could not be; why it is refused then, if it is."""
        if self._reminders.unsaved:
            self._reminders.stored(now_ns, safe=safe)
        if self._repairs is not None:
            self._repairs.stored(now_ns, safe=safe)
        return self._landing.stored() if self._landing is not None else None

    @property
    def repaired(self) -> frozenset[str]:
        """The steps whose replies are made whole in what goes out."""
        return self._repairs.mended if self._repairs is not None else _NONE

    # -- as the last step of its turn

    @property
    def _lands(self) -> Landing:
        if self._landing is None:
            self._landing = Landing(self._parts, self._scribe, self._out, self._reminders, self._dialect)
        return self._landing

    @property
    def landing(self) -> Terminal | None:
        """Why it is its turn's last step, where it is."""
        return self._landing.why if self._landing is not None else None

    @property
    def may_land(self) -> bool:
        """Whether it can go out as its turn's last step, or does already."""
        return self._lands.possible

    @property
    def room_of_last_words(self) -> int:
        """Bytes that a last step adds to its prompt, at the most."""
        return self._lands.room

    def land(self, why: Terminal, now_ns: int) -> bool:
        """Have the model sum up and stop, without tools. False: that cannot be done lawfully."""
        return self._lands.land(why, now_ns)

    # -- the end

    def refused(self) -> None:
        """It does not go out after all."""
        if self._landing is not None:
            self._landing.refused()

    def left(self, now_ns: int) -> None:
        """The exchange is over, whatever was still waited for."""
        self._reminders.left(now_ns)
        if self._repairs is not None:
            self._repairs.left(now_ns)

    def blame(self, attempt: Attempt, now_ns: int) -> None:
        """Look whether the provider refuses what was said."""
        self._reminders.blame(attempt, now_ns)

    def settle(self, attempt: Attempt, now_ns: int) -> None:
        """Look whether it refuses what was put back, and keep the reply's reasoning."""
        if self._repairs is not None:
            self._repairs.settle(self._dialect, attempt, now_ns)
