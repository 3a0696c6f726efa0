"""The commands. One function each: read options, call what does the work, put out what it says.

Everything they share (options, errors, exit codes) is in ``options``; what they draw is in
``showing``, ``render`` and ``listing``.
"""

import os
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from shlex import quote
from typing import Any, NoReturn

import click
import orjson

from proxy import app, demo, probe, rulebook
from proxy import replay as offline
from proxy import run as wrapped
from proxy.app import stderr_warning as warn
from proxy.config import ConfigError, Overrides, explain, schema, upstreams
from proxy.exchange_log import write_log
from proxy.money.treasury import standing_of
from proxy.pricing import Pricing
from proxy.record import Reader, RecordMissing
from proxy.record.events import event_json
from proxy.record.schema import FILE
from proxy.terminal import acting
from proxy.terminal.listing import event_line, sessions_table, turns_table
from proxy.terminal.lookup import (
    exact_body,
    exchanges_of,
    named,
    session_of,
    step_of,
    steps_of,
    whole_id,
)
from proxy.terminal.options import (
    Commands,
    Common,
    Failed,
    Misused,
    common,
    common_options,
    live,
    note,
    out,
    out_json,
    run,
    terminal_width,
)
from proxy.terminal.render import total_cost
from proxy.terminal.reporting import report_command
from proxy.terminal.screen import open_screen
from proxy.terminal.showing import Album, of_one_run
from proxy.terminal.welcome import welcome

