"""Builds the exporters that the settings ask for, each with its own options; ``app`` runs them.

What is wrong with an option or an ``OTEL_*`` variable is told as every other problem of the settings.
Where the environment alone switched traces on it is only a warning: it may be meant for the agent.
"""

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import exporters
from exporters.jsonl import JsonlExporter
from exporters.otel.ids import trace_of
from exporters.otel.wanted import PART_CHARS, Unusable, Wanted
from exporters.webhooks import WebhookExporter
from proxy.config import ConfigError, JsonlSettings, OtlpSettings, Problem, Settings, exporter_options
from proxy.ports import Exporter, Reading, Spread

TOLD_FILE = "otlp-told.json"


def files_and_hooks(settings: Settings) -> list[Exporter]:
    """The exporters that write lines."""
    chosen: list[Exporter] = []
    if "jsonl" in settings.exporters:
        options = exporter_options(settings, "jsonl").read(JsonlSettings)
        chosen.append(JsonlExporter(Path(options.path).expanduser()))
    for hook in settings.webhooks:
        headers = {name: value.reveal() for name, value in hook.headers.items()}
        chosen.append(WebhookExporter(hook.url.reveal(), headers, hook.events))
    return chosen


def otlp(
    settings: Settings,
    warn: Callable[[str], None],
    environ: Mapping[str, str] = os.environ,
    live: Callable[[], Iterable[Reading | Spread]] = tuple,
) -> exporters.Otlp | None:
    """Traces, logs and metrics to a collector, where somebody wants them. Raises ConfigError."""
    if "otlp" not in settings.exporters:
        return None
    try:
        return exporters.otlp(_wanted(settings), live, warn, environ)
    except Unusable as problem:
        if by_environment(settings):
            warn(f"no traces are exported: {problem}")
            return None
        raise ConfigError((_problem(settings, problem),)) from None


def by_environment(settings: Settings) -> bool:
    """Whether a variable alone asks for traces, and the settings say nothing of them."""
    return ("exporters", "otlp") in settings.source.options


def otlp_problems(settings: Settings, environ: Mapping[str, str] = os.environ) -> list[Problem]:
    """Every ``OTEL_*`` variable that is wrong, where somebody wants traces and says so in right words."""
    if "otlp" not in settings.exporters or not settings.source.is_whole(("exporters", "otlp")):
        return []
    try:
        wanted = _wanted(settings)
    except ConfigError:
        return []  # told already
    return [_problem(settings, problem) for problem in exporters.otlp_problems(wanted, environ)]


def _problem(settings: Settings, problem: Unusable) -> Problem:
    if problem.name in OtlpSettings.model_fields:
        return exporter_options(settings, "otlp").problem(problem.name, problem.message, problem.hint)
    return Problem(problem.name, None, None, "", problem.message, problem.hint)


def _wanted(settings: Settings) -> Wanted:
    options = exporter_options(settings, "otlp").read(OtlpSettings)
    return Wanted(
        endpoint=options.endpoint,
        protocol=options.protocol,
        headers={name: value.reveal() for name, value in options.headers.items()},
        service_name=options.service_name,
        signals=options.signals,
        content=options.content,
        thinking=options.thinking,
        redact=options.redact,
        compat=options.conventions == "compat",
        openinference=options.openinference,
        join=settings.traceparent == "join",
        told_in=Path(settings.store.path) / TOLD_FILE,
    )


def trace_url(settings: Settings, turn: str) -> str | None:
    """Where a turn's trace can be looked at; None where the settings do not say."""
    if "otlp" not in settings.exporters:
        return None
    ui = exporter_options(settings, "otlp").read(OtlpSettings).ui
    return f"{ui}/trace/{trace_of(turn):032x}" if ui is not None else None


def content_chars(settings: Settings) -> int:
    """How much of each item exporters may show; 0: nothing."""
    if "otlp" not in settings.exporters:
        return 0
    return PART_CHARS if exporter_options(settings, "otlp").read(OtlpSettings).content else 0
