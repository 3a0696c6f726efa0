"""Findings, interventions and alerts as events: on the span that they concern, and as log records.

One name for all of them, ``looptap.policy.decision``. No content: evidence goes out as numbers, flags
and short words; what a finding quotes of the traffic stays in the record.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from opentelemetry._logs import LogRecord, SeverityNumber
from opentelemetry.context import Context
from opentelemetry.sdk._logs import ReadableLogRecord
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, set_span_in_context

from exporters.otel.draft import cleaned
from proxy.model import Record

DECISION = "looptap.policy.decision"
_LONGEST = 200
_STRENGTH = ("observe", "warn", "nudge", "repair", "clamp", "land", "hold", "message", "deny", "cut")
"""Actions, weakest first; what would have been done counts as observed."""
_OF_REPLY = frozenset({"thinking", "history", "pairing"})
"""Policies that judge what goes to the model: their findings belong to the model call."""
_UNTOLD = frozenset({"quotes", "exchange", "number", "policy", "kind", "severity"})
_SEVERITIES = {
    "info": SeverityNumber.INFO,
    "warning": SeverityNumber.WARN,
    "violation": SeverityNumber.WARN,
    "error": SeverityNumber.ERROR,
}
BLOCKS = frozenset({"deny", "message", "hold"})
"""What keeps a request from becoming a step."""


@dataclass(frozen=True, slots=True)
class Happening:
    """Something to be told on a span and in the log."""

    name: str
    time_ns: int
    attributes: Mapping[str, Any]
    severity: str
    action: str = "observe"
    exchange: str | None = None
    of_call: bool = False
    """It concerns the model call rather than the step."""
    tool_calls: tuple[str, ...] = ()
    """It concerns these tool calls, the newest last."""


def decision(record: Record) -> Happening:
    """What a ``finding``, ``intervention`` or ``budget/alert`` says."""
    data = record.data
    if record.type == "finding":
        return _finding(record)
    policy = str(data.get("policy") or "budgets")
    action = "warn" if record.type == "budget/alert" else str(data.get("kind"))
    evidence = {name: value for name, value in data.items() if name not in _UNTOLD}
    return Happening(
        DECISION,
        record.time_ns,
        {
            "looptap.policy.name": policy,
            "looptap.policy.action": action,
            "looptap.policy.mode": "observe" if action.startswith("would_") else "enforce",
            "looptap.policy.reason": evidence.pop("code", None) or data.get("dimension"),
            **_flat("looptap.budget" if policy == "budgets" else "looptap.evidence", evidence),
        },
        "error" if action in BLOCKS or action == "cut" else "warning",
        action,
        data.get("exchange"),
    )


def _finding(record: Record) -> Happening:
    data = record.data
    policy, evidence = str(data.get("policy")), data.get("evidence") or {}
    return Happening(
        DECISION,
        record.time_ns,
        {
            "looptap.policy.name": policy,
            "looptap.policy.rule": data.get("kind"),
            "looptap.policy.action": "observe",
            "looptap.policy.severity": data.get("severity"),
            "looptap.policy.consequence": data.get("consequence"),
            "looptap.policy.path": data.get("path"),
            **_flat("looptap.evidence", evidence),
        },
        str(data.get("severity")),
        exchange=data.get("exchange"),
        of_call=policy in _OF_REPLY,
        tool_calls=_calls(evidence),
    )


def _calls(evidence: Mapping[str, Any]) -> tuple[str, ...]:
    """The provider's ids of the tool calls that a finding is about."""
    named = evidence.get("calls") or evidence.get("call") or ()
    ids = [named] if isinstance(named, str) else named if isinstance(named, list | tuple) else ()
    return tuple(id for id in ids if isinstance(id, str))


def stronger(one: str | None, other: str) -> str:
    """The stronger of two actions."""
    ranks = [_STRENGTH.index(name) if name in _STRENGTH else 0 for name in (one or "observe", other)]
    return (one or "observe") if ranks[0] >= ranks[1] else other


def _flat(prefix: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Numbers, flags and short words, and lists of them, by dotted names."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        if name in _UNTOLD:
            continue
        if isinstance(value, Mapping):
            found.update(_flat(f"{prefix}.{name}", value))
        elif isinstance(value, str):
            found[f"{prefix}.{name}"] = value[:_LONGEST]
        elif isinstance(value, bool | int | float):
            found[f"{prefix}.{name}"] = value
        elif isinstance(value, list | tuple) and value:
            found[f"{prefix}.{name}"] = [str(one)[:_LONGEST] for one in value[:20]]
    return found


def log(
    happening: Happening, trace: int, span: int, resource: Resource, scope: InstrumentationScope
) -> ReadableLogRecord:
    """The same as a log record, tied to its span where there is one."""
    context = Context()
    if trace:
        place = SpanContext(trace, span, is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED))
        context = set_span_in_context(NonRecordingSpan(place), context)
    severity = _SEVERITIES.get(happening.severity, SeverityNumber.INFO)
    return ReadableLogRecord(
        LogRecord(
            timestamp=happening.time_ns,
            observed_timestamp=happening.time_ns,
            context=context,
            severity_text=severity.name,
            severity_number=severity,
            body=None,
            attributes=cleaned(happening.attributes),
            event_name=happening.name,
        ),
        resource,
        scope,
    )
