"""Reads the YAML file into plain values, and remembers where each of them stands.

Scalars follow YAML 1.2's core schema, not 1.1's: ``no`` is a word, ``12:30`` is no number, and a
number with a point becomes a ``Decimal``, so that money never passes through a float. ``${NAME}``
and ``${NAME:-default}`` are filled in after parsing, hence no variable can add structure.

The one invariant: a ``Problem`` never shows the value of an environment variable; where a value came
from one, the text shows the ``${NAME}`` that the file has.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

import yaml

from proxy.complaint import Complaint

KeyPath = tuple[str | int, ...]

MAX_FILE_BYTES = 1_000_000
MAX_DEPTH = 32

_INT = re.compile(r"[-+]?[0-9]{1,40}")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]{1,3})?")
_CONSTANTS: Mapping[str, bool | None] = {
    "": None, "~": None, "null": None, "Null": None, "NULL": None,
    "true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False,
}  # fmt: skip
_UNKNOWN = "!unknown"
"""The tag of a node of which nobody knows what it would say: it stands for an alias, or had a tag."""
_VARIABLE = re.compile(r"\$\$\{|\$\{([^{}]*)\}|\$\{")
_REFERENCE = re.compile(r"\$\{[^{}\n]*\}")
_MARKS = "{}[]:,#&*!|>'\"%@`?- "
_SHIELD = {ord(char): 0xF8A0 + place for place, char in enumerate(_MARKS)}
_UNSHIELD = {shielded: chr(char) for char, shielded in _SHIELD.items()}
"""YAML would read the braces of ``{steps: ${N}}``: while it parses, the characters of ``${N}`` are others."""
_VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong, where it stands, and what to do about it."""

    file: str
    """The file, or the option (``--listen``) or variable that the value came from."""
    line: int | None
    """From 1; None where the value stands in no file."""
    column: int | None
    key: str
    """``budgets[0].limits.steps``; empty for the file as a whole."""
    message: str
    hint: str = ""

    def __str__(self) -> str:
        place = self.file
        if self.line is not None:
            place += f":{self.line}" + (f":{self.column}" if self.column is not None else "")
        key = self.key if place != f"--{self.key}" else ""
        text = ": ".join(part for part in (place, key, self.message) if part)
        return f"{text} ({self.hint})" if self.hint else text


class ConfigError(Complaint):
    """The configuration cannot be used: every problem that was found, in the file's order."""

    def __init__(self, problems: tuple[Problem, ...]) -> None:
        super().__init__("\n".join(str(problem) for problem in problems))
        self.problems = problems

    exit_code = 2

    @property
    def line(self) -> str:
        """The first problem, and how many more there are."""
        more = f" (and {len(self.problems) - 1} more: looptap check)" if len(self.problems) > 1 else ""
        return f"{self.problems[0]}{more}"


@dataclass(frozen=True, slots=True)
class Mark:
    """Where an entry stands: its key (or list item), and its value."""

    key_line: int
    key_column: int
    line: int
    column: int


@dataclass(slots=True)
class Source:
    """The values of one configuration and where each came from: the file, then what overrode it."""

    file: str = "defaults"
    values: dict[str, Any] = field(default_factory=dict)
    marks: dict[KeyPath, Mark] = field(default_factory=dict)
    templates: dict[KeyPath, tuple[str, str]] = field(default_factory=dict)
    """Values that hold environment variables: the text in the file, and what became of it."""
    options: dict[KeyPath, str] = field(default_factory=dict)
    """Values that came from elsewhere, by the name to say: ``--listen``."""
    problems: list[Problem] = field(default_factory=list)
    """What is wrong with the file itself; the entries that it leaves unknown are faulty."""
    faulty: set[KeyPath] = field(default_factory=set)
    """Entries to take out so that the rest can be checked: wrong, or unknown (a variable that is not set)."""
    lacking: set[KeyPath] = field(default_factory=set)
    """Mappings with further entries that nobody knows: what they seem to miss is no mistake of their own."""
    kept: dict[KeyPath, list[int]] = field(default_factory=dict)
    """Lists that faulty items were taken out of: the file's indexes of those that stayed."""

    def override(self, path: tuple[str, ...], value: Any, option: str) -> None:
        """Put a value from the command line or environment over the file's."""
        place = self.values
        for name in path[:-1]:
            if place.get(name) is None:
                place[name] = {}
            if not isinstance(place[name], dict):
                return  # wrong already, and will be told
            place = place[name]
        place[path[-1]] = value
        self.options[path] = option
        for table in (self.marks, self.templates):
            for stale in [known for known in table if known[: len(path)] == path]:
                del table[stale]

    def original(self, path: KeyPath) -> KeyPath:
        """A path in values that faulty items were taken out of, as the file counts."""
        place: list[str | int] = []
        for part in path:
            kept = self.kept.get(tuple(place))
            within = kept is not None and isinstance(part, int) and part < len(kept)
            place.append(kept[part] if within else part)  # type: ignore[index]
        return tuple(place)

    def is_whole(self, path: KeyPath) -> bool:
        """Whether nothing was taken out below ``path``, and nothing unknown stands there or around it."""
        path = self.original(path)
        lacks = any(some[: len(path)] == path or path[: len(some)] == some for some in self.lacking)
        return not lacks and not any(gone[: len(path)] == path for gone in self.faulty)

    def is_told(self, path: KeyPath) -> bool:
        """Whether a key that is missing there is one that was wrong, or that may be among unknown ones."""
        path = self.original(path)
        return path in self.faulty or path[:-1] in self.lacking

    def problem(self, path: KeyPath, message: str, hint: str = "", *, at_key: bool = False) -> Problem:
        """A problem with the entry at ``path``, placed as exactly as is known."""
        path = self.original(path)
        for length in range(len(path), 0, -1):
            if (option := self.options.get(path[:length])) is not None:
                return Problem(option, None, None, key_text(path), message, hint)
        template = self.templates.get(path)
        if template is not None:
            written, value = template
            quoted = re.escape(show(value))
            anywhere = f"|{re.escape(value)}" if len(value) >= 4 else ""
            message = re.sub(quoted + anywhere, lambda _: show(written), message)
            hint = "" if anywhere and value in hint else hint
        line = column = None
        for length in range(len(path), -1, -1):
            if (mark := self.marks.get(path[:length])) is not None:
                whole = length == len(path) and not at_key
                line, column = (mark.line, mark.column) if whole else (mark.key_line, mark.key_column)
                break
        return Problem(self.file, line, column, key_text(path), message, hint)


