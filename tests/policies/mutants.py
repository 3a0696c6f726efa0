"""Makes faulty and lawfully changed copies of recorded conversations, with what must be said of them.

Works on the recorded JSON alone: what is a bound block, and whether it was issued before, is told from
the text of the recording, not by the code under test. A mutant is the recording up to the changed request.
"""

import base64
import copy
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

RECORDINGS = Path(__file__).parents[1] / "recordings"
BOUND = re.compile(r"(?:fable|mythos)-5[.-][12]|(?:opus|sonnet|haiku)-5[.-]5")
MOST_LINES = 4
"""Requests of one recording that are changed; further ones are more of the same."""


@dataclass(frozen=True)
class Mutant:
    """One changed recording. ``kind`` None: nothing may be said."""

    name: str
    rows: list[dict[str, Any]]
    kind: str | None
    consequence: str | None = None
    path: str | None = None
    policy: str = "thinking"
    among: bool = False
    """Others may be told beside it."""


@dataclass(frozen=True)
class Spot:
    """A request that passes back something that was issued, and where: names and numbers below the body."""

    line: int
    at: tuple[str | int, ...]
    value: dict[str, Any]

    @property
    def path(self) -> str:
        return "$" + "".join(f"[{s}]" if isinstance(s, int) else f"['{s}']" for s in self.at)


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").split("\n") if line.strip()]


def body_of(row: dict[str, Any]) -> dict[str, Any]:
    try:
        body = json.loads(row.get("request_body") or "null")
    except ValueError:
        return {}
    return body if isinstance(body, dict) else {}


def changed(
    rows: list[dict[str, Any]], line: int, change: Callable[[dict[str, Any]], None]
) -> list[dict[str, Any]]:
    """The recording up to a line, with that line's body changed."""
    body = body_of(rows[line])
    change(body)
    return [*rows[:line], {**rows[line], "request_body": json.dumps(body)}]


def inside(body: Any, at: tuple[str | int, ...]) -> Any:
    for step in at:
        body = body[step]
    return body


def answered(row: dict[str, Any]) -> bool:
    if not isinstance(row.get("status"), int) or row["status"] >= 400 or row.get("fault"):
        return False
    return re.search(r'"type":\s*"error"', row.get("response_body") or "") is None


def mutants(rows: list[dict[str, Any]], most: int = MOST_LINES) -> Iterator[Mutant]:
    """The mutants of a recording, of at most so many of its requests."""
    yield from _anthropic(rows, most)
    yield from _responses(rows, most)
    yield from _gemini(rows, most)
    yield from _deepseek(rows)


# -- Anthropic


def issued(rows: list[dict[str, Any]], line: int, proof: str) -> bool:
    told = json.dumps(proof)[1:-1]
    return any(answered(row) and told in (row.get("response_body") or "") for row in rows[:line])


def _anthropic(rows: list[dict[str, Any]], most: int) -> Iterator[Mutant]:
    lines = 0
    for line, row in enumerate(rows):
        body = body_of(row)
        if "/messages" not in row["path"] or "count_tokens" in row["path"] or not answered(row):
            continue
        spots = [
            Spot(line, ("messages", m, "content", c), block)
            for m, message in enumerate(body.get("messages", ()))
            if message.get("role") == "assistant" and isinstance(message.get("content"), list)
            for c, block in enumerate(message["content"])
            if block.get("type") == "thinking" and block.get("signature")
            and issued(rows, line, block["signature"])
        ]  # fmt: skip
        if spots and lines < most and _main_thread(rows, line, spots):
            lines += 1
            for spot in {spots[0].at: spots[0], spots[-1].at: spots[-1]}.values():
                yield from _anthropic_block(rows, body, spot, spots)
            yield from _resurrected(rows, line, spots[-1])
            yield from _prefix(rows, line, body, spots)


def _main_thread(rows: list[dict[str, Any]], line: int, spots: list[Spot]) -> bool:
    """Several threads may share made-up signatures; only those that are told apart are changed."""
    proofs = [spot.value["signature"] for spot in spots]
    once = len(set(proofs)) == len(proofs) and all(times(rows, line, proof) < 2 for proof in proofs)
    return once and bool(body_of(rows[line]).get("tools"))


