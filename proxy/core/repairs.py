"""Reasoning that the client of one exchange lost: what was put back before stands again, and what a policy
asks for is put back for the first time.

As text of ours it goes out only once it is safe: where the shell stores threads, ``unsaved`` asks it to, and
``stored`` answers. What the provider would not take may be our own fault; ``settle`` says so.

The one invariant: a repair is told as done if, and only if, the request that goes out carries it.
"""

from collections.abc import Mapping
from typing import Any

from proxy.core.parts import Parts
from proxy.core.scribe import Scribe
from proxy.dialects.repairs import kept_of, made_whole, refused
from proxy.model import Attempt, Exchange, Kept, ModelRequest
from proxy.outgoing import Outgoing
from proxy.ports import Dialect
from proxy.reading.library import Reading
from proxy.tracking.repairs import At, around, ends, standing
from proxy.verdict import Edit, Finding


def source_of(exchange: Exchange, request: ModelRequest) -> str:
    """Where reasoning comes from and may go back to: dialect and upstream."""
    upstream = exchange.upstream
    return f"{request.dialect} {upstream.name if upstream is not None else ''}"


def mend(dialect: Dialect, reading: Reading, out: Outgoing, there: list[At]) -> None:
    """Put back what was put back before."""
    for index, kept in there:
        changes = made_whole(dialect, reading, index, kept)
        if changes and not isinstance(changes, str):
            out.mend(reading, kept.step, changes)


class Repairs:
    """One per exchange that has its place in a thread."""

    __slots__ = (
        "_begun",
        "_out",
        "_parts",
        "_policy",
        "_scribe",
        "_source",
        "_told",
        "_wishes",
        "_withheld",
        "unsaved",
    )

    def __init__(self, parts: Parts, scribe: Scribe, out: Outgoing, exchange: Exchange) -> None:
        self._parts = parts
        self._scribe = scribe
        self._out = out
        self._source = source_of(exchange, scribe.placement.request)
        self._wishes: list[tuple[Edit, Mapping[str, Any]]] | None = []
        """Replies that policies want whole; None once the body is made up."""
        self._told: list[tuple[Edit, Mapping[str, Any]]] = []
        """Wishes that are carried out, and told once they are safe."""
        self._begun: dict[str, bool] = {}
        """The replies to which this request is the first to put something back; whether it is bound."""
        self._withheld: dict[str, bool] = {}
        """Those among them that could not be stored, and so do not go out."""
        self._policy = "thinking"
        """Who asked for it, here or before."""
        self.unsaved = False
        """It is not safe in the thread store yet; the shell stores it and then calls ``stored``."""

    def wish(self, edit: Edit) -> bool:
        """A policy wants replies whole. False: it comes too late."""
        if self._wishes is None:
            return False
        self._policy = edit.policy
        self._wishes += [(edit, reply) for reply in edit.data.get("replies", ())]
        return True

    @property
    def mended(self) -> frozenset[str]:
        """The steps of whose replies something was put back into what goes out."""
        return self._out.mended

    # -- the request

    def put_back(self, dialect: Dialect, reading: Reading, now_ns: int) -> None:
        """Put back what stood there before, and what is wanted now."""
        parts, placement, out = self._parts, self._scribe.placement, self._out
        wishes, self._wishes = self._wishes or [], None
        thread = placement.thread_state
        if not thread.kept and not wishes:
            return
        mend(dialect, reading, out, standing(thread.kept, reading.request, self._source))
        kept = {one.step: one for one in thread.kept}
        places = ends(reading.request) if wishes else {}
        for edit, wish in wishes:
            bound = bool(edit.data.get("bound"))
            why = self._begin(dialect, reading, wish["reply"], kept.get(wish["reply"]), places, bound=bound)
            if why:
                self._tell("would_repair", edit, {**wish, "why": why}, now_ns)
            else:
                self._told.append((edit, wish))
        if self._begun:
            parts.tracker.mark_back(placement, self._begun, back=True)
            thread.unsaved = thread.unsaved or parts.keeps
        self.unsaved = thread.unsaved and bool(out.mended)
        if not self.unsaved:
            self._tell_all(now_ns)

    def _begin(
        self,
        dialect: Dialect,
        reading: Reading,
        step: str,
        kept: Kept | None,
        places: Mapping[bytes, int],
        *,
        bound: bool,
    ) -> str:
        """Make a reply whole; why it cannot be, or nothing."""
        request = reading.request
        if step in self._out.mended:
            return ""
        if not self._scribe.placement.thread_state.mending:
            return "the provider refused what was put back before"
        if kept is None:
            return "its bytes are not kept"
        if kept.source != self._source or kept.model != request.model:
            return "another model or upstream"
        if kept.after not in places:
            return "the history before it, or the reply, came back changed"
        if bound and kept.around != around(request):
            return "system text or tools changed, which it is bound to"
        changes = made_whole(dialect, reading, places[kept.after], kept)
        if isinstance(changes, str):
            return changes
        if not changes or not self._out.mend(reading, step, changes):
            return "its place was not found"
        self._begun[step] = bound
        return ""

    def stored(self, now_ns: int, *, safe: bool) -> None:
        """What was put back is stored with its thread; or it could not be, and then it does not go out."""
        if not self.unsaved:
            return
        self.unsaved = False
        if not safe and self._begun:
            self._withheld = self._begun
            self._out.unmend(frozenset(self._begun))
        if safe or self._begun:
            self._scribe.placement.thread_state.unsaved = False
        self._tell_all(now_ns)

    # -- the answer

    def settle(self, dialect: Dialect, attempt: Attempt, now_ns: int) -> None:
        """Keep the reply's reasoning, and look at what the provider says of what was put back."""
        parts, placement = self._parts, self._scribe.placement
        if attempt.outcome == "complete" and self._withheld:  # answered without: it must not come back now
            parts.tracker.mark_back(placement, self._withheld, back=False)
        if self._out.mended and refused(attempt):
            self._blame(attempt, now_ns)
        if attempt.outcome == "complete" and parts.chain.repairs and attempt.reply.whole:
            step, request = placement.step_state, placement.request
            kept = kept_of(dialect, request, step.ask, attempt.reply, step.id, self._source)
            if kept is not None:
                parts.tracker.keep(placement, kept)

    def _blame(self, attempt: Attempt, now_ns: int) -> None:
        """It may be our own fault: what this request was the first to carry goes, and nothing new comes."""
        placement, tracker = self._scribe.placement, self._parts.tracker
        if not placement.thread_state.mending or attempt.reply.error is None:
            return
        tracker.end_mending(placement)
        evidence: dict[str, Any] = {"replies": sorted(self._out.mended), "status": attempt.status}
        if self._begun:
            tracker.mark_back(placement, self._begun, back=False)
            evidence["withdrawn"] = sorted(self._begun)
        evidence["quotes"] = {"error": attempt.reply.error.message[:200]}
        self._scribe.found(Finding(self._policy, "repair_refused", "violation", evidence, "hard"), now_ns)

    # -- what is told

    def left(self, now_ns: int) -> None:
        """The exchange is over before it was stored: the same request again has it."""
        if self.unsaved:
            self._tell_all(now_ns)

    def _tell_all(self, now_ns: int) -> None:
        told, self._told = self._told, []
        for edit, wish in told:
            done = wish["reply"] in self._out.mended
            more = wish if done else {**wish, "why": "it could not be stored"}
            self._tell("repair" if done else "would_repair", edit, more, now_ns)

    def _tell(self, kind: str, edit: Edit, wish: Mapping[str, Any], now_ns: int) -> None:
        self._scribe.intervened(edit.policy, kind, wish, now_ns)
