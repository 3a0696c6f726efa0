"""Many rows in few statements.

The database lets go of the interpreter at every statement, and under load each time waits for the
traffic to give it back. Writing rows by the dozen costs a fraction of writing them one by one.
"""

import sqlite3
from collections.abc import Callable, Sequence
from functools import cache
from itertools import chain
from typing import Any

_SIZES = (32, 4, 1)
"""Rows of one statement; 32 of the widest table stay below the smallest limit on variables (999)."""


def insert(
    connection: sqlite3.Connection,
    into: str,
    rows: Sequence[Sequence[Any]],
    conflict: str = "",
    rest: Callable[[], None] = lambda: None,
) -> None:
    """Insert rows. ``into`` ends before VALUES: ``INSERT INTO events``; ``conflict`` stands behind them.

    ``rest`` is called between statements.
    """
    at = 0
    for size in _SIZES:
        while len(rows) - at >= size:
            statement = _statement(into, len(rows[at]), size, conflict)
            connection.execute(statement, tuple(chain.from_iterable(rows[at : at + size])))
            at += size
            rest()


@cache
def _statement(into: str, columns: int, rows: int, conflict: str) -> str:
    row = f"({', '.join('?' * columns)})"
    return f"{into} VALUES {', '.join([row] * rows)} {conflict}"