def times(rows: list[dict[str, Any]], line: int, proof: str) -> int:
    """In how many replies a proof was issued."""
    return sum(json.dumps(proof)[1:-1] in (row.get("response_body") or "") for row in rows[:line])


def live(body: dict[str, Any], spot: Spot) -> bool:
    """The block's message is the last of the assistant, and its calls are being answered."""
    messages = body["messages"]
    later = messages[int(spot.at[1]) + 1 :]
    calls = any(b.get("type") == "tool_use" for b in messages[spot.at[1]]["content"])
    return calls and not any(m["role"] == "assistant" for m in later)


def in_loop(body: dict[str, Any], spot: Spot) -> bool:
    """Only results follow the block, no new words of the user by themselves."""
    stretch: list[dict[str, Any]] = []
    for message in [*body["messages"][int(spot.at[1]) + 1 :], {"role": "assistant", "content": []}]:
        if message["role"] != "assistant":
            stretch.append(message)
            continue
        blocks = [b for m in stretch if isinstance(m["content"], list) for b in m["content"]]
        words = any(m["role"] == "user" for m in stretch)
        if words and not any(b.get("type") == "tool_result" for b in blocks):
            return False
        stretch = []
    return True


def _drop_verdict(body: dict[str, Any], spot: Spot, spots: list[Spot]) -> tuple[str | None, str | None]:
    thinking = (body.get("thinking") or {}).get("type")
    bound = BOUND.search(body["model"]) is not None
    if thinking == "disabled":
        return None, None
    if live(body, spot):
        same = sum(other.at[1] == spot.at[1] for other in spots)
        return "dropped", "hard" if same > 1 or bound or thinking == "enabled" else "soft"
    if bound:
        hole = spots[0] is not spot and spots[-1] is not spot
        return ("dropped", "hard") if hole else (None, None)
    return ("dropped", "soft") if in_loop(body, spot) else (None, None)


def _anthropic_block(
    rows: list[dict[str, Any]], body: dict[str, Any], spot: Spot, spots: list[Spot]
) -> Iterator[Mutant]:
    line, at, block = spot.line, spot.at, spot.value
    where, number = at[:-1], int(at[-1])

    def made(
        name: str, kind: str | None, consequence: str | None, change: Callable[[Any], None], path: str | None
    ) -> Mutant:
        return Mutant(name, changed(rows, line, lambda b: change(inside(b, where))), kind, consequence, path)

    kind, consequence = _drop_verdict(body, spot, spots)
    yield made("drop", kind, consequence, lambda c: c.pop(number), spot.path if kind else None)
    for name, new in (
        ("truncate signature", {**block, "signature": block["signature"][:-10]}),
        ("alter signature", {**block, "signature": "A" + block["signature"][1:][::-1]}),
        ("strip signature", {k: v for k, v in block.items() if k != "signature"}),
    ):
        if name != "strip signature" or block.get("thinking"):
            yield made(name, "modified", "hard", _put(number, new), spot.path)
    if block.get("thinking"):
        text = {"type": "text", "text": block["thinking"]}
        yield made("convert", "converted", "hard", _put(number, text), spot.path)
        altered = {**block, "thinking": block["thinking"] + "."}
        yield made("alter text", "modified", "hard", _put(number, altered), spot.path)
    else:
        filled = {**block, "thinking": "something"}
        yield made("fill in empty text", None, None, _put(number, filled), None)
    copied = made("duplicate", "duplicated", "hard", lambda c: c.insert(number, dict(block)), None)
    yield copied
    followers = inside(body, where)[number + 1 :]
    if any(b.get("type") in ("tool_use", "text") and b.get("text") != "" for b in followers):
        yield made("reorder", "reordered", "hard", lambda c: c.append(c.pop(number)), None)
    yield made("key order", None, None, _put(number, dict(reversed(block.items()))), None)
    yield made("cache mark", None, None, _mark, None)
    off = changed(
        rows, line, lambda b: (b.update(thinking={"type": "disabled"}), inside(b, where).pop(number))
    )
    yield Mutant("thinking off", off, None)
    other = changed(rows, line, lambda b: (b.update(model="claude-other-1"), inside(b, where).pop(number)))
    yield Mutant("another model", other, None)


