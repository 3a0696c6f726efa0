"""Replies that came back: recorded traffic of many libraries and real agents, item by item.

The recordings lie outside this repository, in the folder that ``LOOPTAP_SHARED`` names. A reply is
read by the decoder; the same reply, as a later request carries it, by ``read_message``. Both give
the same digests wherever the client sent text and calls back as they were.
"""

import json
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from proxy.dialects import match
from proxy.model import Exchange, Head, Outcome, Upstream
from proxy.ports import Dialect
from proxy.reading.library import read

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]

SHARED = Path(os.environ.get("LOOPTAP_SHARED") or Path(__file__).parents[3] / "shared")
UPSTREAM = Upstream("recorded", "https://recorded.example", "openai")
REWRITTEN = ("phase-streamed-on-part-start", "codex-subagent")
"""Recordings in which the client leaves out a text, or in which two threads tell the same."""


def recordings(folder: str) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    base = SHARED / folder
    assert base.is_dir(), f"{base} is missing: set LOOPTAP_SHARED to the folder with the recordings"
    for path in sorted(base.glob("*.jsonl")):
        if path.name != "labels.jsonl":
            yield path.stem, [json.loads(line) for line in path.read_bytes().splitlines()]


def calls(lines: list[dict[str, Any]]) -> Iterator[tuple[Dialect, Exchange, dict[str, Any]]]:
    for number, line in enumerate(lines):
        path = line["path"].partition("?")[0]
        head = Head(line["method"], line["path"])
        dialect = match(line["method"], path, UPSTREAM, head)
        if dialect is not None and dialect.name.startswith("openai") and line.get("request_body"):
            yield dialect, Exchange(f"exc_{number}", number, head, UPSTREAM, path, 0), line


def outcome(dialect: Dialect, exchange: Exchange, line: dict[str, Any], step: int = 0) -> Outcome:
    request = read(dialect, exchange, line["request_body"].encode()).request
    body = (line.get("response_body") or "").encode()
    decoder = dialect.decoder(request, line["status"] or 0, "")
    for at in range(0, len(body), step or len(body) or 1):
        decoder.feed(body[at : at + (step or len(body))])
    return decoder.finish()


def holds(history: list[bytes], reply: list[bytes]) -> bool:
    return any(history[at : at + len(reply)] == reply for at in range(len(history) - len(reply) + 1))


@pytest.mark.parametrize(("folder", "least"), [("corpus/recordings", 250), ("client-traffic", 140)])
def test_a_reply_and_its_return_are_the_same_items(folder: str, least: int) -> None:
    seen: Counter[str] = Counter()
    partly: list[str] = []
    for name, lines in recordings(folder):
        waiting: list[list[bytes]] = []
        for dialect, exchange, line in calls(lines):
            request = read(dialect, exchange, line["request_body"].encode()).request
            items = (item for message in request.messages for item in message.items)
            history = [item.digest for item in items if item.role == "assistant" and item.digest]
            for reply in list(waiting):
                if holds(history, reply):
                    seen["equal"] += 1
                    waiting.remove(reply)
                elif any(digest in history for digest in reply):
                    partly.append(name)
                    waiting.remove(reply)
            spoken = [item for item in outcome(dialect, exchange, line).items if item.role == "assistant"]
            digests = [item.digest for item in spoken if item.digest]
            if digests and (line["status"] or 500) < 400:
                waiting.append(digests)
    assert seen["equal"] >= least
    assert [name for name in partly if not any(part in name for part in REWRITTEN)] == []


def test_any_split_of_recorded_replies_gives_the_same_outcome() -> None:
    read_replies = 0
    for _, lines in recordings("corpus/recordings"):
        for dialect, exchange, line in calls(lines):
            if len(line.get("response_body") or "") < 20_000:
                whole = outcome(dialect, exchange, line)
                assert outcome(dialect, exchange, line, 11) == whole
                read_replies += 1
    assert read_replies > 500
