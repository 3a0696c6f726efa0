"""Rows written by the dozen are the rows that were given, in their order."""

import sqlite3

import pytest

from proxy.record.rows import insert


@pytest.mark.parametrize("count", [0, 1, 3, 4, 31, 32, 33, 101])
def test_any_number_of_rows_arrives_whole(count: int) -> None:
    connection = sqlite3.connect(":memory:")
    connection.execute("CREATE TABLE t (no INTEGER PRIMARY KEY, data BLOB)")
    rows = [(no, bytes([no])) for no in range(count)]
    insert(connection, "INSERT INTO t", rows)
    assert connection.execute("SELECT * FROM t ORDER BY no").fetchall() == rows


def test_what_stands_behind_the_values_holds_for_every_row() -> None:
    connection = sqlite3.connect(":memory:")
    connection.execute("CREATE TABLE t (no INTEGER PRIMARY KEY, sum INTEGER)")
    rows = [(no % 10, 1) for no in range(40)]
    insert(connection, "INSERT INTO t", rows, "ON CONFLICT (no) DO UPDATE SET sum = sum + excluded.sum")
    assert connection.execute("SELECT DISTINCT sum FROM t").fetchall() == [(4,)]
