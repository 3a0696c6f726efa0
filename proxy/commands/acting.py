"""The commands that act or count: ``allow``, ``budgets``, ``keys``, ``stop``, ``topup``.

They work on the ledger's store, whether a proxy runs or not; what they order holds from the next
request on, on every instance. What is ordered and refused is in ``money.orders``.
"""

import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from shlex import quote
from typing import Any, TypeVar

import click

from proxy.commands.live import live
from proxy.commands.options import Common, Failed, common, note, out, out_json, terminal_width
from proxy.commands.recorded import record_of
from proxy.commands.settled import settings_of
from proxy.config import Settings
from proxy.money.orders import Operator, OrderRefused
from proxy.money.treasury import ledger_of
from proxy.ports import LedgerAway
from proxy.record import RecordMissing
from proxy.stores.ledger_redis import RedisLedger
from proxy.terminal.counters import counters_table, ended, under_way
from proxy.terminal.listing import waits_table
from proxy.terminal.wording import inert
from proxy.verdict import Balance

SEEN_S = 0.3
"""A proxy without budgets looks this often for stops and keys: wait until it has."""
_MOST_TURNS = 10_000
"""How many of the newest turns are looked at to find those that have ended."""

Result = TypeVar("Result")


def _order(common: Common, work: Callable[[Operator], Awaitable[Result]]) -> Result:
    """Carry out an order on the ledger that the settings name."""
    settings = settings_of(common)
    no_lease = settings.ledger.model_copy(update={"lease": None})  # a command draws nothing ahead
    settings = settings.model_copy(update={"ledger": no_lease})

    async def carried_out() -> Result:
        ledger = ledger_of(settings)
        try:
            if isinstance(ledger, RedisLedger):
                await ledger.ready()
            return await work(Operator(settings, ledger, note, partial(_waiting, common, settings)))
        finally:
            await ledger.close()

    try:
        return live(carried_out())
    except (OrderRefused, LedgerAway) as error:
        raise Failed(str(error)) from None


def _waiting(common: Common, settings: Settings) -> list[dict[str, Any]]:
    """What waits for an operator, as far as this record knows."""
    with suppress(RecordMissing), record_of(common) as reader:
        return reader.waiting(settings.hold_for.ns, time.time_ns())
    return []


