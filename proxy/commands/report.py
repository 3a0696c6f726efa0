"""The command `report`: what the recorded turns have in common, as tables or JSON.

What the numbers mean is in ``terminal.report``; here they are asked for and drawn.
"""

import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any

import click
from rich.text import Text

from proxy.commands.options import Common, common, note, out, out_json, terminal_width
from proxy.commands.recorded import record_of
from proxy.config.values import Duration
from proxy.terminal.listing import Fold, table
from proxy.terminal.report import TYPES, Report
from proxy.terminal.wording import UNKNOWN, count, inert, money
from proxy.verdict import VERDICTS

Json = Mapping[str, Any]

_TOLD_FROM = 20_000
"""Events from which a person is told that it takes a moment."""
_ROW = (
    "TURNS",
    "OPEN",
    "DONE",
    "STEPS",
    "P90",
    "FAILED",
    "PER STEP",
    "HALF-LIFE",
    "COST",
    "PER DONE",
    "CACHED",
)
_BREAKS = ("BREAKS", "THEY COST")
_TOOL = ("TOOL", "TURNS", "CALLS", "A TURN", "P90", "ANSWERED", "ERRORS", "RATE", "FINDINGS")
_NAMES = frozenset({"AGENT", "MODEL", "TOOL", "FINDINGS", "ENDS"})
_FOLD: Fold = (
    ("AGENT", 16), ("MODEL", 16), ("P90", 0), ("OPEN", 0), ("HALF-LIFE", 0), ("BREAKS", 0), ("THEY COST", 0),
    ("PER STEP", 0), ("CACHED", 0), ("AGENT", 10), ("MODEL", 10), ("ENDS", 26), ("PER DONE", 0), ("ENDS", 14),
)  # fmt: skip
_FOLD_TOOLS: Fold = (("TOOL", 16), ("P90", 0), ("ANSWERED", 0), ("TURNS", 0), ("FINDINGS", 16))


def _nanoseconds(context: click.Context, param: click.Parameter, value: str | None) -> int | None:
    try:
        return Duration.parse(value).ns if value is not None else None
    except (ValueError, OverflowError):
        raise click.BadParameter(f"{value!r} is no duration; write a number with its unit: 12h, 7d") from None


@click.command("report")
@click.option(
    "--since", callback=_nanoseconds, metavar="7d", help="Only turns that began in this last stretch."
)
@common
def report_command(common: Common, since: int | None) -> None:
    """Per agent, model and tool: steps per turn, failure rate and half-life, causes, cost.

    DONE counts turns that came to their own end, which does not say that the work is right. FAILED
    are those that something else ended after a step or more: an error, a limit, a budget, a policy.
    PER STEP is the failure rate per step; after HALF-LIFE steps half of all turns would have failed.
    A tool's RATE is of the answers whose API says whether they are errors (OpenAI's says nothing).

    \b
    looptap report --since 7d
    looptap report --json | jq '.tools[] | select(.error_rate > 0.2)'
    """
    with record_of(common) as reader:
        if reader.last_seq() >= _TOLD_FROM and sys.stderr.isatty():
            note("reading the record...")
        report = Report(time.time_ns() - since if since is not None else 0)
        for run in reader.runs(TYPES):
            report.take(*run)
    tables = report.tables()
    if common.json:
        out_json(tables)
    elif tables["turns"]:
        out(list(drawn(tables, terminal_width())))
    else:
        note("no turns recorded in that time" if since is not None else "no turns recorded yet")


def drawn(tables: Json, width: int | None = None) -> Iterator[Text]:
    """The tables of a report, line by line; ``width`` as for ``table``."""
    yield Text(f"{tables['turns']} turns, {count(tables['steps'])} steps, {_cost(tables)}")
    for name, rows in (("agent", tables["agents"]), ("model", tables["models"])):
        yield Text()
        broken = _BREAKS if any(row["cache_breaks"] for row in rows) else ()
        titles = [name.upper(), *_ROW, *broken, "ENDS"]
        cells = [
            [_name(name, row), *_row(row), *(_broken(row) if broken else ()), _causes(row)] for row in rows
        ]
        yield from table(titles, cells, frozenset(titles) - _NAMES, width=width, fold=_FOLD)
    if tables["tools"]:
        yield Text()
        cells = [_tool(row) for row in tables["tools"]]
        yield from table(_TOOL, cells, frozenset(_TOOL) - _NAMES, width=width, fold=_FOLD_TOOLS)
    for row in tables["predictions"]:
        verdicts = ", ".join(f"{row[name]} {name}" for name in VERDICTS)
        yield Text()
        yield Text(f"what {row['policy']} predicted of the provider: {verdicts}", "dim")
    side = tables["side_calls"]
    if side["turns"]:
        yield Text()
        yield Text(f"{side['turns']} side calls (titles, summaries ...) are in their turns' cost", "dim")
        if side["without_a_turn"]["usage"]:
            yield Text(f"of those that belong to no turn: {_cost(side['without_a_turn'])}", "dim")


def _name(kind: str, row: Json) -> Text:
    name = inert(str(row[kind]), 40) if row[kind] else UNKNOWN
    return Text(name if row.get("kind", "main") == "main" else f"{name} ({inert(str(row['kind']), 20)})")


def _row(row: Json) -> list[Text]:
    steps = row["steps"]
    rate = row["failure_rate_per_step"]
    return [
        Text(count(row["turns"])),
        Text(count(row["open"]), "" if row["open"] else "dim"),
        Text(count(row["completed"]), "green"),
        Text(count(steps["median"])),
        Text(count(steps["p90"])),
        Text(count(row["failures"]), "bold red" if row["failures"] else "dim"),
        Text(UNKNOWN if rate is None else f"{100 * rate:.2g}%"),
        Text(UNKNOWN if row["half_life_steps"] is None else f"{row['half_life_steps']:g}"),
        Text(_cost(row)),
        Text(money(row["cost_per_completed_turn_usd"], row["cost_quality"])),
        Text(_percent(row["cached_share"])),
    ]


def _broken(row: Json) -> list[Text]:
    return [Text(count(row["cache_breaks"])), Text(money(row["cache_breaks_usd"], "estimated"))]


def _causes(row: Json) -> Text:
    return Text(
        inert(" ".join(f"{cause} {_percent(part)}" for cause, part in row["causes"].items()), 120), "dim"
    )


def _tool(row: Json) -> list[Text]:
    calls = row["calls_per_turn"]
    found = " ".join(f"{name} {number}" for name, number in row["findings"].items())
    return [
        Text(inert(str(row["tool"]), 40) if row["tool"] else UNKNOWN),
        Text(count(row["turns"])),
        Text(count(row["calls"])),
        Text(count(calls["median"])),
        Text(count(calls["p90"])),
        Text(count(row["answered"])),
        Text(count(row["errors"]), "bold red" if row["errors"] else "dim"),
        Text(_rate(row)),
        Text(inert(found, 120), "yellow"),
    ]


def _rate(row: Json) -> str:
    """Of all answers, or of how many where some could not say that they are errors."""
    rate = _percent(row["error_rate"])
    return f"{rate} of {count(row['told'])}" if 0 < row["told"] < row["answered"] else rate


def _cost(bill: Json) -> str:
    """The known cost; what had no price is counted beside it."""
    told = money(bill["cost_usd"], bill["cost_quality"])
    unpriced = bill["unpriced_attempts"]
    return f"{told} + {unpriced} unpriced" if unpriced and bill["cost_usd"] is not None else told


def _percent(share: float | None) -> str:
    return UNKNOWN if share is None else f"{100 * share:.3g}%"
