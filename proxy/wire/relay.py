"""An answer on its way from the upstream to the client: plain calls, no task, no waiting.

``Relay`` is the ``ReplySink`` of one exchange. The client gets the chunk first, in one write per
read, then the thinking part sees it; ``Rounds`` says when. Back-pressure, breaks and upgraded
connections pass through here; when there is nothing more to pass, ``done`` wakes the exchange.

The one invariant: an answer that broke is never ended cleanly, and one that ended is never broken.
"""

import asyncio
from collections.abc import Callable
from typing import Protocol

from proxy.model import ResponseHead
from proxy.wire.guard import Watch
from proxy.wire.heads import CONTINUE, LAST_CHUNK, Framing, response_head
from proxy.wire.incoming import HOLD_UPSTREAM, IncomingRequest, Pulse
from proxy.wire.upstream import Broken, UpstreamConnection


class Client(Protocol):
    """The client's connection, as far as an exchange needs it."""

    write_paused: bool

    def write(self, data: bytes) -> None: ...
    def hold(self, why: int) -> None: ...
    def unhold(self, why: int) -> None: ...

    def break_off(self, *, reset: bool) -> None:
        """End the connection visibly unfinished, after what was written has been flushed."""
        ...

    def tunnel(self, take: Callable[[bytes], None]) -> None:
        """The handshake succeeded: from here on bytes pass unread."""
        ...

    def no_tunnel(self) -> None:
        """The handshake was answered otherwise: HTTP goes on."""
        ...


_EVENT_ENDS = (b"\n\n", b"\r\n\r\n", b"\r\r")
_LONGEST_END = 4
_SMALL = 4_096
"""Bytes of a chunk that may leave along with others: what is longer soon fills its client's buffer."""


def _event_end(before: bytes, data: bytes) -> int | None:
    """Where in ``data`` the event ends that is under way; 0: it ended before, None: it goes on."""
    if not before or before.endswith(_EVENT_ENDS):
        return 0
    tail = before[-3:]
    joined = tail + data
    at = [(joined.find(mark, max(0, len(tail) + 1 - len(mark))), mark) for mark in _EVENT_ENDS]
    ends = [begin + len(mark) - len(tail) for begin, mark in at if begin >= 0]
    return min(ends, default=None)


def _newest(before: bytes, data: bytes) -> bytes:
    """What to keep of a stream to see whether an event has ended: some come letter by letter."""
    return data if len(data) >= _LONGEST_END else (before + data)[-_LONGEST_END:]


