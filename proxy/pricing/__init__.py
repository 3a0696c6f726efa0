"""Usage × prices → exact money, or *unknown*; and the most that a request can cost.

The order of sources: what the provider itself says it took; the configuration's own ``prices``; the
public list as it was at the time of the request, with corrections (``facts``); else unpriced. Lives
here: that order, and the cache that makes it cheap. ``cards`` does the arithmetic, ``library`` asks
the list, ``terms`` translates tiers, ``names`` model ids.

The one invariant: an unknown price is None, never 0, and nothing in here raises on odd usage.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from decimal import Decimal, InvalidOperation
from fnmatch import translate as pattern_of
from typing import Any

from proxy.config import PriceRule
from proxy.model import Cost, ModelRequest, Outcome, Upstream, Usage
from proxy.pricing import facts
from proxy.pricing.cards import FEES, Band, PriceTable, RateCard, Writes, build
from proxy.pricing.library import card_for
from proxy.pricing.terms import Said, said

__all__ = ["Pricing", "RateCard", "Writes", "choices", "output_bound", "upper_bound", "usd_text", "warm"]

UNPRICED = Cost(None, "unpriced")
FREE = Cost(Decimal(0), "measured")

BYTES_PER_INPUT_TOKEN = 4
CHARS_PER_OUTPUT_TOKEN = 3
"""Fewer than usual (code and most scripts have more), so that an estimate is not below the truth."""

LONG_WRITE_AT_OWN_PRICES = Decimal("1.6")
"""A write for an hour against one for five minutes, where a price rule gives only the latter."""

MAX_CARDS = 4096
_Key = tuple[str, str, str, str, Said]


class Pricing:
    """Prices for one configuration. Synchronous; safe from one thread."""

    def __init__(self, rules: Sequence[PriceRule] = ()) -> None:
        self._rules = [
            (re.compile(pattern_of(rule.model.lower())), rule.upstream, _rule_card(rule)) for rule in rules
        ]
        self._cards: dict[_Key, RateCard | None] = {}

    def cost(
        self, request: ModelRequest, outcome: Outcome, usage: Usage, upstream: Upstream, at_ns: int
    ) -> Cost:
        """What a reply cost; ``at_ns`` is when it was asked for."""
        reported = outcome.extra.get("cost_usd")
        if reported is not None and (amount := _amount(reported)) is not None:
            return Cost(amount, "measured")
        words = said(outcome.extra, request.options)
        if outcome.billing:
            return self._lines(request, outcome, usage, upstream, words, at_ns)
        card, certain = self._served(outcome.model, request.model, upstream, words, at_ns)
        if card is None:
            return FREE if _is_nothing(usage) else UNPRICED
        if usage.input_tokens is None and usage.output_tokens is None:
            return UNPRICED
        amount, assumed = card.charge(usage)
        return Cost(amount, "assumed" if assumed or not certain else "measured")

    def estimate(self, outcome: Outcome, request_bytes: int) -> Usage:
        """The tokens of a reply whose usage never came whole: what was reported, else from its length."""
        known = outcome.usage or Usage()
        streamed = -(-outcome.streamed_chars // CHARS_PER_OUTPUT_TOKEN)
        prompt = known.input_tokens
        if prompt is None:
            prompt = -(-request_bytes // BYTES_PER_INPUT_TOKEN)
        return replace(known, input_tokens=prompt, output_tokens=max(streamed, known.output_tokens or 0))

    def card(self, request: ModelRequest, upstream: Upstream, at_ns: int) -> RateCard | None:
        """The card of a request that has not been sent; None where its price is not known."""
        return self._card(request.model, upstream, said({}, request.options), at_ns)

    # -- several lines on one bill

    def _lines(
        self,
        request: ModelRequest,
        outcome: Outcome,
        usage: Usage,
        upstream: Upstream,
        words: Said,
        at_ns: int,
    ) -> Cost:
        """Each line at its own model's price. One unknown price makes the whole unknown."""
        total, doubt = Decimal(0), False
        first: RateCard | None = None
        for line in outcome.billing:
            card, certain = self._served(line.model or outcome.model, request.model, upstream, words, at_ns)
            if card is None:
                if _is_nothing(line.usage):
                    continue
                return UNPRICED
            first = first or card
            amount, assumed = card.charge(line.usage)
            total += amount
            doubt = doubt or assumed or not certain
        in_lines = any(name in FEES for line in outcome.billing for name in line.usage.extra)
        if first is not None and not in_lines:  # calls of tools are counted once, for the whole reply
            total += first.fees(usage)
        return Cost(total, "assumed" if doubt else "measured")

    # -- the card

    def _served(
        self, served: str | None, asked: str, upstream: Upstream, words: Said, at_ns: int
    ) -> tuple[RateCard | None, bool]:
        """The card of the model that served; where that name is unknown, doubtfully of the one asked for."""
        if served and (card := self._card(served, upstream, words, at_ns)) is not None:
            return card, True
        if served == asked:
            return None, True
        return self._card(asked, upstream, words, at_ns), not served

    def _card(self, model: str, upstream: Upstream, words: Said, at_ns: int) -> RateCard | None:
        key = (upstream.name, upstream.url, upstream.provider, model, words)
        try:
            card = self._cards[key]
        except KeyError:
            return self._resolve(key, model, upstream, words, at_ns)
        if card is not None and not card.valid_from_ns <= at_ns < card.valid_until_ns:
            return self._resolve(key, model, upstream, words, at_ns)
        return card

    def _resolve(self, key: _Key, model: str, upstream: Upstream, words: Said, at_ns: int) -> RateCard | None:
        card = self._own(model, upstream)
        if card is None:
            card = card_for(upstream, model, words, at_ns)
        if len(self._cards) >= MAX_CARDS:
            self._cards.clear()  # model names come from outside; starting over costs little
        self._cards[key] = card
        return card

    def _own(self, model: str, upstream: Upstream) -> RateCard | None:
        name = model.lower()
        for pattern, only, card in self._rules:
            if only in (None, upstream.name) and pattern.match(name):
                return card
        return None


