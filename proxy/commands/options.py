"""What every command has in common: options, output, and how it fails.

``--config``, ``--data-dir`` and ``--json`` may stand before the command or after it; after wins.
Failures are one line on stderr that says what to do: 1 for a command that failed, 2 for bad usage
or configuration. A traceback is shown only to those who ask (``LOOPTAP_DEBUG=1``).
"""

import io
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from shlex import quote
from typing import Any, NoReturn, TextIO, TypeVar

import click
import orjson
from rich.text import Text

from proxy.complaint import Complaint
from proxy.terminal.screen import open_screen
from proxy.terminal.wording import inert

FAILED = 1
BAD_USAGE = 2
INTERRUPTED = 130

Command = TypeVar("Command", bound=Callable[..., Any])


class Failed(click.ClickException):
    """The command failed; the message says what to do."""

    exit_code = FAILED


class Misused(click.ClickException):
    """Bad usage or configuration."""

    exit_code = BAD_USAGE


@dataclass(frozen=True, slots=True)
class Common:
    """The options that every command takes."""

    config: Path | None = None
    data_dir: Path | None = None
    json: bool = False


def common(command: Command) -> Command:
    """Give a command the common options; it receives them as ``common: Common``."""

    def wrapped(*args: Any, config: Path | None, data_dir: Path | None, json: bool, **kwargs: Any) -> Any:
        context = click.get_current_context()
        given = context.find_object(Common) or Common()
        own = replace(
            given,
            config=config or given.config,
            data_dir=data_dir or given.data_dir,
            json=json or given.json,
        )
        return command(*args, common=own, **kwargs)

    wrapped.__doc__ = command.__doc__
    wrapped.__name__ = command.__name__
    described = getattr(command, "__click_params__", [])
    wrapped.__click_params__ = described  # type: ignore[attr-defined]
    return common_options(wrapped)  # type: ignore[return-value]


def common_options(command: Callable[..., Any], *, environment: bool = False) -> Callable[..., Any]:
    """The three options themselves. ``environment``: also read from the variables (once, at the top)."""
    path = click.Path(path_type=Path)
    options = (
        click.option("--json", "json", is_flag=True, help="Answer in JSON."),
        click.option(
            "--data-dir", type=path, metavar="DIR",
            help="Where the record lies: LOOPTAP_DATA_DIR, else store.path, else ~/.local/share/looptap.",
            envvar="LOOPTAP_DATA_DIR" if environment else None,
        ),
        click.option(
            "--config", type=path, metavar="FILE",
            help="The configuration (YAML): LOOPTAP_CONFIG, else the defaults.",
            envvar="LOOPTAP_CONFIG" if environment else None,
        ),
    )  # fmt: skip
    for option in options:
        command = option(command)
    return command


def given_by_hand(*names: str) -> str | None:
    """The first of these common options that stands on the command line, as it is written there."""
    context: click.Context | None = click.get_current_context()
    while context is not None:
        for name in names:
            if context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE:
                return f"--{name.replace('_', '-')}"
        context = context.parent
    return None


def out(lines: Iterable[Text]) -> None:
    """Lines to stdout, drawn for whoever reads them."""
    open_screen(sys.stdout, os.environ).write(lines)


def terminal_width() -> int | None:
    """Columns of the terminal that ``out`` writes to; None where lines are written whole."""
    screen = open_screen(sys.stdout, os.environ)
    return screen.width if screen.cut else None


def out_json(value: Any) -> None:
    """A JSON value and a newline to stdout."""
    sys.stdout.buffer.write(orjson.dumps(value) + b"\n")
    sys.stdout.buffer.flush()


def note(text: str) -> None:
    """A line for the person at the terminal, beside the output."""
    click.echo(text, err=True)


class _Enough(Exception):
    """Whoever read our output has gone."""


class _Interrupted(Exception):
    """Ctrl-C."""


