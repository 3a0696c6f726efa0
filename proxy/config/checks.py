"""What several settings say together: contradictions, names that nobody bears, limits without effect.

Each check takes the settings (as far as they are valid) and yields problems with their places, so
that all of them are told at once.
"""

import os
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from proxy.config.file import KeyPath, Problem, Source, show
from proxy.config.otlp import OtlpSettings
from proxy.config.tree import (
    BUILT_IN,
    LIFE_SCOPES,
    RESERVED_NAMES,
    WINDOWS,
    BudgetSettings,
    JsonlSettings,
    Settings,
)
from proxy.config.words import NOT_BUILT, meant, read_options

POLICIES = frozenset(
    {"budgets", "repeats", "thinking", "history", "pairing", "tool_errors", "tools", "growth"}
)
EXPORTERS = frozenset({"otlp", "prometheus", "jsonl"})
RETRY_SCOPES = ("turn", "thread", "session")
UNNAMED = "unnamed"


@dataclass(frozen=True, slots=True)
class Names:
    """The names that settings may refer to, also where their own entry is faulty."""

    upstreams: frozenset[str]
    teams: frozenset[str]
    keys: frozenset[str]
    partly: frozenset[str]
    """Of which of these not each name is known: one waits for a variable that is not set, or stands where
    this version does not read it."""

    def is_stranger(self, section: str, name: str) -> bool:
        """Whether nobody there is called so."""
        return name not in getattr(self, section) and section not in self.partly

    @classmethod
    def of(cls, source: Source) -> "Names":
        """Collect them from the raw values."""
        values: Any = source.values

        def mapping(key: str) -> dict[str, Any]:
            found = values.get(key)
            return found if isinstance(found, dict) else {}

        entries = values.get("keys")
        unset = {path for path in source.faulty & source.templates.keys() if path[-1] == "name"}
        unread = source.lacking | {path for path in source.faulty if _value_at(values, path) is None}
        nameless = {str(path[0]) for path in unset if path[0] == "keys"}
        nameless |= {str(path[0]) for path in unread if len(path) == 1 or (path and path[0] == "keys")}
        named = [e.get("name") for e in entries if isinstance(e, dict)] if isinstance(entries, list) else []
        return cls(
            upstreams=frozenset({*BUILT_IN, *mapping("upstreams")}),
            teams=frozenset({"default", *mapping("teams")}),
            keys=frozenset({UNNAMED, *(name for name in named if isinstance(name, str))}),
            partly=frozenset({"upstreams", "teams", "keys"} if () in source.lacking else nameless),
        )


def _value_at(values: Any, path: KeyPath) -> Any:
    for part in path:
        inside = isinstance(values, list) and isinstance(part, int) and part < len(values)
        values = values[part] if inside else values.get(part) if isinstance(values, dict) else None
    return values


def check(settings: Settings, source: Source) -> Iterator[Problem]:
    """Everything that the single values do not show."""
    names = Names.of(source)
    yield from _upstreams(settings, source, names)
    yield from _addresses(settings, source)
    yield from _budgets(settings, source, names)
    yield from _keys(settings, source, names)
    yield from _plugins(settings, source)
    yield from _otlp(settings, source)
    if "jsonl" in settings.exporters:
        yield from read_options(JsonlSettings, source, ("exporters", "jsonl"), settings.exporters["jsonl"])[1]
    yield from _not_built(settings, source)
    for index, rule in enumerate(settings.prices):
        yield from _price_upstream(source, ("prices", index, "upstream"), rule.upstream, names)
    if settings.ledger.lease is not None and settings.ledger.url is None and source.is_whole(("ledger",)):
        hint = "leases save round trips to Redis; set ledger.url or remove this"
        yield source.problem(("ledger", "lease"), "has no effect without a shared ledger", hint)
    try:
        ZoneInfo(settings.time_zone)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        yield source.problem(
            ("time_zone",), f"{show(settings.time_zone)} is no time zone", "such as UTC or Europe/Berlin"
        )


