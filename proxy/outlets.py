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
    told = exporter_options(settings, "otlp")
    options = told.read(OtlpSettings)
    wanted = Wanted(
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
    try:
        return exporters.otlp(wanted, live, warn, environ)
    except Unusable as problem:
        if ("exporters", "otlp") in settings.source.options:
            warn(f"no traces are exported: {problem}")
            return None
        if problem.name in OtlpSettings.model_fields:
            raise ConfigError((told.problem(problem.name, problem.message, problem.hint),)) from None
        found = Problem(problem.name, None, None, "", problem.message, problem.hint)
        raise ConfigError((found,)) from None


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
