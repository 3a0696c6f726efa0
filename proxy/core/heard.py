"""A reply as it comes: shown to the tap, timed, and kept for the record, as far as it may be kept.

The one invariant: bytes are counted and kept in the order they came, whether the tap has seen them or not.
"""

from collections.abc import Callable, Sequence

from proxy.core.kept import Kept
from proxy.model import Body, Event, Outcome, ResponseHead
from proxy.ports import ResponseDecoder
from proxy.reading.tap import Tap
from proxy.verdict import Reply

AT_ONCE = 16
"""Chunks that are read in one go, where nobody waits for what they say: one by one, between the chunks of
other streams, each costs twice as much."""
LONG = 4_096
"""Bytes of a chunk that is read at once, so that little waits unread."""


class Heard:
    """The upstream's answer to one exchange."""

    __slots__ = (
        "_at_once", "_kept", "_max_kept", "_tap", "_unread", "first_output_ns", "head",
        "received",
    )  # fmt: skip

    def __init__(self, *, keep: bool, max_kept: int, at_once: bool) -> None:
        self.head: ResponseHead | None = None
        self.first_output_ns: int | None = None
        self.received = 0
        """Body bytes so far."""
        self._tap: Tap | None = None
        self._unread: list[tuple[bytes, int]] = []
        """Chunks that the tap has not seen yet, and when they came."""
        self._kept = Kept() if keep else None
        self._max_kept = max_kept
        self._at_once = at_once

    def begin(self, head: ResponseHead, decoder: ResponseDecoder | None, max_decoded: int) -> None:
        """The head has come; ``decoder`` reads the body, where somebody knows how."""
        self.head = head
        if decoder is not None:
            self._tap = Tap(decoder, head.get(b"content-encoding"), max_decoded)

    def feed(self, data: bytes, now_ns: int) -> Sequence[Event]:
        """Body bytes as they came; what they say may be told with later ones."""
        size = len(data)
        self.received += size
        if self._kept is not None:
            if self.received > self._max_kept:
                self._kept = None
            else:
                self._kept.add(data)
        tap = self._tap
        if tap is None:
            return ()
        unread = self._unread
        unread.append((data, now_ns))
        if len(unread) < AT_ONCE and size <= LONG and not self._at_once:
            return ()
        return self._read_along(tap)

    def is_whole(self) -> bool:
        """All of the reply has come; what may still be missing is the end of its connection."""
        tap = self._tap
        if tap is None:
            return False
        self._read_along(tap)
        return tap.whole

    def _read_along(self, tap: Tap) -> list[Event]:
        """Show the tap what has come since it looked last."""
        unread, self._unread = self._unread, []
        if len(unread) > 1:
            joined = b"".join([data for data, _ in unread])
            if tap.repeats(joined, unread[-1][1]):
                return []
        found: list[Event] = []
        for data, now_ns in unread:
            for event in tap.feed(data, now_ns):
                if event.kind == "first_output" and self.first_output_ns is None:
                    self.first_output_ns = now_ns
                found.append(event)
        return found

    def finish(self, on_fault: Callable[[str, BaseException], None]) -> tuple[Outcome, str]:
        """The reply as far as it came and could be read, and what kept us from the rest, if anything."""
        tap = self._tap
        if tap is None:
            return Outcome(), ""
        self._read_along(tap)
        reply = tap.finish()
        if tap.fault is not None:
            on_fault("tap", tap.fault)
        return reply, tap.problem

    def ours(self, reply: Reply) -> None:
        """Our own answer takes its place in the record: a replay learns from it why."""
        self.head = ResponseHead(reply.status, b"", tuple(reply.headers))
        if self._tap is not None:
            self._read_along(self._tap)
        if self._kept is not None:
            self._kept = Kept()
            self._kept.add(reply.body)

    @property
    def keeps(self) -> bool:
        """Bodies of this exchange go to the record."""
        return self._kept is not None

    @property
    def item_ns(self) -> tuple[int, ...]:
        """When each item of the reply was complete."""
        return self._tap.item_ns if self._tap is not None else ()

    @property
    def body(self) -> Body | None:
        """All of it, still content-encoded; None where it is not kept."""
        return self._kept.body if self._kept is not None else None
