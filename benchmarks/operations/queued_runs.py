"""Two hundred queued flow runs on a work pool with a limit: do they start in order, and never too many at once?

    python -m benchmarks.operations.queued_runs

The flow stands in for a training flow and trains nothing, so that a run takes seconds: the scheduling is real. All runs
are queued before the worker starts. Results go to ``benchmarks/results/queued_runs.json``.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from benchmarks.commands import ROOT, find_test_modules, running

find_test_modules()

from local_stack import Project, post  # noqa: E402
from servers import prefect_server  # noqa: E402

RESULTS = ROOT / "benchmarks/results/queued_runs.json"
POOL = "embodyflow"
PAGE = 200
"""Most flow runs in an answer of Prefect's server."""


def queue(url: str, num_runs: int) -> list[str]:
    """Queue flow runs of a deployment, a millisecond apart; return their ids in order."""
    [deployment, *_] = post(f"{url}/deployments/filter", {"deployments": {"name": {"any_": ["math"]}}, "limit": 1})
    begin, ids = datetime.now(UTC) - timedelta(seconds=1), []
    for number in range(num_runs):
        moment = (begin + timedelta(milliseconds=number)).isoformat()
        state = {"type": "SCHEDULED", "state_details": {"scheduled_time": moment}}
        body = {"state": state, "parameters": {"run_id": f"queued-{number}", "iterations": 1}}
        ids.append(str(post(f"{url}/deployments/{deployment['id']}/create_flow_run", body)["id"]))
    return ids


def ended_runs(url: str, ids: Sequence[str]) -> list[dict[str, Any]]:
    """Return the flow runs that have ended."""
    wanted = {"id": {"any_": list(ids)}, "end_time": {"is_null_": False}}
    return list(post(f"{url}/flow_runs/filter", {"flow_runs": wanted, "limit": PAGE}))


def most_at_once(runs: Sequence[dict[str, Any]]) -> int:
    """Return the largest number of runs between their start and their end at one moment."""
    changes = sorted([(run["start_time"], 1) for run in runs] + [(run["end_time"], -1) for run in runs])
    return max(sum(change for _, change in changes[: place + 1]) for place in range(len(changes)))


def watch(folder: Path, num_runs: int, limit: int) -> dict[str, Any]:
    """Queue runs, let a worker execute them, and return what was seen."""
    with prefect_server(folder) as url:
        project = Project(folder / "project")
        project.env |= {"PREFECT_API_URL": url, "RAY_ADDRESS": "none"}  # the flow notes the address and uses no cluster
        project.prefect("work-pool", "create", POOL, "--type", "process")
        project.prefect("work-pool", "set-concurrency-limit", POOL, str(limit))
        project.prefect("--no-prompt", "deploy", "--all", "--prefect-file", "deployments/prefect.yaml")
        ids = queue(url, num_runs)
        command = [sys.executable, "-m", "prefect", "worker", "start", "--pool", POOL, "--type", "process"]
        started = time.monotonic()
        with running(command, folder / "worker.log", project.env, project.root):
            while len(ended := ended_runs(url, ids)) < num_runs:
                print(f"{len(ended)} of {num_runs} runs have ended", flush=True)
                time.sleep(10)
        seconds = time.monotonic() - started
    order = [ids.index(run["id"]) for run in sorted(ended, key=lambda run: run["start_time"])]
    return {
        "runs": num_runs,
        "limit": limit,
        "completed": sum(run["state_type"] == "COMPLETED" for run in ended),
        "most_at_once": most_at_once(ended),
        "largest_displacement": max(abs(place - number) for place, number in enumerate(order)),
        "seconds": round(seconds, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=PAGE)
    parser.add_argument("--limit", type=int, default=2)
    parser.add_argument("--out", type=Path, default=RESULTS, help="file for the results")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        result = watch(Path(folder), arguments.runs, arguments.limit)
    arguments.out.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))
    in_order = result["largest_displacement"] < arguments.limit
    sys.exit(not (in_order and result["completed"] == arguments.runs and result["most_at_once"] <= arguments.limit))


if __name__ == "__main__":
    main()
