"""A model that binds its reasoning to all that stood before it, as the newer ones do, and an agent before it.

Each piece of reasoning is signed over the history that it was made from (system, tools, every earlier
message; cache marks, key order and string against one-block content do not count). A request in which
a signature does not fit its place is refused in the provider's words. Beside that the model looks at
what its prompt cache would see: each request must begin with all of the one before, and bring back every
piece of reasoning.
"""

import hashlib
import hmac
import json
from collections.abc import Awaitable, Callable
from typing import Any

from tests.live.kit import Json, Message, Peer, answer_head

KEY = b"the provider's own"
JSON_FIELDS = [("Content-Type", "application/json")]
BOUND = "The block is bound to a different conversation"


def canonical(value: Any) -> Any:
    """What the binding covers of a value."""
    if isinstance(value, list):
        return [canonical(one) for one in value]
    if not isinstance(value, dict):
        return value
    kept = {key: canonical(one) for key, one in sorted(value.items()) if key != "cache_control"}
    if isinstance(kept.get("content"), str) and "role" in kept:
        kept["content"] = [{"text": kept["content"], "type": "text"}]
    return kept


def sign(history: list[Any]) -> str:
    return hmac.new(KEY, json.dumps(history, sort_keys=True).encode(), hashlib.sha256).hexdigest()


class Strict:
    """The model's side. ``respond`` serves it; it calls one tool until it is told to end."""

    def __init__(self) -> None:
        self.seen: list[list[Any]] = []
        """The histories of requests that were answered, as the cache would know them."""
        self.issued: list[str] = []
        """Signatures, each of which must come back."""
        self.refusals: list[str] = []
        self.last = False

    async def respond(self, request: Message, peer: Peer) -> None:
        body = request.json()
        status, told = self.answer(body)
        raw = json.dumps(told).encode()
        await peer.send(answer_head(status, JSON_FIELDS, len(raw)) + raw)

    def answer(self, body: Json) -> tuple[int, Json]:
        history = self.history(body)
        fault = self.fault(history)
        if fault is None and self.seen and history[: len(self.seen[-1])] != self.seen[-1]:
            fault = "the cached prefix has shrunk"
        told = json.dumps(history)
        if fault is None and not all(signature in told for signature in self.issued):
            fault = "Expected `thinking` or `redacted_thinking`"
        if fault is not None:
            self.refusals.append(fault)
            return 400, self.error(fault)
        self.seen.append(history)
        self.issued.append(sign(history))
        return 200, self.reply(self.issued[-1], len(self.seen))

    def history(self, body: Json) -> list[Any]:
        raise NotImplementedError

    def fault(self, history: list[Any]) -> str | None:
        raise NotImplementedError

    def error(self, message: str) -> Json:
        raise NotImplementedError

    def reply(self, signature: str, number: int) -> Json:
        raise NotImplementedError


class StrictAnthropic(Strict):
    """Claude Fable 5.2: signatures in thinking blocks, system messages only where they are lawful."""

    def history(self, body: Json) -> list[Any]:
        return [canonical([body.get("system"), body.get("tools")]), *canonical(body["messages"])]

    def fault(self, history: list[Any]) -> str | None:
        for at, message in enumerate(history[1:], 1):
            follower = history[at + 1]["role"] if at + 1 < len(history) else None
            if message["role"] == "system" and (at == 1 or follower == "user"):
                return f"messages.{at - 1}: role 'system' may not stand here"
            for block in message["content"]:
                if block["type"] == "thinking" and block["signature"] != sign(history[:at]):
                    return f"messages.{at - 1}.content.0: {BOUND}"
        return None

    def error(self, message: str) -> Json:
        return {"type": "error", "error": {"type": "invalid_request_error", "message": message}}

    def reply(self, signature: str, number: int) -> Json:
        think = {"type": "thinking", "thinking": "", "signature": signature}
        use = {"type": "tool_use", "id": f"toolu_{number:020d}", "name": "look", "input": {"q": "é\n"}}
        end = {"type": "text", "text": "Done."}
        return {
            "id": f"msg_{number:020d}", "type": "message", "role": "assistant", "model": "claude-fable-5-2",
            "content": [think, end if self.last else use], "stop_sequence": None,
            "stop_reason": "end_turn" if self.last else "tool_use",
            "usage": {"input_tokens": 100, "output_tokens": 10},
        }  # fmt: skip


