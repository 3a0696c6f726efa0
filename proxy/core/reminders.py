"""Text of ours in one request: what the model has read of it is put back, something new comes behind.

A nudge is said only once it is safe: where the shell stores threads, ``unsaved`` asks it to, and
``stored`` answers. What the provider would not take may be our own fault; ``blame`` says so.

The one invariant: a nudge is told as said if, and only if, the request that goes out carries it.
"""

from typing import Any

from proxy.core.parts import Parts
from proxy.core.scribe import Scribe
from proxy.dialects.nudges import blame
from proxy.model import Attempt, Nudge
from proxy.outgoing import Outgoing
from proxy.ports import Dialect
from proxy.reading.library import Reading
from proxy.tracking.nudges import Placed
from proxy.verdict import Consequence, Edit, Finding, Severity


class Reminders:
    """One per exchange that has its place in a thread."""

    __slots__ = ("_kind", "_nudge", "_out", "_parts", "_scribe", "_wishes", "unsaved")

    def __init__(self, parts: Parts, scribe: Scribe, out: Outgoing) -> None:
        self._parts = parts
        self._scribe = scribe
        self._out = out
        self._wishes: list[Edit] | None = []
        """Nudges that policies want; None once the body is made up."""
        self._nudge: tuple[Nudge, Edit] | None = None
        """The one that this request is the first to carry, and the wish for it."""
        self._kind = "nudge"
        """What it is told as."""
        self.unsaved = False
        """It is not safe in the thread store yet; the shell stores it and then calls ``stored``."""

    def wish(self, edit: Edit) -> bool:
        """A policy wants this said. False: it comes too late."""
        if self._wishes is None:
            return False
        self._wishes.append(edit)
        return True

    @property
    def made_up(self) -> bool:
        """The body is made up: nothing more can be put in."""
        return self._wishes is None

    def say(self, dialect: Dialect, reading: Reading, now_ns: int) -> None:
        """Put back what the model has read of ours, and perhaps something new behind all of it."""
        parts, placement, request, out = self._parts, self._scribe.placement, reading.request, self._out
        wishes, self._wishes = self._wishes or [], None
        there = parts.tracker.nudges(placement)
        last = len(request.messages) - 1
        said = {nudge.policy for at, nudge in there if at == last}
        for wish in wishes:
            if wish.policy in said:
                continue  # the same request again: it was said the first time
            begun: Placed | None = None
            if self._nudge is None and (carrier := dialect.nudge(request, self._words(wish))) is not None:
                begun = parts.tracker.nudge(placement, there, wish.policy, carrier)
            if begun is None:
                self._tell("would_nudge", wish, now_ns)
            else:
                there.append(begun)
                self._nudge = begun[1], wish
        if there:
            out.carry(dialect, reading, there)
        if self._nudge is not None and self._nudge[0] not in out.nudges:
            parts.tracker.withdraw(placement, self._nudge[0])
            self._tell("would_nudge", self._nudge[1], now_ns)
            self._nudge = None
        thread = placement.thread_state
        if self._nudge is not None and parts.keeps:
            thread.unsaved = True
        elif self._nudge is not None:
            self._tell("nudge", self._nudge[1], now_ns)
        self.unsaved = thread.unsaved and bool(out.nudges)

    def end(self, dialect: Dialect, wish: Edit, now_ns: int) -> bool:
        """Say something for the end of the turn, behind all that is said already. False: that cannot be."""
        parts, placement, out = self._parts, self._scribe.placement, self._out
        before, request = self._nudge, placement.request
        words = self._words(wish) if before is None else f"{self._words(before[1])}\n\n{self._words(wish)}"
        carrier = dialect.nudge(request, words) if parts.tracker.may_end(placement) else None
        if carrier is None:
            return False
        nudge = parts.tracker.last_words(placement, wish.policy, carrier)
        out.end_with(dialect, request, parts.tracker.nudges(placement))
        if nudge not in out.nudges:
            parts.tracker.withdraw(placement, nudge)
            return False
        if before is not None and self.unsaved:
            self._tell("nudge", before[1], now_ns)
        self._nudge, self._kind = (nudge, wish), "land"
        self.unsaved = placement.thread_state.unsaved = parts.keeps
        if not parts.keeps:
            self._tell("land", wish, now_ns)
        return True

    def unsay(self) -> None:
        """What is new in this request is not said: it does not go out."""
        if self._nudge is not None:
            self._parts.tracker.withdraw(self._scribe.placement, self._nudge[0])
            self._out.leave_out(self._nudge[0])
            self._nudge = None

    @property
    def ends(self) -> bool:
        """It carries words for the end of the turn."""
        return self._kind == "land" and self._nudge is not None and self._nudge[0] in self._out.nudges

    def stored(self, now_ns: int, *, safe: bool) -> None:
        """A new nudge is stored with its thread; or it could not be, and then the model must not read it."""
        placement, out = self._scribe.placement, self._out
        unread = out.unread
        if not safe and unread is not None:
            self._parts.tracker.withdraw(placement, unread)
            out.leave_out(unread)
        if safe or unread is not None:
            placement.thread_state.unsaved = False
        self.unsaved = False
        if self._nudge is not None:
            kind = self._kind if self._nudge[0] in out.nudges else f"would_{self._kind}"
            self._tell(kind, self._nudge[1], now_ns)

    def left(self, now_ns: int) -> None:
        """The exchange is over before its nudge was stored: the same request again has it."""
        if self.unsaved and self._nudge is not None:
            self._tell(self._kind, self._nudge[1], now_ns)

    def blame(self, attempt: Attempt, now_ns: int) -> None:
        """What the provider would not take may be our own fault: say so, and put nothing new in."""
        placement, nudges, tracker = self._scribe.placement, self._out.nudges, self._parts.tracker
        if not nudges or not placement.thread_state.nudging:
            return
        told = blame(attempt)
        if told is None:
            return
        unread = self._out.unread if attempt.status is not None and attempt.status >= 400 else None
        if told == "unsaid" and unread is None:
            return
        tracker.end_nudging(placement)
        evidence: dict[str, Any] = {"says": told, "nudges": len(nudges), "status": attempt.status}
        weight: tuple[Severity, Consequence] = ("violation", "hard")
        if told == "unsaid" or (unread is None and attempt.status == 200):
            weight = ("info", "hard") if told == "unsaid" else ("warning", "soft")
        if unread is not None:
            tracker.withdraw(placement, unread)
            evidence["withdrawn"] = True
        if attempt.reply.error is not None:
            evidence["quotes"] = {"error": attempt.reply.error.message[:200]}
        self._scribe.found(
            Finding(nudges[-1].policy, "nudge_refused", weight[0], evidence, weight[1]), now_ns
        )

    def _words(self, wish: Edit) -> str:
        """What is kept with a thread may quote the traffic only where the record may."""
        return wish.text if self._scribe.quotes else str(wish.data.get("unquoted", wish.text))

    def _tell(self, kind: str, wish: Edit, now_ns: int) -> None:
        data: dict[str, Any] = {**wish.data.get("evidence", {}), "chars": len(wish.text)}
        if self._scribe.quotes:
            data["quotes"] = {"text": wish.text}
        self._scribe.intervened(wish.policy, kind, data, now_ns)
