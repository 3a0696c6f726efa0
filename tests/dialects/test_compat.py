"""Differences of compatible providers, each with the numbers that show it."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.dialects.compat import (
    cap_field,
    is_openai,
    nudge_role,
    proof,
    read_usage,
    reported_cost,
    whole_pieces,
)


def public(raw: dict[str, Any]) -> dict[str, int] | None:
    usage = read_usage(raw)
    return usage.public() if usage is not None else None


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        # DeepSeek: hits and misses of the cache beside the details
        (
            {
                "prompt_tokens": 290,
                "completion_tokens": 51,
                "prompt_cache_hit_tokens": 256,
                "prompt_cache_miss_tokens": 34,
            },
            {"input_tokens": 290, "cache_read_tokens": 256, "output_tokens": 51},
        ),
        # Mistral
        (
            {"prompt_tokens": 64, "completion_tokens": 6, "num_cached_tokens": 0},
            {"input_tokens": 64, "cache_read_tokens": 0, "output_tokens": 6},
        ),
        # xAI: the total tells that reasoning stands beside the completion
        (
            {
                "prompt_tokens": 496,
                "completion_tokens": 77,
                "total_tokens": 694,
                "completion_tokens_details": {"reasoning_tokens": 121},
            },
            {"input_tokens": 496, "output_tokens": 198, "reasoning_tokens": 121},
        ),
        # OpenAI: it stands inside
        (
            {
                "prompt_tokens": 145,
                "completion_tokens": 154,
                "total_tokens": 299,
                "completion_tokens_details": {"reasoning_tokens": 128},
            },
            {"input_tokens": 145, "output_tokens": 154, "reasoning_tokens": 128},
        ),
        # Gemini behind Vercel: 302 tokens at 12 and 9 at 2 dollars a million are the 0.003642 it reports
        (
            {
                "prompt_tokens": 9,
                "completion_tokens": 35,
                "total_tokens": 44,
                "cost": 0.003642,
                "completion_tokens_details": {"reasoning_tokens": 267},
            },
            {"input_tokens": 9, "output_tokens": 302, "reasoning_tokens": 267},
        ),
        # MiniMax: one more than there is
        (
            {
                "prompt_tokens": 43,
                "completion_tokens": 10,
                "total_tokens": 53,
                "completion_tokens_details": {"reasoning_tokens": 11},
            },
            {"input_tokens": 43, "output_tokens": 10, "reasoning_tokens": 11},
        ),
        # Anthropic through OpenRouter
        (
            {
                "prompt_tokens": 14,
                "completion_tokens": 2,
                "prompt_tokens_details": {"cached_tokens": 1, "cache_write_tokens": 9},
            },
            {"input_tokens": 14, "cache_read_tokens": 1, "cache_write_tokens": 9, "output_tokens": 2},
        ),
        ({"prompt_tokens": None, "completion_tokens": None}, None),
        ({"prompt_tokens": -1, "completion_tokens": True, "prompt_tokens_details": []}, None),
        ({"prompt_tokens": 3.0}, {"input_tokens": 3}),
        ({}, None),
    ],
)
def test_usage(raw: dict[str, Any], expected: dict[str, int] | None) -> None:
    assert public(raw) == expected


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ({"cost": 2.325e-05, "is_byok": False}, "0.00002325"),
        ({"cost": 0, "is_byok": False}, "0"),
        ({"cost": 0.001, "is_byok": True, "cost_details": {"upstream_inference_cost": 0.00417}}, "0.00517"),
        ({"cost": 0, "is_byok": True, "cost_details": {"upstream_inference_cost": None}}, None),
        ({"cost_in_usd_ticks": 3155600}, "0.00031556"),
        ({"cost_in_usd_ticks": 0}, None),
        ({"cost": "free"}, None),
        ({"cost": -1}, None),
        ({}, None),
    ],
)
def test_cost_as_the_provider_reports_it(raw: dict[str, Any], expected: str | None) -> None:
    assert reported_cost(raw) == expected


@given(
    st.dictionaries(
        st.sampled_from(
            ["prompt_tokens", "completion_tokens", "total_tokens", "cost", "prompt_tokens_details", "is_byok"]
        ),
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats()
        | st.text(max_size=3)
        | st.dictionaries(st.text(), st.integers()),
    )
)
def test_odd_usage_never_raises(raw: dict[str, Any]) -> None:
    read_usage(raw)
    reported_cost(raw)


@pytest.mark.parametrize(
    ("model", "openai"),
    [
        ("gpt-5.1", True),
        ("openai/gpt-5.1", True),
        ("o3-mini", True),
        ("chatgpt-4o", True),
        ("openai/gpt-oss-120b", False),
        ("deepseek-chat", False),
        ("mistral-large", False),
        ("", False),
        ("olmo", False),
    ],
)
def test_models_of_openai_by_name(model: str, openai: bool) -> None:
    assert is_openai(model) is openai
    assert cap_field(model) == ("max_completion_tokens" if openai else "max_tokens")


def test_who_may_speak_last() -> None:
    assert nudge_role("gpt-5.1", "tool") == "developer"
    assert nudge_role("deepseek-chat", "tool") == "user"
    assert nudge_role("mistral-large-latest", "tool") is None
    assert nudge_role("mistral-large-latest", "user") == "user"
    assert nudge_role("gpt-5.1", "assistant") is None


def test_streamed_pieces_of_reasoning_are_joined_to_what_goes_back() -> None:
    told = [
        {"type": "reasoning.text", "index": 0, "text": "Let", "format": "f", "signature": None},
        {"type": "reasoning.text", "index": 0, "text": " me."},
        {"type": "reasoning.text", "index": 0, "text": "", "signature": "s"},
        {"type": "reasoning.encrypted", "index": 1, "data": "d"},
    ]
    text = {"type": "reasoning.text", "index": 0, "text": "Let me.", "format": "f", "signature": "s"}
    assert whole_pieces(told) == (text, told[3])
    assert whole_pieces(whole_pieces(told)) == whole_pieces(told)
    assert proof(whole_pieces(told)) == proof([{k: v for k, v in text.items() if k != "index"}, told[3]])
