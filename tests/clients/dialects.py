"""The four wire dialects as a scripted model speaks them: requests read, replies and streams written.

Written from the providers' published formats, not from the proxy's decoders, so that the two cannot
share a mistake. Ids follow from step and position: a script gives the same bytes on every run.
"""

import base64
import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

JSON = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool as the client offers it."""

    name: str
    schema: JSON
    kind: str = "function"


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call that the model makes."""

    tool: Tool
    args: JSON


@dataclass(frozen=True, slots=True)
class Answer:
    """What the model says in one step, before any dialect gives it a shape."""

    step: int
    thinking: str | None
    text: str | None
    calls: tuple[Call, ...]


def stable_id(prefix: str, *parts: object) -> str:
    """An id that looks random and is the same on every run."""
    return prefix + hashlib.sha256(repr(parts).encode()).hexdigest()[:24]


def signature(text: str) -> str:
    return base64.b64encode(b"scripted:" + hashlib.sha256(text.encode()).digest()).decode()


def pieces(text: str) -> list[str]:
    """Text in the small portions of a stream."""
    return [text[at : at + 17] for at in range(0, len(text), 17)]


def usage(body: JSON, answer: Answer) -> tuple[int, int, int]:
    """Made-up but steady counts: input, of it cached, output."""
    read = len(json.dumps(body)) // 4
    return (
        read,
        read * 4 // 5 if answer.step else 0,
        20 + len(answer.text or "") // 4 + 15 * len(answer.calls),
    )


class Anthropic:
    """Messages."""

    path = re.compile(r"/messages$")
    provider: ClassVar[str] = "anthropic"

    def streams(self, path: str, body: JSON) -> bool:
        return bool(body.get("stream"))

    def step(self, body: JSON) -> int:
        return sum(message["role"] == "assistant" for message in body["messages"])

    def tools(self, body: JSON) -> list[Tool]:
        return [Tool(t["name"], t["input_schema"]) for t in body.get("tools", []) if "input_schema" in t]

    def reply(self, body: JSON, answer: Answer) -> JSON:
        content: list[JSON] = []
        if answer.thinking and (body.get("thinking") or {}).get("type") in ("enabled", "adaptive"):
            thought = answer.thinking
            content.append({"type": "thinking", "thinking": thought, "signature": signature(thought)})
        if answer.text:
            content.append({"type": "text", "text": answer.text})
        for at, call in enumerate(answer.calls):
            call_id = stable_id("toolu_", answer.step, at)
            content.append({"type": "tool_use", "id": call_id, "name": call.tool.name, "input": call.args})
        read, cached, written = usage(body, answer)
        return {
            "id": stable_id("msg_", answer.step),
            "type": "message",
            "role": "assistant",
            "model": body["model"],
            "content": content,
            "stop_reason": "tool_use" if answer.calls else "end_turn",
            "stop_sequence": None,
            "usage": {
                "input_tokens": read - cached,
                "cache_creation_input_tokens": 0,
                "cache_read_input_tokens": cached,
                "output_tokens": written,
            },
        }

    def events(self, message: JSON, body: JSON) -> Iterator[JSON]:
        opening = message["usage"] | {"output_tokens": 1}
        yield {
            "type": "message_start",
            "message": message | {"content": [], "stop_reason": None, "usage": opening},
        }
        yield {"type": "ping"}
        for index, block in enumerate(message["content"]):
            empty, deltas = self._deltas(block)
            yield {"type": "content_block_start", "index": index, "content_block": empty}
            for delta in deltas:
                yield {"type": "content_block_delta", "index": index, "delta": delta}
            yield {"type": "content_block_stop", "index": index}
        end = {"stop_reason": message["stop_reason"], "stop_sequence": None}
        yield {"type": "message_delta", "delta": end, "usage": message["usage"]}
        yield {"type": "message_stop"}

    def _deltas(self, block: JSON) -> tuple[JSON, list[JSON]]:
        if block["type"] == "thinking":
            deltas = [{"type": "thinking_delta", "thinking": p} for p in pieces(block["thinking"])]
            deltas.append({"type": "signature_delta", "signature": block["signature"]})
            return block | {"thinking": "", "signature": ""}, deltas
        if block["type"] == "text":
            return block | {"text": ""}, [{"type": "text_delta", "text": p} for p in pieces(block["text"])]
        parts = pieces(json.dumps(block["input"]))
        return block | {"input": {}}, [{"type": "input_json_delta", "partial_json": p} for p in parts]


