"""What the price list does not know: corrections as data, each with where it is from and since when.

Read from the providers' public price pages in November 2026. A row that the list comes to know is
taken out; a new model or multiplier is a row.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from urllib.parse import urlsplit

from proxy.model import Upstream
from proxy.pricing.cards import PriceTable, Steps

D = Decimal


def day_ns(year: int, month: int, day: int) -> int:
    """Midnight UTC."""
    return int(datetime(year, month, day, tzinfo=UTC).timestamp()) * 10**9


@dataclass(frozen=True, slots=True)
class ModelFact:
    """A model that the list lacks."""

    provider: str
    model: re.Pattern[str]
    prices: PriceTable
    source: str


MODELS: tuple[ModelFact, ...] = (
    ModelFact(
        "openai",
        re.compile(r"gpt-6\.2-sol(?:-\d{4}-\d{2}-\d{2})?"),
        {
            "input_tokens": Steps(D(2), ((272_000, D(4)),)),
            "cache_read_tokens": Steps(D("0.1"), ((272_000, D("0.2")),)),
            "cache_write_tokens": Steps(D("2.5"), ((272_000, D(5)),)),
            "output_tokens": Steps(D(10), ((272_000, D(15)),)),
            "web_searches": D(10),
            "storage_searches": D("2.5"),
        },
        "OpenAI price page, November 2026",
    ),
)
"""Prices of gpt-6.2-terra and gpt-6.2-astra are not published: they stay unpriced."""


TIER_MULTIPLIERS: Mapping[tuple[str, str, str], Decimal] = {
    ("anthropic", "processing", "batch"): D("0.5"),
    ("anthropic", "speed", "fast"): D(2),
    ("openai", "processing", "batch"): D("0.5"),
    ("openai", "service_tier", "flex"): D("0.5"),
    ("openai", "service_tier", "priority"): D(2),
    ("openai", "service_tier", "fast"): D(2),
    ("google", "processing", "batch"): D("0.5"),
    ("google", "service_tier", "flex"): D("0.5"),
    ("google", "service_tier", "priority"): D("1.8"),
    ("x-ai", "processing", "batch"): D("0.5"),
    ("mistral", "processing", "batch"): D("0.5"),
    ("groq", "processing", "batch"): D("0.5"),
}
"""The usual factor of a tier, for models of which the list has no price on that tier. Doubtful."""

ULTRAFAST: tuple[tuple[int, Decimal], ...] = ((0, D(3)), (day_ns(2027, 2, 1), D(6)))
"""OpenAI's ``ultrafast`` tier: factor by date (OpenAI price page, November 2026)."""

GEO_MULTIPLIERS: Mapping[str, Decimal] = {"us": D("1.1")}
"""Anthropic's ``inference_geo`` (price page: 1.1 for inference in the US only, models from 4.6 on)."""

NO_GEO = frozenset({"", "global", "not_available", "default"})

LONG_WRITES: Mapping[str, Decimal] = {"anthropic": D(2), "openai": D("2.5")}
"""Price of a cache write for an hour (Anthropic) or twelve (OpenAI), in input prices."""

WEB_SEARCH_USD_PER_1000: Mapping[str, Decimal] = {"anthropic": D(10), "openai": D(10)}
"""Where the list has no fee for a model's web searches."""


@dataclass(frozen=True, slots=True)
class HostFact:
    """A regional host: whose models it serves, and what it adds."""

    host: re.Pattern[str]
    provider: str
    models: re.Pattern[str]
    multiplier: Decimal


_ANY = re.compile("")
HOSTS: tuple[HostFact, ...] = (
    HostFact(re.compile(r"(?:us|eu|au|ca|jp|in|sg|kr|gb|ae)\.api\.openai\.com"), "openai", _ANY, D("1.1")),
    HostFact(re.compile(r"us[a-z0-9-]*\.api\.x\.ai"), "x-ai", _ANY, D("1.1")),
    HostFact(re.compile(r"[a-z0-9-]+-aiplatform\.googleapis\.com"), "google", re.compile("claude"), D("1.1")),
)
"""Regional processing costs a tenth more; whether it does so for the model in question is doubtful."""

OUTPUT_LIMITS: tuple[tuple[re.Pattern[str], int], ...] = (
    (re.compile(r"claude-(?:3-5|3-haiku|3-opus|3-sonnet)"), 8192),
    (re.compile(r"claude-opus-4-(?:0|1)$"), 32_000),
    (re.compile(r"claude-(?:(?:sonnet|haiku)-4-[05]|opus-4-5|3-7-sonnet)"), 64_000),
    (re.compile(r"gpt-4o"), 16_384),
    (re.compile(r"gpt-4\.1"), 32_768),
    (re.compile(r"gpt-4"), 8192),
    (re.compile(r"(?:^|/)o[134](?:-|$)"), 100_000),
    (re.compile(r"gemini-(?:2\.5|3)"), 65_536),
    (re.compile(r"gemini-2"), 8192),
)
"""The most that a model writes, by its name in the list; first match wins."""


def writes_what_is_marked(upstream: Upstream) -> bool:
    """Whether nothing is written to the cache, and billed so, but what a request marks (``cache_control``).

    Known of Anthropic's own API only: a gateway in front of it may add marks.
    """
    return upstream.api == "anthropic" and urlsplit(upstream.url).hostname == "api.anthropic.com"


DEFAULT_OUTPUT_LIMIT = 128_000
