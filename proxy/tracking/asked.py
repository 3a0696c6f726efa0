"""What a request asked of the model, in one set of names for all dialects: limits, sampling, effort.

Told with each attempt, so that a trace shows it without anybody reading the body again. Numbers and
short words only, never content; what the request does not say is absent.
"""

from collections.abc import Mapping
from typing import Any

from proxy.model import ModelRequest

_LONGEST = 64


def asked(request: ModelRequest) -> dict[str, Any]:
    """The facts of one request."""
    found: dict[str, Any] = {
        "max_tokens": request.max_output_tokens,
        **(_chosen(request.options) if request.options else {}),
        "tools": len(request.tools) or None,
        "json": request.output_schema or None,
    }
    return {name: value for name, value in found.items() if value is not None}


def _chosen(options: Mapping[str, Any]) -> dict[str, Any]:
    """What its options say; None where they do not."""
    config = _inner(options, "generationConfig")
    return {
        "temperature": _number(options.get("temperature", config.get("temperature"))),
        "top_p": _number(options.get("top_p", config.get("topP"))),
        "top_k": _number(options.get("top_k", config.get("topK"))),
        "seed": _number(options.get("seed", config.get("seed"))),
        "choices": _number(options.get("n")),
        "effort": _effort(options, config),
        "thinking_budget": _number(
            _inner(options, "thinking").get(
                "budget_tokens", _inner(config, "thinkingConfig").get("thinkingBudget")
            )
        ),
        "service_tier": _word(options.get("service_tier", options.get("serviceTier"))),
        "previous_response": _word(options.get("previous_response_id")),
    }


def _effort(options: Mapping[str, Any], config: Mapping[str, Any]) -> str | None:
    """How hard the model is asked to think, in the word that was sent."""
    said = (
        options.get("reasoning_effort"),
        _inner(options, "reasoning").get("effort"),
        _inner(options, "output_config").get("effort"),
        _inner(config, "thinkingConfig").get("thinkingLevel"),
    )
    return next((word for value in said if (word := _word(value)) is not None), None)


def _inner(value: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = value.get(name)
    return found if type(found) is dict else {}


def _number(value: Any) -> int | float | None:
    if type(value) is not int and type(value) is not float:
        return None
    return value if abs(value) < 2**53 else None  # also drops what is no number at all


def _word(value: Any) -> str | None:
    return value[:_LONGEST] if isinstance(value, str) and value else None