def show(value: Any) -> str:
    """A value as error messages quote it: short, on one line."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None:
        return "nothing"
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list | tuple):
        return "a list"
    text = "".join(char if char.isprintable() else "?" for char in str(value))
    text = text if len(text) <= 60 else text[:57] + "..."
    return f"'{text}'" if isinstance(value, str) else text


def key_text(path: KeyPath) -> str:
    """``("budgets", 0, "limits")`` as ``budgets[0].limits``."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def read_file(path: Path, environ: Mapping[str, str] = os.environ) -> Source:
    """Read, parse and fill in; its ``problems`` tell what could not be. Raises ConfigError if nothing can."""
    text = _read_text(path)
    source = Source(file=str(path))
    root = _compose(text, str(path), source.problems)
    if root is None and source.problems:
        raise ConfigError(tuple(source.problems))
    if root is None or (isinstance(root, yaml.ScalarNode) and not root.value):
        raise _whole(path, "the file holds no settings", "leave --config out to run with the defaults")
    if not isinstance(root, yaml.MappingNode):
        raise _whole(
            path, "the file must hold `key: value` lines at its top level", "such as `mode: observe`"
        )
    source.values = _Builder(source, environ).mapping(root, ())
    return source


def _whole(path: Path, message: str, hint: str = "") -> ConfigError:
    return ConfigError((Problem(str(path), None, None, "", message, hint),))


def _read_text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        raise _whole(path, "there is no such file") from None
    except IsADirectoryError:
        raise _whole(path, "this is a directory", "name the YAML file in it") from None
    except PermissionError:
        raise _whole(path, "the file may not be read", "check its owner and mode") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise _whole(path, f"the file cannot be read: {reason}") from None
    if len(data) > MAX_FILE_BYTES:
        raise _whole(path, f"the file is larger than {MAX_FILE_BYTES // 1000} kB")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        problem = Problem(str(path), line, None, "", "the file is not UTF-8", "save it as UTF-8")
        raise ConfigError((problem,)) from None


class _Composer(yaml.SafeLoader):
    """PyYAML's composer, less what a settings file does not need and could be hurt by."""

    def __init__(self, text: str, file: str, problems: list[Problem]) -> None:
        super().__init__(text)
        self._file = file
        self._problems = problems
        self._depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        if type(event) is yaml.AliasEvent:
            self._refuse(event, "aliases are not supported", "write the value out here")
            self.get_event()  # type: ignore[no-untyped-call]
            return _unknown(event)
        if getattr(event, "anchor", None) is not None:
            self._refuse(event, "anchors are not supported", "write the value out where it is needed")
            event.anchor = None
        tagged = getattr(event, "tag", None) is not None
        if tagged:
            self._refuse(event, "tags are not supported", "quote the value if it is text")
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise yaml.MarkedYAMLError(problem="nested too deeply", problem_mark=event.start_mark)
        try:
            node = super().compose_node(parent, index)
            return _unknown(event) if tagged else node
        finally:
            self._depth -= 1

    def _refuse(self, event: Any, message: str, hint: str) -> None:
        mark = event.start_mark
        self._problems.append(Problem(self._file, mark.line + 1, mark.column + 1, "", message, hint))


