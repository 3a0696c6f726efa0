"""A span in the making: open to changes until it is sent, then frozen into the SDK's form.

Attributes are cleaned here and nowhere else: what is None is left out, text is valid Unicode.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags

Value = str | bool | int | float | list[str]
MOST_EVENTS = 128
_KINDS = {"internal": SpanKind.INTERNAL, "client": SpanKind.CLIENT, "server": SpanKind.SERVER}


@dataclass(slots=True, eq=False)
class Draft:
    """One span."""

    name: str
    trace: int
    id: int
    parent: int | None
    start_ns: int
    end_ns: int = 0
    kind: str = "internal"
    remote: bool = False
    """The parent is another program's span."""
    attributes: dict[str, Value] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    links: list[Link] = field(default_factory=list)
    sent: bool = False
    """It is out: nothing changes any more."""
    failed: bool = False
    description: str | None = None

    def put(self, attributes: Mapping[str, Any]) -> None:
        """Add attributes; what is None is left out."""
        for name, value in attributes.items():
            if value is not None:
                self.attributes[name] = clean(value)

    def event(self, name: str, time_ns: int, attributes: Mapping[str, Any]) -> None:
        """Something that happened during it. Beyond a bound the rest is only counted."""
        if len(self.events) >= MOST_EVENTS:
            self.attributes["looptap.events.dropped"] = 1 + int(
                str(self.attributes.get("looptap.events.dropped", 0))
            )
            return
        self.events.append(Event(name, cleaned(attributes), time_ns))

    def link(self, trace: int, span: int, kind: str) -> None:
        """Point at a span elsewhere."""
        self.links.append(Link(_context(trace, span), {"looptap.link.kind": kind}))

    def fail(self, kind: str, description: str | None = None) -> None:
        """It ended badly."""
        self.failed = True
        self.attributes["error.type"] = clean(kind)
        self.description = clean(description) if description else None

    def grow(self, other: "Draft") -> None:
        """Reach around a child: its parent must not end before it, nor begin after it."""
        self.start_ns = min(self.start_ns, other.start_ns)
        self.end_ns = max(self.end_ns, other.end_ns)

    def release(self) -> None:
        """It is out, and whoever still knows it needs no more than its id."""
        self.attributes, self.events, self.links = {}, [], []

    @property
    def weight(self) -> int:
        """Roughly what it takes in memory while it waits, in bytes."""
        return 2_000 + sum(len(value) for value in self.attributes.values() if isinstance(value, str))

    def span(self, resource: Resource, scope: InstrumentationScope) -> ReadableSpan:
        """In the SDK's form. Status is never OK: the absence of an error is what is known."""
        parent = _context(self.trace, self.parent, self.remote) if self.parent is not None else None
        return ReadableSpan(
            str(clean(self.name)),
            context=_context(self.trace, self.id),
            parent=parent,
            resource=resource,
            attributes=self.attributes,
            events=self.events,
            links=self.links,
            kind=_KINDS[self.kind],
            status=Status(StatusCode.ERROR, self.description) if self.failed else Status(StatusCode.UNSET),
            start_time=self.start_ns,
            end_time=max(self.start_ns, self.end_ns),
            instrumentation_scope=scope,
        )


def _context(trace: int, span: int, remote: bool = False) -> SpanContext:
    return SpanContext(trace, span, is_remote=remote, trace_flags=TraceFlags(TraceFlags.SAMPLED))


def cleaned(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Attributes that every encoder takes."""
    return {name: clean(value) for name, value in attributes.items() if value is not None}


def clean(value: Any) -> Any:
    """A value that every encoder takes: lone surrogates and numbers beyond 64 bits become text."""
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-8", "replace").decode()
    if isinstance(value, bool) or not isinstance(value, int):
        return [clean(one) for one in value] if isinstance(value, list | tuple) else value
    return value if -(2**63) <= value < 2**63 else str(value)
