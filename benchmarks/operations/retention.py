"""Run after run on one Prefect server: does its database stop growing once the retention period is reached?

    python -m benchmarks.operations.retention

The server has the settings of ``embodyflow up`` (``RETENTION`` in ``embodyflow/stack/services.py``), except that it
removes old rows every five seconds instead of every hour. Before each run the script simulates ten days by moving every
time in the database back. Flow runs are kept for thirty days, so those of three runs should remain; events are kept for
a day, so those of one run should remain. Results go to ``benchmarks/results/retention.json``.
"""

import argparse
import json
import os
import sqlite3
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path

from benchmarks.commands import ROOT, find_test_modules

find_test_modules()

from servers import prefect_server  # noqa: E402
from small_runs import SMALL_CONTROL, Runs  # noqa: E402

from embodyflow.stack.services import RETENTION  # noqa: E402

RESULTS = ROOT / "benchmarks/results/retention.json"
DAYS = 10
LOOP_SECONDS = 5
TIMES = {"flow_run": ("start_time", "end_time"), "events": ("occurred",), "event_resources": ("occurred",)}
"""Columns that the server compares with its clock."""
COUNTED = ("flow_run", "flow_run_state", "task_run", "task_run_state", "log", "artifact", "events", "event_resources")
MOST_GROWTH = 0.02  # fraction of pages in use, from the middle third of the runs to the last


def days_pass(database: sqlite3.Connection) -> None:
    """Move every time back by ``DAYS``."""
    for table, columns in TIMES.items():
        moved = ", ".join(f"{column} = strftime('%Y-%m-%d %H:%M:%f', {column}, '-{DAYS} days')" for column in columns)
        database.execute(f"UPDATE {table} SET {moved}")
    database.commit()


def look_at(database: sqlite3.Connection) -> dict[str, float]:
    """Return the number of rows of each table, and the megabytes of pages in use, without free pages."""
    found: dict[str, float] = {}
    for table in COUNTED:
        [(found[table],)] = database.execute(f"SELECT count(*) FROM {table}")
    [(size,)], [(pages,)], [(free,)] = (
        database.execute(f"PRAGMA {name}") for name in ("page_size", "page_count", "freelist_count")
    )
    return found | {"used MB": size * (pages - free) / 1e6, "file MB": size * pages / 1e6}


def watch(num_runs: int, iterations: int) -> list[dict[str, float]]:
    """Start the runs one by one; return the size of the database after each, once the server has removed old rows."""
    os.environ |= RETENTION | {"PREFECT_SERVER_SERVICES_DB_VACUUM_LOOP_SECONDS": str(LOOP_SECONDS)}
    seen = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "server").mkdir()
        with (
            prefect_server(folder / "server") as url,
            closing(sqlite3.connect(folder / "server" / "prefect.db", timeout=60)) as database,
        ):
            runs = Runs(folder).served_by(url)
            words = [*SMALL_CONTROL, f"iterations={iterations}", "pipeline.task_runs=node", f"run_root={runs.root}"]
            for number in range(num_runs):
                days_pass(database)
                process = runs.start(*words, f"run_id=night-{number}", flow="ppo")
                output, _ = process.communicate()
                assert process.returncode == 0, output[-4000:]
                time.sleep(6 * LOOP_SECONDS)  # the server removes a run first and the run's rows in later loops
                seen.append(look_at(database))
                print(json.dumps(seen[-1]), flush=True)
    return seen


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=12)
    parser.add_argument("--iterations", type=int, default=20)
    arguments = parser.parse_args()
    seen = watch(arguments.runs, arguments.iterations)
    third = len(seen) // 3
    before, after = (max(each["used MB"] for each in part) for part in (seen[third : 2 * third], seen[2 * third :]))
    report = {"settings": RETENTION, "days_between_runs": DAYS, "iterations": arguments.iterations, "after_each": seen}
    RESULTS.write_text(json.dumps(report, indent=1) + "\n")
    print(f"pages in use: at most {before:.2f} MB in the middle third of the runs, {after:.2f} MB in the last")
    if after > before * (1 + MOST_GROWTH):
        sys.exit("the database grows")


if __name__ == "__main__":
    main()