def _put(number: int, block: dict[str, Any]) -> Callable[[Any], None]:
    def change(content: Any) -> None:
        content[number] = block

    return change


def _mark(content: Any) -> None:
    for block in content:
        if block.get("type") in ("text", "tool_use"):
            block["cache_control"] = {"type": "ephemeral"}


def _resurrected(rows: list[dict[str, Any]], line: int, spot: Spot) -> Iterator[Mutant]:
    """Left out in a request that is answered, and put back in the next one of the thread."""
    body = body_of(rows[line])
    if (body.get("thinking") or {}).get("type") == "disabled":
        return
    for later in range(line + 1, len(rows)):
        after = body_of(rows[later])
        messages = after.get("messages", ())
        if messages[: len(body["messages"]) - 1] == body["messages"][:-1]:
            start = changed(rows, line, lambda b: inside(b, spot.at[:-1]).pop(int(spot.at[-1])))
            yield Mutant("resurrect", [*start, *rows[line + 1 : later + 1]], "resurrected", "hard", spot.path)
            return


def _prefix(
    rows: list[dict[str, Any]], line: int, body: dict[str, Any], spots: list[Spot]
) -> Iterator[Mutant]:
    """Changes before the blocks: said by ``history``, and never by ``thinking``."""
    if not went_on(rows, line):
        return
    bound = BOUND.search(body["model"]) is not None
    kind, consequence = ("prefix_changed", "soft") if bound else ("changed", None)

    def made(name: str, change: Callable[[dict[str, Any]], None], path: str | None) -> Iterator[Mutant]:
        new = changed(rows, line, change)
        yield Mutant(name, new, kind, consequence, path, policy="history")
        yield Mutant(name + ", no fault of reasoning", new, None)
        if bound:
            strict = [_as(row, "claude-fable-5-2") for row in new]
            yield Mutant(name + ", strict", strict, kind, "hard", path, policy="history")

    if body.get("system"):
        yield from made("change system", _change_system, None)
    if body.get("tools"):
        yield from made("drop a tool", lambda b: b["tools"].pop(0), None)
    words = next((b for b in _user_texts(body) if len(b) > 4 and not b.startswith("<system-reminder>")), None)
    if words is not None:
        yield from made("change first words", lambda b: _reword(b, words), None)


def went_on(rows: list[dict[str, Any]], line: int) -> bool:
    """The request before this one of the same kind is this thread's, and was answered."""
    before = rows[line - 1]
    old, new = body_of(before).get("messages"), body_of(rows[line])["messages"]
    if not old or not answered(before) or len(old) >= len(new):
        return False
    return bool(_bare(old) == _bare(new[: len(old)])) and body_of(before).get("tools") is not None


def _bare(value: Any) -> Any:
    if isinstance(value, dict):
        kept = {k: _bare(v) for k, v in value.items() if k != "cache_control"}
        if isinstance(kept.get("content"), str):
            kept["content"] = [{"type": "text", "text": kept["content"]}]
        return kept
    return [_bare(v) for v in value] if isinstance(value, list) else value


def _as(row: dict[str, Any], model: str) -> dict[str, Any]:
    body = body_of(row)
    if "model" not in body:
        return row
    return {**row, "request_body": json.dumps({**body, "model": model})}


def _change_system(body: dict[str, Any]) -> None:
    if isinstance(body["system"], str):
        body["system"] += " Today is another day."
    else:
        body["system"][-1]["text"] += " Today is another day."


def _user_texts(body: dict[str, Any]) -> Iterator[str]:
    first = body["messages"][0]["content"]
    if isinstance(first, str):
        yield first
    else:
        yield from (b["text"] for b in first if b.get("type") == "text")


