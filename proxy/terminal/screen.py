"""The terminal: how wide it is, whether it takes colours, which characters it can say.

Colours go to terminals only (``NO_COLOR`` and ``FORCE_COLOR`` are honoured); a pipe gets plain
lines, uncut, one fact a line, so that grep works. Where the encoding is not UTF-8 the drawing
falls back to ASCII. Nothing here knows what is drawn.
"""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TextIO

from rich.console import Console
from rich.text import Text

from proxy.terminal.wording import encodable

PIPE_WIDTH = 120
"""Columns to lay out for where no terminal says how many there are."""
MIN_WIDTH = 40


@dataclass(frozen=True, slots=True)
class Glyphs:
    """The characters of a drawing. Every bar glyph is one column wide."""

    branch: str
    last: str
    pipe: str
    space: str
    dot: str
    ellipsis: str
    mark: str
    call: str
    parallel: str
    wait: str
    stream: str
    tool: str
    broken: str
    cross: str
    tick: str
    warn: str
    note: str
    fold: str
    pen: str


UNICODE = Glyphs(
    branch="├─ ", last="└─ ", pipe="│  ", space="   ", dot=" · ", ellipsis="…", mark="◂ ",
    call="▸", parallel="∥", wait="░", stream="█", tool="▒", broken="×", cross="✗", tick="✓", warn="!",
    note="i", fold="──", pen="✎",
)  # fmt: skip
ASCII = Glyphs(
    branch="|- ", last="`- ", pipe="|  ", space="   ", dot=", ", ellipsis="...", mark="< ",
    call=">", parallel="=", wait=".", stream="#", tool="-", broken="x", cross="x", tick="+", warn="!",
    note="i", fold="--", pen="*",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Screen:
    """One place to draw on."""

    file: TextIO
    width: int
    cut: bool
    """Lines longer than ``width`` are cut (a terminal); otherwise they are written whole."""
    colour: bool
    glyphs: Glyphs
    encoding: str

    def write(self, lines: Iterable[Text]) -> None:
        """Put lines out, one row each."""
        console = Console(
            file=self.file,
            width=self.width if self.cut else 10_000,
            force_terminal=self.colour,
            no_color=not self.colour,
            color_system="standard" if self.colour else None,
            markup=False,
            emoji=False,
            highlight=False,
            soft_wrap=True,
            legacy_windows=False,
        )
        for line in lines:
            row = line.copy()
            row.rstrip()
            if self.cut and row.cell_len > self.width:
                row.truncate(self.width - len(self.glyphs.ellipsis), overflow="crop")
                row.append(self.glyphs.ellipsis)
            if not self.colour:
                self.file.write(encodable(row.plain, self.encoding) + "\n")
            else:
                console.print(row)


def wrapped(line: Text, width: int, separator: str) -> list[Text]:
    """A long line as several, broken at ``separator`` and, where that is not enough, between words."""
    lines: list[Text] = []
    for part in _filled(line.split(separator, allow_blank=True), width, separator):
        lines += [part] if part.cell_len <= width else _filled(part.split(" ", allow_blank=True), width, " ")
    return lines


def _filled(pieces: Iterable[Text], width: int, separator: str) -> list[Text]:
    lines: list[Text] = []
    for piece in pieces:
        if lines and lines[-1].cell_len + len(separator) + piece.cell_len <= width:
            lines[-1].append(separator).append_text(piece)
        else:
            lines.append(piece)
    return lines


def open_screen(file: TextIO, environ: Mapping[str, str]) -> Screen:
    """The screen behind a text stream, as the environment wants it."""
    terminal = _is_terminal(file)
    encoding = getattr(file, "encoding", None) or "utf-8"
    return Screen(
        file=file,
        width=_width(file, terminal, environ),
        cut=terminal,
        colour=_wants_colour(terminal, environ),
        glyphs=UNICODE if _says(encoding, "".join(_drawn(UNICODE))) else ASCII,
        encoding=encoding,
    )


def _is_terminal(file: TextIO) -> bool:
    try:
        return file.isatty()
    except (AttributeError, ValueError):  # no stream at all, or a closed one
        return False


def _wants_colour(terminal: bool, environ: Mapping[str, str]) -> bool:
    if environ.get("NO_COLOR"):
        return False
    forced = environ.get("FORCE_COLOR")
    if forced is not None and forced != "":
        return forced not in ("0", "false")
    return terminal and environ.get("TERM") != "dumb"


def _width(file: TextIO, terminal: bool, environ: Mapping[str, str]) -> int:
    told = environ.get("COLUMNS", "")
    if told.isascii() and told.isdigit() and 0 < int(told[:6]) < 100_000:
        return max(MIN_WIDTH, int(told))
    if terminal:
        try:
            return max(MIN_WIDTH, os.get_terminal_size(file.fileno()).columns)
        except (OSError, ValueError):
            pass
    return PIPE_WIDTH


def _says(encoding: str, text: str) -> bool:
    try:
        text.encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def _drawn(glyphs: Glyphs) -> list[str]:
    return [getattr(glyphs, name) for name in Glyphs.__slots__]
