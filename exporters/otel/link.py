"""Where the collector is and who we are, for every signal: settings first, then ``OTEL_*``.

What the settings leave out is read from the environment (the signal's own variable before the
general one), then defaulted. ``OTEL_SDK_DISABLED`` and ``OTEL_…_EXPORTER=none`` always switch off.
Nothing here connects. Headers may hold credentials: a ``Link`` does not print them.
"""

import math
import os
import socket
import uuid
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Literal, get_args
from urllib.parse import urlsplit

from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.sdk.version import __version__ as SDK_VERSION
from opentelemetry.util.re import parse_env_headers

from exporters.otel.wanted import Unusable

Signal = Literal["traces", "logs", "metrics"]
SIGNALS: tuple[Signal, ...] = get_args(Signal)
PROTOCOLS = ("http/protobuf", "grpc")
TIMEOUT_S = 3.0
"""Of one request with its retries. The library's own ten seconds would outlast a shutdown."""
_MOST, _BATCH = 8_192, 128
_RATIOS = {"always_on": 1.0, "always_off": 0.0}


@dataclass(frozen=True, slots=True)
class Door:
    """One signal's way to the collector."""

    endpoint: str
    """The whole URL: for http with the signal's path."""
    protocol: str
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    timeout_s: float = TIMEOUT_S


@dataclass(frozen=True, slots=True)
class Link:
    """All that is shared by the signals."""

    doors: Mapping[Signal, Door]
    """The signals that are on."""
    service_name: str | None = None
    ratio: float = 1.0
    """Share of turns that are traced (``OTEL_TRACES_SAMPLER``)."""
    most: int = _MOST
    """Spans, and log records, that may wait (``OTEL_BSP_MAX_QUEUE_SIZE``)."""
    batch: int = _BATCH
    """Of one request (``OTEL_BSP_MAX_EXPORT_BATCH_SIZE``)."""

    @property
    def address(self) -> str:
        """Where to, for a line that people read: no path, no credentials."""
        parts = [urlsplit(door.endpoint) for door in self.doors.values()]
        return ", ".join(dict.fromkeys(f"{one.scheme}://{one.netloc.rpartition('@')[2]}" for one in parts))


def read_link(
    endpoint: str | None = None,
    protocol: str | None = None,
    headers: Mapping[str, str] | None = None,
    service_name: str | None = None,
    signals: Collection[str] = SIGNALS,
    environ: Mapping[str, str] = os.environ,
) -> Link:
    """The link that settings and environment describe. Raises Unusable."""
    doors: dict[Signal, Door] = {}
    if environ.get("OTEL_SDK_DISABLED", "").strip().lower() != "true":
        for signal in SIGNALS:
            chosen = environ.get(f"OTEL_{signal.upper()}_EXPORTER", "").lower()
            if signal in signals and (not chosen or "otlp" in [name.strip() for name in chosen.split(",")]):
                doors[signal] = _door(signal, endpoint, protocol, headers or {}, environ)
    most = _whole("OTEL_BSP_MAX_QUEUE_SIZE", _MOST, environ)
    batch = min(most, _whole("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", _BATCH, environ))
    return Link(doors, service_name, _ratio(environ), most, batch)


def _whole(name: str, usual: int, environ: Mapping[str, str]) -> int:
    value = environ.get(name, "").strip()
    return int(_number(name, value, 1, 1_000_000)) if value else usual


def _door(
    signal: Signal,
    endpoint: str | None,
    protocol: str | None,
    headers: Mapping[str, str],
    environ: Mapping[str, str],
) -> Door:
    own = f"OTEL_EXPORTER_OTLP_{signal.upper()}_"

    def read(what: str) -> tuple[str, str | None]:
        """The variable that says it, and what it says."""
        for name in (own + what, f"OTEL_EXPORTER_OTLP_{what}"):
            if value := environ.get(name, "").strip():
                return name, value
        return "", None

    name, value = ("protocol", protocol) if protocol is not None else read("PROTOCOL")
    if value is not None and value not in PROTOCOLS:
        raise Unusable(name, f"{value} is not taken here", "http/protobuf or grpc")
    spoken = value or "http/protobuf"
    path = "" if spoken == "grpc" else f"/v1/{signal}"
    if endpoint is not None:
        name, url = "endpoint", endpoint.rstrip("/") + path
    elif whole := environ.get(f"{own}ENDPOINT", "").strip():
        name, url = f"{own}ENDPOINT", whole
    else:
        name, base = read("ENDPOINT")
        url = (base or f"http://localhost:{4317 if spoken == 'grpc' else 4318}").rstrip("/") + path
    if spoken == "grpc" and "://" not in url:
        url = f"http://{url}"  # what gRPC users write: host:port
    if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname:
        raise Unusable(name, "must be an http:// or https:// URL", "such as http://127.0.0.1:4318")
    told = parse_env_headers(read("HEADERS")[1] or "", liberal=True)
    return Door(
        url,
        spoken,
        {**told, **{key.lower(): text for key, text in headers.items()}},
        _timeout(*read("TIMEOUT")),
    )


def _timeout(name: str, value: str | None) -> float:
    return TIMEOUT_S if value is None else _number(name, value, 0.1, 60.0)


def _ratio(environ: Mapping[str, str]) -> float:
    """The share of turns to trace. A turn is a root of its own, so ``parentbased_`` changes nothing."""
    name = environ.get("OTEL_TRACES_SAMPLER", "").strip().removeprefix("parentbased_")
    if not name:
        return 1.0
    if name == "traceidratio":
        return _number("OTEL_TRACES_SAMPLER_ARG", environ.get("OTEL_TRACES_SAMPLER_ARG") or "1", 0.0, 1.0)
    if name not in _RATIOS:
        raise Unusable(
            "OTEL_TRACES_SAMPLER", f"{name} is not taken here", "always_on, always_off, traceidratio"
        )
    return _RATIOS[name]


def _number(name: str, text: str, least: float, most: float) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not least <= value <= most:
        raise Unusable(name, f"must be a number from {least:g} to {most:g}")
    return value


def resource(link: Link) -> Resource:
    """Who we are. ``OTEL_SERVICE_NAME`` and ``OTEL_RESOURCE_ATTRIBUTES`` win over what we say ourselves,
    ``service_name`` of the settings over them."""
    ours = Resource(
        {
            "service.name": "looptap",
            "service.version": version("looptap"),
            "service.instance.id": str(uuid.uuid4()),
            "host.name": socket.gethostname(),  # spans of one trace that lack it draw warnings in Jaeger
            "telemetry.sdk.name": "opentelemetry",
            "telemetry.sdk.language": "python",
            "telemetry.sdk.version": SDK_VERSION,
        }
    )
    told = ours.merge(OTELResourceDetector().detect())
    return told if link.service_name is None else told.merge(Resource({"service.name": link.service_name}))


def scope() -> InstrumentationScope:
    """The one scope of everything that we send."""
    return InstrumentationScope("looptap", version("looptap"))
