"""What the model saw at a step, what of it is new, and what of the history came back changed.

Bodies are read by the same dialects that read the traffic. New is what follows the longest history
that the request shares with the step before it on its thread. Changed is told item by item: what
the step before had (its request and the reply to it) against what this request sends back.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any

from proxy import dialects
from proxy.model import Exchange, Head, Item, ModelRequest, Upstream
from proxy.ports import Dialect, Unreadable
from proxy.reading.codings import Undecodable, decode_body
from proxy.reading.library import read
from proxy.reading.tap import Tap
from proxy.record import NotRecorded, Reader
from proxy.record.exchanges import StoredExchange

Json = dict[str, Any]

_LARGEST = 64 << 20
_SHOWN = 16_000
"""Characters of one item; the exact bytes can be had whole."""
_MOST_ITEMS = 4_000
"""Items that are compared one by one: from the end, where changes cost most."""


@dataclass(frozen=True, slots=True)
class _Seen:
    """A request of the record, read."""

    stored: StoredExchange
    dialect: Dialect
    request: ModelRequest
    body: bytes
    """Content encoding undone."""
    size: int
    """As it was on the wire."""


def seen(reader: Reader, step_id: str) -> Json | None:
    """What the model saw, part by part. Raises NotRecorded where there is no body that can be read."""
    found = reader.resolve(step_id)
    if found.kind != "step":
        return None
    now = _read(reader, found.id)
    previous = _previous(reader, found.id)
    before = _read_or_none(reader, previous)
    request = now.request
    old = _shared(before.request, request) if before is not None else 0
    parts: list[Json] = []
    if request.system:
        same = before is not None and _same(before.request.system, request.system)
        parts.append(_part("system", _system_path(request), "system", request.system, not same))
    if request.tools:
        tools = [Item("other", "system", tool=tool.name, text=tool.name) for tool in request.tools]
        same = before is not None and [t.digest for t in before.request.tools] == [
            t.digest for t in request.tools
        ]
        parts.append(_part("tools", "$['tools']", "system", tools, not same))
    for place, message in enumerate(request.messages):
        path = f"$['{request.list_key}'][{place}]"
        parts.append(_part("message", path, message.role, message.items, place >= old))
    return {
        "step": found.id, "previous": previous, "model": request.model, "dialect": request.dialect,
        "bytes": now.size, "parts": parts, "inserted": _inserted(now),
    }  # fmt: skip


def changes(reader: Reader, step_id: str) -> Json | None:
    """What the history lost or got changed on its way back. Raises NotRecorded as ``seen`` does."""
    found = reader.resolve(step_id)
    if found.kind != "step":
        return None
    now = _read(reader, found.id)
    previous = _previous(reader, found.id)
    before = _read_or_none(reader, previous)
    told: list[Json] = []
    if before is not None:
        had = [*before.request.system, *_placed(before.request), *_reply(reader, before)]
        told = list(_differences(had, now.request))
    return {"step": found.id, "previous": previous, "changes": told}


# -- reading


_SYSTEM = {"openai_responses": "instructions", "gemini": "systemInstruction"}


def _system_path(request: ModelRequest) -> str:
    return f"$['{_SYSTEM.get(request.dialect, 'system')}']"


def _read_or_none(reader: Reader, step: str | None) -> _Seen | None:
    if step is None:
        return None
    try:
        return _read(reader, step)
    except NotRecorded:
        return None


def _read(reader: Reader, step: str) -> _Seen:
    attempts = reader.attempts(step)
    if not attempts:
        raise NotRecorded(f"no attempt of {step} in the record")
    stored = attempts[-1]
    head = Head(stored.method, stored.target, tuple(stored.headers))
    upstream = Upstream(stored.upstream, stored.host, "openai", stored.provider)
    dialect = dialects.match(stored.method, head.path, upstream, head)
    if dialect is None:
        raise NotRecorded(f"{step} is no model call that can be read")
    exchange = Exchange(stored.id, stored.number, head, upstream, head.path, stored.time_ns)
    body = reader.request_body(stored.id)
    try:
        plain = decode_body(body, head.get(b"content-encoding"), _LARGEST)
        return _Seen(stored, dialect, read(dialect, exchange, plain).request, plain, len(body))
    except (Unreadable, Undecodable) as problem:
        raise NotRecorded(f"the request of {step} cannot be read: {problem}") from None


def _reply(reader: Reader, seen: _Seen) -> tuple[Item, ...]:
    """What came back, read as it was read live; nothing where it is not recorded."""
    stored = seen.stored
    try:
        body = reader.response_body(stored.id)
    except NotRecorded:
        return ()
    fields = {name.lower(): value for name, value in stored.response_headers}
    kind = fields.get(b"content-type", b"").decode("latin-1")
    tap = Tap(
        seen.dialect.decoder(seen.request, stored.status or 200, kind),
        fields.get(b"content-encoding"),
        _LARGEST,
    )
    tap.feed(body, 0)
    return tap.finish().items


def _previous(reader: Reader, step: str) -> str | None:
    """The step before this one on its thread, whatever turn it belongs to."""
    thread = reader.parents(step)[1]
    before: str | None = None
    for _, record in reader.events(thread=thread, types=("step/start",)):
        if record.step == step:
            return before
        before = record.step
    return None


def _inserted(seen: _Seen) -> list[str]:
    """What of the body is ours, as it stands there."""
    pieces = (seen.body[at : at + length] for at, length, *_ in seen.stored.inserted)
    return [piece.decode("utf-8", "replace")[:_SHOWN] for piece in pieces]


# -- comparing


def _shared(before: ModelRequest, now: ModelRequest) -> int:
    """How many leading messages are the same history."""
    count = 0
    for mine, other in zip(now.chain, before.chain, strict=False):
        if mine != other:
            break
        count += 1
    return count


def _same(one: Sequence[Item], other: Sequence[Item]) -> bool:
    return [_identity(item) for item in one] == [_identity(item) for item in other]


def _identity(item: Item) -> tuple[object, ...]:
    if item.kind == "thinking":
        return "thinking", item.text, item.signature
    return item.kind, item.digest or (item.text, item.tool, item.arguments)


def _placed(request: ModelRequest) -> Iterator[Item]:
    for message in request.messages:
        yield from message.items


def _differences(had: list[Item], now: ModelRequest) -> Iterator[Json]:
    """What of the history is not as it was; what follows it is new and no difference."""
    sent = [(_system_path(now), item) for item in now.system]
    sent += [
        ("".join([f"$['{now.list_key}'][{place}]", *(f"[{at!r}]" for at in item.at)]), item)
        for place, message in enumerate(now.messages)
        for item in message.items
    ]
    had, sent = had[-_MOST_ITEMS:], sent[-_MOST_ITEMS:]
    matcher = SequenceMatcher(
        None, [_identity(i) for i in had], [_identity(i) for _, i in sent], autojunk=False
    )
    for how, a, b, c, d in matcher.get_opcodes():
        if how == "equal" or (a == b == len(had)):
            continue
        for n in range(max(b - a, d - c)):
            old = had[a + n] if a + n < b else None
            path, new = sent[c + n] if c + n < d else (sent[c][0] if c < len(sent) else "$", None)
            if old is None and b == len(had):
                break  # what the user or the tools say next
            yield _difference(path, old, new)


def _difference(path: str, old: Item | None, new: Item | None) -> Json:
    return {
        "path": path,
        "how": "added" if old is None else "dropped" if new is None else "changed",
        "kind": (old or new or Item("other", "user")).kind,
        "before": _text(old)[:_SHOWN] if old is not None else "",
        "after": _text(new)[:_SHOWN] if new is not None else "",
    }


# -- telling


def _part(part: str, path: str, role: str, items: Sequence[Item], new: bool) -> Json:
    return {"part": part, "path": path, "role": role, "new": new, "items": [_item(i) for i in items]}


def _item(item: Item) -> Json:
    text = _text(item)
    told: Json = {"kind": item.kind, "role": item.role, "text": text[:_SHOWN], "chars": len(text)}
    for name in ("tool", "call_id"):
        value = getattr(item, name)
        if value is not None:
            told[name] = _plain(value)
    if item.arguments is not None:
        told["arguments"] = _plain(item.arguments)[:_SHOWN]
    if item.is_error:
        told["is_error"] = True
    return told


def _text(item: Item) -> str:
    if item.kind == "thinking" and not item.text:
        return "(sealed thinking)"
    if item.kind == "tool_call":
        return _plain(f"{item.tool or ''}({item.arguments or ''})")
    return _plain(item.text)


def _plain(text: str) -> str:
    """Without lone surrogates, which no JSON can carry."""
    return text.encode("utf-8", "replace").decode("utf-8")
