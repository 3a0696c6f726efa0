"""What attributes are called: the GenAI conventions of late 2026, older names beside them where asked.

The conventions are still in development: look for their ``gen_ai.`` names here, in ``content``, and where
one value alone is set (``calls``, ``steps``, ``turns``). What they have no name for bears ours, ``looptap.``.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any

Data = Mapping[str, Any]

_PROVIDERS = {
    "google": "gcp.gemini", "gemini": "gcp.gemini", "x-ai": "x_ai", "mistral": "mistral_ai",
    "azure": "azure.ai.openai", "aws": "aws.bedrock", "moonshotai": "moonshot_ai",
}  # fmt: skip
"""Price lists' names of providers, where the conventions have another; the rest stays as it is."""
_FINISHES = {
    "end_turn": "stop", "stop_sequence": "stop", "stop": "stop", "completed": "stop", "pause_turn": "stop",
    "max_tokens": "length", "length": "length", "max_output_tokens": "length", "incomplete": "length",
    "model_context_window_exceeded": "length", "model_length": "length",
    "tool_use": "tool_call", "tool_calls": "tool_call", "function_call": "tool_call",
    "refusal": "content_filter", "content_filter": "content_filter", "safety": "content_filter",
    "recitation": "content_filter", "prohibited_content": "content_filter", "compaction": "compaction",
}  # fmt: skip
_BUDGETS = frozenset({"steps", "tokens", "spend", "wall_clock", "calls", "tool_retries"})
_USAGE = {
    "input_tokens": "gen_ai.usage.input_tokens",
    "output_tokens": "gen_ai.usage.output_tokens",
    "cache_read_tokens": "gen_ai.usage.cache_read.input_tokens",
    "cache_write_tokens": "gen_ai.usage.cache_write.input_tokens",
    "reasoning_tokens": "gen_ai.usage.reasoning.output_tokens",
}
_OPENINFERENCE_USAGE = {
    "input_tokens": "llm.token_count.prompt",
    "output_tokens": "llm.token_count.completion",
    "cache_read_tokens": "llm.token_count.prompt_details.cache_read",
    "cache_write_tokens": "llm.token_count.prompt_details.cache_write",
    "reasoning_tokens": "llm.token_count.completion_details.reasoning",
}


@dataclass(frozen=True, slots=True)
class Dress:
    """Which names go out beside the newest."""

    compat: bool = True
    """Older GenAI names that backends still read."""
    openinference: bool = False


def common(session: str, thread: str, turn: str, facts: Data) -> dict[str, Any]:
    """What every span of a turn bears. ``facts``: as the turn's start tells them."""
    labels = facts.get("labels") or {}
    conversation = facts.get("client_session") or thread
    found: dict[str, Any] = {
        # Backends group by it, so there is always one; ``looptap.thread.id_source`` says whose it is.
        "gen_ai.conversation.id": conversation,
        "session.id": conversation,
        "gen_ai.agent.name": agent_of(facts),
        "looptap.session.id": session,
        "looptap.thread.id": thread,
        "looptap.turn.id": turn,
        "looptap.turn.index": facts.get("index"),
        "user.id": labels.get("user"),
    }
    if facts.get("key", "unnamed") != "unnamed":
        found["looptap.key"] = facts["key"]
    if facts.get("team", "default") != "default":
        found["looptap.team"] = facts["team"]
    found.update({f"looptap.label.{name}": value for name, value in labels.items()})
    return found


def agent_of(facts: Data) -> str | None:
    """Which agent it is: by its label, else by its program. Never an id: it names spans."""
    return (facts.get("labels") or {}).get("agent") or facts.get("client") or None


def turn(facts: Data) -> dict[str, Any]:
    """What a turn's span bears from its beginning on."""
    return {
        "gen_ai.operation.name": "invoke_agent",
        "openinference.span.kind": "AGENT",
        "gen_ai.agent.id": facts.get("agent"),
        "looptap.thread.kind": facts.get("kind"),
        "looptap.thread.id_source": "client" if facts.get("client_session") else "reconstructed",
    }


