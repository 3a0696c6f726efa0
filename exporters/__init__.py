"""Exporters: carriers of records to the outside.

``prometheus`` adds up (``series``), ``jsonl`` and ``webhooks`` write lines (``lines``), ``otel`` tells
traces, logs and metrics. What not everybody needs is loaded here, where it is chosen.
"""

import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from exporters.otel.wanted import Unusable, Wanted
from proxy.ports import Exporter, Reading, Spread


class Otlp(Exporter, Protocol):
    """The OTLP exporter, as far as others need to know it."""

    def tick(self, now_s: float) -> None:
        """Let time pass."""
        ...

    def readings(self) -> Iterable[Reading]:
        """What became of what it was given."""
        ...


def otlp(
    wanted: Wanted,
    live: Callable[[], Iterable[Reading | Spread]],
    warn: Callable[[str], None],
    environ: Mapping[str, str] = os.environ,
) -> Otlp | None:
    """A running OTLP exporter; None where the environment switches it off. Raises Unusable.

    ``live``: all figures as they stand, for metrics; asked from the event loop's thread.
    """
    from exporters.otel.opening import open_exporter

    return open_exporter(wanted, _driver, live, warn, environ)


def otlp_problems(wanted: Wanted, environ: Mapping[str, str] = os.environ) -> list[Unusable]:
    """Everything that would keep that exporter from running."""
    from exporters.otel.opening import what_is_wrong

    return what_is_wrong(wanted, _driver, environ)


def _driver(protocol: str) -> Any:
    if protocol != "grpc":
        from exporters.otel import over_http

        return over_http
    try:
        from exporters.otel import over_grpc
    except ImportError:
        raise Unusable("protocol", "gRPC is not installed", "pip install 'looptap[otlp-grpc]'") from None
    return over_grpc