FREE_PORT = "127.0.0.1:0"
_TAIL_S = 0.2
_ALL = 1_000_000
_LARGE_LOG = 20_000_000
"""Bytes of exchange logs from which a person is shown that something is going on."""


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run the command line and end the process with its exit code."""
    run(cli, arguments)


def _version() -> str:
    try:
        return version("looptap")
    except PackageNotFoundError:
        return "unknown (not installed)"


@click.group(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog='Shell completion: eval "$(_LOOPTAP_COMPLETE=bash_source looptap)" in ~/.bashrc '
    "(zsh_source for zsh; fish_source, without eval, piped to source, for fish).",
)
@click.version_option(_version(), "--version", prog_name="looptap", message="%(prog)s %(version)s")
@click.pass_context
def cli(context: click.Context, config: Path | None, data_dir: Path | None, json: bool) -> None:
    """See, check and bound what an agent does: a transparent proxy between it and its model API.

    \b
    looptap demo               no key, no network: see what it shows
    looptap run -- CMD...      once, around one command
    looptap serve              as a sidecar; point the agent's base URL at it
    looptap show               what the newest turn did
    """
    context.obj = Common(config, data_dir, json)


cli = common_options(cli, environment=True)  # type: ignore[assignment]
for _command in (*acting.COMMANDS, report_command):
    cli.add_command(_command)
_SUMMARIES = {
    "budgets": "Every live counter: used, held, limit.",
    "check": "Validate the configuration: every problem with its line.",
    "demo": "No key, no network: agents, their trees, an incident.",
    "keys": "Keys of the proxy's own: make, list, revoke.",
    "replay": "Run recorded traffic through the same core, offline.",
    "report": "Per agent, model and tool: steps, failures, cost.",
    "run": "A private proxy around one command; its tree at the end.",
    "schema": "JSON Schema of the configuration, for editors.",
    "serve": "Run the proxy until Ctrl-C.",
    "sessions": "Sessions, newest first.",
    "show": "A session, turn or step as a tree.",
    "stop": "Refuse every later request of a turn, session or key.",
    "tail": "Live events, until Ctrl-C.",
    "topup": "Raise a limit for the rest of its window.",
    "turns": "Turns, newest first.",
}
"""What the list of commands says of each: on one line of 80 columns, whole."""


# -- the configuration


@cli.command("check")
@common
def check_command(common: Common) -> None:
    """Validate the configuration: every problem with file:line and a hint; exit 2 if there is any.

    \b
    looptap check --config looptap.yaml
    """
    try:
        settings = common.settings()
    except ConfigError as error:
        if common.json:
            out_json({"ok": False, "problems": [_problem_json(p) for p in error.problems]})
        for problem in error.problems:
            note(str(problem))
        raise click.exceptions.Exit(Misused.exit_code) from None
    if common.json:
        out_json({"ok": True, "problems": [], "says": list(explain(settings))})
        return
    for line in explain(settings):
        click.echo(line)


def _problem_json(problem: Any) -> dict[str, Any]:
    names = ("file", "line", "column", "key", "message", "hint")
    return {name: getattr(problem, name) for name in names if getattr(problem, name) not in (None, "")}


@cli.command("schema")
@common
def schema_command(common: Common) -> None:
    """JSON Schema of the configuration, for editors.

    \b
    looptap schema > looptap.schema.json
    """
    click.echo(orjson.dumps(schema(), option=orjson.OPT_INDENT_2).decode())


# -- the proxy


@cli.command("serve")
@click.option("--listen", metavar="HOST:PORT", help="The data port; 127.0.0.1:4040 unless configured.")
@click.option("--admin", metavar="HOST:PORT", help="The admin port; 127.0.0.1:4041 unless configured.")
@click.option("--upstream", "urls", multiple=True, metavar="NAME=URL", help="Add an upstream, or move one.")
@common
def serve_command(common: Common, listen: str | None, admin: str | None, urls: tuple[str, ...]) -> None:
    """Run the proxy until Ctrl-C; SIGHUP or a changed config file loads the settings again.

    \b
    looptap serve
    looptap serve --config looptap.yaml --listen 127.0.0.1:5050
    looptap serve --upstream acme=https://llm.acme.example/v1
    """
    over = Overrides(listen, admin, urls)
    settings = common.settings(over)
    file = common.file()

    def announce(running: app.Running) -> None:
        if common.json:
            out_json(
                {
                    "data_url": running.data_url,
                    "admin_url": running.admin_url,
                    "says": list(explain(settings)),
                }
            )
        else:
            for line in welcome(settings, running.data_url, running.admin_url):
                click.echo(line)

    if probe.enforces(settings):
        try:
            live(probe.prove(settings))
        except probe.NotEnforced as problem:
            raise Failed(f"{problem}; not starting, since its caps would not hold") from None
    served = app.serve(
        settings, announce=announce, warn=warn, watch=file,
        load_again=lambda old: common.reload(old, over) if file is not None else old,
    )  # fmt: skip
    live(served)


@cli.command("demo")
@click.option("--keep", type=click.Path(path_type=Path), metavar="DIR", help="Keep the record there.")
@common
def demo_command(common: Common, keep: Path | None) -> None:
    """No key, no network: scripted model and agents through a real proxy, then their trees, and an incident.

    \b
    looptap demo
    looptap demo --keep /tmp/demo && looptap --data-dir /tmp/demo show
    """
    if keep is not None and (keep / FILE).exists():
        raise Failed(f"{keep} holds a record already; name an empty directory")
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


@cli.command("run", context_settings={"allow_interspersed_args": False})
@click.option("--show/--no-show", default=True, help="Print tree and cost at the end (on stderr).")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- CMD...")
@common
def run_command(common: Common, show: bool, command: tuple[str, ...]) -> None:
    """A private proxy on free ports around one command; tree and cost at the end.

    The command gets ANTHROPIC_BASE_URL, OPENAI_BASE_URL, OPENAI_API_BASE and
    GOOGLE_GEMINI_BASE_URL; where one was set, its URL becomes the upstream. Clients that read no
    variable must be pointed at it themselves: codex -c openai_base_url="$OPENAI_BASE_URL". The exit
    code is the command's.

    \b
    looptap run -- claude -p "mend the tests"
    looptap run --no-show -- python agent.py
    looptap run -- sh -c 'codex exec -c openai_base_url="$OPENAI_BASE_URL" "say hi"'
    """
    settings = common.settings(Overrides(FREE_PORT, FREE_PORT))
    try:
        outcome = live(wrapped.around(command, settings, os.environ, warn))
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


# -- lists


@cli.command("sessions")
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
    with common.reader() as reader:
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


@cli.command("turns")
@click.option("--limit", default=20, show_default=True, type=click.IntRange(1), help="At most so many.")
@click.option("--agent", help="Only of this agent or client.")
@click.option("--model", help="Only where this model answered.")
@click.option("--cause", help="Only with this end: completed, error, ..., or open.")
@click.option("--label", help="Only with this label: NAME or NAME=VALUE.")
@click.option("--session", help="Only of this session (or the beginning of its id).")
@common
def turns_command(common: Common, limit: int, session: str | None, **filters: str | None) -> None:
    """Turns, newest first.

    \b
    looptap turns --cause error
    looptap turns --agent claude-code --label env=ci --json
    """
    with common.reader() as reader:
        whole = whole_id(reader, session, "session") if session is not None else None
        found = reader.turns(limit, session=whole, **filters)
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
    known = ["session", "thread", "agent", "labels", "started_at", "cause", "open"]
    known += [] if turn["open"] else ["ended_at"]
    return {**full, **{key: turn[key] for key in known if key in turn}}


# -- one thing


@cli.command("show")
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
    with common.reader() as reader:
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


# -- live


@cli.command("tail")
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
            return common.reader()
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


# -- recorded traffic


@cli.command("replay")
@click.argument("files", nargs=-1, required=True, metavar="FILE...", type=click.Path(path_type=Path))
@common
def replay_command(common: Common, files: tuple[Path, ...]) -> None:
    """Run recorded traffic through the same core, offline; print the trees.

    FILE is an exchange log (`looptap show ID --exchanges`), JSON Lines.

    \b
    looptap replay turn.jsonl
    looptap replay --json *.jsonl | jq '.findings'
    """
    for file in files:
        if not file.exists():
            raise Failed(f"{file}: there is no such file")
        if file.is_dir():
            raise Failed(f"{file}: this is a directory (name the logs in it)")
    settings = common.settings()
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
    )
    if progress is not None:
        click.echo("\r\x1b[K", err=True, nl=False)
    if common.json:
        out_json(tree)
    else:
        screen = open_screen(sys.stdout, os.environ)
        screen.write(album.draw_all(screen))
    for problem in problems:
        note(problem)
    if problems:
        raise click.exceptions.Exit(Failed.exit_code)


def _progress(number: int) -> None:
    if number % 200 == 0:
        click.echo(f"\r{number} exchanges", err=True, nl=False)


for _name, _summary in _SUMMARIES.items():
    cli.commands[_name].short_help = _summary
