"""How tight holds are on recorded traffic: what was held before a call, over what it then took.

    python -m tests.bench.holds [FILE…]

Without files: the recordings of this repository. ``prompt`` is the bound on its tokens over
those that were counted; ``call`` is dollars held over dollars settled, which is nearly all the output's
own limit, since models write little of what clients let them write. What takes more than was held are the
provider's own tools (web search), which no request bounds.
"""

import statistics
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from proxy.config import Settings, upstreams
from proxy.core import Opened
from proxy.model import Attempt, EndKind, Exchange
from proxy.money.bounds import Bounds
from proxy.money.demands import demand_of
from proxy.pricing import Pricing
from proxy.replay import Replay
from proxy.verdict import Demand, to_nano

RECORDINGS = Path(__file__).parents[1] / "recordings"


@dataclass
class Ratios:
    """Held over settled, call by call."""

    first: list[float] = field(default_factory=list)
    """Prompts of which nothing was known: their bound is their bytes."""
    later: list[float] = field(default_factory=list)
    """Prompts that grew from one that was counted."""
    calls: list[float] = field(default_factory=list)
    below: int = 0
    """Calls that took more than was held for them."""
    unpriced: int = 0


class Scale:
    """Stands where a tab of the ledger would, and weighs instead of settling."""

    def __init__(self, ratios: Ratios, bounds: Bounds, exchange: Exchange, demand: Demand, grew: bool):
        self._ratios, self._bounds, self._exchange = ratios, bounds, exchange
        self._demand, self._grew = demand, grew

    def settle(self, attempt: Attempt, now_ns: int) -> None:
        """The attempt is over."""
        usage, ratios, demand = attempt.reply.usage, self._ratios, self._demand
        if usage is None or not usage.input_tokens or attempt.outcome != "complete":
            return
        self._bounds.learn(self._exchange.id, attempt.reply.response_id, usage)
        (ratios.later if self._grew else ratios.first).append(demand.input_tokens / usage.input_tokens)
        if demand.spend_nano is None or not attempt.cost.usd:
            ratios.unpriced += 1
            return
        settled = to_nano(attempt.cost.usd)
        ratios.calls.append(demand.spend_nano / settled)
        ratios.below += demand.spend_nano < settled

    def end(self, end: EndKind, status: int | None, now_ns: int) -> None:
        """Nobody read the reply."""


def weigh(files: Iterable[Path]) -> Ratios:
    """Play recordings through the core, with a scale where the ledger would be."""
    ratios = Ratios()
    for file in files:
        prices, bounds = Pricing(), Bounds()
        replay = Replay(upstreams=upstreams(Settings()), prices=prices)
        replay.core.open = _weighing(replay.core.open, prices, bounds, ratios)  # type: ignore[method-assign]
        replay.run([file])
    return ratios


def _weighing(
    opens: Callable[..., Opened], prices: Pricing, bounds: Bounds, ratios: Ratios
) -> Callable[..., Opened]:
    def open(exchange: Exchange, body: bytes, now_ns: int, **more: Any) -> Opened:
        opened = opens(exchange, body, now_ns, **more)
        request, placement = opened.request, opened.placement
        if request is not None and placement is not None:
            demand = demand_of(exchange, opened, placement, request, prices, bounds, now_ns)
            opened.tab = Scale(ratios, bounds, exchange, demand, opened.splice is not None)
        return opened

    return open


def _line(name: str, values: list[float]) -> str:
    if len(values) < 2:
        return f"{name:22} {len(values):6} calls"
    p95 = statistics.quantiles(values, n=20)[-1]
    return f"{name:22} {len(values):6} calls   median {statistics.median(values):8.2f}   p95 {p95:8.2f}"


def main() -> None:
    files = [Path(name) for name in sys.argv[1:]] or sorted(RECORDINGS.glob("*/*.jsonl"))
    ratios = weigh(files)
    print("held ÷ settled")
    print(_line("prompt, first call", ratios.first))
    print(_line("prompt, later calls", ratios.later))
    print(_line("call, in dollars", ratios.calls))
    print(f"{ratios.unpriced} calls without a price; {ratios.below} took more than was held")


if __name__ == "__main__":
    main()
