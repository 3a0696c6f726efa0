"""The command line: the list of commands, each loaded when it is asked for.

The commands themselves are in ``commands``, what they draw in ``terminal``. Loading all of them takes
over a second of processor time; what reads the record needs a third of it.
"""

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import NoReturn

import click

from proxy.commands.options import Commands, Common, common_options, run

COMMANDS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "allow": ("acting", "Say yes to a request that waits for an operator."),
        "budgets": ("acting", "Every live counter: used, held, limit."),
        "check": ("check", "Validate the configuration: every problem with its line."),
        "demo": ("demo", "No key, no network: agents, their trees, an incident."),
        "keys": ("acting", "Keys of the proxy's own: make, list, revoke."),
        "replay": ("replay", "Run recorded traffic through the same core, offline."),
        "report": ("report", "Per agent, model and tool: steps, failures, cost."),
        "run": ("run", "A private proxy around one command; its tree at the end."),
        "schema": ("check", "JSON Schema of the configuration, for editors."),
        "serve": ("serve", "Run the proxy until Ctrl-C."),
        "sessions": ("lists", "Sessions, newest first."),
        "show": ("show", "A session, turn or step as a tree."),
        "stop": ("acting", "Refuse every later request of a turn, session or key."),
        "tail": ("tail", "Live events, until Ctrl-C."),
        "topup": ("acting", "Raise a limit for the rest of its window."),
        "turns": ("lists", "Turns, newest first."),
    }
)
"""Each command's module in ``commands``, and what the list says of it: on one line of 80 columns, whole."""


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run the command line and end the process with its exit code."""
    run(cli, arguments)


class _Listed(Commands):
    """The group of ``COMMANDS``."""

    def list_commands(self, context: click.Context) -> list[str]:
        """Their names."""
        return list(COMMANDS)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        """One of them, loaded."""
        if name not in COMMANDS:
            return None
        module, summary = COMMANDS[name]
        command: click.Command = getattr(import_module(f"proxy.commands.{module}"), f"{name}_command")
        command.short_help = summary
        return command

    def resolve_command(
        self, context: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command that was named. Raises NoSuchCommand, which knows what is near it."""
        try:
            return super().resolve_command(context, args)
        except click.NoSuchCommand as error:
            raise click.NoSuchCommand(error.command_name, possibilities=COMMANDS, ctx=context) from None

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        """The list in ``--help``, for which nothing need be loaded."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in COMMANDS.items()])


@click.group(
    cls=_Listed,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog='Shell completion: eval "$(_LOOPTAP_COMPLETE=bash_source looptap)" in ~/.bashrc '
    "(zsh_source for zsh; fish_source, without eval, piped to source, for fish).",
)
@click.version_option(package_name="looptap", prog_name="looptap", message="%(prog)s %(version)s")
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