def _otlp(settings: Settings, source: Source) -> Iterator[Problem]:
    if "otlp" not in settings.exporters:
        if settings.traceparent == "join" and source.is_whole(("exporters",)):
            hint = "add exporters: {otlp: {endpoint: …}}, or remove it"
            yield source.problem(("traceparent",), "has no effect where no traces are exported", hint)
        return
    path: KeyPath = ("exporters", "otlp")
    options, problems = read_options(OtlpSettings, source, path, settings.exporters["otlp"])
    yield from problems
    for name in ("thinking", "redact"):
        without = options is not None and getattr(options, name) and not options.content
        if without and source.is_whole((*path, "content")):
            yield source.problem((*path, name), "has no effect without content", "add content: true")


def _not_built(settings: Settings, source: Source) -> Iterator[Problem]:
    """What the file format foresees and this version does not do: refused, never silently ignored."""
    for name, policy in settings.policies.items():
        path: KeyPath = ("policies", name, "action")
        extra = policy.model_extra or {}
        acts = policy.action not in ("observe", "warn")
        if acts and name in _TELLERS:
            yield source.problem(path, f"{name} only tells, and ends nothing", "use observe or warn")
        elif acts and name == "tools" and not extra.get("deny") and extra.get("allow") is None:
            hint = "add deny: [names] or allow: [names], or use observe"
            yield source.problem(path, "has no effect without a list of tools", hint)
        elif policy.action == "repair":
            yield from _repair(settings, source, name)
        elif policy.action in NOT_BUILT:
            hint = "use observe, warn, nudge, land, deny, message, cut or hold"
            yield source.problem(path, f"{policy.action} is not built yet", hint)
        elif policy.action == "land" and name in _WITHOUT_LANDING:
            hint = "use observe, warn, deny, message, cut or hold; repeats lands, and budgets by on_exhausted"
            yield source.problem(path, f"{name} gives no last step", hint)
        elif policy.action == "nudge" and name in _WITHOUT_NUDGES:
            hint = "use observe, warn, deny, message, cut or hold; repeats nudges"
            yield source.problem(path, f"{name} has nothing to say to a model", hint)
        elif policy.action == "nudge" and extra.get("nudge") is False:
            hint = "remove nudge: false, or use action: observe"
            yield source.problem(("policies", name, "nudge"), "leaves action: nudge nothing to do", hint)


def _repair(settings: Settings, source: Source, name: str) -> Iterator[Problem]:
    """Only one policy knows what was lost; and what is put back must be there again after a restart."""
    path: KeyPath = ("policies", name, "action")
    if name != "thinking":
        hint = "use observe, warn, deny, message, cut or hold; thinking repairs"
        yield source.problem(path, f"{name} has nothing to put back", hint)
    elif settings.store.record == "digest" and source.is_whole(("store",)):
        hint = "set store: {record: full}, or use another action"
        yield source.problem(
            path, "repair keeps what models thought, and record: digest keeps no content", hint
        )


_TELLERS = frozenset({"growth", "tool_errors"})
"""Policies whose findings nothing follows from."""
_WITHOUT_NUDGES = POLICIES - {"repeats"}
"""Policies that have no words for a model."""
_WITHOUT_LANDING = _WITHOUT_NUDGES
"""Policies that never end a turn, or that refuse what no provider or nobody else may read: that could be no
last step either."""


def _upstreams(settings: Settings, source: Source, names: Names) -> Iterator[Problem]:
    for name, upstream in settings.upstreams.items():
        path: KeyPath = ("upstreams", name)
        if name in RESERVED_NAMES or name.startswith("@"):
            hint = "choose another name; it becomes the first part of the path"
            yield source.problem(path, f"{show(name)} would clash with paths of clients", hint, at_key=True)
        elif not (name[:1].isalnum() and name.isascii() and set(name) <= _NAME_CHARS and len(name) <= 64):
            hint = "letters, digits, _ . and -, beginning with a letter or digit"
            yield source.problem(path, f"{show(name)} cannot stand in a path", hint, at_key=True)
        if upstream.ca_file is not None and not _readable(upstream.ca_file):
            yield source.problem((*path, "ca_file"), "there is no such file, or it may not be read")
    default = settings.default_upstream
    if default is not None and names.is_stranger("upstreams", default):
        yield source.problem(
            ("default_upstream",), f"no upstream is called {show(default)}", _which(default, names.upstreams)
        )


_NAME_CHARS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-")


def _readable(path: Any) -> bool:
    return os.access(path, os.R_OK)


