"""Puts the exporter together: settings and variables in, a running one out."""

import time
from collections.abc import Callable, Mapping

from exporters.otel.collector import Collector
from exporters.otel.content import Lens
from exporters.otel.exporter import Driver, OtelExporter, Way
from exporters.otel.link import Link, read_link, resource, try_link
from exporters.otel.metrics import Figures, Metrics, interval_s
from exporters.otel.names import Dress
from exporters.otel.sending import Bounds
from exporters.otel.steps import Style
from exporters.otel.wanted import Unusable, Wanted


def open_exporter(
    wanted: Wanted,
    driver: Callable[[str], Driver],
    live: Figures,
    warn: Callable[[str], None],
    environ: Mapping[str, str],
) -> OtelExporter | None:
    """None where the environment switches every signal off. Raises Unusable."""
    link = read_link(
        wanted.endpoint, wanted.protocol, wanted.headers, wanted.service_name, wanted.signals, environ
    )
    way = _way(link, driver)

    who = resource(link)
    metrics = None
    if (door := link.doors.get("metrics")) is not None:
        far = Collector("metrics", door.address)
        metrics = Metrics(
            driver(door.protocol).metrics(door, far),
            far,
            who,
            live,
            compat=wanted.compat,
            every_s=interval_s(environ),
            clock=time.time_ns,
            warn=warn,
        )
    if way.spans is None and way.logs is None and metrics is None:
        return None
    style = Style(
        Dress(wanted.compat, wanted.openinference),
        Lens(wanted.content, wanted.thinking, wanted.redact),
        wanted.join,
        link.ratio,
    )
    return OtelExporter(
        way,
        style,
        who,
        metrics=metrics,
        told_in=wanted.told_in,
        warn=warn,
        bounds=Bounds(link.most, batch=link.batch),
    )


def what_is_wrong(
    wanted: Wanted, driver: Callable[[str], Driver], environ: Mapping[str, str]
) -> list[Unusable]:
    """Every option and variable that keeps the exporter from being put together. Connects to nobody."""
    link, found = try_link(
        wanted.endpoint, wanted.protocol, wanted.headers, wanted.service_name, wanted.signals, environ
    )
    try:
        for protocol in sorted({door.protocol for door in link.doors.values()}):
            driver(protocol)
    except Unusable as problem:
        found.append(problem)
    try:
        if "metrics" in link.doors:
            interval_s(environ)
    except Unusable as problem:
        found.append(problem)
    return found


def _way(link: Link, driver: Callable[[str], Driver]) -> Way:
    """The SDK's own exporters."""
    spans = logs = None
    if (door := link.doors.get("traces")) is not None:
        far = Collector("traces", door.address)
        spans = driver(door.protocol).spans(door, far), far
    if (door := link.doors.get("logs")) is not None:
        far = Collector("logs", door.address)
        logs = driver(door.protocol).logs(door, far), far
    return Way(spans, logs)
