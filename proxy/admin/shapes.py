"""The JSON that the admin port answers, as schemas: what a caller may rely on.

Fields that are not named here may come and go; those that are have the meaning of the public
contract: money is decimal text, times are RFC 3339, absent means not known.
"""

from collections.abc import Mapping
from typing import Any

Json = dict[str, Any]

_TEXT: Json = {"type": "string"}
_WHOLE: Json = {"type": "integer"}
_FLAG: Json = {"type": "boolean"}
_TIME: Json = {"type": "string", "format": "date-time"}
_ANY: Json = {"type": "object"}
_MONEY: Json = {"type": ["string", "null"], "pattern": "^-?[0-9]+([.][0-9]+)?$"}
_AMOUNT: Json = {"type": ["string", "number"]}
_QUALITY: Json = {"enum": ["measured", "estimated", "assumed", "unpriced"]}


def _maybe(schema: Mapping[str, Any]) -> Json:
    return {**schema, "type": [schema["type"], "null"]}


def _object(optional: Mapping[str, Json] | None = None, /, **needed: Json) -> Json:
    return {
        "type": "object",
        "properties": {**needed, **(optional or {})},
        "required": sorted(needed),
    }


def many(schema: Json) -> Json:
    """A list of these."""
    return {"type": "array", "items": schema}


def _named(name: str) -> Json:
    return {"$ref": f"#/components/schemas/{name}"}


TEXT: Json = {"type": "string"}
BYTES: Json = {"type": "string", "contentMediaType": "application/octet-stream"}
ERROR = _object(error=_TEXT)
HEALTH = _object(status={"const": "ok"})
READY = _object({"record": _TEXT, "ledger": _TEXT, "says": many(_TEXT)}, ready=_FLAG)

_USAGE: Json = {"type": "object", "additionalProperties": _WHOLE}
_LABELS: Json = {"type": "object", "additionalProperties": _TEXT}

_SESSION = _object(
    id=_TEXT, client=_maybe(_TEXT), key=_maybe(_TEXT), team=_maybe(_TEXT), org=_maybe(_TEXT), labels=_LABELS,
    started_at=_TIME, ended_at=_TIME, threads=_WHOLE, turns=_WHOLE, steps=_WHOLE, findings=_WHOLE,
    usage=_USAGE, cost_usd=_MONEY, cost_quality=_QUALITY,
)  # fmt: skip
_TURN_ROW = _object(
    {"by": _TEXT, "index": _maybe(_WHOLE), "kind": _maybe(_TEXT), "key": _maybe(_TEXT), "held": _FLAG},
    id=_TEXT, session=_maybe(_TEXT), thread=_maybe(_TEXT), agent=_maybe(_TEXT), cause=_maybe(_TEXT),
    open=_FLAG, started_at=_TIME, ended_at=_TIME, models=many(_TEXT), steps=_WHOLE, findings=_WHOLE,
    usage=_USAGE, cost_usd=_MONEY, cost_quality=_QUALITY, labels=_LABELS,
)  # fmt: skip
_STEP_FIELDS: dict[str, Json] = {
    "id": _TEXT, "exchanges": many(_maybe(_WHOLE)), "model": _maybe(_TEXT), "stop_reason": _maybe(_TEXT),
    "tool_calls": many(_ANY), "tool_results": many(_ANY), "usage": _USAGE, "cost_usd": _MONEY,
    "cost_quality": _QUALITY, "findings": many(_WHOLE),
}  # fmt: skip
_STEP_MORE: dict[str, Json] = {
    "index": _WHOLE, "epoch": _WHOLE, "started_at": _TIME, "ended_at": _TIME, "attempts": many(_ANY),
}  # fmt: skip
_FINDING = _object(
    {"consequence": _TEXT, "path": _maybe(_TEXT), "exchange": _maybe(_WHOLE)},
    policy=_TEXT, kind=_TEXT, severity={"enum": ["info", "warning", "violation"]}, step=_maybe(_TEXT),
    evidence=_ANY,
)  # fmt: skip
_GROWTH = _object(
    start=_WHOLE, growth_per_step={"type": "number"}, fitted_steps=_WHOLE, read=_WHOLE, window=_maybe(_WHOLE)
)
_FORECAST = _object(name=_TEXT, scope=_TEXT, subject=_TEXT, dimension=_TEXT, steps_left=_WHOLE)
_TURN = _object(
    {
        "by": _TEXT, "started_at": _TIME, "ended_at": _TIME, "threads": many(_ANY), "refusals": many(_ANY),
        "growth": _GROWTH, "forecast": many(_FORECAST), "trace_url": _TEXT, "held": many(_ANY),
    },
    id=_TEXT, session=_TEXT, thread=_TEXT, cause=_maybe(_TEXT), open=_FLAG, usage=_USAGE, cost_usd=_MONEY,
    cost_quality=_QUALITY, labels=_LABELS, steps=many(_object(_STEP_MORE, **_STEP_FIELDS)),
    findings=many(_FINDING),
)  # fmt: skip
_EVENT = _object(
    {"session": _TEXT, "thread": _TEXT, "turn": _TEXT, "step": _TEXT},
    seq=_WHOLE, time=_TIME, type=_TEXT, data=_ANY,
)  # fmt: skip
_ITEM = _object(
    {"tool": _TEXT, "call_id": _TEXT, "arguments": _TEXT, "is_error": _FLAG},
    kind=_TEXT, role=_TEXT, text=_TEXT, chars=_WHOLE,
)  # fmt: skip
_PART = _object(
    part={"enum": ["system", "tools", "message"]}, path=_TEXT, role=_TEXT, new=_FLAG, items=many(_ITEM)
)
_SEEN = _object(
    step=_TEXT,
    previous=_maybe(_TEXT),
    model=_TEXT,
    dialect=_TEXT,
    bytes=_WHOLE,
    parts=many(_PART),
    inserted=many(_TEXT),
)
_CHANGE = _object(
    path=_TEXT, how={"enum": ["dropped", "changed", "added"]}, kind=_TEXT, before=_TEXT, after=_TEXT
)
_CHANGES = _object(step=_TEXT, previous=_maybe(_TEXT), changes=many(_CHANGE))
_FACTS: dict[str, Json] = {
    **dict.fromkeys(("name", "scope", "subject", "window", "dimension"), _TEXT),
    **dict.fromkeys(("limit", "used", "reserved"), _AMOUNT),
    "resets_at": {"type": ["string", "null"], "format": "date-time"},
}
_COUNTER = _object({"stops_at": _AMOUNT}, **_FACTS)
"""``stops_at``: where requests stop, if that is not the limit."""
TOPPED_UP = _object({"note": _TEXT, "stops_at": _AMOUNT}, **_FACTS)
"""``note``: what is odd about a top-up that was carried out all the same."""
_SPENDER = _object(name=_maybe(_TEXT), turns=_WHOLE, steps=_WHOLE, cost_usd=_MONEY, cost_quality=_QUALITY)
_REPORT = _object(
    {"since": _TIME},
    turns=_WHOLE, steps=_WHOLE, usage=_USAGE, cost_usd=_MONEY, cost_quality=_QUALITY,
    unpriced_attempts=_WHOLE, side_calls=_ANY, agents=many(_ANY), models=many(_ANY), tools=many(_ANY),
)  # fmt: skip

