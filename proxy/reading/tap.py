"""The copy: chunks of a reply in, as they came; events and, in the end, the Outcome out.

The client has each chunk before the tap sees it. The tap undoes the content encoding and hands
plain bytes to the dialect's decoder; what the bytes mean is the decoder's affair.

The one invariant: the tap never raises and never grows without bound. Beyond its limit it tells of
no more events (the decoder keeps what it needs for the usage); far beyond it, or where the
encoding breaks, it stops reading. A bug in a decoder costs what it would have seen: it is kept in
``fault`` for the core to report.
"""

from collections.abc import Sequence

from proxy.model import Event, Outcome
from proxy.ports import ResponseDecoder
from proxy.reading.codings import Decoding, Undecodable

_FAR = 8
"""Times the limit after which not even the usage is waited for: no reply is as long as that. Where
an encoding is undone the limit itself ends it, since there few bytes on the wire make many here."""

_NONE: Sequence[Event] = ()


class Tap:
    """Reads along with one reply."""

    __slots__ = (
        "_decoder",
        "_decoding",
        "_last_ns",
        "_limit",
        "_outcome",
        "_seen",
        "_size",
        "fault",
        "problem",
    )

    def __init__(self, decoder: ResponseDecoder, content_encoding: bytes | None, max_decoded: int) -> None:
        self._decoder: ResponseDecoder | None = decoder
        self._limit = max_decoded
        self._size = 0
        self._seen: list[tuple[Event, int]] = []
        """Finished items, and when: they are told apart by being the same object in the outcome."""
        self._last_ns = 0
        self._outcome: Outcome | None = None
        self.fault: Exception | None = None
        """Our own bug, if one came up."""
        self.problem = ""
        """Why the reply could not be read, if so."""
        self._decoding: Decoding | None = None
        if content_encoding:
            try:
                decoding = Decoding(content_encoding)
                self._decoding = None if decoding.plain else decoding
            except Undecodable as problem:
                self._stop(str(problem))

    def feed(self, data: bytes, now_ns: int) -> Sequence[Event]:
        """Take a chunk as it came from the upstream; what it completed."""
        if self._decoder is None:
            return _NONE
        self._last_ns = now_ns
        if self._decoding is None:
            return self._read(data, now_ns)
        events: list[Event] = []
        try:
            for piece in self._decoding.pieces(data):
                events.extend(self._read(piece, now_ns))
                if self.problem or self.fault is not None:
                    break
        except Undecodable as problem:
            self._stop(str(problem))
        return events

    def repeats(self, data: bytes, now_ns: int) -> bool:
        """Take several chunks at once, where they complete nothing; False: feed them one by one."""
        decoder = self._decoder
        if decoder is None or self._decoding is not None or self._size + len(data) > self._limit:
            return False
        try:
            taken = decoder.repeats(data)
        except Exception as error:  # noqa: BLE001 - a decoder's bug must not cost traffic
            self._broke(error)
            return True
        if taken:
            self._size += len(data)
            self._last_ns = now_ns
        return taken

    @property
    def whole(self) -> bool:
        """All of the reply has been read, though its connection may go on."""
        return self._decoder is not None and self._decoder.whole

    def finish(self) -> Outcome:
        """The reply as far as it came and was understood; the same value at every call."""
        if self._outcome is None:
            decoder, self._decoder = self._decoder, None
            self._outcome = Outcome()
            if decoder is not None and self.fault is None:
                try:
                    self._outcome = decoder.finish()
                except Exception as error:  # noqa: BLE001 - kept for the core's report
                    self.fault = error
        return self._outcome

    @property
    def item_ns(self) -> tuple[int, ...]:
        """When each item of the outcome was complete; one cut short counts from the last chunk."""
        times = {id(event.item): when for event, when in self._seen}
        items = self._outcome.items if self._outcome is not None else ()
        return tuple(times.get(id(item), self._last_ns) for item in items)

    def _read(self, data: bytes, now_ns: int) -> Sequence[Event]:
        self._size += len(data)
        far = self._limit if self._decoding is not None else _FAR * self._limit
        if self._size > far:
            self._stop(f"the reply has more than {far} bytes once decoded")
            return _NONE
        decoder = self._decoder
        if decoder is None:
            return _NONE
        try:
            events = decoder.feed(data)
        except Exception as error:  # noqa: BLE001 - a decoder's bug must not cost traffic
            self._broke(error)
            return _NONE
        if not events:
            return _NONE
        if self._size > self._limit:
            return _NONE
        for event in events:
            if event.kind == "item":
                self._seen.append((event, now_ns))
        return events

    def _broke(self, error: Exception) -> None:
        """Our own bug: nothing more of this reply is read."""
        self.fault = error
        self._decoder = None

    def _stop(self, problem: str) -> None:
        """Read no further; what was understood so far stays the outcome."""
        self.problem = problem
        self._decoding = None
        self.finish()
