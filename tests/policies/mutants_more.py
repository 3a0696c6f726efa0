"""More mutants: of other blocks and providers, in every message, several at once, streamed, and lawful dress.

As in ``mutants``, what is expected is told from the recording's JSON and the providers' rules alone. A
``kind`` of ``=`` asks for what the unchanged recording gets at the same request, whatever that is.
"""

import copy
import json
import re
from collections.abc import Callable, Iterator
from typing import Any

from tests.policies.mutants import (
    BOUND,
    Mutant,
    Spot,
    answered,
    body_of,
    changed,
    in_loop,
    inside,
    issued,
    live,
    times,
    went_on,
)

SAME = "="
Change = Callable[[dict[str, Any]], None]


def more_mutants(rows: list[dict[str, Any]], most: int = 1_000) -> Iterator[Mutant]:
    """All further mutants of a recording, of at most so many of its requests."""
    yield from _each(rows, most, _dressed)
    yield from _each(rows, most, _blocks)
    yield from _each(rows, most, _prefixes)
    yield from _each(rows, most, _reasoning)
    yield from _each(rows, most, _parts)
    yield from _each(rows, most, _chat)


def _each(
    rows: list[dict[str, Any]], most: int, make: Callable[[list[dict[str, Any]], int], Iterator[Mutant]]
) -> Iterator[Mutant]:
    used = 0
    for line, row in enumerate(rows):
        made = list(make(rows, line)) if answered(row) and used < most else []
        used += bool(made)
        yield from made


# -- all dialects: another dress of the same body


def _dressed(rows: list[dict[str, Any]], line: int) -> Iterator[Mutant]:
    body = body_of(rows[line])
    if not any(isinstance(body.get(name), list) for name in ("messages", "input", "contents")):
        return
    for name, text in (
        ("sorted keys", json.dumps(body, sort_keys=True)),
        ("indented, not escaped", json.dumps(body, indent=1, ensure_ascii=False)),
    ):
        yield Mutant(name, [*rows[:line], {**rows[line], "request_body": text}], SAME)


# -- Anthropic


def _spots(rows: list[dict[str, Any]], line: int, kind: str, proof: str) -> list[Spot]:
    body = body_of(rows[line])
    if "/messages" not in rows[line]["path"] or "count_tokens" in rows[line]["path"] or not body.get("tools"):
        return []
    found = [
        Spot(line, ("messages", m, "content", c), block)
        for m, message in enumerate(body.get("messages", ()))
        if message.get("role") == "assistant" and isinstance(message.get("content"), list)
        for c, block in enumerate(message["content"])
        if block.get("type") == kind and block.get(proof) and issued(rows, line, block[proof])
    ]  # fmt: skip
    proofs = {spot.value[proof] for spot in found}
    several = any(times(rows, line, told) > 1 for told in proofs)
    return found if len(proofs) == len(found) and not several else []  # made-up ones nobody tells apart