class Commands(click.Group):
    """A group that leaves two endings to us for which click has answers of its own."""

    def invoke(self, context: click.Context) -> Any:
        """Run the command that was named."""
        try:
            return super().invoke(context)
        except BrokenPipeError:
            raise _Enough from None
        except KeyboardInterrupt:
            raise _Interrupted from None


def run(command: click.Command, arguments: list[str] | None) -> NoReturn:
    """Run the command line and end the process with its exit code."""
    sys.stdout, sys.stderr = written_whole(sys.stdout), written_whole(sys.stderr)
    try:
        _must_complete(os.environ)
        code = command.main(arguments, prog_name="looptap", standalone_mode=False)
        sys.stdout.flush()
    except (_Enough, BrokenPipeError, SystemExit):
        code = 0  # whoever read us has enough; of its own help click tells so by leaving
    except (click.Abort, _Interrupted, KeyboardInterrupt):
        code = INTERRUPTED
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()  # the help itself, in its lines
        code = BAD_USAGE
    except click.UsageError as error:
        code = _fail(_usage(error), BAD_USAGE)
    except click.ClickException as error:
        code = _fail(error.format_message(), error.exit_code)
    except Complaint as error:
        code = _fail(error.line, error.exit_code)
    except OSError as error:
        name = f"{error.filename}: " if error.filename else ""
        code = _fail(f"{name}{error.strerror or error}", FAILED)
    except Exception as error:  # noqa: BLE001 - the last resort: one line, not a traceback
        if os.environ.get("LOOPTAP_DEBUG"):
            traceback.print_exc()
        code = _fail(f"internal error: {type(error).__name__}: {error} (LOOPTAP_DEBUG=1 shows where)", FAILED)
    _let_go(sys.stdout)
    _let_go(sys.stderr)
    sys.exit(code if isinstance(code, int) else 0)


def _must_complete(environ: Mapping[str, str]) -> None:
    """Completion is asked for by the shell's function, which also says what stands on its line."""
    asked = environ.get(_COMPLETE, "").endswith("_complete")
    if asked and not environ.keys() >= {"COMP_WORDS", "COMP_CWORD"}:
        raise Misused(
            f"{_COMPLETE} is for the shell's completion, which sets COMP_WORDS and COMP_CWORD; unset it"
        )


_COMPLETE = "_LOOPTAP_COMPLETE"


def _let_go(stream: TextIO) -> None:
    """Drop what nobody takes any more (a closed pipe, a full disk): Python would complain of it at exit."""
    try:
        stream.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def written_whole(stream: TextIO | None) -> TextIO:
    """The same stream, with a buffer where Python was told to have none (``PYTHONUNBUFFERED``).

    Without one a write to a pipe may take a part of the text, and nobody writes the rest. Whoever closed
    the stream (``>&-``; Python then has none) wants nothing of it.
    """
    if stream is None:
        return Path(os.devnull).open("w", encoding="utf-8")
    if not isinstance(stream, io.TextIOWrapper) or not isinstance(stream.buffer, io.RawIOBase):
        return stream
    encoding, errors = stream.encoding, stream.errors
    return io.TextIOWrapper(io.BufferedWriter(stream.detach()), encoding, errors, line_buffering=True)


_EXTRA = re.compile(r"Got unexpected extra argument \((.*\.ya?ml)\)", re.IGNORECASE)


def _usage(error: click.UsageError) -> str:
    path = error.ctx.command_path if error.ctx is not None else "looptap"
    message = error.format_message().rstrip(".")
    if (file := _EXTRA.fullmatch(message)) is not None:
        message = f"{path} takes no file by itself: did you mean --config {quote(file[1])}?"
    return f"{message}{'' if message.endswith('?') else '.'} Try '{path} --help'"


def _fail(message: str, code: int) -> int:
    with suppress(OSError):  # the exit code says it, too
        click.echo(f"looptap: {inert(message, 1000)}", err=True)
    return code
