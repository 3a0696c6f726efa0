"""Puts what pydantic found into words: where it stands, what is wrong, what to write instead.

Also used for the option classes of policies and exporters, so that their errors look the same.
"""

import difflib
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, get_args

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from proxy.config.file import KeyPath, Problem, Source, show

_EXPECTED = re.compile(r"'([^']*)'")
_MEANT: Mapping[str, str] = {
    "max_steps": "steps", "max_turns": "steps", "turns": "steps", "iterations": "steps",
    "usd": "spend_usd", "cost": "spend_usd", "cost_usd": "spend_usd", "max_usd": "spend_usd",
    "budget_usd": "spend_usd", "spend": "spend_usd", "dollars": "spend_usd", "max_budget": "spend_usd",
    "tokens": "total_tokens", "max_tokens": "total_tokens", "time": "wall_clock", "timeout": "wall_clock",
    "rpm": "requests_per_minute", "period": "window", "limit": "limits", "alerts": "alert_at",
    "port": "listen", "host": "listen", "bind": "listen", "base_url": "url", "type": "api", "hash": "sha256",
    "data_dir": "store", "redis": "ledger", "providers": "upstreams", "timezone": "time_zone",
    "key": "api_key", "apikey": "api_key", "token": "api_key",
}  # fmt: skip
"""What other tools call our keys."""

_STRUCTURE = {
    "model_type": "must hold `key: value` lines",
    "model_attributes_type": "must hold `key: value` lines",
    "dict_type": "must hold `key: value` lines",
    "mapping_type": "must hold `key: value` lines",
    "tuple_type": "must be a list",
    "list_type": "must be a list",
    "string_type": "must be text",
    "int_type": "must be a whole number",
    "int_parsing": "must be a whole number",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
    "path_type": "must be a path",
}


def meant(word: Any, known: Collection[str]) -> str:
    """``did you mean steps?`` for a misspelt word, or an empty text."""
    text = str(word).lower().replace("-", "_")
    if text in known:
        return f"did you mean {text}?"
    close = difflib.get_close_matches(text, sorted(known), n=1, cutoff=0.7)
    if close:
        return f"did you mean {close[0]}?"
    other = _MEANT.get(text)
    return f"did you mean {other}?" if other in known else ""


NOT_BUILT = frozenset({"clamp", "slices"})
"""What the file format foresees and ``checks`` refuses: no hint may lead there."""


class Wording:
    """Words the errors of one model, of which the tree of keys is known."""

    def __init__(self, root: type[BaseModel], source: Source, values: Any, *, prefix: KeyPath = ()) -> None:
        self._root = root
        self._source = source
        self._values = values
        self._prefix = prefix
        self._homes = _homes(root)

    def problems(self, error: ValidationError) -> list[Problem]:
        """Every error of one validation, each where it stands; what is told already is not missing, too."""
        details = error.errors(include_url=False)
        return [self.problem(one) for one in details if not self._told(one)]

    def _told(self, detail: ErrorDetails) -> bool:
        return detail["type"] == "missing" and self._source.is_told(self.path(detail))

    def path(self, detail: ErrorDetails) -> KeyPath:
        """An error's place in the values, less pydantic's names of union members and keys."""
        place: list[str | int] = []
        below: Any = self._values
        for part in detail["loc"]:
            inside = isinstance(below, dict) and part in below
            if inside or (isinstance(below, list) and isinstance(part, int) and part < len(below)):
                below = below[part]
            elif detail["type"] == "missing" and part == detail["loc"][-1]:
                below = None
            else:
                continue
            place.append(part)
        return (*self._prefix, *place)

    def problem(self, detail: ErrorDetails) -> Problem:
        """One error in words."""
        path, kind, value = self.path(detail), detail["type"], detail.get("input")
        context = detail.get("ctx") or {}
        if kind == "extra_forbidden":
            return self._unknown_key(path)
        if kind == "missing":
            return self._source.problem(path, "this key is missing", str(self._example(path)))
        if kind == "looptap":
            return self._source.problem(path, str(context["text"]), str(context["hint"]))
        if kind == "literal_error":
            named = _EXPECTED.findall(str(context.get("expected", "")))
            expected = [word for word in named if word not in NOT_BUILT]
            hint = meant(value, expected) if isinstance(value, str) else ""
            listed = f"one of {', '.join(expected)}"
            message = f"{show(value)} is not taken here"
            if value is None:
                message = "no value is given"
            return self._source.problem(path, message, f"{hint} {listed}".strip())
        if kind == "value_error":
            return self._source.problem(path, str(context.get("error", "is not valid")))
        return self._source.problem(path, _STRUCTURE.get(kind) or _plain(detail["msg"]))

    def _unknown_key(self, path: KeyPath) -> Problem:
        key = str(path[-1])
        siblings = _keys_at(self._root, path[len(self._prefix) : -1])
        hint = meant(key, siblings)
        if not hint:
            homes = self._homes.get(key, ())
            if homes:
                hint = f"it belongs under {' or '.join(homes[:3])}"
            elif siblings:
                hint = f"known here: {', '.join(sorted(siblings))}"
        return self._source.problem(path, "unknown key", hint, at_key=True)

    def _example(self, path: KeyPath) -> str:
        field = path[-1]
        if field == "api":
            return "one of anthropic, openai, gemini"
        if field == "limits":
            return "such as limits: {spend_usd: 5}"
        return ""