def _table(rows: list[list[str]]) -> None:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        click.echo(
            "  ".join(inert(cell).ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        )


@click.command("budgets")
@click.option("--budget", metavar="B", help="Only this budget's.")
@click.option("--subject", metavar="S", help="Only of this turn, key, team…; the beginning is enough.")
@click.option("--all", "everything", is_flag=True, help="Also those of turns and steps that ended.")
@common
def budgets_command(common: Common, budget: str | None, subject: str | None, everything: bool) -> None:
    """Live counters: what is used, what is held for requests under way, and the limit; fullest first.

    Those of turns and steps that ended are left out, but for turns that a budget ended. --json lists all.

    \b
    looptap budgets
    looptap budgets --budget turn --subject trn_4f
    looptap budgets --json | jq '.[] | select(.scope == "key")'
    """
    balances, stops, held = _order(common, lambda operator: _standing(operator, budget))
    asked = [
        one
        for one in balances
        if budget in (None, one.name) and (subject is None or one.subject.startswith(subject))
    ]
    if common.json:
        out_json([one.public() for one in asked])
        return
    shown = asked if everything or subject is not None else under_way(asked, _over(common))
    if shown:
        out(counters_table(shown, stops, terminal_width(), held))
    if hidden := len(asked) - len(shown):
        note(f"and {hidden} of turns and steps that ended: looptap budgets --all")
    elif not shown:
        counted = ", ".join(sorted({one.name for one in balances}))
        note(f"no counter fits; counted are {counted}" if balances else "nothing has been counted yet")


async def _standing(
    operator: Operator, budget: str | None
) -> tuple[Sequence[Balance], set[str], set[tuple[str, str]]]:
    """Counters, what is stopped, and for which budgets and subjects requests wait."""
    facts = [one["facts"] for one in operator.waiting()]
    held = {(str(one.get("budget")), str(one.get("subject"))) for one in facts if "budget" in one}
    return await operator.balances(budget), {str(one["id"]) for one in await operator.stopped()}, held


def _over(common: Common) -> set[str]:
    """Turns that ended, as far as this record knows."""
    with suppress(RecordMissing), record_of(common) as reader:
        return ended(reader.turns(_MOST_TURNS))
    return set()


@click.group("keys")
@common
def keys_command(common: Common) -> None:
    """Keys of the proxy's own, in place of the provider's: make, list, revoke.

    \b
    looptap keys create ci
    looptap keys list
    looptap keys revoke ci
    """
    click.get_current_context().obj = common


@keys_command.command("create")
@click.argument("name")
@click.option("--team", default="default", show_default=True, help="Who pays.")
@click.option("--label", "labels", multiple=True, metavar="K=V", help="Pinned to its requests; repeatable.")
@common
def create_command(common: Common, name: str, team: str, labels: tuple[str, ...]) -> None:
    """Make a key and show it, once. Only its hash is kept.

    A team other than `default` has to stand in the configuration: `teams: {search: {}}`.

    \b
    looptap keys create ci --label env=ci
    looptap keys create ci --team search
    """
    pairs = dict(_pair(label) for label in labels)
    key = _order(common, lambda operator: operator.create_key(name, team, pairs))
    if common.json:
        out_json({"name": name, "team": team, "labels": pairs, "key": key})
    else:
        click.echo(key)
        note("shown this once: use it as the provider's key, or in x-looptap-key beside your own")
    _until_seen()


def _pair(label: str) -> tuple[str, str]:
    name, equals, value = label.partition("=")
    if not (name and equals and value) or max(len(name), len(value)) > 64 or not label.isprintable():
        raise click.UsageError(f"{label!r} is not NAME=VALUE of at most 64 characters each")
    return name, value


@keys_command.command("list", short_help="All keys by name; never the keys themselves.")
@common
def list_command(common: Common) -> None:
    """All keys by name, revoked and stopped ones too; never the keys themselves.

    \b
    looptap keys list
    looptap keys list --json | jq '.[] | select(.team == "search")'
    """
    keys = _order(common, lambda operator: operator.keys())
    if common.json:
        out_json(keys)
        return
    if not keys:
        note("no key has been made: looptap keys create NAME")
        return
    rows = [["KEY", "TEAM", "LABELS", "CREATED AT", "STATE"]]
    for key in keys:
        labels = ",".join(f"{name}={value}" for name, value in key["labels"].items()) or "-"
        rows.append([key["name"], key["team"], labels, key["created_at"], _state(key)])
    _table(rows)


def _state(key: dict[str, Any]) -> str:
    for state in ("revoked", "stopped"):
        if f"{state}_at" in key:
            return f"{state} {key[f'{state}_at']}"
    return "in use"


@keys_command.command("revoke")
@click.argument("name")
@common
def revoke_command(common: Common, name: str) -> None:
    """End a key at once and for good, on every instance. To pause one: looptap stop NAME.

    \b
    looptap keys revoke ci
    """
    _order(common, lambda operator: operator.revoke_key(name))
    if common.json:
        out_json({"name": name, "revoked": True})
    else:
        note(f"{name} is revoked")
    _until_seen()


@click.command("stop")
@click.argument("id", required=False)
@click.option("--lift", is_flag=True, help="Let it go on again.")
@click.option("--list", "listed", is_flag=True, help="What is stopped.")
@common
def stop_command(common: Common, id: str | None, lift: bool, listed: bool) -> None:
    """Refuse every later request of a turn, thread, session or key; what runs is not cut.

    \b
    looptap stop trn_4f
    looptap stop --list
    looptap stop ci --lift
    """
    if (id is None) is not listed or (listed and lift):
        raise click.UsageError("name a turn, thread, session or key, or ask for --list alone")
    if id is None:
        _list_stops(common)
        return
    whole = _order(common, lambda operator: operator.stop(id, lift=lift))
    if common.json:
        out_json({"id": whole, "stopped": not lift})
    else:
        note(f"{whole} may go on" if lift else f"{whole} is stopped; to let it go on: {_lift(whole)}")
    _until_seen()


def _list_stops(common: Common) -> None:
    stops = _order(common, lambda operator: operator.stopped())
    if common.json:
        out_json(stops)
    elif stops:
        rows = [[one["id"], one["stopped_at"], _lift(one["id"])] for one in stops]
        _table([["STOPPED", "SINCE", "TO LET IT GO ON"], *rows])
    else:
        note("nothing is stopped")


def _lift(id: str) -> str:
    return f"looptap stop --lift {quote(id)}"


@click.command("allow")
@click.argument("id", required=False)
@click.option("--list", "listed", is_flag=True, help="What waits, and why.")
@common
def allow_command(common: Common, id: str | None, listed: bool) -> None:
    """Say yes to one request that waits for an operator. The no: looptap stop TURN.

    Where it waits for room under a budget, a yes raises that budget's limit by what the request needs.

    
    looptap allow --list
    looptap allow exc_4f
    """
    if (id is None) is not listed:
        raise click.UsageError("name a request that waits, or ask for --list alone")
    if id is None:
        _list_waits(common)
        return
    allowed = _order(common, lambda operator: operator.allow(id))
    if common.json:
        out_json(allowed)
    else:
        note(f"{allowed['id']} may go on{_raised(allowed)}")
    _until_seen()


def _raised(allowed: Mapping[str, Any]) -> str:
    if "adds" not in allowed:
        return ""
    whose = f"budget {allowed['budget']} of {allowed['scope']} {inert(str(allowed['subject']))}"
    return f"; the limit on {allowed['dimension']} of {whose} is raised by {allowed['adds']}"


def _list_waits(common: Common) -> None:
    waits = _order(common, _waits)
    if common.json:
        out_json(waits)
    elif waits:
        out(waits_table(waits, time.time_ns() // 1000, terminal_width()))
        note("a yes: looptap allow REQUEST; a no: looptap stop TURN")
    else:
        note("nothing waits")


async def _waits(operator: Operator) -> list[dict[str, Any]]:
    return [dict(one) for one in operator.waiting()]


@click.command("topup")
@click.argument("budget")
@click.option("--subject", metavar="S", help="Whose counter; needed where there are several.")
@click.option("--add", required=True, metavar="AMOUNT", help="USD, a number, or a time such as 30m.")
@click.option(
    "--dimension", metavar="D", help="Which limit of the budget; spend_usd, or its only one, unless told."
)
@common
def topup_command(common: Common, budget: str, subject: str | None, add: str, dimension: str | None) -> None:
    """Raise a limit for the rest of its window; what was refused goes on where it stood.

    The subject must be known (counted, recorded or configured); a label or model may still be to come.

    \b
    looptap topup turn --subject trn_4f --add 2
    looptap topup turn --subject trn_4f --add 20 --dimension steps
    """
    counter = _order(
        common, lambda operator: operator.raised(budget, add, subject=subject, dimension=dimension)
    )
    if common.json:
        out_json(counter.public())
    else:
        out(counters_table([counter], width=terminal_width()))


def _until_seen() -> None:
    threading.Event().wait(SEEN_S)
