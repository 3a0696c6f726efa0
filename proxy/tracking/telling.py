"""The tracker's state changes, put into words: one function per kind of ``Record``.

Shapes only, no decisions. Names and values are the record's contract; ``trees`` builds the public
tree from nothing else. ``data`` holds JSON values.
"""

import re
from functools import lru_cache
from typing import Any
from urllib.parse import urlsplit

from proxy.model import Attempt, Exchange, Head, Item, MatchedBy, ModelRequest, Record, Upstream
from proxy.structs import replace
from proxy.tracking.asked import asked
from proxy.tracking.threads import Session, Step, Thread, Turn

PREVIEW_CHARS = 200

_TRACEPARENT = re.compile(
    r"(?!ff)([0-9a-f]{2})-((?!0{32})[0-9a-f]{32})-((?!0{16})[0-9a-f]{16})-([0-9a-f]{2})(-.*)?"
)
"""W3C Trace Context, level 1: later versions may add fields, version 00 may not."""


def session_start(session: Session, exchange: Exchange, now_ns: int) -> Record:
    """A run of a client was seen for the first time."""
    identity = exchange.identity
    data: dict[str, Any] = {
        "client": session.client,
        "by": session.by,
        "key": identity.key,
        "team": identity.team,
        "org": identity.org,
        "labels": dict(identity.labels),
    }
    return Record(now_ns, "session/start", session.id, data=data)


def thread_start(thread: Thread, exchange: Exchange, matched_by: MatchedBy, now_ns: int) -> Record:
    """A history began."""
    upstream = exchange.upstream
    data: dict[str, Any] = {
        "kind": thread.kind,
        "partial": thread.partial,
        "matched_by": matched_by,
        "dialect": thread.dialect,
        "upstream": upstream.name if upstream is not None else "",
        "provider": upstream.provider if upstream is not None else "",
    }
    if thread.parent is not None:
        data["parent"] = thread.parent
    if thread.parent_turn is not None:
        data["parent_turn"] = thread.parent_turn.id
    if thread.agent is not None:
        data["agent"] = thread.agent
    return Record(now_ns, "thread/start", thread.session.id, thread.id, data=data)


def turn_start(turn: Turn, exchange: Exchange, previous: Turn | None, now_ns: int) -> Record:
    """User input opened a turn. ``previous``: the thread's turn before it."""
    identity = exchange.identity
    data: dict[str, Any] = {"index": turn.index, **_whose(turn.thread)}
    data.update(key=identity.key, team=identity.team, org=identity.org)
    if identity.labels:
        data["labels"] = dict(identity.labels)
    if previous is not None:
        data["previous"] = previous.id
    return _of_turn(turn, now_ns, "turn/start", data)


def turn_resume(turn: Turn, now_ns: int) -> Record:
    """An ended turn goes on after all."""
    return _of_turn(turn, now_ns, "turn/resume", {"index": turn.index, **_whose(turn.thread)})


def _whose(thread: Thread) -> dict[str, Any]:
    """Which agent runs a turn, and for whom: told with the turn, whose thread may be of another process."""
    data: dict[str, Any] = {"kind": thread.kind}
    if thread.session.client:
        data["client"] = thread.session.client
    if thread.agent is not None:
        data["agent"] = thread.agent
    if thread.client_session is not None:
        data["client_session"] = thread.client_session
    if thread.parent_turn is not None:
        data["parent_turn"] = thread.parent_turn.id
    return data


def turn_end(turn: Turn) -> Record:
    """The agent owes nothing more, or will not do it."""
    data: dict[str, Any] = {"cause": turn.cause, "steps": turn.steps, "usage": dict(turn.bill.tokens)}
    data["cost_usd"] = turn.bill.cost_usd
    data["cost_quality"] = turn.bill.quality
    data.update(_whose(turn.thread), index=turn.index, began_ns=turn.began_ns)
    if turn.by is not None:
        data["by"] = turn.by
    return _of_turn(turn, turn.last_ns, "turn/end", data)


def step_start(step: Step, around: str | None = None) -> Record:
    """A model request goes out. ``around``: for exporters, what stands newly around its messages."""
    data = {
        "index": step.index,
        "place": step.place,
        "model": step.model,
        "epoch": step.epoch,
        "matched_by": step.matched_by,
        "exchange": step.exchange,
        "number": step.number,
    }
    record = _of_step(step, step.arrived_ns, "step/start", data)
    return record if around is None else replace(record, content=around)