def _unknown(event: Any) -> yaml.Node:
    return yaml.ScalarNode(_UNKNOWN, "", event.start_mark, event.end_mark)


def _compose(text: str, file: str, problems: list[Problem]) -> yaml.Node | None:
    shielded = _REFERENCE.sub(lambda match: match.group().translate(_SHIELD), text)
    try:
        composer = _Composer(shielded, file, problems)
        try:
            return composer.get_single_node()
        finally:
            composer.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        message = f"this is not YAML: {error.problem or error.context}"
        hint = ""
        if "\\t" in message:
            message, hint = "a tab stands where YAML wants spaces", "indent with spaces"
        elif "another document" in message:
            message, hint = "a second document begins here", "remove the `---` line"
        line, column = (mark.line + 1, mark.column + 1) if mark is not None else (None, None)
        problems.append(Problem(file, line, column, "", message, hint))
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        problems.append(Problem(file, line, None, "", "a control character stands in the file"))
    except yaml.YAMLError:
        problems.append(Problem(file, None, None, "", "this is not YAML"))
    return None


class _Builder:
    """Turns YAML nodes into values, notes their places and fills in variables."""

    def __init__(self, source: Source, environ: Mapping[str, str]) -> None:
        self._source = source
        self._environ = environ

    def mapping(self, node: yaml.MappingNode, path: KeyPath) -> dict[str, Any]:
        values: dict[str, Any] = {}
        lines: dict[str, int] = {}
        for key_node, value_node in node.value:
            mark = key_node.start_mark
            if not isinstance(key_node, yaml.ScalarNode):
                self._report(path, mark, "a key must be a word")
                self._source.lacking.add(path)
                continue
            if key_node.tag == _UNKNOWN:
                self._source.lacking.add(path)
                continue
            key = key_node.value.translate(_UNSHIELD)
            if key == "<<":
                self._report((*path, key), mark, "merge keys are not supported", "write the entries out")
                self._source.lacking.add(path)
                continue
            if key in values:
                hint = f"it stands in line {lines[key]} already; keep one of them"
                self._report((*path, key), mark, "this key is given twice", hint)
                continue
            lines[key] = mark.line + 1
            values[key] = self._value(value_node, (*path, key), mark)
        return values

    def _value(self, node: yaml.Node, path: KeyPath, key_mark: yaml.Mark) -> Any:
        start = node.start_mark
        self._source.marks[path] = Mark(
            key_mark.line + 1, key_mark.column + 1, start.line + 1, start.column + 1
        )
        if isinstance(node, yaml.MappingNode):
            return self.mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            return [self._value(item, (*path, i), item.start_mark) for i, item in enumerate(node.value)]
        return self._scalar(node, path) if isinstance(node, yaml.ScalarNode) else None

    def _scalar(self, node: yaml.ScalarNode, path: KeyPath) -> Any:
        if node.tag == _UNKNOWN:
            self._source.faulty.add(path)
            return None
        written: str = node.value.translate(_UNSHIELD)
        text = written
        if "${" in written:
            text = self._filled(written, path, node.start_mark)
            if _REFERENCE.search(written.replace("$${", "")):
                self._source.templates[path] = (written, text)
        quoted = node.style is not None and node.style != ""
        return text if quoted else resolve(text)

    def _filled(self, text: str, path: KeyPath, mark: yaml.Mark) -> str:
        def unknown(message: str, hint: str) -> str:
            self._report(path, mark, message, hint)
            self._source.faulty.add(path)
            return ""

        def value(match: re.Match[str]) -> str:
            inside = match.group(1)
            if match.group() == "$${":
                return "${"
            if inside is None:
                return unknown("`${` has no end", "write ${NAME}, or $${ for the two characters")
            name, has_default, default = inside.partition(":-")
            if not _VARIABLE_NAME.fullmatch(name):
                return unknown(f"`${{{inside}}}` names no variable", "write ${NAME} or ${NAME:-default}")
            found = self._environ.get(name)
            if has_default:
                return found or default
            if found is None:
                hint = f"set it, or write ${{{name}:-default}}"
                return unknown(f"the environment variable {name} is not set", hint)
            return found

        return _VARIABLE.sub(value, text)

    def _report(self, path: KeyPath, mark: yaml.Mark, message: str, hint: str = "") -> None:
        place = (self._source.file, mark.line + 1, mark.column + 1)
        self._source.problems.append(Problem(*place, key_text(path), message, hint))


def resolve(text: str) -> str | int | Decimal | bool | None:
    """A plain scalar's value by YAML 1.2's core schema, numbers with a point exactly."""
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    if _INT.fullmatch(text):
        return int(text)
    if _FLOAT.fullmatch(text):
        return Decimal(text)
    return text
