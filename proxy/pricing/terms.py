"""On which terms a reply is billed: tier, speed, place, as served and, failing that, as asked for.

Providers name tiers in their own ways and the price list wants exact words; an unknown word would be
priced as standard without a sound. So every word is translated here, and one that nobody knows makes
the price doubtful.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, NamedTuple

from proxy.pricing import facts
from proxy.pricing.cards import FOREVER

ONE = Decimal(1)


class Said(NamedTuple):
    """What reply and request say, untranslated: the part of a card's key that is not the model."""

    tier: str | None
    speed: str | None
    geo: str | None
    asked: bool
    """The tier is the request's: the reply named none."""
    window: bool = False
    """The request allows a late answer for a discount that nobody publishes."""
    long_cache: bool = False
    """The request asks OpenAI to keep its cache for twelve hours."""


@dataclass(frozen=True, slots=True)
class Terms:
    """What the price list is asked for, and what goes on top."""

    context: Mapping[str, str]
    multiplier: Decimal = ONE
    doubtful: bool = False
    since_ns: int = 0
    until_ns: int = FOREVER
    """While the multiplier holds."""


def said(extra: Mapping[str, Any], options: Mapping[str, Any]) -> Said:
    """Collect the words. ``extra`` is the reply's, ``options`` the request's."""
    tier = extra.get("service_tier") or extra.get("serviceTier") or extra.get("traffic_type")
    asked = tier is None
    if asked:
        tier = options.get("service_tier") or options.get("serviceTier")
    speed = extra.get("speed") if "speed" in extra else options.get("speed")
    geo = extra.get("inference_geo") if "inference_geo" in extra else options.get("inference_geo")
    window = bool(options.get("background_options"))
    cache = options.get("prompt_cache_options")
    long_cache = isinstance(cache, dict) and cache.get("ttl") == "12h"
    return Said(_word(tier), _word(speed), _word(geo), asked, window, long_cache)


def _word(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


_STANDARD = frozenset(
    {
        "",
        "auto",
        "default",
        "standard",
        "standard_only",
        "on_demand",
        "regular",
        "unspecified",
        "traffic_type_unspecified",
    }
)
_COMMITTED = frozenset({"scale", "provisioned_throughput", "provisioned"})
"""Paid ahead: the list price of the tokens is no measure of what they cost."""
_OPENAI = frozenset({"openai", "azure"})


def translate(words: Said, owner: str, at_ns: int) -> Terms:
    """The terms for a model of ``owner`` (whose list its price stands in)."""
    context: dict[str, str] = {}
    multiplier, since, until, doubtful = ONE, 0, FOREVER, words.window
    tier = (words.tier or "").lower().removeprefix("service_tier_").removeprefix("on_demand_")
    if tier == "batch":
        context["processing"] = "batch"
    elif tier == "ultrafast" and owner in _OPENAI:
        multiplier, since, until = _ultrafast(at_ns)
    elif tier in ("flex", "priority", "fast") and owner in ("openai", "azure", "google"):
        context["service_tier"] = tier
    elif tier == "priority" and owner == "anthropic":
        doubtful = True  # a commitment, billed apart
    elif tier == "flex" and owner == "groq":
        pass  # costs the same, may be refused under load
    elif tier in _COMMITTED or tier not in _STANDARD:
        doubtful = True
    if words.asked and (context or multiplier != ONE):
        doubtful = True
    speed = (words.speed or "").lower()
    if speed == "fast" and owner == "anthropic":
        context["speed"] = "fast"
    elif speed not in _STANDARD:
        doubtful = True
    geo = (words.geo or "").lower()
    if geo not in facts.NO_GEO:
        known = facts.GEO_MULTIPLIERS.get(geo)
        multiplier *= known if known is not None else max(facts.GEO_MULTIPLIERS.values())
        doubtful = doubtful or known is None
    return Terms(context, multiplier, doubtful, since, until)


def _ultrafast(at_ns: int) -> tuple[Decimal, int, int]:
    """The factor, since when and until when it holds."""
    since, current, until = *facts.ULTRAFAST[0], FOREVER
    for start_ns, factor in facts.ULTRAFAST:
        if start_ns <= at_ns:
            since, current = start_ns, factor
        else:
            until = min(until, start_ns)
    return current, since, until
