"""`looptap budgets` and `topup`: counters as a table, the fullest first.

Says which counters are worth a line (those of turns that came to their own end are not) and how each
amount is written. Subjects are a client's words and are made inert.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from rich.text import Text

from proxy.model import rfc3339
from proxy.terminal.listing import Fold, table
from proxy.terminal.wording import duration, inert
from proxy.verdict import Balance, public_amount

_TITLES = (
    "BUDGET", "SCOPE", "SUBJECT", "LIMIT OF", "USED", "HELD", "LIMIT", "STOPS AT", "SHARE", "STOPPED",
    "WAITS", "WINDOW", "RESETS AT",
)  # fmt: skip
_FIGURES = frozenset({"USED", "HELD", "LIMIT", "STOPS AT", "SHARE"})
_FOLD: Fold = (
    ("SUBJECT", 14), ("RESETS AT", 16), ("WINDOW", 0), ("LIMIT OF", 12), ("SCOPE", 0), ("BUDGET", 12),
    ("RESETS AT", 0), ("HELD", 0),
)  # fmt: skip
_ZEROS = re.compile(r"(?<=[mhd])00[smh]$|\.0(?=s$)")
_BY_BUDGET = frozenset({"steps", "tokens", "spend", "wall_clock", "calls", "tool_retries"})
"""Causes of turns that a top-up lets go on."""


def ended(turns: Iterable[Mapping[str, Any]]) -> set[str]:
    """The ids of turns that came to their end, and not by a budget."""
    return {str(turn["id"]) for turn in turns if not turn["open"] and turn["cause"] not in _BY_BUDGET}


def under_way(balances: Iterable[Balance], over: Collection[str]) -> list[Balance]:
    """Counters less those of steps that hold nothing any more and of the turns that are ``over``."""
    return [
        one
        for one in balances
        if one.reserved or not (one.scope == "step" or (one.scope == "turn" and one.subject in over))
    ]


def counters_table(
    balances: Iterable[Balance],
    stops: Collection[str] = (),
    width: int | None = None,
    held: Collection[tuple[str, str]] = (),
) -> list[Text]:
    """Counters by the share that is used or held; what no row needs has no column.

    ``held``: budgets and subjects for whose room requests wait.
    """
    fullest = sorted(balances, key=_share, reverse=True)
    needless = set()
    if all(one.hard == one.limit for one in fullest):
        needless.add("STOPS AT")
    if not any(_is_stopped(one, stops) for one in fullest):
        needless.add("STOPPED")
    if not any((one.name, one.subject) in held for one in fullest):
        needless.add("WAITS")
    kept = [at for at, title in enumerate(_TITLES) if title not in needless]
    rows = [[cells[at] for at in kept] for cells in (_cells(one, stops, held) for one in fullest)]
    return table([_TITLES[at] for at in kept], rows, _FIGURES, width=width, fold=_FOLD)


def _cells(one: Balance, stops: Collection[str], held: Collection[tuple[str, str]]) -> Sequence[Text]:
    share = _share(one)
    style = "bold red" if share >= 1 else "yellow" if share >= 0.8 else ""
    resets = rfc3339(one.resets_at_ns)[:16] + "Z" if one.resets_at_ns is not None else "-"
    words = (
        inert(one.name), inert(one.scope), inert(one.subject), inert(one.dimension), _amount(one, one.used),
        _amount(one, one.reserved) if one.reserved else "-", _amount(one, one.limit), _amount(one, one.hard),
    )  # fmt: skip
    stopped = Text("stopped" if _is_stopped(one, stops) else "", "bold red")
    waits = Text("waits" if (one.name, one.subject) in held else "", "bold yellow")
    return [*map(Text, words), Text(_percent(share), style), stopped, waits, Text(one.window), Text(resets)]


def _is_stopped(one: Balance, stops: Collection[str]) -> bool:
    return one.scope in ("turn", "thread", "session", "key") and one.subject in stops


def _share(one: Balance) -> float:
    """Of where it stops."""
    return (one.used + one.reserved) / one.hard if one.hard else float("inf")


def _percent(share: float) -> str:
    return f"{share:.0%}" if share != float("inf") else "-"


def _amount(one: Balance, amount: int) -> str:
    if one.dimension == "wall_clock":
        return _ZEROS.sub("", duration(amount * 1_000)) if amount else "0"
    return str(public_amount(one.dimension, amount))
