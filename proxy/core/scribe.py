"""What is recorded of one exchange: findings, interventions, its request and its answer.

Made once it is known where the exchange belongs; the one invariant: everything that it tells names
the same exchange, session, thread, turn and step.
"""

from collections.abc import Mapping
from typing import Any

from proxy.core.heard import Heard
from proxy.core.parts import Parts
from proxy.model import CaptureEnd, CaptureStart, EndKind, Exchange, Record, Splice
from proxy.outgoing import Outgoing
from proxy.reading.redact import redact_headers, redact_target
from proxy.tracking.placement import Placement
from proxy.verdict import Finding


class Scribe:
    """Tells of an exchange that has its place in a thread."""

    __slots__ = ("_exchange", "_parts", "placement")

    def __init__(self, parts: Parts, exchange: Exchange, placement: Placement) -> None:
        self._parts = parts
        self._exchange = exchange
        self.placement = placement

    @property
    def quotes(self) -> bool:
        """Whether what is told may quote the traffic."""
        return self._parts.settings.quotes

    def found(self, finding: Finding, now_ns: int) -> None:
        """A policy, or we ourselves, saw something."""
        step, by = self.placement.step_state, (self._exchange.id, self._exchange.number)
        self._parts.sink.put(self._parts.told(finding, step.turn, step, by, now_ns))

    def intervened(self, policy: str, kind: str, more: Mapping[str, Any], now_ns: int) -> None:
        """What was done to this request, or would have been."""
        placement, exchange = self.placement, self._exchange
        data = {**more, "policy": policy, "kind": kind, "exchange": exchange.id, "number": exchange.number}
        names = (placement.session, placement.thread, placement.turn, placement.step)
        self._parts.sink.put(Record(now_ns, "intervention", *names, data))


def capture_start(
    exchange: Exchange,
    placement: Placement | None,
    out: Outgoing,
    splice: Splice | None,
    now_ns: int,
    *,
    keep: bool,
    verdict_ns: int | None = None,
) -> CaptureStart:
    """A request as it goes out. ``keep``: with its body. ``verdict_ns``: until when it waited."""
    upstream, head = exchange.upstream, exchange.head
    return CaptureStart(
        exchange=exchange.id,
        number=exchange.number,
        time_ns=now_ns,  # whole: the order in which requests were placed, and replay places them
        provider=upstream.provider if upstream is not None else "",
        upstream=upstream.name if upstream is not None else "",
        host=upstream.url if upstream is not None else "",
        method=head.method,
        target=redact_target(head.target),
        headers=redact_headers(head.headers),
        body=out.body if keep else None,
        splice=splice,
        inserted=out.ours,
        labels=exchange.identity.labels,
        session=placement.session if placement is not None else None,
        thread=placement.thread if placement is not None else None,
        turn=placement.turn if placement is not None else None,
        step=placement.step if placement is not None else None,
        verdict_ns=verdict_ns,
    )


def capture_end(
    exchange: Exchange, heard: Heard, end: EndKind, now_ns: int, *, streaming: bool, request_bytes: int
) -> CaptureEnd:
    """How it ended, with the answer that came or that was ours."""
    head = heard.head
    return CaptureEnd(
        exchange=exchange.id,
        time_ns=now_ns,
        end=end,
        status=head.status if head is not None else None,
        headers=redact_headers(head.headers) if head is not None else (),
        body=heard.body,
        streaming=streaming,
        request_bytes=request_bytes,
        response_bytes=heard.received,
    )
