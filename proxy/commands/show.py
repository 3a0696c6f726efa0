"""The command `show`: one session, turn or step, as a tree or as its exact bytes."""

import os
import sys

import click

from proxy.commands.options import Common, Failed, common, note, out_json
from proxy.commands.recorded import record_of
from proxy.exchange_log import write_log
from proxy.record import Reader
from proxy.terminal.lookup import exact_body, exchanges_of, named, session_of, step_of, steps_of
from proxy.terminal.screen import open_screen
from proxy.terminal.showing import Album


@click.command("show")
@click.argument("id", default="last", metavar="[ID]")
@click.option(
    "--step", "number", type=click.IntRange(1), metavar="N", help="The turn's step N, as in its tree."
)
@click.option("--request", is_flag=True, help="Print the exact bytes of the step's request.")
@click.option("--response", is_flag=True, help="Print the exact bytes of its answer.")
@click.option("--attempt", type=int, metavar="N", help="Which attempt of the step; the last unless told.")
@click.option(
    "--exchanges", is_flag=True, help="Write an exchange log (JSON Lines) that `looptap replay` reads."
)
@common
def show_command(common: Common, id: str, number: int | None, attempt: int | None, **what: bool) -> None:
    """A session, turn or step as a tree; without ID the newest turn.

    The beginning of an id is enough where it is the only one.

    \b
    looptap show
    looptap show ses_4f
    looptap show trn_07 --step 3
    looptap show trn_07 --step 3 --request | jq .messages
    looptap show trn_07 --exchanges > turn.jsonl
    """
    which = [name for name in ("request", "response") if what[name]]
    if len(which) > 1:
        raise click.UsageError("--request and --response are two bodies: ask for one of them")
    if which and what["exchanges"]:
        raise click.UsageError("--exchanges does not go with --request or --response")
    if attempt is not None and not which:
        raise click.UsageError("--attempt goes with --request or --response")
    with record_of(common) as reader:
        kind, whole = named(reader, id)
        if number is not None:
            kind, whole = "step", step_of(reader, kind, whole, number)
        if which:
            kind, whole = _one_step(reader, kind, whole)
            _put(exact_body(reader, kind, whole, which[0], attempt))
        elif what["exchanges"]:
            for line in write_log(reader, exchanges_of(reader, kind, whole)):
                _put(line)
        else:
            _show(reader, kind, whole, common)


def _one_step(reader: Reader, kind: str, id: str) -> tuple[str, str]:
    """Whose bytes are printed; of anything larger than a step, its last one's, and a person is told."""
    if kind in ("step", "exchange"):
        return kind, id
    steps = steps_of(reader, kind, id)
    if len(steps) > 1:
        note(f"of {id} the last of {len(steps)} steps: {steps[-1]}; --step N names another")
    return "step", steps[-1]


def _show(reader: Reader, kind: str, id: str, common: Common) -> None:
    if kind == "exchange":
        step = reader.exchange(id).step
        if step is None:
            raise Failed(f"{id} is no model call: it has no tree (--request and --response print its bytes)")
        kind, id = "step", step
    album = Album(record for _, record in reader.events(session=session_of(reader, kind, id)))
    node = album.find(id)
    if node is None:
        raise Failed(f"{id} left no step behind; show its session: {session_of(reader, kind, id)}")
    if common.json:
        out_json(album.answer(node))
    else:
        screen = open_screen(sys.stdout, os.environ)
        screen.write(album.draw(node, screen))


def _put(data: bytes) -> None:
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()
