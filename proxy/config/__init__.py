"""The configuration's door: one YAML file, options and environment in, frozen ``Settings`` out.

Lives here: loading, reloading, and the resolved upstreams. ``tree`` states every key and default
(``otlp`` those of its exporter), ``values`` the scalars, ``file`` reads YAML with positions, ``words`` and
``checks`` tell what is wrong, ``explain`` what is enforced. Nothing here watches or logs.

The one invariant: ``load`` answers with settings that are valid as a whole, or raises
``ConfigError`` with every problem it can find at once.
"""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from pydantic import BaseModel, ValidationError

from proxy.config.checks import check
from proxy.config.explain import explain
from proxy.config.file import ConfigError, KeyPath, Problem, Source, read_file, show
from proxy.config.otlp import OtlpSettings, switched_on
from proxy.config.tree import (
    BUILT_IN,
    COUNTED_LIMITS,
    BudgetLimits,
    BudgetMatch,
    BudgetSettings,
    HoldUsd,
    JsonlSettings,
    KeySettings,
    PolicySettings,
    PriceRule,
    Settings,
    UpstreamSettings,
    WebhookSettings,
)
from proxy.config.values import Address, Duration, Secret, SecretUrl
from proxy.config.words import Wording, read_options
from proxy.model import Upstream

__all__ = [
    "BUILT_IN",
    "COUNTED_LIMITS",
    "Address",
    "BudgetLimits",
    "BudgetMatch",
    "BudgetSettings",
    "ConfigError",
    "Duration",
    "HoldUsd",
    "JsonlSettings",
    "KeySettings",
    "Look",
    "Options",
    "OtlpSettings",
    "Overrides",
    "PolicySettings",
    "PriceRule",
    "Problem",
    "Secret",
    "SecretUrl",
    "Settings",
    "UpstreamSettings",
    "WebhookSettings",
    "data_dir",
    "explain",
    "exporter_options",
    "load",
    "policy_options",
    "reload",
    "schema",
    "switched_on",
    "upstreams",
]

T = TypeVar("T")

_FIXED: Mapping[str, tuple[str, ...]] = {
    "listen": ("listen",),
    "admin": ("admin",),
    "store.path": ("store", "path"),
    "ledger.url": ("ledger", "url"),
    "exporters": ("exporters",),
    "traceparent": ("traceparent",),
}
"""What a running process cannot change."""


@dataclass(frozen=True, slots=True)
class Overrides:
    """What the command line says; it wins over the environment, which wins over the file."""

    listen: str | None = None
    admin: str | None = None
    upstreams: Sequence[str] = ()
    """``NAME=URL`` each."""
    data_dir: str | None = None


Look = Callable[[Settings], Iterable[Problem]]
"""Looks for what is wrong with options that only their owner knows (a policy's)."""


def load(
    path: str | Path | None = None,
    overrides: Overrides = Overrides(),
    environ: Mapping[str, str] = os.environ,
    look: Look = lambda settings: (),
) -> Settings:
    """The settings of ``path`` (else ``LOOPTAP_CONFIG``, else the defaults). Raises ConfigError."""
    chosen = path if path is not None else environ.get("LOOPTAP_CONFIG") or None
    source = read_file(Path(chosen), environ) if chosen is not None else Source()
    problems = [*source.problems, *_override(source, overrides, environ)]
    settings, more = _settle(source)
    problems += more
    if settings is not None:
        settings._source = source
        problems += look(settings)
    if settings is None or problems:
        raise ConfigError(tuple(sorted(problems, key=_place)))
    return settings


def reload(
    path: str | Path | None,
    old: Settings,
    overrides: Overrides = Overrides(),
    environ: Mapping[str, str] = os.environ,
    look: Look = lambda settings: (),
) -> Settings:
    """The settings anew. What a running process cannot change stays as it was; ``pinned`` names it."""
    new = load(path, overrides, environ, look)
    pinned = tuple(name for name, keys in _FIXED.items() if _at(new, keys) != _at(old, keys))
    store = new.store.model_copy(update={"path": old.store.path})
    ledger = new.ledger.model_copy(update={"url": old.ledger.url})
    kept = new.model_copy(
        update={
            "listen": old.listen,
            "admin": old.admin,
            "store": store,
            "ledger": ledger,
            "exporters": old.exporters,
            "traceparent": old.traceparent,
        }
    )
    kept._source, kept._pinned = new._source, pinned
    return kept