def _reword(body: dict[str, Any], words: str) -> None:
    first = body["messages"][0]
    if isinstance(first["content"], str):
        first["content"] = words[:-1]
        return
    for block in first["content"]:
        if block.get("text") == words:
            block["text"] = words[:-1]
            return


# -- Responses


def _responses(rows: list[dict[str, Any]], most: int) -> Iterator[Mutant]:
    lines = 0
    for line, row in enumerate(rows):
        body = body_of(row)
        items = body.get("input")
        if "/responses" not in row["path"] or row["path"].endswith("/compact") or not isinstance(items, list):
            continue
        if not answered(row) or body.get("previous_response_id") or not body.get("tools"):
            continue
        spots = [
            Spot(line, ("input", n), item)
            for n, item in enumerate(items)
            if item.get("type") == "reasoning" and item.get("encrypted_content")
            and issued(rows, line, item["encrypted_content"])
        ]  # fmt: skip
        proofs = [spot.value["encrypted_content"] for spot in spots]
        if spots and lines < most and len(set(proofs)) == len(proofs):
            lines += 1
            for spot in {spots[0].at: spots[0], spots[-1].at: spots[-1]}.values():
                yield from _reasoning(rows, body, spot)


def _reasoning(rows: list[dict[str, Any]], body: dict[str, Any], spot: Spot) -> Iterator[Mutant]:
    line, number, item = spot.line, int(spot.at[1]), spot.value
    items = body["input"]
    in_turn = not any(i.get("role") == "user" for i in items[number:])
    after = items[number + 1] if number + 1 < len(items) else {}

    def made(
        name: str, kind: str | None, consequence: str | None, change: Callable[[Any], None], path: str | None
    ) -> Mutant:
        return Mutant(name, changed(rows, line, lambda b: change(b["input"])), kind, consequence, path)

    if after.get("type") in ("function_call", "message"):
        stored = body.get("store") is not False and after.get("id") is not None
        verdict = ("dropped", "hard" if stored else "soft") if in_turn else (None, None)
        yield made("drop", *verdict, lambda i: i.pop(number), spot.path if in_turn else None)
    sealed = item["encrypted_content"]
    cut = {**item, "encrypted_content": sealed[:-10]}
    other = {**item, "encrypted_content": "A" + sealed[1:][::-1]}
    yield made("truncate", "modified", "hard", _put(number, cut), spot.path)
    yield made("alter", "modified", "hard", _put(number, other), spot.path)
    if item.get("id") and body.get("store") is False:
        bare = {k: v for k, v in item.items() if k != "encrypted_content"}
        yield made("strip", "incomplete", "hard", _put(number, bare), spot.path)
    nameless = {k: v for k, v in item.items() if k not in ("id", "status")}
    yield made("without id", None, None, _put(number, nameless), None)
    yield made("key order", None, None, _put(number, dict(reversed(item.items()))), None)
    yield made("duplicate", "duplicated", "hard", lambda i: i.insert(number, dict(item)), None)
    if after.get("type") == "function_call":
        yield made("reorder", "reordered", "hard", lambda i: i.insert(number + 1, i.pop(number)), None)


# -- Gemini


def _gemini(rows: list[dict[str, Any]], most: int) -> Iterator[Mutant]:
    lines = 0
    for line, row in enumerate(rows):
        body = body_of(row)
        if "enerateContent" not in row["path"] or not answered(row):
            continue
        contents = body.get("contents")
        for number, content in enumerate(contents if isinstance(contents, list) else ()):
            parts = content.get("parts")
            calls = [
                (p, part) for p, part in enumerate(parts if isinstance(parts, list) else ())
                if part.get("functionCall") or part.get("function_call")
            ]  # fmt: skip
            if content.get("role") != "model" or not calls or lines >= most:
                continue
            place, part = calls[0]
            name = "thoughtSignature" if "thoughtSignature" in part else "thought_signature"
            if name in part and _issued_bytes(rows, line, part[name]):
                lines += 1
                spot = Spot(line, ("contents", number, "parts", place), part)
                yield from _signed_call(rows, body, spot, name)


