"""``python -m flows.sweep key=value …``: run a sweep from the command line, without starting a server first."""

import sys
from typing import Any

from prefect import Flow

from embodyflow.errors import ConfigError, InfrastructureError, StorageError, SweepError
from embodyflow.orchestration.request.command_line import run_flow
from embodyflow.orchestration.request.request import DEFAULT_RUN_ROOT
from embodyflow.orchestration.request.usage import answer_help
from embodyflow.orchestration.sweep.leaderboard import leaderboard
from embodyflow.orchestration.sweep.sweep_folder import RunState, SweepFolder
from embodyflow.orchestration.sweep.sweep_request import Plan, SweepRequest, parse_sweep, planned

STOP_SECONDS = 25.0
"""Seconds for a stopped sweep to end its runs, which have 12, and its Ray cluster."""


def main(flow: Flow[..., Any]) -> None:
    """Check the command line and every combination, run the sweep, print its leaderboard and exit."""
    answer_help(
        flow,
        sys.argv[1:],
        "Every other key=value overrides the experiment's configuration. Several values in Hydra's multirun grammar "
        "are swept, such as trainer.learning_rate=1e-3,3e-4 or 'seed=range(0,3)'. `embodyflow config experiment=push` "
        "shows all keys and their meanings.",
    )
    try:
        request = parse_sweep(sys.argv[1:])
        plan = planned(request)
        folder = SweepFolder(plan.run_root, request.sweep_id)
        plan = folder.check(plan, request.if_exists)
    except ConfigError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
    code = 0
    try:
        run_flow(
            flow,
            request.parameters(),
            None,
            lambda: f"stopped; continue with the same command, sweep_id={request.sweep_id} and if_exists=resume",
            STOP_SECONDS,
        )
    except ConfigError as error:  # only the cluster can detect some mistakes, such as too few GPUs
        print(error, file=sys.stderr)
        sys.exit(2)
    except (StorageError, InfrastructureError, SweepError) as error:
        print(error, file=sys.stderr)
        code = 1
    if folder.exists():
        _print_results(request, plan, folder)
    sys.exit(code)


def _print_results(request: SweepRequest, plan: Plan, folder: SweepFolder) -> None:
    """Print the leaderboard, the command that compares the finished runs, and the folder."""
    folder.read(plan)
    print(leaderboard(plan, folder, request.sweep_id, request.metric, request.direction).text())
    finished = [run_id for run_id, record in folder.records.items() if record.state is RunState.FINISHED]
    if len(finished) > 1:
        root = "" if plan.run_root == DEFAULT_RUN_ROOT else f" --run-root {plan.run_root}"
        print(f"compare: embodyflow compare {' '.join(finished)}{root}")
    print(f"sweep_dir={folder.path}")