def _at(settings: Settings, keys: Sequence[str]) -> Any:
    value: Any = settings
    for key in keys:
        value = getattr(value, key)
    return value


def _place(problem: Problem) -> tuple[bool, int, int]:
    return problem.line is not None, problem.line or 0, problem.column or 0


# -- from raw values to settings


def data_dir(environ: Mapping[str, str] = os.environ) -> Path:
    """Where data lies when nobody says otherwise."""
    base = environ.get("XDG_DATA_HOME", "")
    home = Path(base) if Path(base).is_absolute() else Path("~/.local/share").expanduser()
    return home / "looptap"


def _override(source: Source, overrides: Overrides, environ: Mapping[str, str]) -> list[Problem]:
    """Lay options and environment over the file, complete built-in upstreams, make paths absolute."""
    problems: list[Problem] = []
    _switch_on(source, environ)
    _complete_upstreams(source)
    _absolute_paths(source)
    for name, value in (("listen", overrides.listen), ("admin", overrides.admin)):
        if value is not None:
            source.override((name,), value, f"--{name}")
    for text in overrides.upstreams:
        problems += _upstream_option(source, text)
    for value, option in (
        (overrides.data_dir, "--data-dir"),
        (environ.get("LOOPTAP_DATA_DIR") or None, "LOOPTAP_DATA_DIR"),
    ):
        if value is not None:
            source.override(("store", "path"), str(Path(value).expanduser().absolute()), option)
            break
    else:
        store = source.values.get("store")
        if store is None or (isinstance(store, dict) and store.get("path") is None):
            source.values["store"] = {**(store or {}), "path": str(data_dir(environ))}
    return problems


def _switch_on(source: Source, environ: Mapping[str, str]) -> None:
    """Who names a collector in the environment wants traces, also where the file says nothing of them."""
    chosen, exporters = switched_on(environ), source.values.get("exporters")
    if chosen is not None and not (isinstance(exporters, dict) and "otlp" in exporters):
        source.override(("exporters", "otlp"), {}, chosen)


def _complete_upstreams(source: Source) -> None:
    """An entry of a built-in's name changes that one; a known host tells the api."""
    entries = source.values.get("upstreams")
    if not isinstance(entries, dict):
        return
    for name, entry in entries.items():
        if isinstance(entry, dict):
            entries[name] = _completed(name, entry)
            if ("upstreams", name, "url") in source.faulty:  # an unknown host may well tell the api
                entries[name].setdefault("api", "openai")


def _completed(name: str, entry: dict[str, Any]) -> dict[str, Any]:
    model = BUILT_IN.get(name)
    if model is None:
        host = _host(entry.get("url"))
        model = (
            next((known for known in BUILT_IN.values() if _host(known.url) == host), None) if host else None
        )
        return entry if model is None else {"api": model.api, **entry}
    filled: dict[str, Any] = {"url": model.url, "api": model.api, **entry}
    if model.provider is not None:
        filled.setdefault("provider", model.provider)
    return filled


def _host(url: Any) -> str | None:
    try:
        return urlsplit(url).hostname if isinstance(url, str) else None
    except ValueError:
        return None


def _absolute_paths(source: Source) -> None:
    """A relative path in the file is meant from where the file lies."""
    base = Path(source.file).absolute().parent
    entries = source.values.get("upstreams")
    holders = [(entry, "ca_file") for entry in entries.values()] if isinstance(entries, dict) else []
    for holder, key in [*holders, (source.values.get("store"), "path")]:
        if isinstance(holder, dict) and isinstance(holder.get(key), str) and holder[key]:
            holder[key] = str(base / Path(holder[key]).expanduser())


