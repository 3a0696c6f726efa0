"""What reading along costs for each chunk of a streamed reply: microseconds of processor time.

Run: ``python -m tests.bench.along``. One chunk an event, 200 of them, read as the core reads them; once
as it is, once with every event read with care (no refrain is learned). No part of the test run.
"""

import statistics
import time
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import orjson

from proxy.core.heard import Heard
from proxy.dialects.anthropic_stream import AnthropicDecoder
from proxy.dialects.chat_stream import ChatDecoder
from proxy.dialects.gemini_stream import GeminiDecoder
from proxy.dialects.refrain import Refrain
from proxy.dialects.responses_stream import ResponsesDecoder
from proxy.model import ResponseHead

DELTAS = 200


def event(frame: dict[str, Any]) -> bytes:
    name = b"event: %b\n" % frame["type"].encode() if "type" in frame else b""
    return name + b"data: " + orjson.dumps(frame) + b"\n\n"


def anthropic(number: int) -> dict[str, Any]:
    if not number:
        return {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
    delta = {"type": "text_delta", "text": f"word {number} "}
    return {"type": "content_block_delta", "index": 0, "delta": delta}


def chat(number: int) -> dict[str, Any]:
    choice = {"index": 0, "delta": {"content": f"word {number} "}, "finish_reason": None}
    return {"id": "chatcmpl-1", "object": "chat.completion.chunk", "model": "gpt-5.5", "choices": [choice]}


def responses(number: int) -> dict[str, Any]:
    place = {"sequence_number": number, "item_id": "msg_1", "output_index": 0, "content_index": 0}
    return {"type": "response.output_text.delta", **place, "delta": f"word {number} "}


def gemini(number: int) -> dict[str, Any]:
    content = {"role": "model", "parts": [{"text": f"word {number} "}]}
    return {"candidates": [{"content": content}], "usageMetadata": {"candidatesTokenCount": number}}


STREAMS: dict[str, tuple[Callable[[int], Any], Callable[[int], dict[str, Any]]]] = {
    "anthropic": (AnthropicDecoder, anthropic),
    "openai_chat": (ChatDecoder, chat),
    "openai_responses": (ResponsesDecoder, responses),
    "gemini": (GeminiDecoder, gemini),
}


def once(name: str, deltas: int = DELTAS) -> float:
    """Microseconds for one chunk of one reply."""
    decoder, frame = STREAMS[name]
    chunks = [event(frame(number)) for number in range(deltas)]
    heard = Heard(keep=True, max_kept=1 << 26, at_once=False)
    heard.begin(ResponseHead(200, b"OK", ()), decoder(200), 1 << 26)
    began = time.thread_time()
    for chunk in chunks:
        heard.feed(chunk, 1)
    heard.finish(lambda where, error: None)
    return (time.thread_time() - began) / deltas * 1e6


def measure(name: str, runs: int = 60) -> str:
    """Both ways in turns, so that both meet the same machine."""
    quick, careful = [], []
    for _ in range(runs):
        quick.append(once(name))
        with patch.object(Refrain, "learn", lambda *_: False):
            careful.append(once(name))
    return (
        f"{name:17} {min(quick):5.2f} us a chunk (median {statistics.median(quick):.2f}), "
        f"with care {min(careful):5.2f} (median {statistics.median(careful):.2f})"
    )


if __name__ == "__main__":
    for name in STREAMS:
        print(measure(name))
