"""Ids and the numbers by which the tables speak of them, and what lies above what.

Names never change, so that what was looked up once is remembered.
"""

import sqlite3


class Names:
    """The ids of one connection. Used under its reader's lock."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._ids: dict[int, str] = {}

    def id(self, no: int | None) -> str | None:
        """The id of a number; None where there is none."""
        if no is None:
            return None
        name = self._ids.get(no)
        if name is None:
            row = self._connection.execute("SELECT id FROM names WHERE no = ?", (no,)).fetchone()
            if row is None:
                return None
            name = self._ids[no] = row[0]
        return name

    def no(self, name: str | None) -> int | None:
        """The number of an id."""
        if name is None:
            return None
        row = self._connection.execute("SELECT no FROM names WHERE id = ?", (name,)).fetchone()
        return row[0] if row is not None else None

    def parent(self, no: int | None) -> int | None:
        """The number of what it lies in."""
        row = self._connection.execute("SELECT parent FROM names WHERE no = ?", (no,)).fetchone()
        return row[0] if row is not None else None
