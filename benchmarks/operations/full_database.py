"""A Prefect database with ten thousand iterations: do the UI, the API and a new run stay fast, and does retention hold?

    python -m benchmarks.operations.full_database

One run of twenty iterations is made, each with its flow run and task runs. Its rows are copied 499 times, an hour
apart, so the database holds three weeks of training. The script then opens pages of the UI in a headless Chromium and
times every request that they make, and it times the iterations of a new run, beside those of the first one. At last the
server removes events and runs by the periods of ``embodyflow up``, moved so that half of the runs are too old. Results
go to ``benchmarks/results/full_database.json``.
"""

import argparse
import json
import os
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

from benchmarks.commands import ROOT, find_test_modules
from benchmarks.operations.copied_runs import RUN_TABLES, CopiedRuns

find_test_modules()

from browser import Browser, open_browser  # noqa: E402
from local_stack import post  # noqa: E402
from servers import prefect_server  # noqa: E402
from small_runs import SMALL_CONTROL, Runs  # noqa: E402

from embodyflow.stack.services import RETENTION  # noqa: E402

RESULTS = ROOT / "benchmarks/results/full_database.json"
NAME = "nightly"
ITERATIONS = 20
APART = timedelta(hours=1)
KEPT_SHARE = 0.5
LOOP_SECONDS = "5"
SETTLED_SECONDS, LONGEST_SECONDS = 3.0, 20.0
"""Seconds without a request after which a page counts as loaded, and seconds after which it does in any case.

Some pages ask again and again for what is new."""


def make_run(folder: Path, url: str, name: str) -> float:
    """Train for twenty iterations, each with a flow run; return the median seconds of an iteration."""
    runs = Runs(folder, url)
    words = [*SMALL_CONTROL, f"iterations={ITERATIONS}", "pipeline.task_runs=node", f"run_root={runs.root}"]
    process = runs.start(*words, f"run_id={name}", flow="ppo")
    output, _ = process.communicate()
    assert process.returncode == 0, output[-4000:]
    return statistics.median(record["perf/iteration_seconds"] for record in runs.records(name)[1:])


def count_rows(database: sqlite3.Connection) -> dict[str, int]:
    """Return the number of rows of each table with runs."""
    return {table: database.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in RUN_TABLES}


def look(browser: Browser, path: str) -> dict[str, Any]:
    """Open a page of the UI twice; return the seconds of its requests in the second, warm view."""
    for _ in range(2):
        browser.seconds.clear()
        page = browser.open(path)
        opened, settled, known = time.monotonic(), time.monotonic(), -1
        while time.monotonic() < min(settled + SETTLED_SECONDS, opened + LONGEST_SECONDS):
            page.wait_for_timeout(200)
            if len(browser.seconds) != known:
                settled, known = time.monotonic(), len(browser.seconds)
        page.close()
    slowest = max(browser.seconds, key=lambda each: each[1])
    return {"requests": len(browser.seconds), "slowest": slowest[0], "seconds": round(slowest[1], 3)}


def look_at_all(url: str, folder: Path) -> dict[str, dict[str, Any]]:
    """Return the requests of each page of the UI, by page: their number, and the slowest with its seconds."""
    newest = {"sort": "START_TIME_DESC", "limit": 2, "flow_runs": {"name": {"like_": f"{NAME}-"}}}
    [run, *_] = post(f"{url}/flow_runs/filter", newest)
    wanted = {"limit": 1, "flow_runs": {"name": {"any_": [f"iteration-{ITERATIONS}"]}}}
    [iteration] = post(f"{url}/flow_runs/filter", wanted)
    pages = {
        "dashboard": "/dashboard",
        "runs": "/runs",
        "run": f"/runs/flow-run/{run['id']}",
        "iteration": f"/runs/flow-run/{iteration['id']}",
        "flows": "/flows",
        "artifacts": "/artifacts",
        "events": "/events",
    }
    with open_browser(url, folder) as browser:
        return {name: look(browser, path) for name, path in pages.items()}


def retention(folder: Path, database: sqlite3.Connection, settings: Mapping[str, str]) -> dict[str, Any]:
    """Serve the database until nothing is left to remove; return the seconds and what remains."""
    os.environ.update(settings)
    started, before = time.monotonic(), count_rows(database)
    with prefect_server(folder):
        while True:
            time.sleep(2 * float(LOOP_SECONDS))
            after = count_rows(database)
            if after == before:
                break
            before = after
    return {"seconds": round(time.monotonic() - started, 1), "rows": after}


def watch(folder: Path, num_copies: int) -> dict[str, Any]:
    """Fill a database, look at it, train with it and empty it; return the figures."""
    os.environ["PREFECT_SERVER_SERVICES_DB_VACUUM_ENABLED"] = ""
    os.environ["PREFECT_SERVER_EVENTS_RETENTION_PERIOD"] = "P365D"
    home = folder / "server"
    home.mkdir()
    with prefect_server(home) as url:
        first = make_run(folder, url, NAME)
        time.sleep(10)  # the server writes logs and events in batches
    result: dict[str, Any] = {"iterations": (1 + num_copies) * ITERATIONS}
    with closing(sqlite3.connect(home / "prefect.db", timeout=60)) as database:
        started = time.monotonic()
        CopiedRuns(database, NAME).write(num_copies, APART)
        database.execute("ANALYZE")
        print(f"{num_copies} runs copied in {time.monotonic() - started:.0f} s", flush=True)
        result["rows"] = count_rows(database)
        with prefect_server(home) as url:
            result["pages"] = look_at_all(url, folder)
            print(json.dumps(result, indent=1), flush=True)
            result["iteration_seconds"] = {"empty": first, "full": make_run(folder, url, "one-more")}
        kept = KEPT_SHARE * num_copies * APART.total_seconds()
        changed = {
            "PREFECT_SERVER_SERVICES_DB_VACUUM_RETENTION_PERIOD": str(int(kept)),
            "PREFECT_SERVER_SERVICES_DB_VACUUM_LOOP_SECONDS": LOOP_SECONDS,
        }
        result["retention"] = {"kept_hours": kept / 3600, **retention(home, database, RETENTION | changed)}
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--copies", type=int, default=499)
    with tempfile.TemporaryDirectory() as folder:
        result = watch(Path(folder), parser.parse_args().copies)
    RESULTS.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))
    slow = {name: page for name, page in result["pages"].items() if page["seconds"] >= 1}
    sys.exit(f"slower than a second: {slow}" if slow else 0)


if __name__ == "__main__":
    main()
