"""Conversations written down as exchange logs, and what the policies say of them.

Everything goes through the real core: a test writes requests and replies as they stand on the wire.
"""

import json
from pathlib import Path
from typing import Any

from policies.base import Policy
from proxy.chain import Chain, Link
from proxy.replay import run

TOOLS = [{"name": "bash", "input_schema": {"type": "object"}}]


def row(path: str, request: dict[str, Any], response: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "method": "POST", "path": path, "request_headers": {"content-type": "application/json"},
        "request_body": json.dumps(request), "status": 200,
        "response_headers": {"content-type": "application/json"}, "response_body": json.dumps(response),
        **more,
    }  # fmt: skip


def told(rows: list[dict[str, Any]], where: Path, *policies: Policy, kinds: bool = True) -> list[Any]:
    """Findings in order, as (exchange, kind, consequence, path) or in full."""
    file = where / "talk.jsonl"
    file.write_text("".join(json.dumps(one) + "\n" for one in rows))
    tree, problems = run([file], chain=Chain([Link(policy) for policy in policies]))
    assert problems == []
    found = tree["findings"]
    if not kinds:
        return list(found)
    return [(f["exchange"], f["kind"], f.get("consequence"), f.get("path")) for f in found]


# -- Anthropic


def thinking(name: str, text: str = "") -> dict[str, Any]:
    return {"type": "thinking", "thinking": text, "signature": f"signature-of-{name}-" + "x" * 40}


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def use(id: str, command: str = "ls") -> dict[str, Any]:
    return {"type": "tool_use", "id": f"toolu_{id:0>12}", "name": "bash", "input": {"command": command}}


def result(id: str, words: str = "done") -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": f"toolu_{id:0>12}", "content": words}


def user(*blocks: Any) -> dict[str, Any]:
    return {"role": "user", "content": blocks[0] if isinstance(blocks[0], str) else list(blocks)}


def assistant(*blocks: dict[str, Any]) -> dict[str, Any]:
    return {"role": "assistant", "content": list(blocks)}


def messages(
    asked: list[dict[str, Any]], *reply: dict[str, Any], model: str = "claude-opus-4-6", **more: Any
) -> dict[str, Any]:
    """One Messages exchange."""
    own = {key: more.pop(key) for key in ("status", "response_body") if key in more}
    request = {"model": model, "max_tokens": 9000, "messages": asked, "tools": TOOLS, **more}
    request = {key: value for key, value in request.items() if value is not None}
    request.setdefault("thinking", {"type": "adaptive"})
    calls = any(block["type"] == "tool_use" for block in reply)
    response = {
        "id": "msg_1", "type": "message", "role": "assistant", "model": model, "content": list(reply),
        "stop_reason": "tool_use" if calls else "end_turn",
        "usage": {"input_tokens": 10, "output_tokens": 5},
    }  # fmt: skip
    return row("/v1/messages", request, response, **own)
