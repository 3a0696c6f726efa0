"""Readers of the record, kept open between questions.

Each question has a reader to itself, so that a long one holds up no other. A reader is used anew
as long as the file is the one that it opened (a damaged record is moved aside and begun again), and
for a bounded number of questions, since it remembers names.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

from proxy.record import Reader
from proxy.record.schema import FILE

_IDLE = 4
_USES = 2_000


@dataclass(slots=True)
class _Opened:
    reader: Reader
    inode: int
    uses: int = 0


class Readers:
    """The readers of one data directory."""

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir
        self._lock = Lock()
        self._idle: list[_Opened] = []
        self._closed = False

    @contextmanager
    def one(self) -> Iterator[Reader]:
        """A reader for one question. Raises RecordMissing or sqlite3.Error where there is nothing to read."""
        opened = self._take()
        try:
            yield opened.reader
        except BaseException:
            opened.reader.close()  # whatever state it is in, nobody shall meet it again
            raise
        self._give_back(opened)

    def close(self) -> None:
        """Close what is idle now, and what is in use when it comes back."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for opened in idle:
            opened.reader.close()

    def _take(self) -> _Opened:
        inode = self._inode()
        with self._lock:
            idle, self._idle = self._idle, []
            fit = [opened for opened in idle if opened.inode == inode]
            chosen = fit.pop() if fit else None
            self._idle = fit
        for opened in idle:
            if opened.inode != inode:
                opened.reader.close()
        return chosen if chosen is not None else _Opened(Reader(self._data_dir), inode)

    def _give_back(self, opened: _Opened) -> None:
        opened.uses += 1
        with self._lock:
            kept = not self._closed and opened.uses < _USES and len(self._idle) < _IDLE
            if kept:
                self._idle.append(opened)
        if not kept:
            opened.reader.close()

    def _inode(self) -> int:
        try:
            return (self._data_dir / FILE).stat().st_ino
        except OSError:
            return 0
