"""Options of the ``otlp`` exporter, and when the environment alone switches it on.

Shapes only; ``exporters.otel.link`` puts them together with the ``OTEL_*`` variables.
"""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, WithJsonSchema

from proxy.config.tree import Section
from proxy.config.values import Flag, HeaderName, HeaderValue, Text, refuse, url_problem

SWITCHES = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
"""Whoever sets one of these wants traces; nothing of the content goes out by that."""


def _endpoint(value: Any) -> str:
    problem = url_problem(value, ("http", "https"), "http://127.0.0.1:4318")
    if problem is not None:
        raise refuse(*problem)
    text = str(value).rstrip("/")
    if "@" in text.split("://", 1)[1].split("/", 1)[0]:
        raise refuse("the URL holds credentials", "put them into headers")
    if text.endswith(("/v1/traces", "/v1/logs", "/v1/metrics")):
        raise refuse("the URL names one signal", "end it before /v1; each signal adds its own path")
    return text


def _ui(value: Any) -> str:
    problem = url_problem(value, ("http", "https"), "http://127.0.0.1:16686")
    if problem is not None:
        raise refuse(*problem)
    return str(value).rstrip("/")


Pages = Annotated[str, BeforeValidator(_ui), WithJsonSchema({"type": "string", "format": "uri"})]


def _one_or_many(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _pattern(value: Any) -> str:
    try:
        re.compile(value)
    except (re.error, TypeError) as error:
        raise refuse(f"is no regular expression ({error})", "such as cust-[0-9]+") from None
    return str(value)


Pattern = Annotated[Text, BeforeValidator(_pattern)]


class OtlpSettings(Section):
    """Traces, logs and metrics to a collector. What is left out the ``OTEL_*`` variables say."""

    endpoint: (
        Annotated[str, BeforeValidator(_endpoint), WithJsonSchema({"type": "string", "format": "uri"})] | None
    ) = None
    """The collector's base URL; for http each signal adds ``/v1/…``."""
    protocol: Literal["http/protobuf", "grpc"] | None = None
    headers: Mapping[HeaderName, HeaderValue] = {}
    """Sent with each request; they win over ``OTEL_EXPORTER_OTLP_HEADERS`` one by one."""
    service_name: Text | None = None
    ui: Pages | None = None
    """Base URL of Jaeger's pages: the dashboard links each turn to its trace there."""
    signals: Annotated[tuple[Literal["traces", "logs", "metrics"], ...], BeforeValidator(_one_or_many)] = (
        "traces",
        "logs",
        "metrics",
    )
    """What is sent. Jaeger, for one, takes traces only; metrics Prometheus may scrape here as well."""
    content: Flag = False
    """What is new in each step goes out: messages, tool arguments, results. Capped and redacted."""
    thinking: Flag = False
    """With content: thinking text, too. Its signatures never."""
    redact: Annotated[tuple[Pattern, ...], BeforeValidator(_one_or_many)] = ()
    """With content: what matches one of these regular expressions becomes dots, as credentials do."""
    conventions: Literal["compat", "latest"] = "compat"
    """``compat`` adds the older names that backends still read to the newest GenAI conventions."""
    openinference: Flag = False
    """OpenInference attributes beside the GenAI ones."""


def switched_on(environ: Mapping[str, str]) -> str | None:
    """The variable that asks for traces without a word in the settings, if one does."""
    if environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return None
    return next((name for name in SWITCHES if environ.get(name, "").strip()), None)
