"""The command `demo`: the scripted agents, their trees and the incident, put on the screen."""

import os
import sys
from pathlib import Path
from shlex import quote

import click

from proxy import demo
from proxy.commands.live import live
from proxy.commands.options import Common, Failed, Misused, common, given_by_hand, note, out_json
from proxy.record import Reader
from proxy.record.schema import FILE
from proxy.terminal.screen import open_screen


@click.command("demo")
@click.option("--keep", type=click.Path(path_type=Path), metavar="DIR", help="Keep the record there.")
@common
def demo_command(common: Common, keep: Path | None) -> None:
    """No key, no network: scripted model and agents through a real proxy, then their trees, and an incident.

    Its settings and its ports are its own: --config and --data-dir are not taken.

    \b
    looptap demo
    looptap demo --keep /tmp/demo && looptap --data-dir /tmp/demo show
    """
    if given := given_by_hand("data_dir", "config"):
        raise Misused(f"the demo takes no {given}, its settings are its own; --keep DIR keeps its record")
    if keep is not None:
        _make(keep)
    if not common.json:
        note("five agents, one scripted model, one proxy: a few seconds…")
    with demo.data_dir(keep) as place:
        after = live(demo.perform(place))
        with Reader(place) as reader:
            album, scenes, stories = demo.scenes(reader, after)
    if common.json:
        told = [{"agent": s.agent.name, "lesson": s.agent.lesson, "sessions": s.sessions} for s in scenes]
        happened = [story.public() for story in stories]
        out_json({"scenes": told, "findings": album.forest.findings, "incident": happened, "log": after.log})
        return
    screen = open_screen(sys.stdout, os.environ)
    screen.write(demo.draw(album, scenes, screen))
    screen.write(demo.incident.draw(stories, after.log))
    if keep is not None:
        note(f"the record is kept: looptap --data-dir {quote(str(keep))} show")
    else:
        note("to look around in its record: looptap demo --keep DIR, then looptap --data-dir DIR show")


def _make(keep: Path) -> None:
    """The directory to keep the record in. Raises Failed before anything is played."""
    try:
        keep.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise Failed(f"--keep {keep}: {error.strerror}; name a directory that can be made") from None
    if not os.access(keep, os.W_OK | os.X_OK):
        raise Failed(f"--keep {keep} may not be written; name another directory")
    if (keep / FILE).exists():
        raise Failed(f"{keep} holds a record already; name an empty directory")
