"""Records as JSON Lines in a file, for whatever reads files: one event a line, in order.

The file is readable by its owner only, appended to, and opened anew when something rotated it
away. Writing happens in a worker thread; what fails is raised, and the outbox counts it.
"""

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path

from exporters.lines import line
from proxy.model import Record


class JsonlExporter:
    """Appends records to one file."""

    name = "jsonl"

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: int | None = None

    async def export(self, records: Sequence[Record]) -> None:
        """Append some records. Raises OSError where the file cannot be written."""
        await asyncio.to_thread(self._append, b"".join(line(record) for record in records))

    async def close(self) -> None:
        """Let go of the file."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _append(self, text: bytes) -> None:
        file = self._open()
        while text:
            text = text[os.write(file, text) :]

    def _open(self) -> int:
        """The file that is at the path now; a rotated one is left to whoever moved it."""
        if self._file is not None and not self._is_current(self._file):
            os.close(self._file)
            self._file = None
        if self._file is None:
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        return self._file

    def _is_current(self, file: int) -> bool:
        try:
            there = self._path.stat()
        except FileNotFoundError:
            return False
        here = os.fstat(file)
        return (there.st_dev, there.st_ino) == (here.st_dev, here.st_ino)
