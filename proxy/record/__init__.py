"""The memory of Looptap: an append-only event log and the exact bytes of every exchange, in one SQLite file.

``RecordWriter`` (``writer``) writes batches (the outbox's thread calls it, ``rows`` makes them few
statements), ``Reader`` (``reader``) reads from any process, beside a running writer or without one.
``schema`` knows the file; ``events`` (compressed by ``words``), ``exchanges`` and ``bodies`` how things lie
in it, ``summaries`` the rows behind the ``lists``, ``names`` the ids, ``retention`` what leaves, ``heads``
the tracker's snapshots, ``waits`` what waits for an operator.

The invariant: what was committed is read back byte for byte or reported as damaged, never
silently different; and nothing here ever costs traffic.
"""

from proxy.record.bodies import BodyDamaged
from proxy.record.events import event_json
from proxy.record.exchanges import StoredExchange, seconds
from proxy.record.heads import HeadsPut
from proxy.record.reader import Ambiguous, Found, NotRecorded, Reader
from proxy.record.retention import Keep
from proxy.record.schema import RecordDamaged, RecordMissing
from proxy.record.writer import Entry, RecordAway, RecordWriter

__all__ = [
    "Ambiguous",
    "BodyDamaged",
    "Entry",
    "Found",
    "HeadsPut",
    "Keep",
    "NotRecorded",
    "Reader",
    "RecordAway",
    "RecordDamaged",
    "RecordMissing",
    "RecordWriter",
    "StoredExchange",
    "event_json",
    "seconds",
]
