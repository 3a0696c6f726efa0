"""Budgets in figures: refusals, the ledger's troubles, and how far each limit is used.

Fed by the purse, read when somebody scrapes. The one invariant: series are bounded. Limits of turns,
threads and sessions are not listed (refusals tell of them); what clients may say freely (labels) has one
row per limit, that of the counter nearest to it; others have their names, the first ``MAX_SUBJECTS``.
"""

from collections import Counter
from collections.abc import Iterator, Sequence

from proxy.ports import Reading
from proxy.verdict import Balance, Terminal, public_amount

NAMED = frozenset({"key", "team", "org", "model", "upstream"})
"""Scopes whose subjects are few and stay."""
NEAREST = "(nearest)"
"""Stands for all subjects without a row of their own: the figures are the ones nearest to their limit."""
MAX_SUBJECTS = 100
"""Subjects with rows of their own, per budget."""

_Row = tuple[str, ...]


class Tally:
    """One per purse; used from the event loop's thread."""

    def __init__(self) -> None:
        self._refused: Counter[_Row] = Counter()
        self._troubles: Counter[_Row] = Counter()
        self._names: dict[str, set[str]] = {}
        """By budget: the subjects that have rows of their own."""
        self._standing: dict[_Row, Balance] = {}
        self.away = False
        """The ledger's last answer was none."""

    def refused(self, why: Terminal, *, acted: bool) -> None:
        """A request was refused under a budget, or would have been."""
        self._refused[(str(why.fields.get("budget") or ""), why.code, "true" if acted else "false")] += 1

    def trouble(self, operation: str) -> None:
        """The ledger did not answer."""
        self._troubles[(operation,)] += 1
        self.away = True

    def answered(self) -> None:
        """It did."""
        self.away = False

    def stand(self, balances: Sequence[Balance]) -> None:
        """Take all live counters; what stood before is forgotten."""
        standing: dict[_Row, Balance] = {}
        for balance in balances:
            dimension, _, tool = balance.dimension.partition(":")
            if dimension == "calls":  # a pattern of the configuration; retries name the client's tools
                dimension = f"calls:{tool}"
            row = (balance.name, balance.scope, self._subject(balance), balance.window, dimension)
            known = standing.get(row)
            if known is None or _share(balance) > _share(known):
                standing[row] = balance
        self._standing = standing

    def _subject(self, balance: Balance) -> str:
        if balance.scope not in NAMED:
            return NEAREST
        names = self._names.setdefault(balance.name, set())
        if balance.subject not in names:
            if len(names) >= MAX_SUBJECTS:
                return NEAREST
            names.add(balance.subject)
        return balance.subject

    def readings(self) -> Iterator[Reading]:
        """As things stand."""
        yield Reading(
            "budget_refusals_total", "Requests refused under a budget; acted=false: they would have been.",
            [(row, float(count)) for row, count in self._refused.items()], ("budget", "code", "acted"),
        )  # fmt: skip
        yield Reading(
            "ledger_errors_total", "Operations that the ledger did not answer.",
            [(row, float(count)) for row, count in self._troubles.items()], ("operation",),
        )  # fmt: skip
        for name, text in (
            ("limit", "Where a budget ends, with what was topped up. Money in USD, times in seconds."),
            ("used", "What was spent of a budget, in the unit of its limit."),
            ("reserved", "What is held of a budget for requests under way, in the unit of its limit."),
        ):
            rows = [
                (row, float(public_amount(balance.dimension, getattr(balance, name))))
                for row, balance in self._standing.items()
            ]
            labels = ("budget", "scope", "subject", "window", "dimension")
            yield Reading(f"budget_{name}", text, rows, labels)


def _share(balance: Balance) -> float:
    return (balance.used + balance.reserved) / balance.limit if balance.limit else float("inf")
