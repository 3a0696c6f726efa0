"""Prices: exact, as of the time of the request, and never surer than they are."""

import random
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from genai_prices import Usage as ListUsage
from genai_prices import calc_price
from genai_prices.data_snapshot import get_snapshot
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.config import PriceRule, Settings, upstreams
from proxy.model import BillingLine, Cost, ModelRequest, Outcome, Upstream, Usage
from proxy.pricing import Pricing, Writes, upper_bound, usd_text
from proxy.pricing.cards import FEES, UNITS
from proxy.pricing.facts import writes_what_is_marked
from proxy.pricing.library import card_for
from proxy.pricing.names import spellings
from proxy.pricing.terms import Said

BUILT_IN = {one.name: one for one in upstreams(Settings())}
ANTHROPIC, OPENAI, GEMINI = BUILT_IN["anthropic"], BUILT_IN["openai"], BUILT_IN["gemini"]
UNSAID = Said(None, None, None, True)


def ns(*moment: int) -> int:
    return int(datetime(*moment, tzinfo=UTC).timestamp()) * 10**9


NOW = ns(2026, 11, 20, 12)


def request(model: str, **options: Any) -> ModelRequest:
    cap = options.pop("max_output_tokens", None)
    return ModelRequest("anthropic", "chat", model, True, (), max_output_tokens=cap, options=options)


def cost(
    usage: Usage,
    model: str = "claude-opus-5",
    upstream: Upstream = ANTHROPIC,
    *,
    pricing: Pricing | None = None,
    at: int = NOW,
    served: str | None = None,
    options: dict[str, Any] | None = None,
    **extra: Any,
) -> Cost:
    outcome = Outcome(usage=usage, model=served or model, extra=extra, whole=True)
    return (pricing or Pricing()).cost(request(model, **(options or {})), outcome, usage, upstream, at)


def usage(
    prompt: int, output: int = 0, read: int = 0, write: int = 0, long: int | None = 0, **extra: int
) -> Usage:
    return Usage(prompt, read, write, long, output, None, extra)


def usd(text: str, quality: str = "measured") -> Cost:
    return Cost(Decimal(text), quality)  # type: ignore[arg-type]


# -- against the list itself


def test_every_model_of_the_list_costs_what_the_list_says_to_the_last_digit() -> None:
    chance = random.Random(1)
    compared = 0
    for provider in get_snapshot().providers:
        upstream = Upstream("u", "https://host.invalid", "openai", provider.id)
        for model in provider.models:
            moment = datetime(2026, 11, 29, 23, 59, tzinfo=UTC) - timedelta(minutes=chance.randrange(600_000))
            card = card_for(upstream, model.id, UNSAID, int(moment.timestamp()) * 10**9)
            if card is None:
                continue
            prices = vars(model.get_prices(moment))
            prompt = chance.choice(
                [0, 7, 5000, 100_000, 100_001, 199_999, 200_000, 200_001, 272_001, 900_000]
            )
            read = chance.randint(0, prompt)
            write = chance.randint(0, prompt - read)
            long = chance.randint(0, write) if "cache_write_1h_mtok" in prices else 0
            counts = {
                "input_tokens": prompt,
                "cache_read_tokens": read,
                "cache_write_tokens": write,
                "cache_write_1h_tokens": long,
                "output_tokens": chance.randint(0, 60_000),
            }
            searches = {"web_searches": 3} if "web_searches_kcount" in prices else {}
            try:
                listed = calc_price(
                    ListUsage(**counts, **searches),
                    model.id,
                    provider_id=provider.id,
                    genai_request_timestamp=moment,
                )
            except LookupError:
                continue
            if listed.model is not model:
                continue
            found, _ = card.charge(usage(prompt, counts["output_tokens"], read, write, long, **searches))
            assert found == listed.total_price, (provider.id, model.id, moment, counts)
            compared += 1
    assert compared > 1500


