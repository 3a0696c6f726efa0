"""The straight line without its awaits: opened → fed → closed.

``Core`` strings together what thinks: dialects, reading, tracker, chain, tap, prices. It owns no
socket, clock, file or random source, so the live shell (``exchange``) and the offline one
(``replay``) run exactly this code: a bug seen live is a file that replays.

``opened`` is one exchange on its way, from top to bottom; ``parts`` what all of them think with;
``heard`` the reply as it comes, ``kept`` its bytes, ``ending`` how it ended and what it took; ``ours`` what
we put into a request: ``reminders`` our own text, ``repairs`` reasoning put back, ``landing`` the words of
its turn's last step; ``scribe`` what is recorded of an exchange; ``views`` what policies see; ``glance`` what
is seen of a request that is refused unplaced.

Nothing in here may cost traffic. ``open`` hands back the body to forward (the very same object
unless something edited it); the live shell calls every method through its guard (``wire.guard``), and
what cannot be read is relayed and counted as unmodelled.
"""

from proxy.core.glance import Glance
from proxy.core.opened import Opened
from proxy.core.parts import CoreSettings, Parts, Prices, Standing
from proxy.model import Exchange, Head, Upstream
from proxy.ports import Unreadable
from proxy.verdict import Terminal

__all__ = ["Core", "CoreSettings", "Glance", "Opened", "Prices", "Standing"]


class Core(Parts):
    """Everything that thinks about an exchange. One per process; used from one thread."""

    def match(self, head: Head, upstream: Upstream, path: str) -> bool:
        """Whether a dialect reads this route, so that the body is wanted whole."""
        return self.dialects(head.method, path, upstream, head) is not None

    def open(
        self,
        exchange: Exchange,
        body: bytes,
        now_ns: int,
        *,
        refused: Terminal | None = None,
        waits: bool = False,
    ) -> Opened:
        """Read and place a request whose body is at hand.

        ``refused``: how this very request was refused when it was recorded (replay). ``waits``: it waited
        then, and what became of it is still to be told.
        """
        opened = self.begin(exchange, body)
        opened.read()
        opened.place(now_ns, refused=refused, waits=waits)
        return opened

    def begin(self, exchange: Exchange, body: bytes) -> Opened:
        """A request to be read and then placed by a shell that may wait in between."""
        return Opened(self, exchange, body)

    def glance(self, exchange: Exchange, body: bytes, now_ns: int) -> Glance | None:
        """Look at a request that may be refused at the door; None for one that has to be placed.

        That is a conversation tied to nothing known, or a turn that was refused just before.
        """
        upstream, head = exchange.upstream, exchange.head
        dialect = self.dialects(head.method, exchange.path, upstream, head) if upstream is not None else None
        if dialect is None or head.method != "POST" or head.get(b"content-encoding") is not None:
            return None
        try:
            reading = self.library.glance(dialect, exchange, body)
        except Unreadable:
            return None
        request, tracker = reading.request, self.tracker
        if request.operation != "chat":
            return None
        if tracker.is_stranger(exchange, request, now_ns):
            return Glance(dialect, request, reading.splice, None)
        turn = tracker.refused_turn(exchange, request, now_ns)
        return Glance(dialect, request, reading.splice, turn.cause) if turn is not None else None

    def relay(self, exchange: Exchange, now_ns: int) -> Opened:
        """An exchange that no dialect reads: bodies stream past, only its shape is recorded."""
        self.unread("no model call")
        opened = Opened(self, exchange, None)
        opened.admit(now_ns)
        return opened

    def tick(self, now_ns: int) -> None:
        """Let time pass: turns whose client never came back are closed."""
        self.tracker.tick(now_ns)
        self.judge_ended()
