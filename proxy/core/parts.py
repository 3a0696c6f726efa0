"""What every exchange thinks with: the parts that ``Core`` was built from, and what belongs to no exchange.

The one invariant: nothing in here knows an exchange that is under way.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from proxy.chain import Chain
from proxy.core.views import end_view
from proxy.model import Attempt, Cost, Exchange, Head, ModelRequest, Outcome, Record, Upstream, Usage
from proxy.ports import Dialect, Sink
from proxy.reading.library import Library
from proxy.tracker import Tracker
from proxy.tracking.placement import Placement
from proxy.tracking.threads import Step, Turn
from proxy.verdict import Balance, Finding


class DialectTable(Protocol):
    """``dialects.match``: which dialect speaks on this route, None where none does."""

    def __call__(self, method: str, path: str, upstream: Upstream, head: Head) -> Dialect | None: ...


class Prices(Protocol):
    """What a reply cost. ``pricing`` implements it; the core does no arithmetic on money."""

    def cost(
        self, request: ModelRequest, outcome: Outcome, usage: Usage, upstream: Upstream, at_ns: int
    ) -> Cost: ...

    def estimate(self, outcome: Outcome, request_bytes: int) -> Usage: ...


class Standing(Protocol):
    """Where budgets stand by what passed here. ``money.standing`` implements it."""

    def balances(
        self, exchange: Exchange, placement: Placement, request: ModelRequest, now_ns: int
    ) -> Mapping[str, Balance]: ...

    def charge(
        self, exchange: Exchange, placement: Placement, request: ModelRequest, attempt: Attempt
    ) -> None: ...


@dataclass(frozen=True, slots=True)
class CoreSettings:
    """What the core needs to know of the configuration."""

    record_bodies: bool = True
    """``record: full``: bodies go to the record and previews into items."""
    quotes: bool = True
    """Findings may quote the traffic (``evidence.quotes``)."""
    max_decoded: int = 128_000_000
    """Bytes that a decoded copy of one body may take."""
    response_headers: bool = False
    """Tell the client on each answer where it stands in the tree: ``x-looptap-session`` and so on."""
    max_reply: int = 64_000_000
    """Bytes of one reply kept for the record; a longer one is recorded without its body."""


class Parts:
    """Dialects, library, tracker, chain, prices and where records go. One per process."""

    def __init__(
        self,
        *,
        dialects: DialectTable,
        library: Library,
        tracker: Tracker,
        chain: Chain,
        prices: Prices,
        sink: Sink,
        settings: CoreSettings,
        on_fault: Callable[[str, BaseException], None],
        standing: Standing | None = None,
    ) -> None:
        self.dialects = dialects
        self.library = library
        self.tracker = tracker
        self.chain = chain
        self.prices = prices
        self.sink = sink
        self.settings = settings
        self.on_fault = on_fault
        self.standing = standing
        """None: there are no budgets to tell policies about."""
        self.on_closed: Callable[[Placement], None] | None = None
        """Told of every exchange of a thread when all is known of it."""
        self.reserves = False
        """The shell reserves in a ledger first and then admits or refuses; else ``open`` admits."""
        self.keeps = False
        """The shell stores a thread with its new nudge before the request goes out; else ``open`` goes on."""
        self.unmodelled: dict[str, int] = {}
        """Exchanges that we carried and did not read, by reason."""

    def unread(self, why: str) -> None:
        """Count an exchange that we carried and did not read."""
        self.unmodelled[why] = self.unmodelled.get(why, 0) + 1

    def judge_ended(self) -> None:
        """Ask the policies about the turns that have just ended, each end once."""
        for turn in self.tracker.take_ended():
            if not self.chain.speaks("turn_end"):
                continue
            last = turn.last_step
            ruling = self.chain.judge("turn_end", end_view(turn, last, self.chain.mode), turn.thread.memories)
            turn.thread.memories.update(ruling.memories)
            told_by = (last.exchange, last.number) if last is not None else ("", None)
            for finding in ruling.findings:
                self.sink.put(self.told(finding, turn, last, told_by, turn.last_ns))

    def told(
        self, finding: Finding, turn: Turn, step: Step | None, by: tuple[str, int | None], now_ns: int
    ) -> Record:
        """A finding as it is recorded. ``by``: id and number of the exchange at which it was made."""
        data: dict[str, Any] = {
            "policy": finding.policy,
            "kind": finding.kind,
            "severity": finding.severity,
            "evidence": self._evidence(finding),
            "exchange": by[0],
            "number": by[1],
        }
        if finding.consequence is not None:
            data["consequence"] = finding.consequence
        if finding.path is not None:
            data["path"] = finding.path
        thread = turn.thread
        step_id = step.id if step is not None else None
        return Record(now_ns, "finding", thread.session.id, thread.id, turn.id, step_id, data)

    def _evidence(self, finding: Finding) -> dict[str, Any]:
        """What a finding rests on. What it quotes of the traffic stays out where no content is kept."""
        evidence = dict(finding.evidence)
        if not self.settings.quotes:
            evidence.pop("quotes", None)
        return evidence
