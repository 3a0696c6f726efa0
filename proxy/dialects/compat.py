"""Where providers that speak OpenAI's formats differ: usage, reasoning, token caps, nudges.

Differences are told by the data itself (which fields are there, whether the sums agree) or by the
model's name, never by a host: the same model is served under many. A new provider is a row or a
field name here. Lives elsewhere: the shape that all of them share (``openai_chat``).

The one invariant: what a provider did not report is absent, never 0.
"""

import re
from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any, Literal

from proxy.model import Usage
from proxy.reading.identity import canonical, without_marks

# -- usage

_MISCOUNT = 2
"""Reasoning tokens above the completion's that are a provider's slip (MiniMax: 11 of 10)."""


def read_usage(raw: Mapping[str, Any]) -> Usage | None:
    """Tokens of a ``usage`` object; None where it counts nothing.

    Some count reasoning beside the completion: xAI and Gemini's own compatible endpoint (the total
    says so), Gemini behind Vercel (more reasoning than completion; the cost it reports says so).
    Azure's xAI reports more cached than prompt tokens, counting a prompt of its own: left as it is.
    """
    prompt = _count(raw, "prompt_tokens", "input_tokens")
    completion = _count(raw, "completion_tokens", "output_tokens")
    of_prompt = _inner(raw, "prompt_tokens_details", "prompt_token_details", "input_tokens_details")
    of_completion = _inner(raw, "completion_tokens_details", "output_tokens_details")
    read = _count(of_prompt, "cached_tokens")
    if read is None:
        read = _count(raw, "prompt_cache_hit_tokens", "num_cached_tokens")
    written = _count(of_prompt, "cache_write_tokens", "cache_creation_tokens")
    reasoning = _count(of_completion, "reasoning_tokens")
    if prompt is None and completion is None:
        return None
    if prompt is not None and completion is not None and reasoning:
        total = _count(raw, "total_tokens")
        if total == prompt + completion + reasoning or reasoning > completion + _MISCOUNT:
            completion += reasoning
    return Usage(
        input_tokens=prompt,
        cache_read_tokens=read,
        cache_write_tokens=written,
        cache_write_1h_tokens=_count(_inner(of_prompt, "cache_write_tokens_details"), "ttl_12h_tokens"),
        output_tokens=completion,
        reasoning_tokens=reasoning,
        extra=_further(raw, of_prompt, of_completion),
    )


def reported_cost(raw: Mapping[str, Any]) -> str | None:
    """The price that a provider puts into its usage, in USD as exact text.

    OpenRouter's ``cost`` is what it takes itself; with the caller's own key the upstream's price
    comes on top. xAI counts ticks, ten thousand million to the dollar; 0 of them says nothing.
    """
    cost = _decimal(raw.get("cost"))
    if cost is not None:
        if raw.get("is_byok") is True:
            upstream = _decimal(_inner(raw, "cost_details").get("upstream_inference_cost"))
            if upstream is None:
                return None
            cost += upstream
        return format(cost, "f")
    ticks = _count(raw, "cost_in_usd_ticks")
    return format(Decimal(ticks) / 10**10, "f") if ticks else None


def _further(
    raw: Mapping[str, Any], of_prompt: Mapping[str, Any], of_completion: Mapping[str, Any]
) -> dict[str, int]:
    """Counts beside text tokens that have a price of their own."""
    found = {
        "input_audio_tokens": _count(of_prompt, "audio_tokens"),
        "output_audio_tokens": _count(of_completion, "audio_tokens"),
        "web_searches": _count(raw, "num_search_queries")
        or _count(_inner(raw, "server_side_tool_usage_details"), "web_search_calls")
        or _count(_inner(raw, "server_tool_use"), "web_search_requests"),
    }
    return {name: value for name, value in found.items() if value}


def _inner(raw: Mapping[str, Any], *names: str) -> Mapping[str, Any]:
    for name in names:
        value = raw.get(name)
        if isinstance(value, dict):
            return value
    return {}