class Chat:
    """Chat Completions."""

    path = re.compile(r"/chat/completions$")
    provider: ClassVar[str] = "openai"

    def streams(self, path: str, body: JSON) -> bool:
        return bool(body.get("stream"))

    def step(self, body: JSON) -> int:
        return sum(message["role"] == "assistant" for message in body["messages"])

    def tools(self, body: JSON) -> list[Tool]:
        offered = [t["function"] for t in body.get("tools") or [] if "function" in t]
        return [Tool(function["name"], function.get("parameters", {})) for function in offered]

    def reply(self, body: JSON, answer: Answer) -> JSON:
        message: JSON = {"role": "assistant", "content": answer.text, "refusal": None}
        if answer.thinking and "deepseek" in body["model"]:
            message["reasoning_content"] = answer.thinking
        if answer.calls:
            message["tool_calls"] = [
                {
                    "id": stable_id("call_", answer.step, at),
                    "type": "function",
                    "function": {"name": call.tool.name, "arguments": json.dumps(call.args)},
                }
                for at, call in enumerate(answer.calls)
            ]
        read, cached, written = usage(body, answer)
        finish = "tool_calls" if answer.calls else "stop"
        return {
            "id": stable_id("chatcmpl-", answer.step),
            "object": "chat.completion",
            "created": 1_790_000_000,
            "model": body["model"],
            "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": finish}],
            "usage": {
                "prompt_tokens": read,
                "completion_tokens": written,
                "total_tokens": read + written,
                "prompt_tokens_details": {"cached_tokens": cached},
                "completion_tokens_details": {"reasoning_tokens": 0},
            },
        }

    def events(self, reply: JSON, body: JSON) -> Iterator[JSON]:
        base = {key: reply[key] for key in ("id", "created", "model")} | {"object": "chat.completion.chunk"}
        choice = reply["choices"][0]
        message = choice["message"]

        def chunk(delta: JSON, finish: str | None = None) -> JSON:
            return base | {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}

        yield chunk({"role": "assistant", "content": "" if message["content"] else None})
        for piece in pieces(message.get("reasoning_content") or ""):
            yield chunk({"reasoning_content": piece})
        for piece in pieces(message["content"] or ""):
            yield chunk({"content": piece})
        for index, call in enumerate(message.get("tool_calls", [])):
            function = call["function"]
            opening = call | {"index": index, "function": {"name": function["name"], "arguments": ""}}
            yield chunk({"tool_calls": [opening]})
            for piece in pieces(function["arguments"]):
                yield chunk({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
        yield chunk({}, choice["finish_reason"])
        if (body.get("stream_options") or {}).get("include_usage"):
            yield base | {"choices": [], "usage": reply["usage"]}


class Responses:
    """Responses. A call's id names its step, since clients may order parallel calls and outputs freely."""

    path = re.compile(r"/responses$")
    provider: ClassVar[str] = "openai"
    _CALLS = ("function_call", "custom_tool_call")

    def streams(self, path: str, body: JSON) -> bool:
        return bool(body.get("stream"))

    def step(self, body: JSON) -> int:
        items = body["input"] if isinstance(body["input"], list) else []
        calls = [item["call_id"] for item in items if item.get("type") in self._CALLS]
        return len({re.match(r"call_s(\d+)_", call_id)[1] for call_id in calls})  # type: ignore[index]

    def tools(self, body: JSON) -> list[Tool]:
        found = []
        for tool in body.get("tools") or []:
            inner = tool.get("tools", []) if tool["type"] == "namespace" else [tool]
            space = tool["name"] if tool["type"] == "namespace" else None
            found += [
                Tool(t["name"], t.get("parameters") or {}, space or t["type"]) for t in inner if "name" in t
            ]
        return found

    def reply(self, body: JSON, answer: Answer) -> JSON:
        output: list[JSON] = []
        if answer.thinking and body.get("reasoning"):
            summary = [{"type": "summary_text", "text": answer.thinking}]
            output.append({"id": stable_id("rs_", answer.step), "type": "reasoning", "summary": summary})
            if "reasoning.encrypted_content" in (body.get("include") or []):
                output[-1]["encrypted_content"] = signature(answer.thinking)
        if answer.text:
            part = {"type": "output_text", "text": answer.text, "annotations": []}
            output.append(
                {
                    "id": stable_id("msg_", answer.step),
                    "type": "message",
                    "status": "completed",
                    "role": "assistant",
                    "content": [part],
                }
            )
        output += [self._call(answer.step, at, call) for at, call in enumerate(answer.calls)]
        read, cached, written = usage(body, answer)
        return {
            "id": stable_id("resp_", answer.step),
            "object": "response",
            "created_at": 1_790_000_000,
            "status": "completed",
            "error": None,
            "incomplete_details": None,
            "instructions": None,
            "model": body["model"],
            "output": output,
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
            "store": body.get("store", True),
            "usage": {
                "input_tokens": read,
                "input_tokens_details": {"cached_tokens": cached},
                "output_tokens": written,
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": read + written,
            },
        }

    def _call(self, step: int, at: int, call: Call) -> JSON:
        item = {
            "id": stable_id("fc_", step, at),
            "status": "completed",
            "call_id": stable_id(f"call_s{step}_", at),
            "name": call.tool.name,
        }
        if call.tool.kind == "custom":
            return item | {"type": "custom_tool_call", "input": call.args.get("input", "x")}
        item |= {"type": "function_call", "arguments": json.dumps(call.args)}
        return item if call.tool.kind == "function" else item | {"namespace": call.tool.kind}

    def events(self, reply: JSON, body: JSON) -> Iterator[JSON]:
        begun = reply | {"output": [], "status": "in_progress", "usage": None}
        plain: list[JSON] = [
            {"type": "response.created", "response": begun},
            {"type": "response.in_progress", "response": begun},
        ]
        for index, item in enumerate(reply["output"]):
            plain += self._item_events(index, item)
        plain.append({"type": "response.completed", "response": reply})
        for number, event in enumerate(plain):
            yield event | {"sequence_number": number}

    def _item_events(self, index: int, item: JSON) -> list[JSON]:
        at = {"item_id": item["id"], "output_index": index}
        if item["type"] == "message":
            blank, inner = {"content": [], "status": "in_progress"}, self._text_events(at, item["content"][0])
        elif item["type"] == "reasoning":
            blank, inner = {"summary": []}, self._summary_events(at, item["summary"][0])
        else:
            key = "arguments" if item["type"] == "function_call" else "input"
            kind = "function_call_arguments" if key == "arguments" else "custom_tool_call_input"
            blank = {key: "", "status": "in_progress"}
            inner = [{"type": f"response.{kind}.delta", "delta": p} | at for p in pieces(item[key])]
            inner.append({"type": f"response.{kind}.done", key: item[key]} | at)
        added = {"type": "response.output_item.added", "output_index": index, "item": item | blank}
        return [added, *inner, {"type": "response.output_item.done", "output_index": index, "item": item}]

    def _text_events(self, at: JSON, part: JSON) -> list[JSON]:
        at = at | {"content_index": 0}
        deltas = [{"type": "response.output_text.delta", "delta": p} | at for p in pieces(part["text"])]
        return [
            {"type": "response.content_part.added", "part": part | {"text": ""}} | at,
            *deltas,
            {"type": "response.output_text.done", "text": part["text"]} | at,
            {"type": "response.content_part.done", "part": part} | at,
        ]

    def _summary_events(self, at: JSON, part: JSON) -> list[JSON]:
        at = at | {"summary_index": 0}
        return [
            {"type": "response.reasoning_summary_part.added", "part": part | {"text": ""}} | at,
            {"type": "response.reasoning_summary_text.delta", "delta": part["text"]} | at,
            {"type": "response.reasoning_summary_text.done", "text": part["text"]} | at,
            {"type": "response.reasoning_summary_part.done", "part": part} | at,
        ]


class Gemini:
    """generateContent and streamGenerateContent."""

    path = re.compile(r":(streamG|g)enerateContent$")
    provider: ClassVar[str] = "gemini"

    def streams(self, path: str, body: JSON) -> bool:
        return path.endswith(":streamGenerateContent")

    def step(self, body: JSON) -> int:
        return sum(content.get("role") == "model" for content in body["contents"])

    def tools(self, body: JSON) -> list[Tool]:
        keys = ("parametersJsonSchema", "parameters_json_schema", "parameters")
        offered = [f for tool in body.get("tools") or [] for f in tool.get("functionDeclarations", [])]
        return [Tool(f["name"], next((f[key] for key in keys if f.get(key)), {})) for f in offered]

    def reply(self, body: JSON, answer: Answer) -> JSON:
        mark = {"thoughtSignature": signature(answer.thinking)} if answer.thinking else {}
        parts: list[JSON] = []
        if answer.thinking and self._wants_thoughts(body):
            parts.append({"text": answer.thinking, "thought": True})
        if answer.text:
            parts.append({"text": answer.text} | ({} if answer.calls else mark))
        for at, call in enumerate(answer.calls):  # the service signs the first of parallel calls only
            parts.append(
                {"functionCall": {"name": call.tool.name, "args": call.args}} | (mark if at == 0 else {})
            )
        read, cached, written = usage(body, answer)
        content = {"role": "model", "parts": parts}
        return {
            "candidates": [{"content": content, "finishReason": "STOP", "index": 0}],
            "usageMetadata": {
                "promptTokenCount": read,
                "cachedContentTokenCount": cached,
                "candidatesTokenCount": written,
                "totalTokenCount": read + written,
            },
            "modelVersion": "scripted",
            "responseId": stable_id("", answer.step),
        }

    def _wants_thoughts(self, body: JSON) -> bool:
        config = (body.get("generationConfig") or {}).get("thinkingConfig") or {}
        return bool(config.get("includeThoughts") or config.get("include_thoughts"))

    def events(self, reply: JSON, body: JSON) -> Iterator[JSON]:
        candidate = reply["candidates"][0]
        parts = candidate["content"]["parts"]
        for part in parts:
            one = {"content": {"role": "model", "parts": [part]}, "index": 0}
            if part is parts[-1]:
                one["finishReason"] = candidate["finishReason"]
            yield reply | {"candidates": [one]}


DIALECTS = (Anthropic(), Chat(), Responses(), Gemini())
