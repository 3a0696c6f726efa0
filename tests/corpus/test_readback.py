"""Recorded replies against what clients sent back: equal content must have equal identity.

Two readers meet here: the decoder, which saw the reply go by, and ``read_message``, which sees it
again in a later request. Where text and calls are the same, every digest must be. The recordings
lie outside this repository (``LOOPTAP_SHARED``).
"""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from proxy.dialects.anthropic import Anthropic
from proxy.dialects.gemini import Gemini
from proxy.model import Head, Item, ModelRequest, Outcome
from proxy.ports import Dialect
from proxy.reading.library import parse

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]

SHARED = Path(os.environ.get("LOOPTAP_SHARED") or Path(__file__).parents[3] / "shared")
DIALECTS: Mapping[str, Dialect] = {"anthropic": Anthropic(), "gemini": Gemini()}
BY_NUMBER = {
    "recordings/gemini--opentelemetry-python-contrib--test-function-call-choice-no-content-9acd5a.jsonl"
}
"""Asked for enums as integers: the label keeps the number, we name the reason."""


@dataclass
class Count:
    """How often a reply came back alike, and where its digests did not."""

    alike: int = 0
    strays: list[str] = field(default_factory=list)


def exchanges(path: Path) -> Iterator[dict[str, Any]]:
    for line in path.read_bytes().splitlines():
        exchange = json.loads(line)
        if exchange.get("request_body") and exchange["method"] == "POST":
            yield exchange


def request_of(dialect: Dialect, exchange: Mapping[str, Any]) -> ModelRequest:
    body = parse(exchange["request_body"].encode("utf-8", "surrogatepass"))
    messages = tuple(dialect.read_message(raw) for raw in body.pop(dialect.list_key, []))
    return dialect.read_request(
        Head("POST", exchange["path"]), exchange["path"].partition("?")[0], body, messages
    )


def outcome_of(dialect: Dialect, request: ModelRequest, exchange: Mapping[str, Any]) -> Outcome:
    decoder = dialect.decoder(request, exchange["status"], "")
    data = (exchange["response_body"] or "").encode("utf-8", "surrogatepass")
    for at in range(0, len(data), 997):
        decoder.feed(data[at : at + 997])
    return decoder.finish()


def said(items: Sequence[Item]) -> tuple[str, list[tuple[str | None, str | None]]]:
    text = "".join(item.text for item in items if item.kind == "text").strip()
    return text, [(item.tool, item.arguments) for item in items if item.kind == "tool_call"]


def named(items: Sequence[Item]) -> list[bytes]:
    return [item.digest for item in items if item.digest]


def labelled(folder: Path) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    for line in (folder / "labels.jsonl").read_bytes().splitlines():
        label = json.loads(line)
        recorded = [json.loads(row) for row in (folder / label["file"]).read_bytes().splitlines()]
        for each in label["exchanges"]:
            if each.get("dialect") in DIALECTS and each.get("status") is not None:
                yield label["file"], each, recorded[each["i"]]


@pytest.mark.parametrize(("name", "least"), [("anthropic", 160), ("gemini", 100)])
def test_what_comes_back_alike_has_the_same_digests(name: str, least: int) -> None:
    dialect, found = DIALECTS[name], Count()
    for folder in ("corpus/recordings", "client-traffic"):
        for path in sorted((SHARED / folder).glob("*.jsonl")):
            if path.name != "labels.jsonl":
                follow(dialect, path, found)
    assert found.strays == []
    assert found.alike >= least


def follow(dialect: Dialect, path: Path, found: Count) -> None:
    """Compare the replies of one recording with the assistant messages of its later requests."""
    tails = {"anthropic": ("/messages",), "gemini": (":generateContent", ":streamGenerateContent")}[
        dialect.name
    ]
    replies: list[tuple[Item, ...]] = []
    for exchange in exchanges(path):
        if not exchange["path"].partition("?")[0].endswith(tails):
            continue
        request = request_of(dialect, exchange)
        for message in request.messages:
            known = [items for items in replies if said(items) == said(message.items) != ("", [])]
            if message.role != "assistant" or not known:
                continue
            found.alike += 1
            if named(message.items) not in [named(items) for items in known]:
                found.strays.append(f"{path.name}: {said(message.items)}")
            replies = [items for items in replies if items not in known]
        if exchange["status"] is not None:
            replies.append(outcome_of(dialect, request, exchange).items)


@pytest.mark.parametrize("folder", ["corpus", "client-traffic"])
def test_recorded_replies_are_read_as_labelled(folder: str) -> None:
    wrong: list[str] = []
    for file, label, exchange in labelled(SHARED / folder):
        dialect = DIALECTS[label["dialect"]]
        found = outcome_of(dialect, request_of(dialect, exchange), exchange)
        usages = label.get("usage_alt") or []
        usages = [label.get("usage"), *(usages if isinstance(usages, list) else [usages])]
        usage = found.usage.public() if found.usage else None
        if usage not in usages and (usage or {}) not in usages and "usage" in label:
            wrong.append(f"{file} {label['i']}: usage {usage}")
        if [(item.call_id, item.tool) for item in found.tool_calls] != [
            (call["id"], call["name"]) for call in label.get("tool_calls", [])
        ]:
            wrong.append(f"{file} {label['i']}: calls")
        reasons = [label.get("stop_reason"), *(label.get("stop_reason_alt") or [])]
        if "stop_reason" in label and found.stop_reason not in reasons and file not in BY_NUMBER:
            wrong.append(f"{file} {label['i']}: stopped by {found.stop_reason}")
    assert wrong == []
