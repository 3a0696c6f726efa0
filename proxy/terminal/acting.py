"""The commands that act or count: ``budgets``, ``keys``, ``stop``, ``topup``.

They work on the ledger's store, whether a proxy runs or not; what they order holds from the next
request on, on every instance. What is ordered and refused is in ``orders``.
"""

import threading
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import click

from proxy.money.orders import Operator, OrderRefused, balance_lines
from proxy.money.treasury import ledger_of
from proxy.ports import LedgerAway
from proxy.stores.ledger_redis import RedisLedger
from proxy.terminal.options import Common, Failed, common, live, note, out_json
from proxy.terminal.wording import inert

SEEN_S = 0.3
"""A proxy without budgets looks this often for stops and keys: wait until it has."""

Result = TypeVar("Result")


def _order(common: Common, work: Callable[[Operator], Awaitable[Result]]) -> Result:
    """Carry out an order on the ledger that the settings name."""
    settings = common.settings()
    no_lease = settings.ledger.model_copy(update={"lease": None})  # a command draws nothing ahead
    settings = settings.model_copy(update={"ledger": no_lease})

    async def carried_out() -> Result:
        ledger = ledger_of(settings)
        try:
            if isinstance(ledger, RedisLedger):
                await ledger.ready()
            return await work(Operator(settings, ledger, note))
        finally:
            await ledger.close()

    try:
        return live(carried_out())
    except (OrderRefused, LedgerAway) as error:
        raise Failed(str(error)) from None


def _table(rows: list[list[str]]) -> None:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        click.echo(
            "  ".join(inert(cell).ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        )


@click.command("budgets")
@common
def budgets_command(common: Common) -> None:
    """Every live counter: what is used, what is held for requests under way, and the limit.

    \b
    looptap budgets
    looptap budgets --json | jq '.[] | select(.scope == "key")'
    """
    counters = _order(common, lambda operator: operator.budgets())
    if common.json:
        out_json(counters)
    elif counters:
        _table(balance_lines(counters))
    else:
        note("nothing has been counted yet")


@click.group("keys")
@common
def keys_group(common: Common) -> None:
    """Keys of the proxy's own, in place of the provider's: make, list, revoke.

    \b
    looptap keys create ci --team search
    looptap keys list
    looptap keys revoke ci
    """
    click.get_current_context().obj = common


@keys_group.command("create")
@click.argument("name")
@click.option("--team", default="default", show_default=True, help="Who pays.")
@click.option("--label", "labels", multiple=True, metavar="K=V", help="Pinned to its requests; repeatable.")
@common
def create_command(common: Common, name: str, team: str, labels: tuple[str, ...]) -> None:
    """Make a key and show it, once. Only its hash is kept.

    \b
    looptap keys create ci --team search --label env=ci
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


@keys_group.command("list")
@common
def list_command(common: Common) -> None:
    """All keys by name, revoked ones too; never the keys themselves."""
    keys = _order(common, lambda operator: operator.keys())
    if common.json:
        out_json(keys)
        return
    if not keys:
        note("no key has been made: looptap keys create NAME")
        return
    rows = [["KEY", "TEAM", "LABELS", "CREATED AT", "REVOKED AT"]]
    for key in keys:
        labels = ",".join(f"{name}={value}" for name, value in key["labels"].items()) or "-"
        rows.append([key["name"], key["team"], labels, key["created_at"], key.get("revoked_at", "-")])
    _table(rows)


@keys_group.command("revoke")
@click.argument("name")
@common
def revoke_command(common: Common, name: str) -> None:
    """End a key at once, on every instance."""
    _order(common, lambda operator: operator.revoke_key(name))
    if common.json:
        out_json({"name": name, "revoked": True})
    else:
        note(f"{name} is revoked")
    _until_seen()


@click.command("stop")
@click.argument("id")
@click.option("--lift", is_flag=True, help="Let it go on again.")
@common
def stop_command(common: Common, id: str, lift: bool) -> None:
    """Refuse every later request of a turn, thread, session or key; what runs is not cut.

    \b
    looptap stop trn_4f
    looptap stop ci --lift
    """
    whole = _order(common, lambda operator: operator.stop(id, lift=lift))
    if common.json:
        out_json({"id": whole, "stopped": not lift})
    else:
        note(f"{whole} may go on" if lift else f"{whole} is stopped; --lift lets it go on")
    _until_seen()


@click.command("topup")
@click.argument("budget")
@click.option("--subject", metavar="S", help="Whose counter; needed where there are several.")
@click.option("--add", required=True, metavar="AMOUNT", help="USD, a number, or a time such as 30m.")
@click.option("--dimension", metavar="D", help="Which limit of the budget; spend_usd unless told.")
@common
def topup_command(common: Common, budget: str, subject: str | None, add: str, dimension: str | None) -> None:
    """Raise a limit for the rest of its window; what was refused goes on where it stood.

    The subject must be known (counted, recorded or configured); a label or model may still be to come.

    \b
    looptap topup turn --subject trn_4f --add 2
    looptap topup turn --subject trn_4f --add 20 --dimension steps
    """
    counter: dict[str, Any] = _order(
        common, lambda operator: operator.topup(budget, add, subject=subject, dimension=dimension)
    )
    if common.json:
        out_json(counter)
    else:
        _table(balance_lines([counter]))


def _until_seen() -> None:
    threading.Event().wait(SEEN_S)


COMMANDS = (budgets_command, keys_group, stop_command, topup_command)