def _addresses(settings: Settings, source: Source) -> Iterator[Problem]:
    known = source.is_whole(("listen",)) and source.is_whole(("admin",))
    if settings.listen == settings.admin and settings.listen.port != 0 and known:
        yield source.problem(
            ("admin",), "the admin port must not be the data port", "the default is 127.0.0.1:4041"
        )


def _which(word: str, known: Collection[str]) -> str:
    return meant(word, known) or f"known: {', '.join(sorted(known))}"


def _price_upstream(source: Source, path: KeyPath, name: str | None, names: Names) -> Iterator[Problem]:
    if name is not None and names.is_stranger("upstreams", name):
        yield source.problem(path, f"no upstream is called {show(name)}", _which(name, names.upstreams))


def _budgets(settings: Settings, source: Source, names: Names) -> Iterator[Problem]:
    seen: dict[str, int] = {}
    for index, budget in enumerate(settings.budgets):
        path: KeyPath = ("budgets", index)
        if budget.name in seen:
            hint = f"budgets[{seen[budget.name]}] is called so already; counters are kept by name"
            yield source.problem((*path, "name"), f"a second budget {show(budget.name)}", hint)
        seen.setdefault(budget.name, index)
        yield from _window(budget, source, path)
        yield from _limits(budget, source, path)
        yield from _shares(budget, source, path)
        yield from _match(budget, source, path, names)
        yield from _later(budget, source, path)


def _later(budget: BudgetSettings, source: Source, path: KeyPath) -> Iterator[Problem]:
    """What a budget may say and this version does not do: refused, never taken and ignored."""
    if budget.on_exhausted in NOT_BUILT:
        yield source.problem(
            (*path, "on_exhausted"),
            f"{budget.on_exhausted} is not built yet",
            "use deny, message, cut, land, hold, warn or observe",
        )
    if budget.on_exhausted == "land":
        yield from _land(budget, source, path)
    if budget.hold == "slices":
        yield source.problem((*path, "hold"), "slices are not built yet", "remove it: the worst case is held")
    if budget.clamp and not _clamps(budget) and source.is_whole((*path, "limits")):
        hint = "clamp works on spend_usd, output_tokens and total_tokens"
        yield source.problem((*path, "clamp"), "has no effect on these limits", hint)


def _land(budget: BudgetSettings, source: Source, path: KeyPath) -> Iterator[Problem]:
    """Where a last step would be none, or would say twice what it does."""
    if budget.scope == "step":
        hint = "use deny, message or cut, or another scope"
        yield source.problem((*path, "on_exhausted"), "a step has no last step", hint)
    if budget.clamp:
        hint = "remove it: the last step is lowered to what is left, and it alone"
        yield source.problem((*path, "clamp"), "has no effect beside on_exhausted: land", hint)
    limits, whole = budget.limits.model_fields_set, source.is_whole((*path, "limits"))
    if limits == {"requests_per_minute"} and whole:
        hint = "use deny: who is too fast is only told to wait"
        yield source.problem((*path, "on_exhausted"), "requests_per_minute ends no turn", hint)
    if limits == {"wall_clock"} and whole and budget.hard_at <= 1 and source.is_whole((*path, "hard_at")):
        hint = "add hard_at: 1.1 (the last step is given between the limit and that), or use deny"
        yield source.problem((*path, "on_exhausted"), "there is no time left for a last step", hint)


def _clamps(budget: BudgetSettings) -> bool:
    limits = budget.limits
    return any((limits.spend_usd, limits.output_tokens, limits.total_tokens))


def _window(budget: BudgetSettings, source: Source, path: KeyPath) -> Iterator[Problem]:
    if budget.window is None:
        clocked = budget.limits.model_fields_set - {"requests_per_minute"}
        if budget.scope not in LIFE_SCOPES and clocked and source.is_whole((*path, "window")):
            message = f"scope {budget.scope} never ends by itself, so its limits need a window"
            yield source.problem((*path, "window"), message, f"window: one of {', '.join(WINDOWS)}")
        return
    if budget.scope == "step":
        yield source.problem((*path, "window"), "a step is too short for a window", "remove it")
    if budget.limits.wall_clock is not None and budget.scope in LIFE_SCOPES:
        message = "wall_clock counts from the first request on, it knows no window"
        yield source.problem((*path, "window"), message, "give wall_clock a budget of its own without window")


