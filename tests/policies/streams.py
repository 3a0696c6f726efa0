"""Recorded whole replies told as streams: the same content, event by event, in each provider's form."""

import json
from collections.abc import Iterator
from typing import Any

JSON = dict[str, Any]


def streamed(row: JSON) -> JSON:
    """The exchange with its reply streamed, where it was whole and is a model's."""
    text = row.get("response_body") or ""
    if row.get("status") != 200 or not text.lstrip().startswith("{"):
        return row
    reply = json.loads(text)
    path = str(row["path"])
    if "/messages" in path and "content" in reply:
        events = list(_messages(reply))
    elif path.endswith("/responses") and "output" in reply:
        events = list(_responses(reply))
    elif path.endswith(":generateContent") and reply.get("candidates"):
        path, events = (
            path.replace(":generateContent", ":streamGenerateContent?alt=sse"),
            list(_gemini(reply)),
        )
    elif "/chat/completions" in path and reply.get("choices"):
        events = list(_chat(reply))
    else:
        return row
    named = "/messages" in path or path.endswith("/responses")
    told = "".join((f"event: {e['type']}\n" if named else "") + f"data: {json.dumps(e)}\n\n" for e in events)
    listed = row.get("response_headers") or {}
    pairs = listed.items() if isinstance(listed, dict) else listed
    kept = [
        [n, v] for n, v in pairs if n.lower() not in ("content-type", "content-length", "content-encoding")
    ]
    fields = [*kept, ["content-type", "text/event-stream"]]
    return {**row, "path": path, "response_headers": fields, "response_body": told}


def _messages(reply: JSON) -> Iterator[JSON]:
    yield {"type": "message_start", "message": {**reply, "content": [], "stop_reason": None}}
    for index, block in enumerate(reply["content"]):
        start, deltas = dict(block), []
        if block["type"] == "thinking":
            start |= {"thinking": "", "signature": ""}
            deltas.append({"type": "thinking_delta", "thinking": block["thinking"]})
            deltas.append({"type": "signature_delta", "signature": block.get("signature", "")})
        elif block["type"] == "text":
            start["text"] = ""
            deltas.append({"type": "text_delta", "text": block["text"]})
        elif block["type"] in ("tool_use", "server_tool_use"):
            start["input"] = {}
            deltas.append({"type": "input_json_delta", "partial_json": json.dumps(block["input"])})
        yield {"type": "content_block_start", "index": index, "content_block": start}
        for delta in deltas:
            yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}
    yield {"type": "message_delta", "delta": {"stop_reason": reply["stop_reason"]}, "usage": reply["usage"]}
    yield {"type": "message_stop"}


def _responses(reply: JSON) -> Iterator[JSON]:
    yield {"type": "response.created", "response": {**reply, "output": [], "status": "in_progress"}}
    for index, item in enumerate(reply["output"]):
        begun = dict(item)
        if item.get("encrypted_content"):
            begun["encrypted_content"] = item["encrypted_content"][:-10]  # the proof is not whole yet
        yield {"type": "response.output_item.added", "output_index": index, "item": begun}
        yield {"type": "response.output_item.done", "output_index": index, "item": item}
    yield {"type": "response.completed", "response": reply}


def _gemini(reply: JSON) -> Iterator[JSON]:
    candidate = reply["candidates"][0]
    parts = candidate.get("content", {}).get("parts") or [{}]
    for number, part in enumerate(parts):
        content = {"role": "model", "parts": [part]}
        last = {k: v for k, v in candidate.items() if number == len(parts) - 1}
        yield {**reply, "candidates": [{**last, "content": content, "index": 0}]}


def _chat(reply: JSON) -> Iterator[JSON]:
    choice = reply["choices"][0]
    message = dict(choice["message"])
    calls = message.pop("tool_calls", None) or []
    base = {k: v for k, v in reply.items() if k not in ("choices", "usage")}
    base["object"] = "chat.completion.chunk"
    yield {**base, "choices": [{"index": 0, "delta": message, "finish_reason": None}]}
    for index, call in enumerate(calls):
        yield {**base, "choices": [{"index": 0, "delta": {"tool_calls": [{**call, "index": index}]}}]}
    end = {"index": 0, "delta": {}, "finish_reason": choice.get("finish_reason")}
    yield {**base, "choices": [end], "usage": reply.get("usage")}
