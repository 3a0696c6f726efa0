"""What the settings want of the OTLP exporter, in plain values. Loads nothing of OpenTelemetry."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

PART_CHARS = 8_000
"""How much of one item's content is shown at most."""


class Unusable(Exception):
    """What an option or variable says cannot be used; ``name`` is the option's key, or the variable."""

    def __init__(self, name: str, message: str, hint: str = "") -> None:
        super().__init__(f"{name}: {message}" + (f" ({hint})" if hint else ""))
        self.name = name
        self.message = message
        self.hint = hint


@dataclass(frozen=True, slots=True)
class Wanted:
    """The options; what is None the ``OTEL_*`` variables say."""

    endpoint: str | None = None
    protocol: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    service_name: str | None = None
    signals: tuple[str, ...] = ("traces", "logs", "metrics")
    content: bool = False
    thinking: bool = False
    redact: tuple[str, ...] = ()
    compat: bool = True
    openinference: bool = False
    join: bool = False
    """The client's trace gets a span of ours."""
    told_in: Path | None = None
    """Where it is kept which turns were told as they stood when the process ended."""