def _issued_bytes(rows: list[dict[str, Any]], line: int, signature: str) -> bool:
    plain = signature.replace("-", "+").replace("_", "/").rstrip("=")
    others = (plain, plain.replace("+", "-").replace("/", "_"), plain.replace("+", "\\u002b"))
    return any(any(o in (row.get("response_body") or "") for o in others) for row in rows[:line])


def _signed_call(rows: list[dict[str, Any]], body: dict[str, Any], spot: Spot, name: str) -> Iterator[Mutant]:
    line, part = spot.line, spot.value
    where, place = spot.at[:-1], int(spot.at[-1])
    model = rows[line]["path"].split("/")[-1]
    new = re.search(r"gemini-[12]\.", model) is None and "image" not in model
    later = body["contents"][int(spot.at[1]) + 1 :]
    answers = ("functionResponse", "function_response")
    in_turn = not any(
        c.get("role") != "model"
        and any(p.get("text") for p in c["parts"])
        and not any(p.get(a) for p in c["parts"] for a in answers)
        for c in later
    )

    def made(title: str, kind: str | None, consequence: str | None, change: Callable[[Any], None]) -> Mutant:
        path = spot.path if kind in ("modified", "dropped") else None
        return Mutant(title, changed(rows, line, lambda b: change(inside(b, where))), kind, consequence, path)

    bare = {k: v for k, v in part.items() if k != name}
    verdict = ("dropped", "hard" if new else "soft") if in_turn else (None, None)
    if any(other.get(name) == part[name] for other in inside(body, where) if other is not part):
        verdict = ("reordered", "hard")  # the client gave the other calls a copy: there it still stands
    yield made("strip", *verdict, _put(place, bare))
    raw = base64.b64decode(part[name].replace("-", "+").replace("_", "/") + "===")
    cut = base64.b64encode(raw[:-6]).decode()
    yield made("truncate", "modified", "hard", _put(place, {**part, name: cut}))
    yield made(
        "other alphabet", None, None, _put(place, {**part, name: base64.urlsafe_b64encode(raw).decode()})
    )
    sentinel = {**part, name: "skip_thought_signature_validator"}
    yield made("sentinel", None, None, _put(place, sentinel))

    def moved(parts: Any) -> None:
        parts[place] = bare
        parts.insert(0, {"text": "So.", "thoughtSignature": part[name]})

    if any(p.get("text") for c in body["contents"][: int(spot.at[1])] for p in c["parts"]):
        yield made("move", "reordered", "hard", moved)  # without a word before it, nobody knows it again


# -- DeepSeek


def _deepseek(rows: list[dict[str, Any]]) -> Iterator[Mutant]:
    for line, row in enumerate(rows):
        body = body_of(row)
        if "/chat/completions" not in row["path"] or not answered(row) or not body.get("tools"):
            continue
        if not re.search("deepseek-v4", str(body.get("model"))):
            continue
        for number, message in enumerate(body["messages"]):
            if message.get("role") != "assistant" or not message.get("reasoning_content"):
                continue
            spot = Spot(line, ("messages", number), message)
            bare = {k: v for k, v in message.items() if k != "reasoning_content"}
            yield Mutant(
                "drop", changed(rows, line, _at(("messages",), number, bare)), "dropped", "hard", None
            )
            altered = {**message, "reasoning_content": message["reasoning_content"] + " "}
            yield Mutant(
                "alter text", changed(rows, line, _at(("messages",), number, altered)),
                "modified", "soft", spot.path + "['reasoning_content']",
            )  # fmt: skip
            off = changed(rows, line, _at(("messages",), number, bare, without="tools"))
            yield Mutant("no tools", off, None)


def _at(
    where: tuple[str, ...], number: int, value: Any, without: str = ""
) -> Callable[[dict[str, Any]], None]:
    def change(body: dict[str, Any]) -> None:
        inside(body, where)[number] = copy.deepcopy(value)
        body.pop(without, None)

    return change