def _limits(budget: BudgetSettings, source: Source, path: KeyPath) -> Iterator[Problem]:
    limits, scope, place = budget.limits, budget.scope, (*path, "limits")
    bounded = limits.model_dump(exclude_none=True, exclude_defaults=True)
    if not bounded and source.is_whole(place):
        yield source.problem(place, "the budget limits nothing", "such as limits: {spend_usd: 5}")
    if limits.wall_clock is not None and scope not in LIFE_SCOPES:
        hint = f"wall_clock holds for the scopes {', '.join(LIFE_SCOPES)}"
        yield source.problem((*place, "wall_clock"), f"scope {scope} has no beginning to count from", hint)
    if limits.tool_retries is not None and scope not in RETRY_SCOPES:
        hint = f"tool_retries holds for the scopes {', '.join(RETRY_SCOPES)}"
        yield source.problem(
            (*place, "tool_retries"), f"retries are counted within a turn, not by {scope}", hint
        )
    if limits.steps is not None and scope == "step":
        yield source.problem((*place, "steps"), "a step is always one step", "limit steps by turn or thread")
    if limits.total_tokens is not None:
        for part, value in (("input_tokens", limits.input_tokens), ("output_tokens", limits.output_tokens)):
            if value is not None and value > limits.total_tokens:
                message = f"{value} can never be reached, total_tokens is {limits.total_tokens}"
                yield source.problem((*place, part), message, "lower it, or raise total_tokens")


def _shares(budget: BudgetSettings, source: Source, path: KeyPath) -> Iterator[Problem]:
    previous = None
    for position, share in enumerate(budget.alert_at):
        place = (*path, "alert_at", position)
        if share > budget.hard_at and source.is_whole((*path, "hard_at")):
            message = f"{share} lies above hard_at ({budget.hard_at}), where requests are stopped already"
            yield source.problem(place, message, "raise hard_at, or lower it")
        if previous is not None and share <= previous:
            yield source.problem(
                place, f"{share} does not ascend after {previous}", "sort the list, each value once"
            )
        previous = share


def _match(budget: BudgetSettings, source: Source, path: KeyPath, names: Names) -> Iterator[Problem]:
    for field, known in (("upstream", names.upstreams), ("key", names.keys)):
        wanted: tuple[str, ...] = getattr(budget.match, field)
        for position, name in enumerate(wanted):
            if names.is_stranger(f"{field}s", name) and not any(char in name for char in "*?["):
                place = (*path, "match", field, position)
                yield source.problem(place, f"no {field} is called {show(name)}", _which(name, known))


def _keys(settings: Settings, source: Source, names: Names) -> Iterator[Problem]:
    hashes: dict[str, int] = {}
    seen: dict[str, int] = {}
    for index, key in enumerate(settings.keys):
        if names.is_stranger("teams", key.team):
            hint = f"{meant(key.team, names.teams)} add it under teams: {{{key.team}: {{org: …}}}}".strip()
            yield source.problem(("keys", index, "team"), f"no team is called {show(key.team)}", hint)
        for field, table in (("sha256", hashes), ("name", seen)):
            value: str = getattr(key, field)
            if value in table:
                message = f"keys[{table[value]}] has the same {field}"
                yield source.problem(("keys", index, field), message, "each credential is one key")
            table.setdefault(value, index)
        if key.name == UNNAMED:
            hint = "choose another name"
            yield source.problem(
                ("keys", index, "name"), f"{UNNAMED} stands for all unregistered credentials", hint
            )


def _plugins(settings: Settings, source: Source) -> Iterator[Problem]:
    for section, built_in, given in (
        ("policies", POLICIES, settings.policies),
        ("exporters", EXPORTERS, settings.exporters),
    ):
        strangers = [name for name in given if name not in built_in]
        if not strangers:
            continue
        known = built_in | {point.name for point in entry_points(group=f"looptap.{section}")}
        for name in strangers:
            if name not in known:
                what = "policy" if section == "policies" else "exporter"
                yield source.problem(
                    (section, name), f"there is no such {what}", _which(name, known), at_key=True
                )