def step_attempt(
    step: Step, number: int, exchange: Exchange, attempt: Attempt, request: ModelRequest | None = None
) -> Record:
    """One exchange of a step is over."""
    reply = attempt.reply
    data: dict[str, Any] = {
        "attempt": number,
        "exchange": exchange.id,
        "number": exchange.number,
        **_where(exchange.upstream),
        "outcome": attempt.outcome,
        "end": attempt.end,
        "status": attempt.status,
        "model": reply.model or step.model,
        "stop_reason": reply.stop_reason,
        "response_id": reply.response_id,
        "usage": reply.usage.public() if reply.usage is not None else {},
        "cost_usd": format(attempt.cost.usd, "f") if attempt.cost.usd is not None else None,
        "cost_quality": attempt.cost.quality,
        "arrived_ns": attempt.arrived_ns,
        "ended_ns": attempt.ended_ns,
        "streaming": attempt.streaming,
        "request_bytes": attempt.request_bytes,
        "response_bytes": attempt.response_bytes,
    }
    if attempt.usage is not None and attempt.usage is not reply.usage:
        data["estimate"] = attempt.usage.public()
    if attempt.sent_ns is not None:
        data["sent_ns"] = attempt.sent_ns
    if attempt.first_output_ns is not None:
        data["first_output_ns"] = attempt.first_output_ns
    if reply.error is not None:
        error = reply.error
        data["error"] = {"type": error.type, "message": error.message[:2_000], "code": error.code}
    if attempt.failure:
        data["failure"] = attempt.failure[:500]
    if attempt.refused is not None:
        data["refused"] = dict(attempt.refused)
    if attempt.waited_ns:
        data["waited_ns"] = attempt.waited_ns
    if request is not None:
        data["dialect"] = request.dialect
        data["requested_model"] = request.model
        data["request"] = asked(request)
    if (parent := traceparent(exchange.head)) is not None:
        data["traceparent"] = parent
        data["route"] = exchange.path
    if isinstance(source := reply.extra.get("finish_source"), str):
        data["finish_source"] = source
    return _of_step(step, attempt.ended_ns, "step/attempt", data)


def _where(upstream: Upstream | None) -> dict[str, Any]:
    """The provider that was asked; its URL's host is what lies behind the proxy."""
    if upstream is None:
        return {"upstream": ""}
    host, port = _host(upstream.url)
    data: dict[str, Any] = {
        "upstream": upstream.name,
        "provider": upstream.provider or upstream.api,
        "host": host,
    }
    if port is not None:
        data["port"] = port
    return data


@lru_cache(64)
def _host(url: str) -> tuple[str, int | None]:
    parts = urlsplit(url)
    return parts.hostname or "", parts.port


def traceparent(head: Head) -> str | None:
    """The trace that the client's request belongs to, where it names one as the standard says."""
    named = head.get(b"traceparent")
    told = _TRACEPARENT.fullmatch(named.decode("latin-1").strip()) if named is not None else None
    if told is None or (told[1] == "00" and told[5] is not None):
        return None
    return f"00-{told[2]}-{told[3]}-{told[4]}"


def step_end(step: Step, now_ns: int) -> Record:
    """All results have been seen, or the turn ended without them."""
    data = {
        "stop_reason": step.stop_reason,
        "usage": dict(step.bill.tokens),
        "cost_usd": step.bill.cost_usd,
        "cost_quality": step.bill.quality,
        "attempts": step.attempts,
        "tool_calls": [{"id": call.id, "name": call.name} for call in step.calls],
        "results_seen": sum(call.answered for call in step.calls),
        "place": step.place,
        "began_ns": step.arrived_ns,
    }
    return _of_step(step, now_ns, "step/end", data)


def item(
    step: Step,
    value: Item,
    direction: str,
    exchange: Exchange,
    now_ns: int,
    *,
    preview: bool,
    content_chars: int = 0,
    **more: Any,
) -> Record:
    """One input or output. ``step`` is where it belongs, which for a result is the step that asked.

    ``content_chars``: as much of the content goes along for exporters, beside what is recorded.
    """
    data: dict[str, Any] = {
        "direction": direction,
        "role": value.role,
        "kind": value.kind,
        "form": value.form,
        "chars": len(value.text) or len(value.arguments or ""),
        "digest": value.digest.hex()[:16],
        "exchange": exchange.id,
        **more,
    }
    if value.tool is not None:
        data["tool"] = value.tool
    if value.call_id is not None:
        data.setdefault("call_id", value.call_id)
    if value.is_error:
        data["is_error"] = True
    if value.server:
        data["server"] = True
    if value.at:
        data["at"] = list(value.at)
    if preview and (value.text or value.arguments):
        data["preview"] = (value.text or value.arguments or "")[:PREVIEW_CHARS]
    record = _of_step(step, now_ns, "item", data)
    if content_chars and (text := value.text or value.arguments):
        return replace(record, content=text[:content_chars])
    return record


def elsewhere(record: Record) -> Record:
    """The same of what happened at another instance, whose record tells it as well."""
    return replace(record, data={**record.data, "elsewhere": True})


def _of_turn(turn: Turn, now_ns: int, kind: str, data: dict[str, Any]) -> Record:
    return Record(now_ns, kind, turn.thread.session.id, turn.thread.id, turn.id, data=data)


def _of_step(step: Step, now_ns: int, kind: str, data: dict[str, Any]) -> Record:
    thread = step.thread
    return Record(now_ns, kind, thread.session.id, thread.id, step.turn.id, step.id, data)
