"""A record with two turns of an Anthropic agent, written as the proxy writes it, and the port on it."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from proxy import admin
from proxy.catalog import RecordCatalog
from proxy.model import CaptureEnd, CaptureStart, Record
from proxy.record import RecordWriter

TOKEN = "correct-horse"
BEARER = {"Authorization": f"Bearer {TOKEN}"}
SECOND = 1_000_000_000
BEGAN = 1_700_000_000 * SECOND

THOUGHT = {"type": "thinking", "thinking": "Look first.", "signature": "c2ln"}
CALL = {"type": "tool_use", "id": "toolu_1", "name": "read_file", "input": {"path": "a.txt"}}
HOSTILE = "<img src=x onerror=alert(1)>\u202egnp.exe\x07"
RESULT = {"type": "tool_result", "tool_use_id": "toolu_1", "content": HOSTILE}
ASKED = [{"role": "user", "content": "Read a.txt"}]


def ident(kind: str, number: int) -> str:
    return f"{kind}_{number:020d}"


def body(messages: Sequence[Mapping[str, Any]], **more: Any) -> bytes:
    facts = {"model": "claude-sonnet-4-5", "max_tokens": 100, "system": "Be brief.", "messages": messages}
    return json.dumps(facts | more).encode()


def answer(*blocks: Mapping[str, Any], stop: str = "tool_use") -> bytes:
    usage = {"input_tokens": 10, "output_tokens": 5}
    facts = {"id": "msg_1", "type": "message", "role": "assistant", "model": "claude-sonnet-4-5"}
    return json.dumps(facts | {"content": blocks, "stop_reason": stop, "usage": usage}).encode()


def events(
    turn: int, steps: Sequence[tuple[bytes, bytes]], *, key: str = "unnamed", cause: str | None = "completed",
    labels: Mapping[str, str] | None = None, finding: Mapping[str, Any] | None = None, cost: str = "0.01",
) -> list[Any]:  # fmt: skip
    """The log of one session of one turn: a step per request and reply."""
    above = (ident("ses", turn), ident("thr", turn), ident("trn", turn))
    at = BEGAN + turn * 60 * SECOND
    session = {"client": f"agent-{turn}", "by": "content", "key": key, "team": "t", "org": "o"}
    thread = {"kind": "main", "partial": False, "matched_by": "prefix", "dialect": "anthropic"}
    log: list[Any] = [
        Record(at, "session/start", above[0], data={**session, "labels": labels or {}}),
        Record(at, "thread/start", *above[:2], data=thread),
        Record(at, "turn/start", *above, data={"index": 0}),
    ]
    for n, (request, reply) in enumerate(steps):
        step, exchange = ident("stp", 10 * turn + n), ident("exc", 10 * turn + n)
        began, ended = at + 2 * n * SECOND, at + (2 * n + 1) * SECOND
        start = {"index": n, "model": "claude-sonnet-4-5", "epoch": 0, "exchange": exchange, "number": n}
        attempt = {
            "attempt": 0, "exchange": exchange, "number": n, "outcome": "complete", "status": 200,
            "model": "claude-sonnet-4-5", "stop_reason": "tool_use",
            "usage": {"input_tokens": 1000 * (n + 1), "output_tokens": 50}, "cost_usd": cost,
            "cost_quality": "measured", "arrived_ns": began, "ended_ns": ended,
        }  # fmt: skip
        log += [
            Record(began, "step/start", *above, step, start),
            CaptureStart(
                exchange, n, began, "anthropic", "anthropic", "h", "POST", "/v1/messages", (), request,
                session=above[0], thread=above[1], turn=above[2], step=step,
            ),
            Record(ended, "step/attempt", *above, step, attempt),
            CaptureEnd(exchange, ended, "complete", 200, ((b"content-type", b"application/json"),), reply),
        ]  # fmt: skip
        if finding is not None and n == len(steps) - 1:
            log.append(Record(ended, "finding", *above, step, {**finding, "exchange": exchange, "number": n}))
    if cause is not None:
        end = {"cause": cause, "steps": len(steps), "usage": {}, "cost_usd": cost, "cost_quality": "measured"}
        log.append(Record(at + 10 * SECOND, "turn/end", *above, data=end))
    return log


ORDER = {"policy": "operator", "kind": "stop", "id": ident("trn", 1)}
DROPPED = {"policy": "thinking", "kind": "dropped", "severity": "violation", "evidence": {"block": 0}}


def two_turns(data_dir: Path) -> None:
    """A turn whose thinking got lost on its way back, and one that is still open."""
    back = [*ASKED, {"role": "assistant", "content": [CALL]}, {"role": "user", "content": [RESULT]}]
    said = answer({"type": "text", "text": "Done."}, stop="end_turn")
    first = [(body(ASKED), answer(THOUGHT, CALL)), (body(back), said)]
    writer = RecordWriter(data_dir)
    writer.write(events(1, first, key="ci", finding=DROPPED, labels={"env": "ci"}, cost="0.25"))
    writer.write(events(2, [(body(ASKED), said)], cause=None, labels={"env": "prod"}))
    counter = {"budget": "turn", "scope": "turn", "subject": ident("trn", 1), "dimension": "spend_usd"}
    spent = {**counter, "window": "life", "limit": "0.5", "used": "0.5", "reserved": "0", "share": 1.0}
    writer.write([Record(BEGAN, "budget/alert", data=spent), Record(BEGAN, "intervention", data=ORDER)])
    writer.close()


def parts(data_dir: Path, **more: Any) -> admin.AdminParts:
    hosts = frozenset({"127.0.0.1", "localhost"})
    return admin.AdminParts(
        RecordCatalog(data_dir),
        TOKEN,
        hosts,
        lambda: (True, {"ready": True}),
        lambda: "looptap_up 1\n",
        **more,
    )