NAMED: dict[str, Json] = {
    "Session": _SESSION, "TurnRow": _TURN_ROW, "Turn": _TURN, "Step": _object(
        {**_STEP_MORE}, **{**_STEP_FIELDS, "findings": many(_FINDING)}
    ),
    "Event": _EVENT, "Seen": _SEEN, "Changes": _CHANGES, "Counter": _COUNTER, "Spender": _SPENDER,
    "Report": _REPORT,
}  # fmt: skip
SESSION, TURN_ROW, TURN, STEP = (_named(n) for n in ("Session", "TurnRow", "Turn", "Step"))
EVENT, SEEN, CHANGES, COUNTER = (_named(n) for n in ("Event", "Seen", "Changes", "Counter"))
SPENDER, REPORT = _named("Spender"), _named("Report")

STOP: Json = {
    **_object({"lift": _FLAG}, id={**_TEXT, "minLength": 1}),
    "additionalProperties": False,
}
STOPPED = _object(id=_TEXT, stopped=_FLAG)
WAIT = _object(
    {
        **dict.fromkeys(("session", "thread", "turn", "step"), _TEXT), "adds": _AMOUNT,
        "agent": _maybe(_TEXT), "model": _maybe(_TEXT),
    },
    id=_TEXT, since=_TIME, until=_TIME, policy=_TEXT, code=_TEXT, says=_TEXT, key=_TEXT, labels=_LABELS,
    facts=_ANY,
)  # fmt: skip
"""``adds``: what a yes adds to the limit that ``facts`` name; absent: it lets just this request go."""
ALLOW: Json = {**_object(id={**_TEXT, "minLength": 1}), "additionalProperties": False}
ALLOWED = _object(
    {**dict.fromkeys(("budget", "scope", "subject", "dimension"), _TEXT), "adds": _AMOUNT},
    id=_TEXT, allowed=_FLAG,
)  # fmt: skip
TOPUP: Json = {
    **_object(
        {"subject": {**_TEXT, "minLength": 1}, "dimension": {**_TEXT, "minLength": 1}},
        budget={**_TEXT, "minLength": 1},
        add={"type": ["string", "integer"], "minLength": 1},
    ),
    "additionalProperties": False,
}