def turn_end(data: Data, models: set[str], tool_calls: int) -> dict[str, Any]:
    """What it adds up to. Under our own names: sums under ``gen_ai.usage`` would count twice."""
    found: dict[str, Any] = {
        "looptap.turn.cause": data.get("cause"),
        "looptap.turn.by": data.get("by"),
        "looptap.turn.steps": data.get("steps"),
        "looptap.turn.tool_calls": tool_calls,
        "looptap.turn.cost_usd": dollars(data.get("cost_usd")),
        "looptap.turn.cost_quality": data.get("cost_quality"),
        "gen_ai.request.model": next(iter(models)) if len(models) == 1 else None,
    }
    found.update({f"looptap.turn.usage.{kind}": count for kind, count in (data.get("usage") or {}).items()})
    return found


def turn_error(cause: str | None) -> str | None:
    """The error of a turn that ended badly; a tool that failed or a user who left is none."""
    if cause in _BUDGETS:
        return "budget_exceeded"
    return {"policy": "policy_blocked", "error": "error", "context_window": "context_window"}.get(cause or "")


def step(data: Data) -> dict[str, Any]:
    """What a step's span bears."""
    return {
        "gen_ai.operation.name": "agent_step",
        "openinference.span.kind": "CHAIN",
        "looptap.step.index": data.get("place"),
        "looptap.step.epoch": data.get("epoch"),
        "looptap.thread.matched_by": data.get("matched_by"),
    }


def step_end(data: Data) -> dict[str, Any]:
    """And what it ends with."""
    return {
        "looptap.step.tool_calls": len(data.get("tool_calls") or ()),
        "looptap.step.attempts": data.get("attempts"),
        "looptap.step.cost_usd": dollars(data.get("cost_usd")),
    }


def chat(data: Data, dress: Dress) -> dict[str, Any]:
    """What a model call's span bears, from the record of its attempt."""
    asked: Data = data.get("request") or {}
    provider = provider_of(data)
    stop = data.get("stop_reason")
    found: dict[str, Any] = {
        "gen_ai.operation.name": "chat",
        "openinference.span.kind": "LLM",
        "gen_ai.provider.name": provider,
        "gen_ai.request.model": data.get("requested_model") or data.get("model"),
        "gen_ai.request.stream": True if data.get("streaming") else None,
        "gen_ai.request.max_tokens": asked.get("max_tokens"),
        "gen_ai.request.temperature": _float(asked.get("temperature")),
        "gen_ai.request.top_p": _float(asked.get("top_p")),
        "gen_ai.request.top_k": asked.get("top_k"),
        "gen_ai.request.seed": asked.get("seed"),
        "gen_ai.request.choice.count": asked["choices"] if asked.get("choices", 1) != 1 else None,
        "gen_ai.request.reasoning.level": asked.get("effort"),
        "gen_ai.request.previous_response.id": asked.get("previous_response"),
        "gen_ai.output.type": "json" if asked.get("json") else None,
        "gen_ai.response.id": data.get("response_id"),
        "gen_ai.response.model": data.get("model"),
        "gen_ai.response.finish_reasons": [finish(stop)] if stop else None,
        "server.address": data.get("host") or None,
        "server.port": data.get("port"),
        "http.response.status_code": data.get("status"),
        "http.request.resend_count": data.get("attempt") or None,
        "looptap.upstream": data.get("upstream") or None,
        "looptap.outcome": data.get("outcome"),
        "looptap.stop_reason": stop,
        "looptap.exchange.id": data.get("exchange"),
        "looptap.request.bytes": data.get("request_bytes"),
        "looptap.request.tools": asked.get("tools"),
        "looptap.request.thinking_budget": asked.get("thinking_budget"),
        "looptap.response.bytes": data.get("response_bytes"),
        "looptap.cost_usd": dollars(data.get("cost_usd")),
        "looptap.cost_quality": data.get("cost_quality"),
    }
    found.update(_waits(data))
    found.update(_tokens(data, dress))
    if dress.compat:
        found["gen_ai.system"] = provider
    if dress.openinference:
        found.update(_openinference(data, asked, provider))
    return found