def _blocks(rows: list[dict[str, Any]], line: int) -> Iterator[Mutant]:
    body = body_of(rows[line])
    if (body.get("thinking") or {}).get("type") == "disabled":
        return
    spots = _spots(rows, line, "thinking", "signature")
    if spots:
        yield from _elsewhere(rows, spots)
        yield from _omitted(rows, line, body, spots)
        last = spots[-1]
        if len(last.value.get("thinking") or "") > 20:
            words = last.value["thinking"]
            cut = {**last.value, "thinking": words[: len(words) // 2]}
            yield _put(rows, last, "cut text", cut, "modified", "hard")
            tags = {"type": "text", "text": f"<thinking>\n{words}\n</thinking>"}
            yield _put(rows, last, "convert, in tags", tags, "converted", "hard")
        other = {**spots[0].value, "signature": spots[0].value["signature"][:-8] + "AAAAAAAA"}
        if len(spots) > 1 and spots[0].at[1] != last.at[1]:

            def two(b: dict[str, Any]) -> None:
                inside(b, last.at[:-1]).pop(last.at[-1])
                inside(b, spots[0].at[:-1])[spots[0].at[-1]] = other

            yield Mutant(
                "two faults", changed(rows, line, two), "modified", "hard", spots[0].path, among=True
            )
    for spot in _spots(rows, line, "redacted_thinking", "data"):
        altered = {**spot.value, "data": spot.value["data"][:-8] + "AAAAAAAA"}
        yield _put(rows, spot, "alter data", altered, "modified", "hard")
        twice = changed(rows, line, _insert(spot.at, spot.value))
        yield Mutant("duplicate data", twice, "duplicated", "hard")
        yield _put(rows, spot, "key order of data", dict(reversed(spot.value.items())), SAME, None)


def _elsewhere(rows: list[dict[str, Any]], spots: list[Spot]) -> Iterator[Mutant]:
    """A block in another message: moved, exchanged, or there as well."""
    one, other = spots[0], spots[-1]
    if one.at[1] == other.at[1]:
        return

    def move(b: dict[str, Any]) -> None:
        inside(b, other.at[:-1]).pop(other.at[-1])
        inside(b, one.at[:-1]).insert(one.at[-1] + 1, other.value)

    def swap(b: dict[str, Any]) -> None:
        inside(b, one.at[:-1])[one.at[-1]] = other.value
        inside(b, other.at[:-1])[other.at[-1]] = one.value

    yield Mutant("move", changed(rows, one.line, move), "reordered", "hard")
    yield Mutant("swap", changed(rows, one.line, swap), "reordered", "hard")
    there = changed(rows, one.line, _insert(other.at, one.value))
    yield Mutant("duplicate elsewhere", there, "duplicated", "hard")


def _omitted(
    rows: list[dict[str, Any]], line: int, body: dict[str, Any], spots: list[Spot]
) -> Iterator[Mutant]:
    """All blocks of the last reply, and all that older turns had."""
    bound = BOUND.search(body["model"]) is not None
    last = spots[-1]
    own = [spot for spot in spots if spot.at[1] == last.at[1]]
    manual = (body.get("thinking") or {}).get("type") == "enabled"
    if live(body, last):
        verdict: tuple[str | None, str | None] = ("dropped", "hard" if bound or manual else "soft")
        yield Mutant("drop all of the last", changed(rows, line, _without(own)), *verdict)
    older = [spot for spot in spots if not in_loop(body, spot) and not live(body, spot)]
    if older and older[0] is spots[0]:
        yield Mutant("older turns go", changed(rows, line, _without(older)), SAME)


def _without(spots: list[Spot]) -> Change:
    def change(body: dict[str, Any]) -> None:
        for spot in reversed(spots):
            inside(body, spot.at[:-1]).pop(spot.at[-1])

    return change


def _insert(at: tuple[str | int, ...], block: dict[str, Any]) -> Change:
    return lambda body: inside(body, at[:-1]).insert(at[-1], copy.deepcopy(block))


def _put(
    rows: list[dict[str, Any]], spot: Spot, name: str, value: Any, kind: str | None, consequence: str | None
) -> Mutant:
    def change(body: dict[str, Any]) -> None:
        inside(body, spot.at[:-1])[spot.at[-1]] = copy.deepcopy(value)

    path = spot.path if kind not in (None, SAME) else None
    return Mutant(name, changed(rows, spot.line, change), kind, consequence, path)


# -- Anthropic: what stands before the blocks


def _prefixes(rows: list[dict[str, Any]], line: int) -> Iterator[Mutant]:
    body = body_of(rows[line])
    if not _spots(rows, line, "thinking", "signature") or not went_on(rows, line):
        return
    bound = BOUND.search(body["model"]) is not None
    verdict = ("prefix_changed", "soft") if bound else ("changed", None)

    def made(name: str, change: Change, path: str | None) -> Mutant:
        return Mutant(name, changed(rows, line, change), *verdict, path, policy="history")

    tools = body["tools"]
    if len(tools) > 1 and tools[0] != tools[1]:
        yield made("reorder tools", lambda b: b["tools"].reverse(), "$['tools'][0]")
    if tools[0].get("description"):
        yield made(
            "describe a tool anew", lambda b: b["tools"][0].update(description="New."), "$['tools'][0]"
        )
    else:
        yield made("rename a tool", lambda b: b["tools"][0].update(name="renamed"), "$['tools'][0]")
    found = next(_results(body), None)
    if found is not None:
        at, words = found
        spot = Spot(line, at, {})
        yield made("shorten a result", lambda b: inside(b, at).update(content=words[:-3]), spot.path)


def _results(body: dict[str, Any]) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """Results as texts that another reply has followed, and that blocks follow."""
    for m, message in enumerate(body["messages"][:-2]):
        content = message.get("content")
        for c, block in enumerate(content if isinstance(content, list) else ()):
            words = block.get("content") if block.get("type") == "tool_result" else None
            long = isinstance(words, str) and len(words) > 12 and "<system-reminder>" not in words
            if long and '"signature"' in json.dumps(body["messages"][m:]):
                yield ("messages", m, "content", c), words


# -- Responses


def _reasoning(rows: list[dict[str, Any]], line: int) -> Iterator[Mutant]:
    body = body_of(rows[line])
    items, path = body.get("input"), rows[line]["path"]
    if "/responses" not in path or path.endswith("/compact") or not isinstance(items, list):
        return
    if body.get("previous_response_id") or not body.get("tools"):
        return
    spots = [
        Spot(line, ("input", n), item)
        for n, item in enumerate(items)
        if item.get("type") == "reasoning" and item.get("encrypted_content")
        and issued(rows, line, item["encrypted_content"])
    ]  # fmt: skip
    if not spots or len({spot.value["encrypted_content"] for spot in spots}) < len(spots):
        return
    last = spots[-1]
    number = int(last.at[1])
    after = items[number + 1] if number + 1 < len(items) else {}
    alone = after.get("type") == "function_call" and sum(
        item.get("type") == "function_call" for item in items[number : number + 3]
    ) == 1  # fmt: skip
    if alone:

        def without_call(b: dict[str, Any]) -> None:
            b["input"] = [i for i in b["input"] if i.get("call_id") != after["call_id"]]

        orphan = changed(rows, line, lambda b: b["input"].pop(number + 1))
        yield Mutant("drop what it led to", orphan, "dropped", "hard", last.path)
        if len(spots) > 1 and number + 3 < len(items):  # else nothing tells whose reasoning it is
            gone = changed(rows, line, without_call)
            yield Mutant("drop what it led to, and its result", gone, "dropped", "hard", last.path)
    if len(spots) > 1:
        first = int(spots[0].at[1])

        def swap(b: dict[str, Any]) -> None:
            b["input"][first], b["input"][number] = b["input"][number], b["input"][first]

        yield Mutant("swap", changed(rows, line, swap), "reordered", "hard", among=True)
    older = [spot for spot in spots if any(i.get("role") == "user" for i in items[int(spot.at[1]) :])]
    if older:
        yield Mutant("older turns go", changed(rows, line, _without(older)), SAME)
    status = {**last.value, "status": None, "content": None}
    yield _put(rows, last, "empty fields", status, SAME, None)


# -- Gemini


def _parts(rows: list[dict[str, Any]], line: int) -> Iterator[Mutant]:
    contents = body_of(rows[line]).get("contents")
    if "enerateContent" not in rows[line]["path"] or not isinstance(contents, list):
        return
    signed = [
        (c, p, part)
        for c, content in enumerate(contents)
        if content.get("role") == "model"
        for p, part in enumerate(content.get("parts") or ())
        if isinstance(part.get("thoughtSignature"), str)
    ]
    if not signed:
        return

    def renamed(b: dict[str, Any]) -> None:
        for c, p, _ in signed:
            part = b["contents"][c]["parts"][p]
            part["thought_signature"] = part.pop("thoughtSignature")

    def bare(b: dict[str, Any]) -> None:
        for c, p, part in signed:
            plain = part["thoughtSignature"].rstrip("=").replace("+", "-").replace("/", "_")
            b["contents"][c]["parts"][p]["thoughtSignature"] = plain

    yield Mutant("snake case", changed(rows, line, renamed), SAME)
    yield Mutant("no padding", changed(rows, line, bare), SAME)


# -- Chat Completions with reasoning


def _chat(rows: list[dict[str, Any]], line: int) -> Iterator[Mutant]:
    body = body_of(rows[line])
    if "/chat/completions" not in rows[line]["path"] or not body.get("tools"):
        return
    for n, message in enumerate(body.get("messages", ())):
        if message.get("role") != "assistant":
            continue
        details, plain = message.get("reasoning_details"), message.get("reasoning_content")
        spot = Spot(line, ("messages", n), message)
        if details and _router(rows[line]) and _told(rows, line, details):
            yield from _details(rows, spot, details)
        if isinstance(plain, str) and plain and re.search("deepseek-v4", str(body.get("model"))):
            if not issued(rows, line, plain):
                continue
            yield _put(rows, spot, "reorder keys", dict(reversed(message.items())), SAME, None)
            older = [{**_named(row, "deepseek-reasoner")} for row in rows[: line + 1]]
            yield Mutant("an older model", older, "forbidden", "hard", among=True)


def _details(rows: list[dict[str, Any]], spot: Spot, details: list[dict[str, Any]]) -> Iterator[Mutant]:
    strict = re.search(r"gemini-[3-9]|deepseek|kimi|mimo", body_of(rows[spot.line])["model"]) is not None
    message = spot.value
    turn_over = any(m["role"] == "user" for m in body_of(rows[spot.line])["messages"][int(spot.at[1]) :])
    gone = {
        k: v for k, v in message.items() if k not in ("reasoning_details", "reasoning", "reasoning_content")
    }
    if message.get("tool_calls") and not turn_over:
        made = _put(rows, spot, "drop details", gone, "dropped", "hard" if strict else "soft")
        yield Mutant(made.name, made.rows, made.kind, made.consequence)
    name = next((k for k in ("data", "text", "summary") if isinstance(details[0].get(k), str)), None)
    if name is not None:
        altered = [{**details[0], name: details[0][name] + "x"}, *details[1:]]
        made = _put(
            rows, spot, "alter details", {**message, "reasoning_details": altered}, "modified", "soft"
        )
        yield Mutant(made.name, made.rows, made.kind, made.consequence)
    words = "".join(d.get("text") or "" for d in details)
    if words and all(d.get("type") == "reasoning.text" for d in details):
        made = _put(rows, spot, "only plain reasoning", {**gone, "reasoning": words}, "modified", "soft")
        yield Mutant(made.name, made.rows, made.kind, made.consequence)
    if len(details) > 1 and details[0] != details[1]:
        back = {**message, "reasoning_details": details[::-1]}
        made = _put(rows, spot, "reorder details", back, "reordered", "soft")
        yield Mutant(made.name, made.rows, made.kind, made.consequence)


def _router(row: dict[str, Any]) -> bool:
    return "openrouter" in f"{row.get('host')} {row.get('provider')} {row.get('upstream')}"


def _told(rows: list[dict[str, Any]], line: int, details: list[dict[str, Any]]) -> bool:
    words = [v for d in details for k, v in d.items() if k in ("data", "text", "summary", "signature") and v]
    return bool(words) and all(issued(rows, line, str(word)) for word in words)


def _named(row: dict[str, Any], model: str) -> dict[str, Any]:
    body = body_of(row)
    return {**row, "request_body": json.dumps({**body, "model": model})} if "model" in body else row
