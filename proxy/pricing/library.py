"""The one door to genai-prices: finds a model's prices in its list and makes rate cards of them.

The list is bundled data; nothing is fetched. It is slow (a fifth of a millisecond a question), so it
is asked once per model, terms and span of time. Its errors end here: what it does not know is None.

A card is valid until the next moment at which the list says that some price of the model changes,
and is made for the time of the request, so that replay prices history as it was.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta
from decimal import Decimal
from urllib.parse import urlsplit

from genai_prices import types as listed
from genai_prices.data_snapshot import DataSnapshot, find_provider_by_id, get_snapshot
from genai_prices.data_units import unit_data

from proxy.model import Upstream
from proxy.pricing import facts
from proxy.pricing.cards import FOREVER, UNITS, PriceTable, RateCard, Steps, build
from proxy.pricing.names import spellings
from proxy.pricing.terms import Said, Terms, translate

_NAMES: Mapping[str, str] = {unit["price_key"]: name for name, unit in unit_data.items() if name in UNITS}
"""The list's price keys to our units."""

_SECOND = 10**9
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Found:
    """A model in the list."""

    provider: listed.Provider
    model: listed.ModelInfo
    owner: str
    """The provider in whose list the price stands (Azure's GPT prices are OpenAI's)."""
    by_name: bool
    """Nothing told the provider but the model's name."""