@given(data=st.data())
@settings(max_examples=150, deadline=None)
def test_tiers_and_kinds_of_tokens_add_up_as_the_list_does(data: st.DataObject) -> None:
    model, upstream, tiers = data.draw(
        st.sampled_from(
            [
                ("claude-haiku-5-5", ANTHROPIC, ({}, {"processing": "batch"})),
                ("claude-opus-5-5", ANTHROPIC, ({}, {"processing": "batch"}, {"speed": "fast"})),
                ("gpt-6.1-sol", OPENAI, ({}, {"service_tier": "flex"}, {"service_tier": "priority"})),
                ("gpt-4o-audio-preview", OPENAI, ({},)),
                ("gemini-2.5-pro", GEMINI, ({}, {"processing": "batch"})),
                ("gemini-2.5-flash", GEMINI, ({},)),
            ]
        )
    )
    context = data.draw(st.sampled_from(tiers))
    prompt = data.draw(st.integers(0, 1_000_000))
    read = data.draw(st.integers(0, prompt))
    audio = data.draw(st.integers(0, prompt - read)) if "claude" not in model else 0
    output = data.draw(st.integers(0, 200_000))
    extra = {"service_tier": "batch"} if context.get("processing") else dict(context)
    listed = calc_price(
        ListUsage(
            input_tokens=prompt,
            cache_read_tokens=read,
            output_tokens=output,
            input_audio_tokens=audio,
            cache_audio_read_tokens=0,
        ),
        model,
        provider_id=upstream.provider,
        genai_request_timestamp=datetime.fromtimestamp(NOW // 10**9, UTC),
        price_context=context,
    )
    counted = usage(prompt, output, read, input_audio_tokens=audio, cache_audio_read_tokens=0)
    assert cost(counted, model, upstream, **extra).usd == listed.total_price


def test_units_are_the_lists_own() -> None:
    from genai_prices.data_units import unit_data

    assert set(UNITS) <= set(unit_data)
    assert all(UNITS[name].per == unit_data[name]["per"] for name in UNITS)
    for one in UNITS:
        for other in UNITS:
            nested = unit_data[one]["dimensions"].items() < unit_data[other]["dimensions"].items()
            assert nested == (UNITS[one].traits < UNITS[other].traits), (one, other)


# -- known numbers


def test_COST_01_the_five_prices_of_a_claude_reply() -> None:
    found = cost(usage(110_000, 1000, read=100_000, write=8000, long=3000, web_searches=2), "claude-sonnet-5")
    fresh, reads, short, long, out = (
        2000 * 2,
        Decimal(100_000 * 2) / 10,
        5000 * Decimal("2.5"),
        3000 * 4,
        1000 * 10,
    )
    assert found == Cost((fresh + reads + short + long + out) / 10**6 + Decimal("0.02"), "measured")


def test_COST_04_one_hour_writes_cost_twice_the_input() -> None:
    tokens = 344_139
    assert cost(usage(tokens, write=tokens, long=tokens)) == usd("3.44139")
    assert cost(usage(tokens, write=tokens, long=0)) == usd("2.15086875")
    half = cost(usage(tokens, write=tokens, long=144_139)).usd
    assert half == 200_000 * Decimal("0.00000625") + 144_139 * Decimal("0.00001")


def test_COST_04_a_missing_split_is_priced_short_and_assumed() -> None:
    assert cost(usage(344_139, write=344_139, long=None)) == usd("2.15086875", "assumed")
    assert cost(usage(10, long=None)).quality == "measured"


def test_a_cheap_token_costs_less_than_a_micro_dollar() -> None:
    assert cost(usage(1, 0), "claude-haiku-5-5") == usd("0.0000001")
    assert usd_text(Decimal("1E-7")) == "0.0000001"


def test_thresholds_count_the_whole_prompt_and_hold_for_all_of_it() -> None:
    below, above = usage(100_000, 10, read=99_000), usage(100_001, 10, read=99_000)
    assert cost(below, "claude-haiku-5-5") == usd("0.001095")
    assert cost(above, "claude-haiku-5-5") == usd("0.0054755")


def test_twelve_hour_writes() -> None:
    found = cost(usage(1000, write=1000, long=1000), "gpt-6.1-sol", OPENAI)
    assert found == usd("0.005")
    asked = {"prompt_cache_options": {"ttl": "12h"}}
    assert cost(usage(1000, write=1000, long=None), "gpt-6.1-sol", OPENAI, options=asked).quality == "assumed"
    assert cost(usage(1000, write=1000, long=None), "gpt-6.1-sol", OPENAI).quality == "measured"


def test_a_model_that_the_list_lacks_has_the_published_price() -> None:
    assert cost(usage(1_000_000, 0), "gpt-6.2-sol", OPENAI) == usd("4")
    assert cost(usage(200_000, 100_000, read=100_000), "gpt-6.2-sol-2026-11-03", OPENAI) == usd("1.21")


@pytest.mark.parametrize("model", ["gpt-6.2-astra", "gpt-6.2-terra", "gpt-9", "claude-opus-9", "acme-large"])
def test_COST_10_an_unknown_price_is_none_never_zero(model: str) -> None:
    for upstream in (OPENAI, ANTHROPIC):
        assert cost(usage(10, 10), model, upstream) == Cost(None, "unpriced")
        assert Pricing().card(request(model), upstream, NOW) is None


# -- terms


@pytest.mark.parametrize(
    ("model", "upstream", "extra", "expected", "quality"),
    [
        ("claude-opus-5", ANTHROPIC, {"service_tier": "standard"}, "5", "measured"),
        ("claude-opus-5", ANTHROPIC, {"service_tier": "batch"}, "2.5", "measured"),
        ("claude-opus-5", ANTHROPIC, {"speed": "fast"}, "10", "measured"),
        ("claude-opus-5", ANTHROPIC, {"speed": "standard"}, "5", "measured"),
        ("claude-opus-5", ANTHROPIC, {"inference_geo": "us"}, "5.5", "measured"),
        ("claude-opus-5", ANTHROPIC, {"inference_geo": "global"}, "5", "measured"),
        ("claude-opus-5", ANTHROPIC, {"inference_geo": "not_available"}, "5", "measured"),
        ("claude-opus-5", ANTHROPIC, {"inference_geo": "us", "service_tier": "batch"}, "2.75", "measured"),
        ("claude-opus-5", ANTHROPIC, {"inference_geo": "mars"}, "5.5", "assumed"),
        ("claude-opus-5", ANTHROPIC, {"service_tier": "priority"}, "5", "assumed"),
        ("claude-opus-5", ANTHROPIC, {"service_tier": "platinum"}, "5", "assumed"),
        ("claude-opus-5", ANTHROPIC, {"speed": "ludicrous"}, "5", "assumed"),
        ("claude-sonnet-4-6", ANTHROPIC, {"speed": "fast"}, "6", "assumed"),
        ("gpt-6.1-sol", OPENAI, {"service_tier": "default"}, "4", "measured"),
        ("gpt-6.1-sol", OPENAI, {"service_tier": "flex"}, "2", "measured"),
        ("gpt-6.1-sol", OPENAI, {"service_tier": "priority"}, "8", "measured"),
        ("gpt-6.1-sol", OPENAI, {"service_tier": "fast"}, "8", "measured"),
        ("gpt-6.1-sol", OPENAI, {"service_tier": "ultrafast"}, "12", "measured"),
        ("gpt-6.1-sol", OPENAI, {"service_tier": "scale"}, "4", "assumed"),
        ("gpt-6.2-sol", OPENAI, {"service_tier": "priority"}, "8", "assumed"),
        ("gpt-4", OPENAI, {"service_tier": "flex"}, "15", "assumed"),
        ("gemini-2.5-flash", GEMINI, {"service_tier": "STANDARD"}, "0.3", "measured"),
        ("gemini-2.5-flash", GEMINI, {"traffic_type": "ON_DEMAND"}, "0.3", "measured"),
        ("gemini-2.5-flash", GEMINI, {"traffic_type": "PROVISIONED_THROUGHPUT"}, "0.3", "assumed"),
    ],
)
def test_tiers_speeds_and_places(
    model: str, upstream: Upstream, extra: dict[str, str], expected: str, quality: str
) -> None:
    assert cost(usage(1_000_000), model, upstream, **extra) == usd(expected, quality)


def test_the_served_tier_wins_over_the_one_asked_for() -> None:
    asked = {"service_tier": "priority"}
    served = cost(usage(1_000_000), "gpt-6.1-sol", OPENAI, options=asked, service_tier="default")
    assert served == usd("4")
    assert cost(usage(1_000_000), "gpt-6.1-sol", OPENAI, options=asked) == usd("8", "assumed")


def test_fees_are_not_multiplied() -> None:
    assert cost(usage(0, 0, web_searches=100), inference_geo="us") == usd("1")


def test_ultrafast_becomes_dearer() -> None:
    pricing = Pricing()
    for at, expected in ((ns(2027, 1, 31, 23), "12"), (ns(2027, 2, 1), "24"), (NOW, "12")):
        found = cost(
            usage(1_000_000), "gpt-6.1-sol", OPENAI, pricing=pricing, at=at, service_tier="ultrafast"
        )
        assert found == usd(expected)


def test_a_regional_host_costs_a_tenth_more() -> None:
    regional = Upstream("eu", "https://eu.api.openai.com/v1", "openai")
    assert cost(usage(1_000_000), "gpt-6.1-sol", regional) == usd("4.4", "assumed")


def test_a_late_answers_discount_is_not_known() -> None:
    late = {"background_options": {"completion_window": "8h"}}
    assert cost(usage(1000), "gpt-6.1-sol", OPENAI, options=late).quality == "assumed"


def test_the_price_is_the_one_of_the_request_time() -> None:
    pricing = Pricing()
    before, after = ns(2026, 11, 30, 23), ns(2026, 12, 1)
    for at, expected in ((before, "2"), (after, "4"), (before, "2")):
        assert cost(usage(1_000_000), "gemini-4-argon", GEMINI, pricing=pricing, at=at) == usd(expected)


@pytest.mark.parametrize(
    ("hour", "minute", "expected"),
    [
        (0, 59, "0.15"),
        (1, 0, "0.3"),
        (3, 59, "0.3"),
        (4, 0, "0.15"),
        (6, 0, "0.3"),
        (9, 59, "0.3"),
        (10, 0, "0.15"),
    ],
)
def test_deepseek_by_the_hour(hour: int, minute: int, expected: str) -> None:
    pricing, upstream = Pricing(), BUILT_IN["deepseek"]
    cost(usage(1), "deepseek-flash", upstream, pricing=pricing, at=ns(2026, 11, 20, 5))
    at = ns(2026, 11, 20, hour, minute)
    assert cost(usage(1_000_000), "deepseek-flash", upstream, pricing=pricing, at=at) == usd(expected)


# -- who served


def test_the_served_model_is_priced() -> None:
    assert cost(usage(1_000_000), "claude-opus-5", served="claude-sonnet-5") == usd("2")
    assert cost(usage(1_000_000), "claude-opus-5", served="somebody") == usd("5", "assumed")


@pytest.mark.parametrize(
    "model",
    [
        "claude-sonnet-4-5",
        "claude-sonnet-4-5-20250929",
        "anthropic/claude-sonnet-4-5",
        "anthropic/claude-sonnet-4.5",
        "us.anthropic.claude-sonnet-4-5-20250929-v1:0",
        "bedrock/eu.anthropic.claude-sonnet-4-5-20250929-v1:0",
        "vertex_ai/claude-sonnet-4-5@20250929",
        "publishers/anthropic/models/claude-sonnet-4-5",
        "claude-sonnet-4-5-latest",
        "claude-sonnet-4-5[1m]",
        "Claude-Sonnet-4-5",
    ],
)
def test_COST_14_one_model_has_one_price_however_it_is_spelt(model: str) -> None:
    assert cost(usage(100_000), model) == usd("0.3")


@pytest.mark.parametrize(
    ("model", "upstream", "expected"),
    [
        ("models/gemini-2.5-flash", GEMINI, "0.3"),
        ("projects/p/locations/l/publishers/google/models/gemini-2.5-flash", GEMINI, "0.3"),
        ("openai/gpt-6.1-sol-2026-10-12", OPENAI, "4"),
        ("openai/gpt-6.2-sol", OPENAI, "4"),
    ],
)
def test_COST_14_paths_and_dates(model: str, upstream: Upstream, expected: str) -> None:
    assert cost(usage(1_000_000), model, upstream) == usd(expected)


@pytest.mark.parametrize(
    "model", ["acme/gpt-4o", "gpt-4o-custom", "deepseek-v9", "claude-opus-5-9", "ft:gpt-4o:a::b"]
)
def test_COST_11_no_model_is_priced_as_another(model: str) -> None:
    for upstream in (OPENAI, ANTHROPIC, BUILT_IN["deepseek"]):
        assert cost(usage(1000), model, upstream).quality == "unpriced"


def test_a_model_known_by_its_name_alone_is_assumed() -> None:
    gateway = Upstream("gateway", "http://127.0.0.1:4000/v1", "openai")
    assert cost(usage(1_000_000), "claude-opus-5", gateway) == usd("5", "assumed")
    assert cost(usage(1_000_000), "gpt-6.2-sol", gateway) == usd("4", "assumed")
    assert cost(usage(1000), "gpt-oss:20b", BUILT_IN["ollama"]).quality == "unpriced"


def test_the_providers_url_is_enough() -> None:
    assert cost(usage(1_000_000), upstream=Upstream("a", "https://api.anthropic.com", "anthropic")) == usd(
        "5"
    )


def test_spellings_never_drop_a_version() -> None:
    assert "deepseek" not in list(spellings("deepseek-v3"))
    assert next(spellings("claude-opus-5")) == "claude-opus-5"
    assert len(list(spellings("a/" * 300))) < 10


# -- other sources


def test_the_providers_own_word_comes_first() -> None:
    rule = PriceRule(model="*", input=Decimal(1), output=Decimal(1))
    found = cost(usage(1000, 1000), pricing=Pricing([rule]), cost_usd="0.00123")
    assert found == usd("0.00123")


@pytest.mark.parametrize("word", ["-1", "NaN", "much", "", None, True, 0.5])
def test_a_providers_senseless_word_is_passed_over(word: Any) -> None:
    assert cost(usage(1_000_000), cost_usd=word) == usd("5")


def test_own_prices_first_match_wins() -> None:
    rules = (
        PriceRule(model="claude-*", upstream="openai", input=Decimal(9), output=Decimal(9)),
        PriceRule(model="CLAUDE-OPUS-?", input=Decimal(7), output=Decimal(8), cache_read=Decimal("0.7")),
        PriceRule(model="*", input=Decimal(0), output=Decimal(0)),
    )
    pricing = Pricing(rules)
    assert cost(usage(1_000_000, 1_000_000), pricing=pricing) == usd("15")
    assert cost(usage(1_000_000), upstream=OPENAI, pricing=pricing) == usd("9")
    assert cost(usage(1_000_000, read=500_000), pricing=pricing) == usd("3.85")
    assert cost(usage(10, 10), "local", BUILT_IN["ollama"], pricing=pricing) == usd("0")


def test_COST_03_own_prices_charge_a_cached_token_once() -> None:
    rule = PriceRule(
        model="acme-*",
        input=Decimal(3),
        output=Decimal(15),
        cache_read=Decimal("0.3"),
        cache_write=Decimal("3.75"),
        cache_write_1h=Decimal(6),
    )
    pricing = Pricing([rule])
    found = cost(usage(1000, 10, read=600, write=300, long=100), "acme-1", OPENAI, pricing=pricing)
    by_hand = (
        100 * Decimal(3) + 600 * Decimal("0.3") + 200 * Decimal("3.75") + 100 * Decimal(6) + 10 * Decimal(15)
    )
    assert found == Cost(by_hand / 10**6, "measured")


def test_own_prices_that_leave_something_open_are_assumed_where_it_matters() -> None:
    pricing = Pricing([PriceRule(model="*", input=Decimal(4), output=Decimal(8))])
    assert cost(usage(1_000_000), pricing=pricing) == usd("4")
    assert cost(usage(1_000_000, read=1_000_000), pricing=pricing) == usd("4", "assumed")
    assert cost(usage(1_000_000, write=1_000_000), pricing=pricing) == usd("4", "assumed")
    short = Pricing([PriceRule(model="*", input=Decimal(4), output=Decimal(8), cache_write=Decimal(5))])
    assert cost(usage(1_000_000, write=1_000_000, long=1_000_000), pricing=short) == usd("8", "assumed")


# -- several lines


def test_billing_lines_are_each_priced_at_their_own_model() -> None:
    lines = (
        BillingLine("", usage(1_000_000, 0)),
        BillingLine("claude-sonnet-5", usage(0, 1_000_000)),
        BillingLine("claude-haiku-5-5", usage(0, 0)),
    )
    reply = Outcome(model="claude-opus-5", billing=lines)
    top = usage(1_000_000, 0, web_searches=10)
    found = Pricing().cost(request("claude-opus-5"), reply, top, ANTHROPIC, NOW)
    assert found == usd("15.1")


def test_one_line_of_unknown_price_makes_the_whole_unknown() -> None:
    reply = Outcome(model="claude-opus-5", billing=(BillingLine("", usage(1)), BillingLine("who", usage(1))))
    known_top = usage(1)
    found = Pricing().cost(request("claude-opus-5"), reply, known_top, ANTHROPIC, NOW)
    assert found == usd("0.00001", "assumed")  # the line's own name is unknown: priced as the one asked for
    stranger = Pricing().cost(request("who"), Outcome(billing=reply.billing), known_top, ANTHROPIC, NOW)
    assert stranger == Cost(None, "unpriced")


# -- odd usage


def test_nothing_used_costs_nothing_when_it_was_said() -> None:
    assert cost(usage(0, 0)) == usd("0")
    assert cost(usage(0, 0), "unknown-model") == usd("0")
    assert cost(Usage()) == Cost(None, "unpriced")


@pytest.mark.parametrize(
    ("odd", "expected"),
    [
        (Usage(cache_read_tokens=100, output_tokens=0), "0.00005"),
        (Usage(input_tokens=100, cache_read_tokens=200, output_tokens=0), "0.0006"),
        (Usage(input_tokens=100, cache_write_tokens=10, cache_write_1h_tokens=20, output_tokens=0), "0.0006"),
        (Usage(input_tokens=100), "0.0005"),
        (Usage(output_tokens=100), "0.0025"),
    ],
)
def test_counts_that_do_not_fit_are_mended_towards_the_dearer_and_assumed(odd: Usage, expected: str) -> None:
    assert cost(odd) == usd(expected, "assumed")


def test_kinds_that_exceed_the_whole_keep_their_dearer_price() -> None:
    found = cost(usage(100, 0, input_audio_tokens=200), "gemini-2.5-flash", GEMINI)
    assert found == usd("0.00017", "assumed")


def test_audio_whose_cached_part_is_not_said_is_charged_as_fresh() -> None:
    model = next(
        model.id
        for provider in get_snapshot().providers
        if provider.id == "openai"
        for model in provider.models
        if not isinstance(model.prices, list) and "cache_audio_read_mtok" in vars(model.prices)
    )
    said = usage(1000, 0, read=500, input_audio_tokens=600, cache_audio_read_tokens=300)
    unsaid = usage(1000, 0, read=500, input_audio_tokens=600)
    assert cost(said, model, OPENAI).quality == "measured"
    assert cost(unsaid, model, OPENAI).quality == "assumed"
    assert (cost(unsaid, model, OPENAI).usd or 0) > (cost(said, model, OPENAI).usd or 0)


def test_a_tools_fee_that_nobody_knows_makes_the_price_doubtful() -> None:
    assert cost(usage(1_000_000, code_executions=1)) == usd("5", "assumed")
    assert cost(usage(1_000_000, web_fetches=4)) == usd("5")


@given(
    counts=st.tuples(*[st.none() | st.integers(0, 10**7)] * 6),
    extra=st.dictionaries(st.sampled_from([*sorted(UNITS), "novelty"]), st.integers(0, 10**6), max_size=4),
    words=st.fixed_dictionaries(
        {},
        optional={
            name: st.none() | st.sampled_from(["batch", "flex", "fast", "us", "x", 5])
            for name in ("service_tier", "speed", "inference_geo", "traffic_type", "cost_usd")
        },
    ),
    model=st.sampled_from(
        ["claude-opus-5", "gpt-6.1-sol", "gemini-2.5-flash", "gpt-6.2-sol", "?", "", "a/b:c[d]"]
    ),
    upstream=st.sampled_from(list(BUILT_IN.values())),
)
@settings(max_examples=120, deadline=None)
def test_no_usage_raises_or_costs_less_than_nothing(
    counts: Any, extra: dict[str, int], words: dict[str, Any], model: str, upstream: Upstream
) -> None:
    found = cost(Usage(*counts, extra), model, upstream, **words)
    assert (found.usd is None) == (found.quality == "unpriced")
    assert found.usd is None or found.usd >= 0


# -- estimates, holds, text


def test_COST_05_an_estimate_is_not_below_what_was_delivered() -> None:
    begun = Outcome(usage=usage(25, 1), streamed_chars=301)
    assert Pricing().estimate(begun, 10_000) == usage(25, 101)
    silent = Outcome(streamed_chars=3)
    assert Pricing().estimate(silent, 401) == Usage(input_tokens=101, output_tokens=1)
    assert Pricing().estimate(Outcome(usage=usage(25, 511), streamed_chars=3), 1) == usage(25, 511)


def hold(model: str, upstream: Upstream, tokens: int, **options: Any) -> Decimal:
    asked = request(model, **options)
    card = Pricing().card(asked, upstream, NOW)
    assert card is not None
    return upper_bound(asked, card, tokens)


def test_a_hold_takes_the_dearest_token_and_the_whole_output() -> None:
    assert hold("claude-opus-5", ANTHROPIC, 1000, max_output_tokens=100) == Decimal("0.0125")
    assert hold("gpt-6.1-sol", OPENAI, 1000, max_output_tokens=100) == Decimal("0.0035")
    long = hold("gpt-6.1-sol", OPENAI, 1000, max_output_tokens=100, prompt_cache_options={"ttl": "12h"})
    assert long == Decimal("0.006")
    assert hold("gpt-4o", OPENAI, 0) == 16_384 * Decimal("0.00001")
    assert hold("gpt-4o", OPENAI, 0, max_output_tokens=10**9) == 16_384 * Decimal("0.00001")
    assert hold("gpt-4o", OPENAI, 0, max_output_tokens=10, n=3) == 30 * Decimal("0.00001")


@pytest.mark.parametrize(
    ("model", "writes", "usd"),
    [
        ("claude-opus-5", Writes.LONG, "0.0125"), ("claude-opus-5", Writes.SHORT, "0.00875"),
        ("claude-opus-5", Writes.NONE, "0.0075"),
    ],
)  # fmt: skip
def test_a_hold_counts_a_cache_only_where_it_may_be_written(model: str, writes: Writes, usd: str) -> None:
    asked = request(model, max_output_tokens=100)
    card = Pricing().card(asked, ANTHROPIC, NOW)
    assert card is not None
    assert upper_bound(asked, card, 1000, writes) == Decimal(usd)


def test_only_anthropics_own_api_is_known_to_write_no_more_than_is_marked() -> None:
    front = Upstream("a", "https://gateway.example", "anthropic")
    assert [writes_what_is_marked(one) for one in (ANTHROPIC, front, OPENAI)] == [True, False, False]
    assert not writes_what_is_marked(replace(front, provider="anthropic"))


def test_a_hold_takes_the_band_of_its_length() -> None:
    assert hold("claude-haiku-5-5", ANTHROPIC, 100_000, max_output_tokens=0) == Decimal("0.02")
    assert hold("claude-haiku-5-5", ANTHROPIC, 100_001, max_output_tokens=0) == Decimal("0.1000010")


@given(
    model=st.sampled_from(
        [("claude-haiku-5-5", ANTHROPIC), ("gpt-6.1-sol", OPENAI), ("gemini-2.5-pro", GEMINI)]
    ),
    tier=st.sampled_from([None, "batch", "flex"]),
    prompt=st.integers(0, 400_000),
    output=st.integers(0, 8000),
    shares=st.tuples(st.floats(0, 1), st.floats(0, 1), st.floats(0, 1)),
)
@settings(max_examples=120, deadline=None)
def test_no_reply_costs_more_than_its_hold(
    model: Any, tier: str | None, prompt: int, output: int, shares: tuple[float, float, float]
) -> None:
    name, upstream = model
    read = int(prompt * shares[0])
    write = int((prompt - read) * shares[1])
    long = int(write * shares[2]) if upstream is ANTHROPIC else 0
    options = {"service_tier": tier} if tier else {}
    held = hold(name, upstream, prompt, max_output_tokens=output, **options)
    paid = cost(usage(prompt, output, read, write, long), name, upstream, options=options).usd
    assert paid is not None
    assert paid <= held


@pytest.mark.parametrize(
    ("amount", "text"),
    [
        ("0", "0"),
        ("0.0123000", "0.0123"),
        ("1E-9", "0.000000001"),
        ("1E+3", "1000"),
        ("-0.0", "0"),
        ("100", "100"),
        ("5.", "5"),
    ],
)
def test_money_as_text(amount: str, text: str) -> None:
    assert usd_text(Decimal(amount)) == text


# -- cost of it all


def test_a_price_that_was_asked_for_before_takes_microseconds() -> None:
    pricing, counted = Pricing(), usage(110_000, 1000, 100_000, 8000, 3000, web_searches=2)
    asked = request("claude-sonnet-5")
    reply = Outcome(model="claude-sonnet-5", extra={"service_tier": "standard"})
    pricing.cost(asked, reply, counted, ANTHROPIC, NOW)
    best = min(_timed(pricing, asked, reply, counted) for _ in range(5))
    assert best < 40e-6  # measured 3e-6; the list itself takes 200e-6


def _timed(pricing: Pricing, asked: ModelRequest, reply: Outcome, counted: Usage) -> float:
    begin = time.perf_counter()
    for _ in range(200):
        pricing.cost(asked, reply, counted, ANTHROPIC, NOW)
    return (time.perf_counter() - begin) / 200


def test_the_cache_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxy.pricing.MAX_CARDS", 10)
    pricing = Pricing()
    for number in range(50):
        cost(usage(1), f"model-{number}", pricing=pricing)
    assert len(pricing._cards) <= 10


def test_fees_are_what_is_charged_per_call() -> None:
    assert {"web_searches", "requests"} <= FEES
    assert not any(name.endswith("tokens") for name in FEES)
