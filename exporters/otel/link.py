"""Where the collector is and who we are, for every signal: settings first, then ``OTEL_*``.

What the settings leave out is read from the environment (the signal's own variable before the
general one), then defaulted. ``OTEL_SDK_DISABLED`` and ``OTEL_…_EXPORTER=none`` always switch off.
Nothing here connects. Headers may hold credentials: a ``Link`` does not print them, and what is said of a
wrong variable never shows what it holds.
"""

import logging
import math
import os
import socket
import uuid
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Literal, TypeVar, get_args
from urllib.parse import urlsplit

from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.sdk.version import __version__ as SDK_VERSION
from opentelemetry.util.re import parse_env_headers

from exporters.otel.wanted import Unusable

T = TypeVar("T")

Signal = Literal["traces", "logs", "metrics"]
SIGNALS: tuple[Signal, ...] = get_args(Signal)
PROTOCOLS = ("http/protobuf", "grpc")
TIMEOUT_S = 3.0
"""Of one request with its retries. The library's own ten seconds would outlast a shutdown."""
_MOST, _BATCH = 8_192, 128
_RATIOS = {"always_on": 1.0, "always_off": 0.0}
_COMPRESSIONS = {"http/protobuf": ("none", "gzip", "deflate"), "grpc": ("gzip",)}
_NO_PAIRS: Mapping[str, str] = {}
_FILES = ("CERTIFICATE", "CLIENT_KEY", "CLIENT_CERTIFICATE")


@dataclass(frozen=True, slots=True)
class Door:
    """One signal's way to the collector."""

    endpoint: str
    """The whole URL: for http with the signal's path."""
    protocol: str
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    timeout_s: float = TIMEOUT_S

    @property
    def address(self) -> str:
        """Where to, for a line that people read: no path, no credentials."""
        parts = urlsplit(self.endpoint)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"


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


def read_link(
    endpoint: str | None = None,
    protocol: str | None = None,
    headers: Mapping[str, str] | None = None,
    service_name: str | None = None,
    signals: Collection[str] = SIGNALS,
    environ: Mapping[str, str] = os.environ,
) -> Link:
    """The link that settings and environment describe. Raises Unusable."""
    link, wrong = try_link(endpoint, protocol, headers, service_name, signals, environ)
    if wrong:
        raise wrong[0]
    return link


def try_link(
    endpoint: str | None = None,
    protocol: str | None = None,
    headers: Mapping[str, str] | None = None,
    service_name: str | None = None,
    signals: Collection[str] = SIGNALS,
    environ: Mapping[str, str] = os.environ,
) -> tuple[Link, list[Unusable]]:
    """The same with everything that is wrong, each variable once; the link is then of no use."""
    quiet()
    reading = _Reading(environ)
    doors: dict[Signal, Door] = {}
    if environ.get("OTEL_SDK_DISABLED", "").strip().lower() != "true":
        for signal in SIGNALS:
            chosen = environ.get(f"OTEL_{signal.upper()}_EXPORTER", "").lower()
            if signal in signals and (not chosen or "otlp" in [name.strip() for name in chosen.split(",")]):
                doors[signal] = reading.door(signal, endpoint, protocol, headers or {})
    link = Link(doors, service_name)
    if doors:
        most = reading.whole("OTEL_BSP_MAX_QUEUE_SIZE", _MOST)
        batch = min(most, reading.whole("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", _BATCH))
        link = Link(doors, service_name, reading.tried(lambda: _ratio(environ), 1.0), most, batch)
        attributes = "OTEL_RESOURCE_ATTRIBUTES"
        reading.tried(lambda: _pairs(attributes, environ.get(attributes, "")), _NO_PAIRS)
    return link, list({problem.name: problem for problem in reversed(reading.wrong)}.values())[::-1]


def quiet() -> None:
    """What the SDK logs goes nowhere: each trouble is said once, by us, and without what may be a secret."""
    log = logging.getLogger("opentelemetry")
    if log.propagate:
        log.addHandler(logging.NullHandler())
        log.propagate = False


