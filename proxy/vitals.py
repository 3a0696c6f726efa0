"""The running process in figures, for metrics: what the wire carries, what waits, what was lost.

Names and texts only; the figures are read from the parts at the moment of asking. The one
invariant: no row's label is anything that a client says.
"""

from collections.abc import Iterable, Mapping
from importlib.metadata import PackageNotFoundError, version

from proxy.outbox import Readings
from proxy.ports import Reading
from proxy.server import WireCounters


def of_the_wire(wire: WireCounters, unmodelled: Mapping[str, int]) -> Iterable[Reading]:
    """The data port."""
    for name, text, value in (
        ("requests_total", "Requests taken, model calls or not.", wire.requests_total),
        ("unmodelled_total", "Requests that were relayed unread.", sum(unmodelled.values())),
        ("rejected_connections_total", "Connections turned away.", wire.rejected_connections_total),
        ("open_connections", "Clients connected.", wire.open_connections),
        ("held_connections", "Clients not being read: no room, or a slow upstream.", wire.held_connections),
        ("open_exchanges", "Requests under way.", wire.open_exchanges),
        ("open_streams", "Answers under way whose head is out.", wire.open_streams),
        ("upstream_connections", "Connections to upstreams.", wire.upstream_connections),
        ("buffered_bytes", "Request bodies held whole.", wire.buffered_bytes),
    ):
        yield _one(name, text, value)
    faults = [((where, kind), float(count)) for (where, kind), count in wire.faults.items()]
    text = "Faults of our own: the traffic goes on, what it showed is lost."
    yield Reading("internal_errors_total", text, faults, ("where", "kind"))


def of_the_outbox(box: Readings) -> Iterable[Reading]:
    """The record, and what leaves for exporters."""
    for name, text, value in (
        ("record_queued", "Events and bodies on their way to the record.", box.queued),
        ("record_queued_bytes", "Bytes of bodies on their way to the record.", box.queued_bytes),
        ("record_lag_seconds", "Age of what waits longest for the record.", box.lag_s),
        ("record_away", "1 while nothing can be recorded.", box.away is not None),
        ("record_dropped_bodies_total", "Bodies that the record lost.", box.dropped_bodies),
        ("record_dropped_events_total", "Events that the record lost.", box.dropped_events),
        ("record_write_errors_total", "Writes to the record that failed.", sum(box.write_errors.values())),
    ):
        yield _one(name, text, value)
    yield from _lanes(box)


def of_the_record(lost_answers: int) -> Iterable[Reading]:
    """What the record could not take up."""
    text = "Answers that were not recorded, since their request is not in the record."
    yield _one("record_lost_answers_total", text, lost_answers)


def _lanes(box: Readings) -> Iterable[Reading]:
    columns: tuple[tuple[str, str, str], ...] = (
        ("export_queued", "Records on their way to an exporter.", "queued"),
        ("export_records_total", "Records that an exporter took.", "exported"),
        ("export_dropped_total", "Records that an exporter lost.", "dropped"),
        ("export_failures_total", "Times that an exporter failed.", "failures"),
    )
    for name, text, column in columns:
        sums: dict[tuple[str, ...], float] = {}
        for lane in box.exporters:  # several webhooks share their name
            sums[(lane.name,)] = sums.get((lane.name,), 0.0) + getattr(lane, column)
        yield Reading(name, text, list(sums.items()), ("exporter",))


def of_the_process(uptime_s: float) -> Iterable[Reading]:
    """Which program this is, and since when."""
    yield Reading("build_info", "1; the version is in the label.", [((_version(),), 1.0)], ("version",))
    yield _one("uptime_seconds", "Since the process started.", uptime_s)


def _version() -> str:
    try:
        return version("looptap")
    except PackageNotFoundError:
        return "unknown"


def _one(name: str, text: str, value: float) -> Reading:
    return Reading(name, text, [((), float(value))])
