"""Exporters: carriers of records to the outside.

``prometheus`` adds up (``series``), ``jsonl`` and ``webhooks`` write lines (``lines``), ``otel`` tells
traces and logs. What not everybody needs is loaded here, where it is chosen.
"""

import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from exporters.otel.wanted import Unusable, Wanted
from proxy.ports import Exporter, Reading


class Otlp(Exporter, Protocol):
    """The OTLP exporter, as far as others need to know it."""

    def readings(self) -> Iterable[Reading]:
        """What became of what it was given."""
        ...


def otlp(wanted: Wanted, warn: Callable[[str], None], environ: Mapping[str, str] = os.environ) -> Otlp | None:
    """A running OTLP exporter; None where the environment switches it off. Raises Unusable."""
    from exporters.otel.opening import open_exporter

    return open_exporter(wanted, _driver, warn, environ)


def _driver(protocol: str) -> Any:
    if protocol != "grpc":
        from exporters.otel import over_http

        return over_http
    try:
        from exporters.otel import over_grpc
    except ImportError:
        raise Unusable("protocol", "gRPC is not installed", "pip install 'looptap[otlp-grpc]'") from None
    return over_grpc