class Relay:
    """Carries one answer. Lives as long as its exchange; ``attach`` may be called again to resend."""

    __slots__ = (
        "_along", "_chunked", "_client", "_connection", "_continued", "_counted", "_events", "_feeding",
        "_last", "_out", "_pulse", "_request", "_tunnel", "_watch", "client_left", "cut_since", "done",
        "drained", "head_out", "paused_since", "progress", "reusable", "timed_out", "unsaid",
    )  # fmt: skip

    done: asyncio.Future[Broken | None]
    """None: passed on to its end, clean or visibly broken. Broken: failed before any byte went out."""

    def __init__(self, pulse: Pulse, client: Client, request: IncomingRequest, watch: Watch) -> None:
        self._pulse = pulse
        self._client = client
        self._request = request
        self._watch = watch
        self._connection: UpstreamConnection | None = None
        self._out = b""
        """The response's head until it leaves, together with the first body bytes."""
        self._along = False
        """A chunk waits to leave along with others: one only, so that it can be cut behind."""
        self._chunked = False
        self._continued = False
        self._counted = False
        self._tunnel = False
        self._events = False
        """The body is a stream of events in the clear: something can be put behind one of them."""
        self._last = b""
        """The newest of such a body."""
        self._feeding = False
        self.cut_since = 0.0
        """Since when the answer is to be ended."""
        self.unsaid = False
        """It was, before any byte of it had gone out."""
        self.head_out = False
        """An answer has begun; no other one can be given."""
        self.timed_out = False
        self.client_left = False
        """The reply is read on for its usage only."""
        self.drained = 0
        """Bytes that were read on so."""
        self.progress = pulse.now
        """When bytes last moved."""
        self.paused_since = 0.0
        """Since when the upstream does not read our request; 0 while it does."""
        self.reusable = request.keep_alive and not request.http_1_0
        """The client's connection can carry another exchange after this one."""

    # -- the exchange's side

    def attach(self, connection: UpstreamConnection) -> None:
        """A connection will carry the request from now on."""
        self._connection = connection
        self.done = self._pulse.loop.create_future()
        self.progress = self._pulse.now
        if self._client.write_paused:
            connection.pause_reading()

    def leave(self) -> None:
        """Whatever is still coming is not wanted."""
        self._pulse.rounds.send()
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.abort()
        self._count(False)

    def upload(self, data: bytes, last: bool) -> None:
        """Request bytes on the way up, for ``IncomingRequest.stream_to``."""
        self.progress = self._pulse.now
        if self._connection is not None:
            self._connection.send_body(data, last)

    def grant_body(self) -> None:
        """Tell a client that waits for the go-ahead to send its body; at most once."""
        if self._request.expects_continue and not self._continued and not self.head_out:
            self._continued = True
            self._client.write(CONTINUE)

    def time_out(self) -> None:
        """Nothing has moved for too long."""
        self.timed_out = True
        if self._connection is not None:
            self._connection.end()

    # -- ending it under way

    def cut(self) -> None:
        """End the answer in a form that its client parses: at once, or behind the event under way."""
        if not self.cut_since and not self._tunnel:
            self._pulse.rounds.send()
            self.cut_since = self._pulse.now
            if not self._feeding:
                self._cut_short(b"")

    def break_cut(self) -> None:
        """End it visibly broken: no event came to its end in time, or none can be put behind it."""
        self.reusable = False
        self.leave()
        self._watch.close("refused")
        self._client.break_off(reset=True)
        self._settle(None)

    def _cut_short(self, data: bytes) -> None:
        """``data`` has just come, and nothing of it has been passed on yet."""
        if self._connection is None:
            return
        if not self.head_out:
            self.unsaid = True
            self._out = b""
            self.leave()
            self._settle(None)
            return
        closing = self._watch.closing if self._events else b""
        if not closing:
            self.break_cut()
            return
        end = _event_end(self._last, data)
        whole = end is not None
        out = data[:end] + closing if whole else data
        if out:
            self._last = _newest(self._last, out)
            self._client.write(b"%x\r\n%b\r\n" % (len(out), out) if self._chunked else out)
            self._watch.feed(out)
        if whole:
            if self._chunked:
                self._client.write(LAST_CHUNK)
            self.leave()
            self._watch.close("refused")
            if not self._chunked:
                self.reusable = False
                self._client.break_off(reset=False)
            self._settle(None)

    @property
    def is_tunnel(self) -> bool:
        return self._tunnel

    @property
    def is_waiting(self) -> bool:
        """A connection is attached and its answer not complete."""
        return self._connection is not None

    # -- the client's side

    def on_client_paused(self) -> None:
        """The client does not read: neither do we."""
        if self._connection is not None:
            self._connection.pause_reading()

    def on_client_resumed(self) -> None:
        if self._connection is not None:
            self.progress = self._pulse.now
            self._connection.resume_reading()

    def close_tunnel(self) -> None:
        """The client ended an upgraded connection: what it sent last still goes out."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.finish_writing()
        self._watch.close("complete")
        self._settle(None)

    # -- the upstream's side (ReplySink)

    def on_continue(self) -> None:
        self.grant_body()

    def on_head(self, head: ResponseHead, framing: Framing) -> None:
        request = self._request
        request.release()
        self._watch.respond(head)
        self._chunked = framing is Framing.CHUNKED and not request.http_1_0
        if framing is Framing.UNTIL_CLOSE or self._pulse.stopping:
            self.reusable = False
        fields = head.headers + stamps if (stamps := self._watch.stamps) else head.headers
        plain = (head.get(b"content-encoding") or b"identity").strip().lower() == b"identity"
        ends = self._chunked or framing is not Framing.LENGTH
        self._events = plain and ends and (head.get(b"content-type") or b"").startswith(b"text/event-stream")
        self._out = response_head(
            head.status, head.reason, fields, close=not self.reusable, chunked=not request.http_1_0
        )
        if request.upgrade:
            self._client.no_tunnel()

    def on_data(self, data: bytes, complete: bool) -> None:
        """One read's worth of the answer: to the client first, then to what thinks."""
        self.progress = self._pulse.now
        plain = self.head_out and not complete and not self.cut_since and not self.client_left
        if plain and not self._along and 0 < len(data) <= _SMALL:
            self._along = True
            self._pulse.rounds.along(self, data)
            return
        self._pulse.rounds.send()
        if self._connection is None:
            return  # the chunk that has just left was the last: the answer is cut behind it
        if self.client_left:
            self.drained += len(data)
        if self.cut_since and not complete:
            self._cut_short(data)
            return
        if complete:
            self._connection = None  # already another's: a client that pauses now must not pause it
        out = self._out
        if out:
            self._out = b""
            self.head_out = True
            if not complete:
                self._count(True)
        if not data:
            if complete and self._chunked:
                out += LAST_CHUNK
        elif not self._chunked:
            out = out + data if out else data
        elif complete:
            out = b"%b%x\r\n%b\r\n0\r\n\r\n" % (out, len(data), data)
        else:
            out = b"%b%x\r\n%b\r\n" % (out, len(data), data)
        if out:
            self._client.write(out)
        if data:
            self._show(data)
        if complete:
            self._watch.close("client_gone" if self.client_left else "complete")
            self._settle(None)
        elif self.cut_since:
            self._cut_short(b"")

    def pass_on(self, data: bytes) -> None:
        """A chunk in the middle of the answer leaves."""
        self._client.write(b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data)

    def heed(self, data: bytes) -> None:
        """It has left; what thinks may want the answer to be cut behind it."""
        self._along = False
        self._show(data)
        if self.cut_since:
            self._cut_short(b"")

    def _show(self, data: bytes) -> None:
        self._last = _newest(self._last, data)
        self._feeding = True
        self._watch.feed(data)
        self._feeding = False

    def on_broken(self, broken: Broken) -> None:
        self._pulse.rounds.send()
        self._connection = None
        if not self.head_out and not self._out:
            self._settle(broken)
            return
        self.reusable = False
        if self._out:  # the head was all that came
            self.head_out = True
            self._client.write(self._out)
            self._out = b""
        if self._tunnel and not broken.reset:
            self._watch.close("complete")
        else:
            self._watch.failed_with("nothing more came in time" if self.timed_out else broken.words)
            self._watch.close("timeout" if self.timed_out else "upstream_reset")
        self._client.break_off(reset=broken.reset)
        self._settle(None)

    def on_upgraded(self, head: ResponseHead, tail: bytes) -> None:
        """101: both directions pass unread; the upstream's bytes are shown to what thinks."""
        connection = self._connection
        assert connection is not None
        self._tunnel = True
        self.head_out = True
        self.reusable = False
        self._watch.respond(head)
        self._client.write(response_head(head.status, head.reason, head.headers, close=False, upgrade=True))
        self._count(True)
        self._client.tunnel(connection.write)
        if tail:
            self.on_tunnel_data(tail)

    def on_tunnel_data(self, data: bytes) -> None:
        self._client.write(data)
        self._watch.feed(data)

    def on_upload_paused(self) -> None:
        self.paused_since = self._pulse.now
        self._client.hold(HOLD_UPSTREAM)

    def on_upload_resumed(self) -> None:
        self.paused_since = 0.0
        self.progress = self._pulse.now
        self._client.unhold(HOLD_UPSTREAM)

    def _settle(self, broken: Broken | None) -> None:
        if not self.done.done():
            self.done.set_result(broken)

    def _count(self, begun: bool) -> None:
        if begun is not self._counted:
            self._counted = begun
            self._pulse.open_streams += 1 if begun else -1
