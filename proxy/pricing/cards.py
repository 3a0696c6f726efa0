"""Rate cards: what a unit of each kind costs, resolved once, and the exact arithmetic on it.

A card is made from a price table (USD per million tokens, per thousand searches) and holds integers
only: each price as a whole number of ``10**-scale`` dollars. Counts overlap (cached tokens are part
of the input), so prices are turned into coefficients of the counts as reported: charging a reply is
one sum of products, without subtracting one count from another.

The one invariant: no float and no rounding. What a count cannot be (more cached than read) is mended
towards the dearer reading and marked as doubtful, never an exception.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from enum import IntEnum
from typing import NamedTuple

from proxy.model import Usage

PriceTable = Mapping[str, "Decimal | Steps"]
"""Price by unit (``UNITS``)."""

FOREVER = 2**63 - 1

_OTHERS = frozenset({"audio", "image", "video", "long"})


class Steps(NamedTuple):
    """A price that depends on the length of the whole prompt: each step holds for all tokens."""

    base: Decimal
    above: tuple[tuple[int, Decimal], ...]
    """Ascending: for prompts of more than this many input tokens, this price."""

    def at(self, threshold: int) -> Decimal:
        """The price of a prompt just above ``threshold`` tokens (-1: of an empty one)."""
        price = self.base
        for start, stepped in self.above:
            if start <= threshold:
                price = stepped
        return price


class Unit(NamedTuple):
    """What a price is for: a number of ``key``; a unit with more ``traits`` is part of one with fewer."""

    per: int
    traits: frozenset[str]


def _tokens(*traits: str) -> Unit:
    return Unit(1_000_000, frozenset(traits))


def _fee(name: str) -> Unit:
    return Unit(1000, frozenset({"fee", name}))


UNITS: Mapping[str, Unit] = {
    "input_tokens": _tokens("input"),
    "cache_read_tokens": _tokens("input", "read"),
    "cache_write_tokens": _tokens("input", "write"),
    "cache_write_5m_tokens": _tokens("input", "write", "short"),
    "cache_write_1h_tokens": _tokens("input", "write", "long"),
    "input_tool_tokens": _tokens("input", "tool"),
    "output_tokens": _tokens("output"),
    "output_reasoning_tokens": _tokens("output", "reasoning"),
    "output_citation_tokens": _tokens("output", "citation"),
    **{
        name: _tokens(direction, medium, *more)
        for medium in ("text", "audio", "image", "video")
        for name, direction, more in (
            (f"input_{medium}_tokens", "input", ()),
            (f"output_{medium}_tokens", "output", ()),
            (f"cache_{medium}_read_tokens", "input", ("read",)),
            (f"cache_{medium}_write_tokens", "input", ("write",)),
        )
    },
    "web_searches": _fee("web_search"),
    "social_searches": _fee("social_search"),
    "storage_searches": _fee("storage_search"),
    "code_executions": _fee("code_execution"),
    "requests": _fee("request"),
}
"""Units by the names of counts in ``Usage.extra`` (genai-prices' own names)."""

_CACHED_MEDIA = tuple(
    (f"input_{medium}_tokens", f"cache_{medium}_read_tokens") for medium in ("audio", "image", "video")
)
FEES = frozenset(name for name, unit in UNITS.items() if "fee" in unit.traits)
_PLAIN = (
    "input_tokens",
    "cache_read_tokens",
    "cache_write_tokens",
    "cache_write_1h_tokens",
    "output_tokens",
    "output_reasoning_tokens",
)


class Writes(IntEnum):
    """What of a prompt may be written to the provider's cache."""

    NONE = 0
    SHORT = 1
    """For minutes."""
    LONG = 2
    """For an hour and more."""


class Band(NamedTuple):
    """The coefficients that hold for prompts above ``above`` tokens."""

    above: int
    input: int
    read: int
    write: int
    long_write: int
    output: int
    reasoning: int
    further: Mapping[str, int]
    flat: int
    """Per request."""
    dearest_unwritten: int
    """The highest price that a token of the prompt may have, if none is written to the cache."""
    dearest_input: int
    """The highest price that a token of the prompt may have, if none is cached for long."""
    dearest_long_write: int
    dearest_output: int


@dataclass(frozen=True, slots=True)
class RateCard:
    """Everything needed to charge a reply of one model on one tier, while it is valid."""

    bands: tuple[Band, ...]
    """Ascending; the first holds from 0 tokens on."""
    quantum: Decimal
    """What 1 is worth in USD."""
    leaves: Mapping[str, Mapping[str, int]] = field(repr=False)
    """For each priced token unit: its own count as a sum of reported ones (to find contradictions)."""
    source: str
    """Where the prices are from: ``config``, ``genai-prices``, ``facts``."""
    doubtful: bool = False
    """Some price on it was inferred (a tier without a price of its own, a model known by name only)."""
    read_known: bool = True
    """Cached tokens have a price of their own."""
    write_known: bool = True
    long_known: bool = True
    split_matters: bool = False
    """Writes for an hour cost more, so a reply must say how many there were."""
    output_limit: int | None = None
    context_window: int | None = None
    """The most tokens that a prompt can have; None where the list does not say."""
    valid_from_ns: int = 0
    valid_until_ns: int = FOREVER

    def band(self, prompt_tokens: int) -> Band:
        """The band for a prompt of this length."""
        found = self.bands[0]
        for band in self.bands[1:]:
            if prompt_tokens > band.above:
                found = band
        return found

    def charge(self, usage: Usage) -> tuple[Decimal, bool]:
        """The exact price of a usage, and whether some part of it had to be assumed."""
        prompt, output = usage.input_tokens, usage.output_tokens
        read, write = usage.cache_read_tokens or 0, usage.cache_write_tokens or 0
        long = usage.cache_write_1h_tokens or 0
        assumed = self.doubtful
        if prompt is None or output is None or long > write or read + write > prompt:
            prompt, read, write, output = _mended(prompt, read, write, long, output)
            assumed = True
        bands = self.bands
        band = bands[0] if len(bands) == 1 else self.band(prompt)
        total = prompt * band.input + output * band.output + band.flat
        if read:
            total += read * band.read
            assumed = assumed or not self.read_known
        if write:
            total += write * band.write + long * band.long_write
            assumed = assumed or self._writes_assumed(usage)
        if band.reasoning and usage.reasoning_tokens:
            total += min(usage.reasoning_tokens, output) * band.reasoning
        if usage.extra:
            more, unsure = self._further(usage, band)
            return Decimal(total + more) * self.quantum, assumed or unsure
        return Decimal(total) * self.quantum, assumed

    def fees(self, usage: Usage) -> Decimal:
        """Only what is charged per call of a provider's tool."""
        band = self.bands[0]
        total = sum(count * band.further.get(name, 0) for name, count in usage.extra.items() if name in FEES)
        return Decimal(total) * self.quantum

    def _writes_assumed(self, usage: Usage) -> bool:
        if not self.write_known:
            return True
        if usage.cache_write_1h_tokens is None:
            return self.split_matters
        return usage.cache_write_1h_tokens > 0 and not self.long_known

    def _further(self, usage: Usage, band: Band) -> tuple[int, bool]:
        """What the counts beyond plain tokens add; doubtful where one has no price or contradicts."""
        fees = kinds = 0
        assumed = has_kinds = False
        for name, count in usage.extra.items():
            coefficient = band.further.get(name)
            if name not in FEES:
                has_kinds = True  # of tokens: without a price of its own such a token costs as text
                kinds += count * (coefficient or 0)
            elif coefficient is None:
                assumed = assumed or count > 0
            else:
                fees += count * coefficient
        if not has_kinds:
            return fees, assumed
        counts = _counts(usage)
        inferred = _cached_media(counts, band)
        if inferred:
            counts.update(inferred)
            kinds += sum(count * band.further[name] for name, count in inferred.items())
        if self._contradicts(counts):
            return fees + max(kinds, 0), True
        return fees + kinds, assumed or bool(inferred)

    def _contradicts(self, counts: Mapping[str, int]) -> bool:
        """Whether some kind of tokens is said to be more than the whole that it is part of."""
        return any(
            sum(factor * counts.get(name, 0) for name, factor in leaf.items()) < 0
            for leaf in self.leaves.values()
        )


def _cached_media(counts: Mapping[str, int], band: Band) -> dict[str, int]:
    """Cached audio (image, video) where a reply does not say how much: as little as the sums allow."""
    inferred: dict[str, int] = {}
    read = counts.get("cache_read_tokens", 0)
    for whole, part in _CACHED_MEDIA if read else ():
        medium = counts.get(whole, 0)
        if medium and part in band.further and part not in counts:
            overlap = medium + read + counts.get("cache_write_tokens", 0) - counts.get("input_tokens", 0)
            inferred[part] = min(max(overlap, 0), medium, read)
    return inferred


def _counts(usage: Usage) -> dict[str, int]:
    plain = {
        "input_tokens": usage.input_tokens,
        "cache_read_tokens": usage.cache_read_tokens,
        "cache_write_tokens": usage.cache_write_tokens,
        "cache_write_1h_tokens": usage.cache_write_1h_tokens,
        "output_tokens": usage.output_tokens,
        "output_reasoning_tokens": usage.reasoning_tokens,
    }
    return {**usage.extra, **{name: count for name, count in plain.items() if count is not None}}


def _mended(
    prompt: int | None, read: int, write: int, long: int, output: int | None
) -> tuple[int, int, int, int]:
    """Counts that fit together: prompt, cache reads, cache writes, output."""
    write = max(write, long)
    if prompt is None:
        prompt = read + write
    elif read + write > prompt:  # a prompt that was counted without its cached part
        prompt += read + write
    return prompt, read, write, output or 0


def build(
    table: PriceTable,
    *,
    source: str,
    multiplier: Decimal = Decimal(1),
    doubtful: bool = False,
    long_known: bool = True,
    split_matters: bool = False,
    output_limit: int | None = None,
    context_window: int | None = None,
    valid_from_ns: int = 0,
    valid_until_ns: int = FOREVER,
) -> RateCard:
    """A card from prices. ``multiplier`` goes on tokens, not on fees."""
    prices = {name: price for name, price in table.items() if name in UNITS}
    leaves = _leaves(prices)
    thresholds = sorted(
        {start for price in prices.values() if isinstance(price, Steps) for start, _ in price.above}
    )
    rates = [_rates(prices, threshold, multiplier) for threshold in (-1, *thresholds)]
    scale = max((-_exponent(rate) for band in rates for rate in band.values()), default=0)
    bands = tuple(
        _band(above, band, leaves, scale) for above, band in zip((-1, *thresholds), rates, strict=True)
    )
    tokens = {name: leaf for name, leaf in leaves.items() if name not in FEES}
    return RateCard(
        bands=bands,
        quantum=Decimal(1).scaleb(-scale),
        leaves=tokens,
        source=source,
        doubtful=doubtful,
        read_known="cache_read_tokens" in prices,
        write_known="cache_write_tokens" in prices,
        long_known=long_known,
        split_matters=split_matters,
        output_limit=output_limit,
        context_window=context_window,
        valid_from_ns=valid_from_ns,
        valid_until_ns=valid_until_ns,
    )


def _rates(prices: PriceTable, threshold: int, multiplier: Decimal) -> dict[str, Decimal]:
    """USD for one of each unit."""
    rates = {}
    for name, price in prices.items():
        amount = price.at(threshold) if isinstance(price, Steps) else price
        factor = Decimal(1) if name in FEES else multiplier
        rates[name] = (amount * factor / UNITS[name].per).normalize()
    return rates


def _exponent(number: Decimal) -> int:
    exponent = number.as_tuple().exponent
    return min(exponent, 0) if isinstance(exponent, int) else 0


def _leaves(prices: PriceTable) -> dict[str, dict[str, int]]:
    """Each priced unit's count without the parts that have prices of their own, as a sum of counts."""
    leaves: dict[str, dict[str, int]] = {}
    for name in sorted(prices, key=lambda known: (-len(UNITS[known].traits), known)):
        own = {name: 1}
        for part, leaf in leaves.items():
            if UNITS[name].traits < UNITS[part].traits:
                for count, factor in leaf.items():
                    own[count] = own.get(count, 0) - factor
        leaves[name] = own
    return leaves


def _band(
    above: int, rates: Mapping[str, Decimal], leaves: Mapping[str, Mapping[str, int]], scale: int
) -> Band:
    whole = {name: int(rate.scaleb(scale)) for name, rate in rates.items()}
    coefficients: dict[str, int] = {}
    for name, leaf in leaves.items():
        for count, factor in leaf.items():
            coefficients[count] = coefficients.get(count, 0) + factor * whole[name]
    short = coefficients.pop(
        "cache_write_5m_tokens", 0
    )  # never reported: it is the writes less the long ones
    coefficients["cache_write_tokens"] = coefficients.get("cache_write_tokens", 0) + short
    coefficients["cache_write_1h_tokens"] = coefficients.get("cache_write_1h_tokens", 0) - short
    flat = coefficients.pop("requests", 0)
    return Band(
        above=above,
        input=coefficients.get("input_tokens", 0),
        read=coefficients.get("cache_read_tokens", 0),
        write=coefficients.get("cache_write_tokens", 0),
        long_write=coefficients.get("cache_write_1h_tokens", 0),
        output=coefficients.get("output_tokens", 0),
        reasoning=coefficients.get("output_reasoning_tokens", 0),
        further={name: factor for name, factor in coefficients.items() if name not in _PLAIN},
        flat=flat,
        dearest_unwritten=_dearest(whole, "input", _OTHERS | {"write"}),
        dearest_input=_dearest(whole, "input"),
        dearest_long_write=whole.get("cache_write_1h_tokens", 0),
        dearest_output=_dearest(whole, "output"),
    )


def _dearest(whole: Mapping[str, int], direction: str, without: frozenset[str] = _OTHERS) -> int:
    """The highest price of a text token in one direction; writes for long are looked at apart."""
    return max(
        (
            price
            for name, price in whole.items()
            if direction in UNITS[name].traits and without.isdisjoint(UNITS[name].traits)
        ),
        default=0,
    )