def _waits(data: Data) -> dict[str, Any]:
    sent, first = data.get("sent_ns") or data.get("arrived_ns"), data.get("first_output_ns")
    if not data.get("streaming") or sent is None or first is None:
        return {}
    return {"gen_ai.response.time_to_first_chunk": max(0, first - sent) / 1e9}


def _tokens(data: Data, dress: Dress) -> dict[str, Any]:
    """As the provider reported them; what was only estimated stands under a name of ours."""
    usage: Data = data.get("usage") or {}
    found = {name: usage.get(kind) for kind, name in _USAGE.items()}
    if dress.compat:
        found["gen_ai.usage.cache_creation.input_tokens"] = usage.get("cache_write_tokens")
    if dress.openinference:
        found.update({name: usage.get(kind) for kind, name in _OPENINFERENCE_USAGE.items()})
        if "input_tokens" in usage and "output_tokens" in usage:
            found["llm.token_count.total"] = usage["input_tokens"] + usage["output_tokens"]
    for kind, count in (data.get("estimate") or {}).items():
        found[f"looptap.usage.estimate.{kind}"] = count
    return found


def _openinference(data: Data, asked: Data, provider: str) -> dict[str, Any]:
    return {
        "llm.model_name": data.get("model"),
        "llm.provider": provider,
        "llm.system": provider,
        "llm.invocation_parameters": json.dumps(dict(asked)) if asked else None,
        "llm.cost.total": dollars(data.get("cost_usd")),
    }


def chat_error(data: Data) -> tuple[str, str | None] | None:
    """The error of a model call and its words; None where it ended well or its client left."""
    outcome, error = data.get("outcome"), data.get("error") or {}
    if outcome not in ("failed", "cut"):
        return None
    kind = error.get("type") or error.get("code")
    status = data.get("status")
    if not kind and outcome == "failed" and status is not None and status >= 400:
        kind = str(status)
    if not kind and data.get("end") == "timeout":
        kind = "timeout"
    if not kind:
        kind = "stream_truncated" if outcome == "cut" else "connection_error" if status is None else "_OTHER"
    return str(kind)[:120], error.get("message")


def inbound(data: Data, turn: str) -> dict[str, Any]:
    """What a request's span in its client's trace bears: the wire, and what we did to it."""
    return {
        "http.request.method": "POST",
        "url.path": data.get("route"),
        "http.response.status_code": data.get("status"),
        "looptap.outcome": data.get("outcome"),
        "looptap.exchange.id": data.get("exchange"),
        "looptap.turn.id": turn,
    }


def shown(name: str, text: str) -> dict[str, Any]:
    """Content under OpenInference's names."""
    side = "input" if "input" in name else "output"
    return {f"{side}.value": text, f"{side}.mime_type": "application/json"}


def tool(name: str, call_id: str | None, dress: Dress) -> dict[str, Any]:
    """What a tool's span bears. Its time is what we see of it: with approval, and the agent's own work."""
    found: dict[str, Any] = {
        "gen_ai.operation.name": "execute_tool",
        "openinference.span.kind": "TOOL",
        "gen_ai.tool.name": name,
        "gen_ai.tool.call.id": call_id,
        "gen_ai.tool.type": "function",
        "looptap.tool.timing": "observed",
    }
    if dress.openinference:
        found.update({"tool.name": name, "tool.id": call_id})
    return found


def provider_of(data: Data) -> str:
    """The provider in the conventions' word."""
    host, name = data.get("host") or "", data.get("provider") or ""
    if host.endswith("aiplatform.googleapis.com"):
        return "gcp.vertex_ai"
    return _PROVIDERS.get(name, name) or "_OTHER"


def finish(stop_reason: str) -> str:
    """A stop reason in the conventions' word, else as it is."""
    return _FINISHES.get(stop_reason.lower(), stop_reason)


def dollars(text: Any) -> float | None:
    """Money for sums and plots: the exact amount stands in the record."""
    if text is None:
        return None
    try:
        return float(Decimal(text))
    except (InvalidOperation, TypeError, ValueError):
        return None


def _float(value: Any) -> float | None:
    return float(value) if value is not None else None
