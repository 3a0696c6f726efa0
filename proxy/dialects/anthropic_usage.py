"""Anthropic's token counts, made inclusive: input with what was read from and written to the cache.

``input_tokens`` on the wire is only the uncached tail. Where ``iterations`` is given, only its
entries add up to the bill (compaction is absent from the top level, advisors and fallbacks have
another model's price); a declined first try without output that a fallback follows is not charged.

The one invariant: what was not reported is absent, never 0.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from proxy.model import BillingLine, Usage

_COUNTS = {"web_search_requests": "web_searches", "code_execution_requests": "code_executions"}
"""Server tools that are billed by use, under the price list's names."""
_MAX_LINES = 1_000


def read_usage(raw: Mapping[str, Any]) -> Usage | None:
    """A ``usage`` object, or one entry of its ``iterations``; None where it counts nothing."""
    fresh = _count(raw, "input_tokens")
    read = _count(raw, "cache_read_input_tokens")
    written = _count(raw, "cache_creation_input_tokens")
    split = raw.get("cache_creation")
    short = long = None
    if isinstance(split, dict):
        short, long = _count(split, "ephemeral_5m_input_tokens"), _count(split, "ephemeral_1h_input_tokens")
    if written is None and (short is not None or long is not None):
        written = (short or 0) + (long or 0)
    if long is not None and written is not None:
        long = min(long, written)
    output = _count(raw, "output_tokens")
    if fresh is None and output is None:
        return None
    details = raw.get("output_tokens_details")
    server = raw.get("server_tool_use")
    extra: dict[str, int] = {}
    if isinstance(server, dict):
        counts = ((name, _count(server, wire)) for wire, name in _COUNTS.items())
        extra = {name: count for name, count in counts if count is not None}
    return Usage(
        input_tokens=None if fresh is None else fresh + (read or 0) + (written or 0),
        cache_read_tokens=read,
        cache_write_tokens=written,
        cache_write_1h_tokens=long,
        output_tokens=output,
        reasoning_tokens=_count(details, "thinking_tokens") if isinstance(details, dict) else None,
        extra=extra,
    )


def billing_lines(raw: Mapping[str, Any], model: str, usage: Usage | None) -> tuple[BillingLine, ...]:
    """The bill where it has several entries; empty where the top level is the bill."""
    entries = raw.get("iterations")
    if not isinstance(entries, list):
        return ()
    known = [entry for entry in entries[:_MAX_LINES] if isinstance(entry, dict)]
    lines: list[BillingLine] = []
    for index, entry in enumerate(known):
        counted = read_usage(entry)
        if counted is None or _declined(entry, known[index + 1 :]):
            continue
        named = entry.get("model")
        lines.append(BillingLine(named if isinstance(named, str) and named else model, counted))
    if lines and usage is not None and usage.extra and not any(line.usage.extra for line in lines):
        first = lines[0]  # searches are counted once, for the whole reply
        lines[0] = BillingLine(first.model, replace(first.usage, extra=usage.extra))
    return tuple(lines)


def _declined(entry: Mapping[str, Any], later: list[dict[str, Any]]) -> bool:
    """A first try that was declined before any output: reported, not charged."""
    if entry.get("type", "message") != "message" or entry.get("output_tokens") != 0:
        return False
    return any(other.get("type") == "fallback_message" for other in later)


def _count(raw: Mapping[str, Any], name: str) -> int | None:
    value = raw.get(name)
    return value if type(value) is int and value >= 0 else None