def card_for(upstream: Upstream, model: str, words: Said, at_ns: int) -> RateCard | None:
    """The card of a model on the terms said, or None where its price is not known."""
    host = urlsplit(upstream.url).hostname or ""
    found = _find(upstream, model, host)
    if found is None:
        return _from_facts(upstream, model, words, at_ns)
    terms = translate(words, found.owner, at_ns)
    moment = _EPOCH + timedelta(microseconds=at_ns // 1000)
    price, factor, doubtful = _prices(found, terms, moment)
    table = _table(price)
    since_ns, until_ns = _span(found.model, at_ns)
    regional = _regional(host, found)
    return _card(
        table,
        found.owner,
        found.model.id,
        context_window=found.model.context_window,
        source="genai-prices",
        multiplier=terms.multiplier * factor * regional,
        doubtful=terms.doubtful or doubtful or found.by_name or regional != 1,
        long_cache=words.long_cache,
        valid_from_ns=max(since_ns, terms.since_ns),
        valid_until_ns=min(until_ns, terms.until_ns),
    )


# -- finding the model


def _find(upstream: Upstream, model: str, host: str) -> Found | None:
    snapshot = get_snapshot()
    provider, by_name = _provider(snapshot, upstream, host), False
    for name in spellings(model):
        candidate = provider
        if candidate is None:
            if upstream.provider:
                return None
            candidate, by_name = _provider_by_name(snapshot, name), True
        info = candidate.find_model(name, all_providers=snapshot.providers) if candidate is not None else None
        if candidate is not None and info is not None:
            return Found(candidate, info, _owner(snapshot, candidate, info), by_name)
    return None


def _provider(snapshot: DataSnapshot, upstream: Upstream, host: str) -> listed.Provider | None:
    if upstream.provider:
        return find_provider_by_id(snapshot.providers, upstream.provider)
    for fact in facts.HOSTS:
        if fact.host.fullmatch(host):
            return find_provider_by_id(snapshot.providers, fact.provider)
    try:
        return snapshot.find_provider(None, None, upstream.url)
    except LookupError:
        return None


def _provider_by_name(snapshot: DataSnapshot, name: str) -> listed.Provider | None:
    try:
        return snapshot.find_provider(name, None, None)
    except LookupError:
        return None


def _owner(snapshot: DataSnapshot, provider: listed.Provider, model: listed.ModelInfo) -> str:
    if any(known is model for known in provider.models):
        return "anthropic" if "claude" in model.id else provider.id
    for name in provider.fallback_model_providers or ():
        other = find_provider_by_id(snapshot.providers, name)
        if other is not None and any(known is model for known in other.models):
            return other.id
    return provider.id


def _regional(host: str, found: Found) -> Decimal:
    for fact in facts.HOSTS:
        if fact.host.fullmatch(host) and fact.models.search(found.model.id):
            return fact.multiplier
    return Decimal(1)


# -- its prices


def _prices(found: Found, terms: Terms, moment: datetime) -> tuple[listed.ModelPrice, Decimal, bool]:
    """The list's prices on these terms, the factor for a tier that it has no prices for, and the doubt."""
    context = dict(terms.context)
    own = any(known is found.model for known in found.provider.models)
    price = found.model.get_prices(moment, context if own else None)
    factor, doubtful = Decimal(1), False
    for key, word in context.items():
        if not (own and _has_variant(found.model, key, word, moment)):
            factor *= facts.TIER_MULTIPLIERS.get((found.owner, key, word), Decimal(1))
            doubtful = True
    return price, factor, doubtful


def _has_variant(model: listed.ModelInfo, key: str, word: str, moment: datetime) -> bool:
    return any(
        variant.when.get(key) == word and (variant.constraint is None or variant.constraint.active(moment))
        for variant in model.price_variants or ()
    )


def _table(price: listed.ModelPrice) -> dict[str, Decimal | Steps]:
    table: dict[str, Decimal | Steps] = {}
    for key, value in vars(price).items():
        name = _NAMES.get(key)
        if name is None:
            continue
        if isinstance(value, listed.TieredPrices):
            table[name] = Steps(value.base, tuple((tier.start, tier.price) for tier in value.tiers))
        elif isinstance(value, Decimal):
            table[name] = value
    return table


def _span(model: listed.ModelInfo, at_ns: int) -> tuple[int, int]:
    """From when until when the list's answer for this model stays the same."""
    bounds = sorted({0, FOREVER, *_boundaries(model, at_ns)})
    since = max(bound for bound in bounds if bound <= max(at_ns, 0))
    until = min(bound for bound in bounds if bound > at_ns)
    return since, until


def _boundaries(model: listed.ModelInfo, at_ns: int) -> Iterator[int]:
    day = datetime.fromtimestamp(at_ns // _SECOND, UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    dated = model.prices if isinstance(model.prices, list) else []
    for constraint in (*(p.constraint for p in dated), *(v.constraint for v in model.price_variants or ())):
        if isinstance(constraint, listed.StartDateConstraint):
            yield _ns(datetime.combine(constraint.start_date, time(0), UTC))
        elif isinstance(constraint, listed.TimeOfDateConstraint):
            for moment in (constraint.start_time, constraint.end_time):
                zoned = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
                for shift in (-1, 0, 1):
                    yield _ns(datetime.combine((day + timedelta(days=shift)).date(), zoned))


def _ns(moment: datetime) -> int:
    return int((moment - _EPOCH).total_seconds()) * _SECOND


# -- the card


def _card(
    table: dict[str, Decimal | Steps],
    owner: str,
    model: str,
    *,
    context_window: int | None,
    source: str,
    multiplier: Decimal,
    doubtful: bool,
    long_cache: bool,
    valid_from_ns: int = 0,
    valid_until_ns: int = FOREVER,
) -> RateCard | None:
    if "input_tokens" not in table and "output_tokens" not in table:
        return None  # priced by the second or page, which no reply here reports
    long_known = "cache_write_1h_tokens" in table
    split_matters = (owner == "anthropic" or long_cache) and "cache_write_tokens" in table
    factor = facts.LONG_WRITES.get(owner)
    if not long_known and factor is not None and "cache_write_tokens" in table:
        table["cache_write_1h_tokens"] = _times(table["input_tokens"], factor)
        long_known = owner == "openai"  # the published rule; elsewhere a guess by analogy
    if "web_searches" not in table and owner in facts.WEB_SEARCH_USD_PER_1000:
        table["web_searches"] = facts.WEB_SEARCH_USD_PER_1000[owner]
    return build(
        table,
        source=source,
        multiplier=multiplier,
        doubtful=doubtful,
        long_known=long_known,
        split_matters=split_matters,
        output_limit=_output_limit(model, context_window),
        context_window=context_window,
        valid_from_ns=valid_from_ns,
        valid_until_ns=valid_until_ns,
    )


def _times(price: Decimal | Steps, factor: Decimal) -> Decimal | Steps:
    if isinstance(price, Steps):
        return Steps(price.base * factor, tuple((start, p * factor) for start, p in price.above))
    return price * factor


def _output_limit(model: str, context_window: int | None) -> int:
    limit = next(
        (n for pattern, n in facts.OUTPUT_LIMITS if pattern.search(model)), facts.DEFAULT_OUTPUT_LIMIT
    )
    return min(limit, context_window) if context_window else limit


def _from_facts(upstream: Upstream, model: str, words: Said, at_ns: int) -> RateCard | None:
    """A model that only our own corrections know."""
    host = urlsplit(upstream.url).hostname or ""
    provider = _provider(get_snapshot(), upstream, host)
    names = list(spellings(model))
    for fact in facts.MODELS:
        known = provider is not None and provider.id in (fact.provider, "azure")
        by_name = provider is None and not upstream.provider
        if not (known or by_name) or not any(fact.model.fullmatch(name) for name in names):
            continue
        terms = translate(words, fact.provider, at_ns)
        factor = Decimal(1)
        for key, word in terms.context.items():
            factor *= facts.TIER_MULTIPLIERS.get((fact.provider, key, word), Decimal(1))
        prices: PriceTable = fact.prices
        return _card(
            dict(prices),
            fact.provider,
            names[-1],
            context_window=None,
            source="facts",
            multiplier=terms.multiplier * factor,
            doubtful=terms.doubtful or by_name or bool(terms.context),
            long_cache=words.long_cache,
            valid_from_ns=terms.since_ns,
            valid_until_ns=terms.until_ns,
        )
    return None
