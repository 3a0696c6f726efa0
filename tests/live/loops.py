"""Small agent loops in the four dialects, made up step by step: what a client sends, what comes back.

A ``Loop`` is one client's history. ``ask`` makes the next exchange of it, ``took`` lets the client
take the reply in and answer its calls. Written from the providers' formats, with the scripted
model's replies; deterministic.
"""

import copy
import json
from dataclasses import dataclass, field
from typing import Any, Literal

from tests.clients.dialects import DIALECTS, Answer, Call, Tool
from tests.live.kit import Json, sse
from tests.live.recorded import Play

Dialect = Literal["anthropic", "chat", "responses", "gemini"]
NAMES: tuple[Dialect, ...] = ("anthropic", "chat", "responses", "gemini")
MODELS: dict[Dialect, Any] = dict(zip(NAMES, DIALECTS, strict=True))
_SCHEMA = {"type": "object", "properties": {"q": {"type": "string"}}}
_TARGETS = {
    "anthropic": "/anthropic/v1/messages",
    "chat": "/openai/v1/chat/completions",
    "responses": "/openai/v1/responses",
}
OVERLOADED = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}


@dataclass
class Loop:
    """One client's history, in its dialect's own form."""

    dialect: Dialect
    stream: bool = True
    headers: dict[str, str] = field(default_factory=dict)
    history: list[Json] = field(default_factory=list)
    step: int = 0
    more: Json = field(default_factory=dict)
    thinks: bool = False
    """The model thinks, if it is asked to."""

    def user(self, text: str) -> None:
        """The user speaks."""
        if self.dialect == "gemini":
            self.history.append({"role": "user", "parts": [{"text": text}]})
        else:
            self.history.append({"role": "user", "content": text})

    def body(self) -> Json:
        """The request as it stands."""
        messages = copy.deepcopy(self.history)
        tool: Json = {"name": "look", "description": "Looks.", "parameters": _SCHEMA}
        if self.dialect == "anthropic":
            tools = [{"name": "look", "description": "Looks.", "input_schema": _SCHEMA}]
            told: Json = {
                "model": "claude-sonnet-4-5",
                "max_tokens": 999,
                "tools": tools,
                "messages": messages,
            }
        elif self.dialect == "chat":
            told = {"model": "gpt-5", "messages": messages, "tools": [{"type": "function", "function": tool}]}
            if self.stream:
                told["stream_options"] = {"include_usage": True}
        elif self.dialect == "responses":
            told = {
                "model": "gpt-5",
                "input": messages,
                "tools": [{"type": "function", **tool}],
                "store": False,
            }
        else:
            return {"contents": messages, "tools": [{"functionDeclarations": [tool]}], **self.more}
        return {**told, "stream": self.stream, **self.more}

    def ask(self, answer: "Said") -> Play:
        """The next exchange: this history, and what will come back."""
        body = self.body()
        verb = "streamGenerateContent?alt=sse" if self.stream else "generateContent"
        target = _TARGETS.get(self.dialect, f"/gemini/v1beta/models/gemini-2.5-flash:{verb}")
        kind = "application/json" if answer.status >= 400 or not self.stream else "text/event-stream"
        line = {
            "method": "POST",
            "path": target.split("/", 2)[2],
            "request_headers": {"Content-Type": "application/json", **self.headers},
            "request_body": json.dumps(body),
            "status": answer.status,
            "response_headers": [["Content-Type", kind]],
            "response_body": self._told(body, answer),
            "end": "upstream_reset" if answer.cut else "complete",
        }
        return Play(line, target)

    def _told(self, body: Json, answer: "Said") -> str:
        if answer.status >= 400:
            return json.dumps(
                OVERLOADED if self.dialect == "anthropic" else {"error": {"message": "Overloaded"}}
            )
        model = MODELS[self.dialect]
        reply = model.reply({**body, "model": body.get("model", "gemini")}, self._says(answer))
        if not self.stream:
            told = json.dumps(reply)
        else:
            told = sse(*model.events(reply, body), named=self.dialect in ("anthropic", "responses")).decode()
            told += "data: [DONE]\n\n" if self.dialect == "chat" else ""
        return told[: len(told) * 3 // 5] if answer.cut else told

    def _says(self, answer: "Said") -> Answer:
        tool = Tool("look", _SCHEMA)
        calls = tuple(Call(tool, {"q": question}) for question in answer.calls)
        thought = f"Thinking of it for the {answer.serial}. time." if self.thinks else None
        return Answer(answer.serial, thought, answer.text or None, calls)

    def took(self, answer: "Said", results: str | None = "seen") -> None:
        """The client takes a whole reply in, and runs its calls where it wants to."""
        self.step += 1
        reply: Json = MODELS[self.dialect].reply({"model": "m", **self.body()}, self._says(answer))
        if self.dialect == "anthropic":
            self.history.append({"role": "assistant", "content": reply["content"]})
            ids = [block["id"] for block in reply["content"] if block["type"] == "tool_use"]
            back = [{"type": "tool_result", "tool_use_id": id, "content": f"{results} {id}"} for id in ids]
            if back and results is not None:
                self.history.append({"role": "user", "content": back})
        elif self.dialect == "chat":
            message = reply["choices"][0]["message"]
            self.history.append(message)
            if results is not None:
                for call in message.get("tool_calls", []):
                    said = {"role": "tool", "tool_call_id": call["id"], "content": f"{results} {call['id']}"}
                    self.history.append(said)
        elif self.dialect == "responses":
            self.history += reply["output"]
            if results is not None:
                for item in reply["output"]:
                    if item["type"] == "function_call":
                        output = {
                            "type": "function_call_output",
                            "call_id": item["call_id"],
                            "output": results,
                        }
                        self.history.append(output)
        else:
            content = reply["candidates"][0]["content"]
            self.history.append(content)
            names = [part["functionCall"]["name"] for part in content["parts"] if "functionCall" in part]
            back = [{"functionResponse": {"name": n, "response": {"output": results}}} for n in names]
            if back and results is not None:
                self.history.append({"role": "user", "parts": back})

    def summed_up(self, summary: str) -> None:
        """The client compacts: a summary in place of the history."""
        self.history = []
        self.user(f"This session is continued from a previous conversation. Summary: {summary}")

    def branch(self) -> "Loop":
        """Another client with the same past."""
        return copy.deepcopy(self)


@dataclass(frozen=True)
class Said:
    """What the model says in one exchange."""

    serial: int
    """Makes ids and texts of this reply its own."""
    text: str = ""
    calls: tuple[str, ...] = ()
    status: int = 200
    cut: bool = False

    @property
    def good(self) -> bool:
        return self.status < 400 and not self.cut