class _Reading:
    """Reads variables one by one and goes on where one is wrong."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self.wrong: list[Unusable] = []

    def tried(self, read: Callable[[], T], otherwise: T) -> T:
        """What is read, or the other value where that is unusable."""
        try:
            return read()
        except Unusable as problem:
            self.wrong.append(problem)
            return otherwise

    def whole(self, name: str, usual: int) -> int:
        """A whole number."""
        value = self._environ.get(name, "").strip()
        return self.tried(lambda: int(_number(name, value, 1, 1_000_000)), usual) if value else usual

    def door(
        self, signal: Signal, endpoint: str | None, protocol: str | None, headers: Mapping[str, str]
    ) -> Door:
        """One signal's way out."""

        def told(what: str) -> tuple[str, str | None]:
            return self._told(signal, what)

        spoken = self.tried(
            lambda: _protocol(*(("protocol", protocol) if protocol is not None else told("PROTOCOL"))),
            PROTOCOLS[0],
        )
        url = self.tried(lambda: self._url(signal, endpoint, spoken), "")
        variables = self.tried(lambda: _pairs(*told("HEADERS")), _NO_PAIRS)
        self.tried(lambda: _compression(*told("COMPRESSION"), spoken), None)
        for what in _FILES:
            self.tried(lambda what=what: _file(*told(what)), None)  # type: ignore[misc]
        return Door(
            url,
            spoken,
            {**variables, **{key.lower(): text for key, text in headers.items()}},
            self.tried(lambda: _timeout(*told("TIMEOUT")), TIMEOUT_S),
        )

    def _told(self, signal: Signal, what: str) -> tuple[str, str | None]:
        """The variable that says it, the signal's own first, and what it says."""
        for name in (f"OTEL_EXPORTER_OTLP_{signal.upper()}_{what}", f"OTEL_EXPORTER_OTLP_{what}"):
            if value := self._environ.get(name, "").strip():
                return name, value
        return "", None

    def _url(self, signal: Signal, endpoint: str | None, spoken: str) -> str:
        own = f"OTEL_EXPORTER_OTLP_{signal.upper()}_ENDPOINT"
        path = "" if spoken == "grpc" else f"/v1/{signal}"
        if endpoint is not None:
            name, url = "endpoint", endpoint.rstrip("/") + path
        elif whole := self._environ.get(own, "").strip():
            name, url = own, whole
        else:
            name, base = self._told(signal, "ENDPOINT")
            url = (base or f"http://localhost:{4317 if spoken == 'grpc' else 4318}").rstrip("/") + path
        if spoken == "grpc" and "://" not in url:
            url = f"http://{url}"  # what gRPC users write: host:port
        if not _is_address(url):
            raise Unusable(name, "must be an http:// or https:// URL", "such as http://127.0.0.1:4318")
        return url


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def _protocol(name: str, value: str | None) -> str:
    if value is not None and value not in PROTOCOLS:
        raise Unusable(name, "this protocol is not spoken here", "http/protobuf or grpc")
    return value or PROTOCOLS[0]


def _compression(name: str, value: str | None, spoken: str) -> None:
    known = _COMPRESSIONS[spoken]
    if value is not None and value.lower() not in known:
        raise Unusable(name, f"{spoken} is not compressed in this way", f"{', '.join(known)}, or unset it")


def _file(name: str, value: str | None) -> None:
    if value is not None and not os.access(value, os.R_OK):
        raise Unusable(name, "there is no such file, or it may not be read")


def _pairs(name: str, value: str | None) -> Mapping[str, str]:
    """``name=value`` entries between commas, percent-encoded or not."""
    found: dict[str, str] = {}
    for place, entry in enumerate((value or "").split(","), 1):
        pair = parse_env_headers(entry, liberal=True)
        if (entry.strip() and not pair) or not all(map(str.isprintable, pair.values())):
            hint = "name=value,name=value; write what else stands in a value as %XX"
            raise Unusable(name, f"entry {place} cannot be used", hint)
        found |= pair
    return found


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
        hint = "always_on, always_off or traceidratio"
        raise Unusable("OTEL_TRACES_SAMPLER", "this sampler is not known here", hint)
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