def warm(upstreams: Sequence[Upstream], at_ns: int) -> None:
    """Load the public list, and what it knows of these upstreams, before a reply waits for it."""
    for upstream in upstreams:
        card_for(upstream, "", said({}, {}), at_ns)


def upper_bound(
    request: ModelRequest, card: RateCard, input_tokens_bound: int, writes: Writes = Writes.LONG
) -> Decimal:
    """The most that a request can cost: every token of the prompt at its dearest, the whole output."""
    output = output_bound(request, card)
    reachable = [band for band in card.bands if band.above < input_tokens_bound]
    worst = max(
        input_tokens_bound * _dearest_input(band, card, writes) + output * band.dearest_output + band.flat
        for band in reachable or card.bands[:1]
    )
    return Decimal(worst) * card.quantum


def _dearest_input(band: Band, card: RateCard, writes: Writes) -> int:
    if writes is Writes.NONE:
        return band.dearest_unwritten
    long = writes is Writes.LONG and card.split_matters
    return max(band.dearest_input, band.dearest_long_write if long else 0)


def output_bound(request: ModelRequest, card: RateCard | None) -> int:
    """The most tokens that a request can be answered with, in all of its choices."""
    limit = (card.output_limit if card is not None else None) or facts.DEFAULT_OUTPUT_LIMIT
    output = min(request.max_output_tokens, limit) if request.max_output_tokens is not None else limit
    return output * choices(request)


def choices(request: ModelRequest) -> int:
    """How many answers a request asks for."""
    wanted = request.options.get("n")
    return wanted if isinstance(wanted, int) and wanted > 1 else 1


def usd_text(amount: Decimal) -> str:
    """Money for JSON: plain decimal digits, no exponent, no needless zeros."""
    text = format(amount, "f")
    if "." in text:
        text = text.rstrip("0").rstrip(".")
    return "0" if text in ("-0", "") else text


def _amount(reported: Any) -> Decimal | None:
    if not isinstance(reported, str | int | Decimal) or isinstance(reported, bool):
        return None
    try:
        amount = Decimal(reported)
    except InvalidOperation:
        return None
    return amount if amount.is_finite() and amount >= 0 else None


def _is_nothing(usage: Usage) -> bool:
    """Usage that was reported, as nothing."""
    counts = (usage.input_tokens, usage.output_tokens)
    return counts == (0, 0) and not any(usage.extra.values())


def _rule_card(rule: PriceRule) -> RateCard:
    prices: dict[str, Decimal] = {"input_tokens": rule.input, "output_tokens": rule.output}
    optional: Mapping[str, Decimal | None] = {
        "cache_read_tokens": rule.cache_read,
        "cache_write_tokens": rule.cache_write,
        "cache_write_1h_tokens": rule.cache_write_1h,
        "web_searches": rule.web_search,
    }
    prices.update((name, price) for name, price in optional.items() if price is not None)
    if rule.cache_write is not None and rule.cache_write_1h is None:
        prices["cache_write_1h_tokens"] = rule.cache_write * LONG_WRITE_AT_OWN_PRICES
    table: PriceTable = prices
    return build(
        table,
        source="config",
        long_known=rule.cache_write_1h is not None,
        split_matters=rule.cache_write_1h is not None,
    )
