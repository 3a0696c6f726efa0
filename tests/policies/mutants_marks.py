"""Mutants of what stands beside reasoning: the phases of messages, and blocks that tell of a fallback.

Few recordings have a phase and none has a fallback block, so both are first put into recordings that pass
messages and thinking back, in replies and requests alike; then they are dropped, changed and moved. As in
``mutants``, what must be said is told from the JSON and the providers' rules alone.
"""

import copy
import json
from collections.abc import Callable, Iterator
from typing import Any

from tests.policies.mutants import Mutant, answered, body_of, changed, inside, issued, times

JSON = dict[str, Any]
PHASES = ("commentary", "final_answer")
LEAD = {"type": "thinking", "thinking": "", "signature": "signature-of-the-model-that-declined" + "Qx" * 30}
FALLBACK = {"type": "fallback", "from": {"model": "claude-a"}, "to": {"model": "claude-b"}}


def mark_mutants(rows: list[JSON], most: int = 1_000) -> Iterator[Mutant]:
    """All mutants of the marks of a recording, of at most so many of its requests."""
    yield from _phases(rows, most)
    if any(_sent(rows, line) for line in range(len(rows))):
        yield from _phases(phased(rows), most)
    yield from _fallbacks(rows, most)


# -- phases


def phased(rows: list[JSON]) -> list[JSON]:
    """The recording with a model that tells phases, and a phase on each message, told and sent back."""
    made = []
    for row in rows:
        body, reply = body_of(row), _document(row)
        if "/responses" not in row["path"] or not isinstance(body.get("input"), list) or reply is None:
            made.append(row)
            continue
        for item in (*body["input"], *reply["output"]):
            if _message(item):
                item["phase"] = PHASES[0]
        text = json.dumps({**body, "model": "gpt-5.5"})
        made.append({**row, "request_body": text, "response_body": json.dumps(reply)})
    return made


def _document(row: JSON) -> JSON | None:
    try:
        reply = json.loads(row.get("response_body") or "")
    except ValueError:
        return None
    return reply if isinstance(reply, dict) and isinstance(reply.get("output"), list) else None


def _message(item: Any) -> bool:
    return isinstance(item, dict) and item.get("role") == "assistant" and bool(_words(item))


def _words(item: JSON) -> str:
    content = item.get("content")
    if isinstance(content, str):
        return content
    return "".join(part.get("text") or "" for part in content or () if isinstance(part, dict))


def _sent(rows: list[JSON], line: int) -> list[int]:
    """The messages of a request that an earlier reply of the same model holds, each once."""
    body = body_of(rows[line])
    items = body.get("input")
    if "/responses" not in rows[line]["path"] or not isinstance(items, list) or not answered(rows[line]):
        return []
    if rows[line]["path"].endswith(("/compact", "/input_tokens")) or body.get("previous_response_id"):
        return []
    told = [n for n, item in enumerate(items) if _message(item)]
    texts = [_words(items[n]) for n in told]
    earlier = [row for row in rows[:line] if body_of(row).get("model") == body.get("model")]
    return [
        n
        for n, text in zip(told, texts, strict=True)
        if texts.count(text) == 1 and times(earlier, len(earlier), text) == 1 and issued(rows, line, text)
        and not any(item.get("type") == "compaction" for item in items[n:])
    ]  # fmt: skip


def _phases(rows: list[JSON], most: int) -> Iterator[Mutant]:
    used = 0
    for line in range(len(rows)):
        body = body_of(rows[line])
        sent = [n for n in _sent(rows, line) if body["input"][n].get("phase") in PHASES]
        if not sent or used >= most or "gpt-5" not in str(body.get("model")):
            continue
        used += 1
        yield from _phase(rows, line, body, sent[-1])


def _phase(rows: list[JSON], line: int, body: JSON, number: int) -> Iterator[Mutant]:
    item = body["input"][number]
    other = next(phase for phase in PHASES if phase != item["phase"])
    path = f"$['input'][{number}]"

    def made(name: str, change: Callable[[JSON], None], kind: str | None, at: str | None) -> Mutant:
        consequence = "soft" if kind else None
        return Mutant(name, changed(rows, line, change), kind, consequence, at)

    def bare(b: JSON) -> None:
        del b["input"][number]["phase"]

    def with_bare(more: Callable[[JSON], Any]) -> Callable[[JSON], None]:
        return lambda b: (bare(b), more(b), None)[-1]

    yield made("as it was", lambda b: None, None, None)
    yield made("drop phase", bare, "modified", path)
    yield made("empty phase", lambda b: b["input"][number].update(phase=None), "modified", path)
    yield made(
        "change phase", lambda b: b["input"][number].update(phase=other), "modified", path + "['phase']"
    )
    dressed = {k: v for k, v in reversed(item.items()) if k not in ("id", "status")}
    yield made("without id", lambda b: b["input"].__setitem__(number, dressed), None, None)
    yield made("another model", with_bare(lambda b: b.update(model="gpt-5.9-other")), None, None)
    yield made("held", with_bare(lambda b: b.update(previous_response_id="resp_1")), None, None)
    summary = {"type": "compaction", "id": "cmp_1", "encrypted_content": "sealed-summary"}
    yield made("compaction", with_bare(lambda b: b["input"].insert(number + 1, summary)), None, None)
    for name, change in (("older model", _of_older), ("never told", _untold)):
        yield Mutant(name, [change(row) for row in changed(rows, line, bare)], None)


