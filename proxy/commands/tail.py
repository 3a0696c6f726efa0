"""The command `tail`: what is recorded, as it comes."""

import os
import sys
import threading
from collections.abc import Mapping
from typing import Any

import click

from proxy.commands.options import Common, common, note, out_json
from proxy.commands.recorded import record_of
from proxy.record import Reader, RecordMissing
from proxy.record.events import event_json
from proxy.terminal.listing import event_line
from proxy.terminal.lookup import whole_id
from proxy.terminal.screen import open_screen

_TAIL_S = 0.2


@click.command("tail")
@click.option("--session", help="Only of this session (or the beginning of its id).")
@click.option("--turn", help="Only of this turn (or the beginning of its id).")
@click.option(
    "--after", type=click.IntRange(0), metavar="SEQ", help="Begin after this event; else with the next."
)
@common
def tail_command(common: Common, session: str | None, turn: str | None, after: int | None) -> None:
    """Live events, until Ctrl-C.

    \b
    looptap tail
    looptap tail --json --after 0 | jq 'select(.type == "finding")'
    """
    with _await_reader(common) as reader:
        only: dict[str, Any] = {}
        if session is not None:
            only["session"] = whole_id(reader, session, "session")
        if turn is not None:
            only["turn"] = whole_id(reader, turn, "turn")
        _follow(reader, common, reader.last_seq() if after is None else after, only)


def _await_reader(common: Common) -> Reader:
    told = False
    while True:
        try:
            return record_of(common)
        except RecordMissing as error:
            if not told:
                note(f"waiting… {error}")
                told = True
        threading.Event().wait(_TAIL_S)


def _follow(reader: Reader, common: Common, after: int, only: Mapping[str, Any]) -> None:
    screen = open_screen(sys.stdout, os.environ)
    quiet = True
    while True:
        newest = reader.last_seq()
        for seq, record in reader.events(after, **only):
            event = event_json(seq, record)
            if common.json:
                out_json(event)
            else:
                screen.write([event_line(event)])
                screen.file.flush()
            after, quiet = seq, False
        after = max(after, newest)  # what the filter passed over need not be read again
        if quiet:
            note("waiting… (Ctrl-C ends this)")
            quiet = False
        threading.Event().wait(_TAIL_S)
