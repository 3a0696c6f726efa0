"""The commands `sessions` and `turns`: what the record holds, newest first."""

import time
from collections.abc import Mapping
from typing import Any, get_args

import click

from proxy.commands.options import Common, common, note, out, out_json, terminal_width
from proxy.commands.recorded import record_of
from proxy.model import Cause
from proxy.record import Reader
from proxy.terminal.listing import sessions_table, turns_table
from proxy.terminal.lookup import whole_id
from proxy.terminal.showing import Album

_ALL = 1_000_000
_LONGEST_WAIT_NS = 86_400_000_000_000
"""How far back waits are looked for: each says itself how long it lasts."""


@click.command("sessions")
@click.option("--limit", default=20, show_default=True, type=click.IntRange(1), help="At most so many.")
@click.option("--agent", help="Only of this client.")
@click.option("--label", help="Only with this label: NAME or NAME=VALUE.")
@common
def sessions_command(common: Common, limit: int, agent: str | None, label: str | None) -> None:
    """Sessions, newest first.

    \b
    looptap sessions --limit 5
    looptap sessions --label team=search --json
    """
    with record_of(common) as reader:
        found = reader.sessions(_ALL if agent or label else limit)
    found = [s for s in found if _fits(s, agent, label)][:limit]
    if common.json:
        out_json(found)
    elif found:
        out(sessions_table(found, time.time_ns() // 1000, terminal_width()))
    else:
        note("no sessions recorded yet" if not (agent or label) else "no session fits")


def _fits(session: Mapping[str, Any], agent: str | None, label: str | None) -> bool:
    if agent is not None and session.get("client") != agent:
        return False
    name, equals, value = (label or "").partition("=")
    labels = session.get("labels") or {}
    return label is None or (name in labels and (not equals or labels[name] == value))


@click.command("turns")
@click.option("--limit", default=20, show_default=True, type=click.IntRange(1), help="At most so many.")
@click.option("--agent", help="Only of this agent or client.")
@click.option("--model", help="Only where this model answered.")
@click.option(
    "--cause",
    type=click.Choice([*get_args(Cause), "open"]),
    metavar="CAUSE",
    help="Only with this end: completed, error, spend, ..., or open.",
)
@click.option("--label", help="Only with this label: NAME or NAME=VALUE.")
@click.option("--session", help="Only of this session (or the beginning of its id).")
@common
def turns_command(common: Common, limit: int, session: str | None, **filters: str | None) -> None:
    """Turns, newest first.

    \b
    looptap turns --cause error
    looptap turns --agent claude-code --label env=ci --json
    """
    with record_of(common) as reader:
        whole = whole_id(reader, session, "session") if session is not None else None
        found = reader.turns(limit, session=whole, **filters)
        if any(turn["open"] for turn in found):
            waits = {wait.get("turn") for wait in reader.waiting(_LONGEST_WAIT_NS, time.time_ns())}
            found = [{**turn, "held": True} if turn["id"] in waits else turn for turn in found]
        if common.json:
            out_json([_turn_object(reader, turn) for turn in found])
            return
    if found:
        out(turns_table(found, time.time_ns() // 1000, terminal_width()))
    else:
        note("no turn fits" if session or any(filters.values()) else "no turns recorded yet")


def _turn_object(reader: Reader, turn: Mapping[str, Any]) -> dict[str, Any]:
    """A listed turn in full: the object of ``replay`` with where and when it ran."""
    album = Album(record for _, record in reader.events(turn=turn["id"]))
    full = album.forest.turn(turn["id"]) or {}
    known = ["session", "thread", "agent", "labels", "started_at", "cause", "open", "held"]
    known += [] if turn["open"] else ["ended_at"]
    return {**full, **{key: turn[key] for key in known if key in turn}}
