"""The command `replay`: recorded traffic through the same core, offline."""

import os
import sys
from pathlib import Path

import click

from proxy import replay as offline
from proxy import rulebook
from proxy.commands.options import Common, Failed, common, note, out_json
from proxy.commands.settled import settings_of
from proxy.config import upstreams
from proxy.money.treasury import standing_of
from proxy.pricing import Pricing
from proxy.terminal.screen import open_screen
from proxy.terminal.showing import Album

_LARGE_LOG = 20_000_000
"""Bytes of exchange logs from which a person is shown that something is going on."""

_TOLD = 10
"""So many wrong lines are named: what is no log at all is wrong in each."""
_STDIN = Path("/dev/stdin")


@click.command("replay")
@click.argument("files", nargs=-1, required=True, metavar="FILE...", type=click.Path(path_type=Path))
@common
def replay_command(common: Common, files: tuple[Path, ...]) -> None:
    """Run recorded traffic through the same core, offline; print the trees.

    FILE is an exchange log (`looptap show ID --exchanges`), JSON Lines; - reads stdin.

    \b
    looptap replay turn.jsonl
    looptap replay --json *.jsonl | jq '.findings'
    """
    files = tuple(_STDIN if str(file) == "-" else file for file in files)
    for file in files:
        if not file.exists():
            raise Failed(f"{file}: there is no such file")
        if file.is_dir():
            raise Failed(f"{file}: this is a directory (name the logs in it)")
    settings = settings_of(common)
    album = Album(())
    size = sum(file.stat().st_size for file in files)
    progress = _progress if size >= _LARGE_LOG and sys.stderr.isatty() else None
    tree, problems = offline.run(
        files,
        upstreams=upstreams(settings),
        chain=rulebook.chain(settings),
        prices=Pricing(settings.prices),
        standing=standing_of(settings),
        on_record=album.add,
        on_progress=progress,
        previews=not common.json,
        idle_after_ns=settings.idle_after.ns,
        max_decoded=int(settings.limits.decoded),
    )
    if progress is not None:
        click.echo("\r\x1b[K", err=True, nl=False)
    if common.json:
        out_json(tree)
    else:
        screen = open_screen(sys.stdout, os.environ)
        screen.write(album.draw_all(screen))
        if not tree["sessions"] and not problems:
            note(
                "no model call that can be read in it (`record: digest` keeps no bodies, `record: full` does)"
            )
    for problem in problems[:_TOLD]:
        note(problem)
    if (more := len(problems) - _TOLD) > 0:
        note(f"and {more} more")
    if problems:
        raise click.exceptions.Exit(Failed.exit_code)


def _progress(number: int) -> None:
    if number % 200 == 0:
        click.echo(f"\r{number} exchanges", err=True, nl=False)
