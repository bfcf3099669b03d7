"""Copies of a training run's rows in a Prefect database, so that it holds the runs of many nights."""

import re
import sqlite3
import uuid
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

RUN_TABLES = (
    "flow_run",
    "flow_run_state",
    "task_run",
    "task_run_state",
    "log",
    "artifact",
    "events",
    "event_resources",
)
DURATION = "total_run_time"
"""Column with a duration, although its type is that of a moment."""
UNIQUE_KEY = "idempotency_key"
_UUID = re.compile(r"[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}")

Row = tuple[Any, ...]
Copier = Callable[[Any], Any]


class CopiedRuns:
    """The rows of one finished run, which :meth:`write` repeats under new ids and at earlier times.

    Args:
        database: Database with that run and no other.
        name: Name of the run; copies have a number appended.
    """

    def __init__(self, database: sqlite3.Connection, name: str) -> None:
        self._database, self._name = database, name
        self._columns = {table: database.execute(f"PRAGMA table_info({table})").fetchall() for table in RUN_TABLES}
        self._rows: dict[str, list[Row]] = {
            table: database.execute(f"SELECT * FROM {table}").fetchall() for table in RUN_TABLES
        }
        places = {table: [column[1] for column in self._columns[table]].index("id") for table in RUN_TABLES}
        self._ids = {row[places[table]] for table in RUN_TABLES for row in self._rows[table]}

    def write(self, number: int, apart: timedelta) -> None:
        """Write copies of the run.

        Args:
            number: Number of copies.
            apart: Time from each copy to the next one; the last begins that long before the run.
        """
        for copy in range(1, number + 1):
            for table in RUN_TABLES:
                copiers = [self._copier(name, kind, copy, copy * apart) for _, name, kind, *_ in self._columns[table]]
                marks = ", ".join("?" * len(copiers))
                copied = [
                    [copier(value) for copier, value in zip(copiers, row, strict=True)] for row in self._rows[table]
                ]
                self._database.executemany(f"INSERT INTO {table} VALUES ({marks})", copied)
            self._database.commit()

    def _copier(self, column: str, kind: str, copy: int, earlier: timedelta) -> Copier:
        """Return the function that copies a column's values; other columns than those of texts and times stay."""
        if kind == "DATETIME" and column != DURATION:
            return lambda value: value and _moment(datetime.fromisoformat(value) - earlier)
        if column == UNIQUE_KEY:
            return lambda value: value and f"{value}-{copy}"
        return lambda value: self._renamed(value, copy) if isinstance(value, str) and column != DURATION else value

    def _renamed(self, text: str, copy: int) -> str:
        """Return a text with the copy's name and ids. Ids of rows that are not copied stay, such as the flow's."""
        text = text.replace(self._name, f"{self._name}-{copy}")
        return _UUID.sub(lambda found: self._id(found[0], copy), text)

    def _id(self, known: str, copy: int) -> str:
        return str(uuid.uuid5(uuid.UUID(known), str(copy))) if known in self._ids else known


def _moment(moment: datetime) -> str:
    """Return a moment as Prefect writes it to SQLite."""
    return moment.isoformat(sep=" ", timespec="microseconds")
