"""A reply as it comes: shown to the tap, timed, and kept for the record, as far as it may be kept.

The one invariant: bytes are counted and kept in the order they came, whether the tap has seen them or not.
"""

from collections.abc import Callable, Sequence

from proxy.core.kept import LARGE, TOGETHER, Kept
from proxy.model import Body, Event, Outcome, ResponseHead
from proxy.ports import ResponseDecoder
from proxy.reading.tap import Tap
from proxy.verdict import Reply

AT_ONCE = TOGETHER
"""Chunks that are read, and put away for the record, in one go, where nobody waits for what they say: one by
one, between the chunks of other streams, each costs twice as much."""
LONG = LARGE
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
        """Chunks that nobody has looked at yet, and when they came."""
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
        unread = self._unread
        unread.append((data, now_ns))
        if len(unread) < AT_ONCE and size <= LONG and not self._at_once:
            return ()
        return self._take_in()

    def is_whole(self) -> bool:
        """All of the reply has come; what may still be missing is the end of its connection."""
        self._take_in()
        return self._tap is not None and self._tap.whole

    def _take_in(self) -> Sequence[Event]:
        """Keep what has come since this was last called, and show it to the tap."""
        unread = self._unread
        if not unread:
            return ()
        self._unread = []
        joined = b"".join([data for data, _ in unread])
        if self._kept is not None:
            self._keep(self._kept, unread, joined)
        tap = self._tap
        if tap is None or (len(unread) > 1 and tap.repeats(joined, unread[-1][1])):
            return ()
        found: list[Event] = []
        for data, now_ns in unread:
            for event in tap.feed(data, now_ns):
                if event.kind == "first_output" and self.first_output_ns is None:
                    self.first_output_ns = now_ns
                found.append(event)
        return found

    def _keep(self, kept: Kept, unread: Sequence[tuple[bytes, int]], joined: bytes) -> None:
        if self.received > self._max_kept:
            self._kept = None
        elif len(unread) == TOGETHER and len(unread[-1][0]) <= LARGE:
            kept.add_several(joined)
        else:
            for data, _ in unread:
                kept.add(data)

    def finish(self, on_fault: Callable[[str, BaseException], None]) -> tuple[Outcome, str]:
        """The reply as far as it came and could be read, and what kept us from the rest, if anything."""
        self._take_in()
        tap = self._tap
        if tap is None:
            return Outcome(), ""
        reply = tap.finish()
        if tap.fault is not None:
            on_fault("tap", tap.fault)
        return reply, tap.problem

    def ours(self, reply: Reply) -> None:
        """Our own answer takes its place in the record: a replay learns from it why."""
        self.head = ResponseHead(reply.status, b"", tuple(reply.headers))
        self._take_in()
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
        self._take_in()
        return self._kept.body if self._kept is not None else None