def _count(raw: Mapping[str, Any], *names: str) -> int | None:
    for name in names:
        value = raw.get(name)
        if isinstance(value, bool):
            continue
        if isinstance(value, int) and value >= 0:
            return value
        if isinstance(value, float) and value >= 0 and value.is_integer():
            return int(value)
    return None


def _decimal(value: Any) -> Decimal | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    number = Decimal(repr(value))
    return number if number.is_finite() and number >= 0 else None


# -- reasoning

PLAIN_REASONING = ("reasoning_content", "reasoning", "reasoning_text")
"""Fields that hold reasoning as a string: DeepSeek and its kin; OpenRouter, vLLM, Groq, Ollama; Copilot."""
LISTED_REASONING = ("reasoning_details", "thinking_blocks")
"""Fields that hold it as typed pieces: OpenRouter and Vercel; LiteLLM."""

_SPOKEN = ("text", "summary", "thinking")
_PROOFS = ("signature", "data")


def plain_reasoning(message: Mapping[str, Any]) -> tuple[str, str]:
    """Reasoning given as a string: its field and text; empty where there is none."""
    for name in PLAIN_REASONING:
        value = message.get(name)
        if isinstance(value, str) and value:
            return name, value
    return "", ""


def listed_reasoning(message: Mapping[str, Any]) -> tuple[str, list[Any]]:
    """Reasoning given as pieces: its field and the pieces."""
    for name in LISTED_REASONING:
        value = message.get(name)
        if isinstance(value, list) and value:
            return name, value
    return "", []


def spoken(details: Iterable[Any]) -> str:
    """The readable text of reasoning pieces."""
    texts = (detail.get(name) for detail in details if isinstance(detail, dict) for name in _SPOKEN)
    return "".join(text for text in texts if isinstance(text, str))


def proof(pieces: Iterable[Any]) -> str:
    """Whole pieces in one spelling: indexes and empty members left out."""
    bare = [_bare(piece) if isinstance(piece, dict) else piece for piece in pieces]
    return canonical(without_marks([one for one in bare if one], frozenset()))


def whole_pieces(details: Iterable[Any]) -> tuple[Any, ...]:
    """The pieces as they go back: those of a stream joined, null members left out."""
    joined: list[Any] = []
    last: tuple[Any, Any] | None = None
    for detail in details:
        if not isinstance(detail, dict):
            joined.append(detail)
            last = None
            continue
        this = (detail.get("index"), detail.get("type"))
        if this == last and this[0] is not None:
            _join(joined[-1], detail)
        else:
            joined.append({name: value for name, value in detail.items() if value is not None})
        last = this
    return tuple(joined)


def _bare(piece: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in piece.items() if name != "index" and value not in (None, "")}


def _join(whole: dict[str, Any], piece: Mapping[str, Any]) -> None:
    for name, value in piece.items():
        grows = name in _SPOKEN or name in _PROOFS
        if value in (None, ""):
            continue
        if grows and isinstance(value, str) and isinstance(whole.get(name), str):
            whole[name] += value
        else:
            whole[name] = value


# -- what a request may be given

_OPENAI_MODEL = re.compile(r"(?:^|/)(?:gpt-|chatgpt-|o\d|codex)", re.IGNORECASE)
_MISTRAL_MODEL = re.compile(
    r"(?:^|/)(?:mistral|ministral|magistral|devstral|codestral|pixtral)", re.IGNORECASE
)


def is_openai(model: str) -> bool:
    """Whether a model is OpenAI's own, by name."""
    return _OPENAI_MODEL.search(model) is not None and "gpt-oss" not in model.lower()


def cap_field(model: str) -> str:
    """The field that caps the output where a request has none: newer OpenAI models refuse the old one."""
    return "max_completion_tokens" if is_openai(model) else "max_tokens"


def nudge_role(model: str, last_role: str) -> Literal["developer", "user"] | None:
    """Who may speak last in a request; None where nobody else may (a prefill, Mistral after results)."""
    if last_role == "assistant":
        return None
    if last_role == "tool" and _MISTRAL_MODEL.search(model):
        return None
    return "developer" if is_openai(model) else "user"