class StrictResponses(Strict):
    """A model that checks encrypted reasoning against the input before it."""

    def history(self, body: Json) -> list[Any]:
        return [canonical([body.get("tools"), body.get("text")]), *canonical(body["input"])]

    def fault(self, history: list[Any]) -> str | None:
        for at, item in enumerate(history[1:], 1):
            if item.get("type") == "reasoning":
                if item["encrypted_content"] != sign(history[:at]):
                    return f"{BOUND}: input[{at - 1}]"
                if at + 1 == len(history) or history[at + 1].get("type") not in ("function_call", "message"):
                    return "reasoning was provided without its required following item"
        return None

    def error(self, message: str) -> Json:
        return {
            "error": {"message": message, "type": "invalid_request_error", "code": None, "param": "input"}
        }

    def reply(self, signature: str, number: int) -> Json:
        call = {"type": "function_call", "id": f"fc_{number:020d}", "call_id": f"call_{number:020d}",
                "name": "look", "arguments": '{"q": "\\u00e9"}', "status": "completed"}  # fmt: skip
        said = {"type": "message", "id": f"msg_{number:020d}", "role": "assistant", "status": "completed",
                "content": [{"type": "output_text", "text": "Done.", "annotations": []}]}  # fmt: skip
        reasoning = {
            "type": "reasoning",
            "id": f"rs_{number:020d}",
            "summary": [],
            "encrypted_content": signature,
        }
        return {
            "id": f"resp_{number:020d}", "object": "response", "created_at": 0, "status": "completed",
            "model": "gpt-6.2-sol", "output": [reasoning, said if self.last else call],
            "usage": {"input_tokens": 100, "output_tokens": 10, "total_tokens": 110},
        }  # fmt: skip


class Agent:
    """A client that sends its whole history every step and moves its cache mark along.

    ``forgets``: it has no place for reasoning.
    """

    def __init__(
        self, model: Strict, ask: Callable[[str, bytes], Awaitable[Message]], *, forgets: bool = False
    ) -> None:
        self.model, self.ask, self.forgets = model, ask, forgets
        self.messages: list[Json] = [{"role": "user", "content": "look around"}]
        self.steps = 0

    async def step(self, *, last: bool = False) -> Message:
        self.model.last = last
        answer = await self.ask(*self._request())
        if answer.status == 200:
            self.steps += 1
            self._take(answer.json())
            if self.forgets:
                self.messages = [_less(one) for one in self.messages if one.get("type") != "reasoning"]
        return answer

    def _request(self) -> tuple[str, bytes]:
        if isinstance(self.model, StrictAnthropic):
            told = [dict(message) for message in self.messages]
            block = told[-1]["content"]
            text = [{"type": "text", "text": block}] if isinstance(block, str) else block
            told[-1]["content"] = [*text[:-1], {**text[-1], "cache_control": {"type": "ephemeral"}}]
            tools: list[Json] = [{"name": "look", "input_schema": {"type": "object"}}]
            body: Json = {"model": "claude-fable-5-2", "max_tokens": 900, "system": "Look.", "messages": told}
            body |= {"tools": tools, "thinking": {"type": "adaptive"}}
            return "/anthropic/v1/messages", json.dumps(body, ensure_ascii=False).encode()
        tools = [{"type": "function", "name": "look", "parameters": {"type": "object"}}]
        body = {"model": "gpt-6.2-sol", "store": False, "input": self.messages, "tools": tools}
        return "/openai/v1/responses", json.dumps(body).encode()

    def _take(self, reply: Json) -> None:
        if isinstance(self.model, StrictAnthropic):
            self.messages.append({"role": "assistant", "content": reply["content"]})
            ids = [block["id"] for block in reply["content"] if block["type"] == "tool_use"]
            results = [{"type": "tool_result", "tool_use_id": id, "content": "the same"} for id in ids]
            self.messages += [{"role": "user", "content": results}] if results else []
            return
        self.messages += reply["output"]
        for item in reply["output"]:
            if item["type"] == "function_call":
                output = {"type": "function_call_output", "call_id": item["call_id"], "output": "the same"}
                self.messages.append(output)


def _less(message: Json) -> Json:
    """A message without thinking."""
    content = message.get("content")
    if not isinstance(content, list):
        return message
    return {**message, "content": [block for block in content if block.get("type") != "thinking"]}


MODELS = {"anthropic": StrictAnthropic, "responses": StrictResponses}
