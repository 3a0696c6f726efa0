"""The commands `check` and `schema`: what the configuration says, what is wrong with it, what it may say."""

from collections.abc import Iterator
from typing import Any

import click
import orjson

from proxy import outlets, rulebook
from proxy.commands.options import Common, Misused, common, note, out_json
from proxy.commands.settled import settings_of
from proxy.config import ConfigError, Problem, Settings, explain, schema


@click.command("check")
@common
def check_command(common: Common) -> None:
    """Validate the configuration: every problem with file:line and a hint; exit 2 if there is any.

    Without problems it says what is enforced and what only observed. Where OTEL_ variables alone ask for
    traces, what is wrong with them is only said: they may be meant for others.

    \b
    looptap check --config looptap.yaml
    """
    aside: list[Problem] = []

    def look(settings: Settings) -> Iterator[Problem]:
        yield from rulebook.problems(settings)
        found = outlets.otlp_problems(settings)
        if outlets.by_environment(settings):
            aside.extend(found)
        else:
            yield from found

    try:
        settings = settings_of(common, look=look)
    except ConfigError as error:
        if common.json:
            out_json({"ok": False, "problems": [_problem_json(p) for p in error.problems]})
        for problem in error.problems:
            note(str(problem))
        raise click.exceptions.Exit(Misused.exit_code) from None
    if common.json:
        warnings = {"warnings": [_problem_json(p) for p in aside]} if aside else {}
        out_json({"ok": True, "problems": [], **warnings, "says": list(explain(settings))})
        return
    for problem in aside:
        note(f"no traces are exported: {problem}")
    for line in explain(settings):
        click.echo(line)


def _problem_json(problem: Problem) -> dict[str, Any]:
    names = ("file", "line", "column", "key", "message", "hint")
    return {name: getattr(problem, name) for name in names if getattr(problem, name) not in (None, "")}


@click.command("schema")
@common
def schema_command(common: Common) -> None:
    """JSON Schema of the configuration, for editors.

    \b
    looptap schema > looptap.schema.json
    """
    click.echo(orjson.dumps(schema(), option=orjson.OPT_INDENT_2).decode())
