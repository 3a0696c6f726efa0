"""The command `run`: a private proxy around one command, and what it did."""

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import click
import orjson

from proxy import run as wrapped
from proxy.app import stderr_warning
from proxy.commands.live import live
from proxy.commands.options import Common, common, note
from proxy.commands.settled import settings_of
from proxy.config import Overrides
from proxy.record import Reader, RecordMissing
from proxy.terminal.render import total_cost
from proxy.terminal.screen import open_screen
from proxy.terminal.showing import Album, of_one_run

FREE_PORT = "127.0.0.1:0"


@click.command("run", context_settings={"allow_interspersed_args": False})
@click.option("--show/--no-show", default=True, help="Print tree and cost at the end (on stderr).")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- CMD...")
@common
def run_command(common: Common, show: bool, command: tuple[str, ...]) -> None:
    """A private proxy on free ports around one command; tree and cost at the end.

    The command gets ANTHROPIC_BASE_URL, OPENAI_BASE_URL, GOOGLE_GEMINI_BASE_URL, and
    ANTHROPIC_API_BASE and OPENAI_API_BASE for LiteLLM; where one was set, its URL becomes the
    upstream. Clients that read no variable must be pointed at it themselves: codex -c
    openai_base_url="$OPENAI_BASE_URL". The exit code is the command's.

    \b
    looptap run -- claude -p "mend the tests"
    looptap run --no-show -- python agent.py
    looptap run -- sh -c 'codex exec -c openai_base_url="$OPENAI_BASE_URL" "say hi"'
    """
    settings = settings_of(common, Overrides(FREE_PORT, FREE_PORT))
    try:
        outcome = live(wrapped.around(command, settings, os.environ, stderr_warning))
    except wrapped.CannotStart as problem:
        note(f"looptap: {problem}")
        raise click.exceptions.Exit(problem.code) from None
    if show:
        _show_run(common, Path(settings.store.path), outcome)
    raise click.exceptions.Exit(outcome.code)


def _show_run(common: Common, place: Path, outcome: wrapped.RunOutcome) -> None:
    album = Album(())
    sessions: list[dict[str, Any]] = []
    with suppress(RecordMissing), Reader(place) as reader:  # without a single exchange there is none
        album, sessions = of_one_run(reader, outcome.after_seq, outcome.label)
    if common.json:
        click.echo(orjson.dumps({"sessions": sessions, "findings": album.forest.findings}).decode(), err=True)
        return
    screen = open_screen(sys.stderr, os.environ)
    for session in sessions:
        screen.write(album.draw(session, screen))
    if not sessions:
        note("looptap: no model call came through the proxy; does the command read a base URL variable?")
    elif len(sessions) > 1:
        turns = [turn for s in sessions for thread in s["threads"] for turn in thread["turns"]]
        note(f"{len(sessions)} sessions, {len(turns)} turns, {total_cost(turns)}")