def _of_older(row: JSON) -> JSON:
    body = body_of(row)
    return {**row, "request_body": json.dumps({**body, "model": "gpt-5.1"})} if "model" in body else row


def _untold(row: JSON) -> JSON:
    """The exchange with a reply that tells no phase."""
    text = row.get("response_body") or ""
    for phase in PHASES:
        for form in (f'"phase":"{phase}"', f'"phase": "{phase}"'):
            text = text.replace(form, '"phase":null')
    return {**row, "response_body": text}


# -- fallback blocks


def _fallbacks(rows: list[JSON], most: int) -> Iterator[Mutant]:
    used = 0
    for line, row in enumerate(rows):
        body = body_of(row)
        asks = "/messages" in row["path"] and "count_tokens" not in row["path"] and answered(row)
        if not asks or (body.get("thinking") or {}).get("type") == "disabled" or not body.get("tools"):
            continue
        spots = [
            (m, c, block["signature"])
            for m, message in enumerate(body.get("messages", ()))
            if message.get("role") == "assistant" and isinstance(message.get("content"), list)
            for c, block in enumerate(message["content"])
            if block.get("type") == "thinking" and block.get("signature")
        ]
        proofs = [proof for *_, proof in spots]
        if not spots or used >= most or len(set(proofs)) < len(proofs):
            continue
        number, _, proof = spots[-1]
        first = next(c for m, c, _ in spots if m == number)
        with_it = _divided(rows[: line + 1], proof)
        if with_it is not None and all(times(rows, line, p) == 1 for p in proofs):
            used += 1
            yield from _fallback(with_it, line, ("messages", number, "content"), first)


def _divided(rows: list[JSON], proof: str) -> list[JSON] | None:
    """The recording with another model's thinking and a fallback before the reply that holds a proof."""
    made, found = [], False
    for row in rows:
        body = copy.deepcopy(body_of(row))
        for message in body.get("messages", ()):
            if message.get("role") == "assistant" and _holds(message, proof):
                message["content"][:0] = [LEAD, FALLBACK]
        new = {**row, "request_body": json.dumps(body)} if body else row
        try:
            reply = json.loads(row.get("response_body") or "")
        except ValueError:
            reply = None
        if isinstance(reply, dict) and _holds(reply, proof):
            reply["content"][:0] = [LEAD, FALLBACK]
            new, found = {**new, "response_body": json.dumps(reply)}, True
        made.append(new)
    return made if found else None


def _holds(message: JSON, proof: str) -> bool:
    content = message.get("content")
    return isinstance(content, list) and any(
        isinstance(block, dict) and block.get("signature") == proof for block in content
    )


def _fallback(rows: list[JSON], line: int, where: tuple[Any, ...], first: int) -> Iterator[Mutant]:
    def made(name: str, change: Callable[[list[JSON]], Any], at: int | None) -> Mutant:
        new = changed(rows, line, lambda body: change(inside(body, where)))
        if at is None:
            return Mutant(name, new, None)
        path = f"$['messages'][{where[1]}]['content'][{at}]"
        return Mutant(name, new, "modified", "hard", path)

    last = len(inside(body_of(rows[line]), where)) - 1
    yield made("fallback as it was", lambda content: None, None)
    yield made("drop what precedes the fallback", lambda content: content.pop(0), None)
    yield made("drop both", lambda content: content.__delitem__(slice(0, 2)), None)
    yield made("key order", lambda c: c.__setitem__(1, dict(reversed(FALLBACK.items()))), None)
    yield made("drop fallback", lambda content: content.pop(1), first + 1)
    yield made("move fallback to the end", lambda content: content.append(content.pop(1)), last)
    yield made("move fallback to the front", lambda content: content.insert(0, content.pop(1)), 0)
    yield made("exchange the sides", lambda c: c.insert(first + 2, c.pop(0)), 0)