def _plain(message: str) -> str:
    return message[:1].lower() + message[1:]


def _models_in(annotation: Any) -> list[tuple[str, type[BaseModel]]]:
    """The section classes inside a type, each with how a path gets there: ``""``, ``[]`` or ``.NAME``."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [("", annotation)]
    found: list[tuple[str, type[BaseModel]]] = []
    origin = getattr(annotation, "__origin__", None)
    for argument in get_args(annotation):
        for step, model in _models_in(argument):
            name = getattr(origin, "__name__", "")
            found.append(
                ("[]" + step if name == "tuple" else ".NAME" + step if name == "Mapping" else step, model)
            )
    return found


def _homes(root: type[BaseModel], place: str = "") -> dict[str, list[str]]:
    """Where each key of the tree may stand, in words."""
    homes: dict[str, list[str]] = {}
    for name, field in root.model_fields.items():
        homes.setdefault(name, []).append(place or "the top level")
        for step, model in _models_in(field.annotation):
            below = f"{place}.{name}{step}" if place else f"{name}{step}"
            for key, places in _homes(model, below).items():
                homes.setdefault(key, []).extend(places)
    return homes


def _keys_at(root: type[BaseModel], path: Sequence[str | int]) -> set[str]:
    """The keys that are known at a place of the tree."""
    models: list[type[BaseModel]] = [root]
    skip = False
    for part in path:
        if skip or isinstance(part, int):
            skip = False
            continue
        following: list[type[BaseModel]] = []
        for model in models:
            if part in model.model_fields:
                for step, below in _models_in(model.model_fields[part].annotation):
                    following.append(below)
                    skip = step == ".NAME"
        models = following
    return {name for model in models for name in model.model_fields}


def read_options(
    cls: Any, source: Source, path: KeyPath, values: Mapping[str, Any]
) -> tuple[Any, list[Problem]]:
    """Validate somebody's own options (a pydantic model or dataclass) with errors worded as ours."""
    if is_dataclass(cls) and (unknown := _strange_keys(cls, source, path, values)):
        return None, unknown  # pydantic passes over what a plain dataclass does not have
    adapter = TypeAdapter(cls)
    try:
        return adapter.validate_python(dict(values)), []
    except ValidationError as error:
        root = cls if isinstance(cls, type) and issubclass(cls, BaseModel) else BaseModel
        return None, Wording(root, source, values, prefix=path).problems(error)


def _strange_keys(cls: Any, source: Source, path: KeyPath, values: Mapping[str, Any]) -> list[Problem]:
    known = {field.name for field in fields(cls)}
    return [
        source.problem(
            (*path, name),
            "unknown key",
            meant(name, known) or (f"known here: {', '.join(sorted(known))}" if known else ""),
            at_key=True,
        )
        for name in values
        if name not in known
    ]