def _upstream_option(source: Source, text: str) -> list[Problem]:
    """``--upstream NAME=URL``: a new upstream, or another URL for a known one."""
    name, equals, url = text.partition("=")
    if not equals or not name or not url:
        hint = "such as --upstream acme=https://api.acme.example/v1"
        return [Problem("--upstream", None, None, "", f"{show(text)} is not NAME=URL", hint)]
    option = f"--upstream {name}"
    if ("upstreams", name) not in source.marks:
        source.options["upstreams", name] = option
    source.override(("upstreams", name, "url"), url, option)
    entries = source.values["upstreams"]
    if isinstance(entries, dict) and isinstance(entries[name], dict):
        # An option has no room for the api; most servers that one points at by hand speak OpenAI's.
        entries[name] = {"api": "openai", **_completed(name, entries[name])}
    return []


def _settle(source: Source) -> tuple[Settings | None, list[Problem]]:
    """Validate; take out what is wrong and go on, so that the checks see all the rest."""
    problems: list[Problem] = []
    values = _without(source) if source.faulty else source.values
    for _ in range(_MAX_ROUNDS):
        try:
            settings = Settings.model_validate(values)
        except ValidationError as error:
            problems += _take_out(error, Wording(Settings, source, values), source)
            values = _without(source)
        else:
            return settings, problems + list(check(settings, source))
    return None, problems


_MAX_ROUNDS = 20
_GONE: Any = object()


def _take_out(error: ValidationError, wording: Wording, source: Source) -> list[Problem]:
    """Mark what is wrong as faulty. Where a needed key is missing, the entry around it is."""
    problems: list[Problem] = []
    found: set[KeyPath] = set()
    for detail in error.errors(include_url=False):
        place = wording.path(detail)
        path, missing = source.original(place), detail["type"] == "missing"
        if not (missing and source.is_told(place)):
            problems.append(wording.problem(detail))
        found.add(path[:-1] if missing else path)
    source.faulty |= found
    return problems


def _without(source: Source) -> Any:
    """The values less the faulty entries; the source learns where list items have moved to."""
    source.kept.clear()

    def copy(value: Any, path: KeyPath) -> Any:
        if path in source.faulty:
            return _GONE
        if isinstance(value, dict):
            return {k: kept for k, v in value.items() if (kept := copy(v, (*path, k))) is not _GONE}
        if isinstance(value, list):
            items = [(i, kept) for i, v in enumerate(value) if (kept := copy(v, (*path, i))) is not _GONE]
            source.kept[path] = [i for i, _ in items]
            return [kept for _, kept in items]
        return value

    return copy(source.values, ())


# -- what others ask for


def upstreams(settings: Settings) -> tuple[Upstream, ...]:
    """The upstreams to route to: built-in ones, and the configured over them."""
    merged = {**BUILT_IN, **settings.upstreams}
    return tuple(
        Upstream(name=name, url=one.url, api=one.api, provider=one.provider or "")
        for name, one in merged.items()
    )


@dataclass(frozen=True, slots=True)
class Options:
    """The own options of a policy or exporter, with the places they came from."""

    values: Mapping[str, Any]
    path: KeyPath
    source: Source

    def read(self, cls: type[T]) -> T:
        """As an instance of ``cls`` (a pydantic model or dataclass). Raises ConfigError, worded as ours."""
        found, problems = read_options(cls, self.source, self.path, self.values)
        if problems:
            raise ConfigError(tuple(problems))
        instance: T = found
        return instance

    def problem(self, key: str, message: str, hint: str = "") -> Problem:
        """A problem with one option, for a check that a class cannot express."""
        return self.source.problem((*self.path, key), message, hint)


def policy_options(settings: Settings, name: str) -> Options:
    """A policy's own options: its entry less ``enabled`` and ``action``."""
    entry = settings.policies.get(name)
    values = dict(entry.model_extra or {}) if entry is not None else {}
    return Options(values, ("policies", name), settings.source)


def exporter_options(settings: Settings, name: str) -> Options:
    """An exporter's options."""
    return Options(dict(settings.exporters.get(name, {})), ("exporters", name), settings.source)


def schema() -> dict[str, Any]:
    """JSON Schema of the file."""
    found = Settings.model_json_schema()
    options: Mapping[str, type[BaseModel]] = {"otlp": OtlpSettings, "jsonl": JsonlSettings}
    found["properties"]["exporters"]["properties"] = {
        name: model.model_json_schema() for name, model in options.items()
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **found,
        "title": "Looptap configuration",
    }
