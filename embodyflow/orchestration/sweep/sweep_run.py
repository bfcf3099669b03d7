"""The lifecycle of a sweep: its runs, at most so many at a time, and its leaderboard as they end."""

import asyncio
import os
import sys
import time
from collections import deque
from dataclasses import replace
from typing import Any

import ray
from prefect.logging import get_run_logger
from prefect.runtime import flow_run

from embodyflow.config import RunConfig
from embodyflow.errors import ConfigError, SweepError
from embodyflow.orchestration.display.artifacts import Artifacts, open_artifacts
from embodyflow.orchestration.request.run_name import show_run_name
from embodyflow.orchestration.run.cluster import ray_cluster
from embodyflow.orchestration.sweep.leaderboard import Leaderboard, leaderboard
from embodyflow.orchestration.sweep.run_process import Outcome, command, environment, run_process
from embodyflow.orchestration.sweep.subflow_runs import SubflowRuns, open_subflow_runs
from embodyflow.orchestration.sweep.sweep_folder import RunState, SweepFolder
from embodyflow.orchestration.sweep.sweep_request import Combination, Plan, SweepRequest, planned
from embodyflow.workers.gpu_sharing import check_resources, needed_cpus, needed_gpus


async def run_sweep(request: SweepRequest) -> dict[str, Any]:
    """Run all combinations that have not finished; return the sweep's name, the number of its runs and its folder.

    Raises:
        ConfigError: The request or a combination is wrong, or the cluster lacks resources.
        SweepError: Runs failed, were stopped, or did not start after a failure.
    """
    if (flow_run.run_count or 1) > 1:
        request = replace(request, if_exists="resume")  # Prefect retries the flow run
    plan = planned(request)
    folder = SweepFolder(plan.run_root, request.sweep_id)
    plan = folder.check(plan, request.if_exists)
    await show_run_name(request.sweep_id)
    with folder.locked():
        folder.open(plan)
        async with open_artifacts(request.sweep_id) as artifacts, open_subflow_runs() as subflows:
            sweep = Sweep(request, plan, folder, artifacts, subflows)
            sweep.report()
            await sweep.run()
    return sweep.result()


class Sweep:
    """The runs of a sweep in progress.

    Args:
        request: Request for the sweep.
        plan: Its runs.
        folder: Its folder, locked and opened.
        artifacts: Artifacts of its flow run.
        subflows: Flow runs of its runs.
    """

    def __init__(
        self, request: SweepRequest, plan: Plan, folder: SweepFolder, artifacts: Artifacts, subflows: SubflowRuns
    ) -> None:
        self._request, self._plan, self._folder = request, plan, folder
        self._artifacts, self._subflows = artifacts, subflows
        self._has_failed = False
        self._left = deque(each for each in plan.combinations if self._state(each) is not RunState.FINISHED)

    async def run(self) -> None:
        """Run what is left; whatever ends this also ends the processes of the runs."""
        if not self._left:
            return
        most_gpus = max((each.config for each in self._left), key=needed_gpus)
        with ray_cluster(most_gpus.model_copy(update={"run_id": self._request.sweep_id})):
            for each in self._left:
                check_concurrency(self._request.concurrency, each.config)
            address = os.environ.get("RAY_ADDRESS") or ray.get_runtime_context().gcs_address
            await self.run_left(address)

    async def run_left(self, address: str) -> None:
        """Run what is left, as many at a time as the request allows.

        Args:
            address: Address of the Ray cluster.
        """
        try:
            async with asyncio.TaskGroup() as lanes:
                for _ in range(min(self._request.concurrency, len(self._left))):
                    lanes.create_task(self._run_lane(address))
        except ExceptionGroup as errors:
            if len(errors.exceptions) > 1:
                raise
            raise errors.exceptions[0] from None  # such as a full disk, which has a line of its own

    def report(self) -> None:
        """Show the leaderboard as it is now: in the UI and in the sweep's folder."""
        board = self.board()
        board.write(self._folder)
        ended = sum(record.state in (RunState.FINISHED, RunState.FAILED) for record in self._folder.records.values())
        self._artifacts.put_table("leaderboard", board.table(), f"{board.title()}; {self._folder.path.absolute()}")
        total = len(self._folder.records)
        self._artifacts.put_progress(100.0 * ended / total, f"{total} runs")

    def board(self) -> Leaderboard:
        """Return the leaderboard as it is now."""
        request = self._request
        return leaderboard(self._plan, self._folder, request.sweep_id, request.metric, request.direction)

    def result(self) -> dict[str, Any]:
        """Return the sweep's name, the number of its runs and its folder.

        Raises:
            SweepError: A run has not finished.
        """
        ended: dict[RunState, list[str]] = {}
        for run_id, record in self._folder.records.items():
            ended.setdefault(record.state, []).append(run_id)
        total = len(self._folder.records)
        ended.pop(RunState.FINISHED, None)
        if ended:
            left = "; ".join(f"{len(runs)} of {total} runs {state}: {', '.join(runs)}" for state, runs in ended.items())
            raise SweepError(f"{left}; the same command with if_exists=resume tries them again")
        return {"sweep_id": self._request.sweep_id, "runs": total, "sweep_dir": str(self._folder.path)}

    async def _run_lane(self, address: str) -> None:
        """Run one combination after the other until none is left."""
        while self._left:
            if self._request.stop_at_failure and self._has_failed:
                return
            await self._run_one(self._left.popleft(), address)

    async def _run_one(self, each: Combination, address: str) -> None:
        """Run one combination in a process, and record its state.

        Raises:
            CancelledError: The sweep was stopped; the run is recorded as stopped.
        """
        self._record(each, RunState.RUNNING)
        _log(f"{each.run_id} starts: {' '.join(each.words)}")
        parameters = each.request().parameters()
        words = command(each.config.flow, each.words, each.run_id)
        began = time.monotonic()
        try:
            async with self._subflows.opened(each.config.flow, each.run_id, parameters) as flow_run_id:
                env = environment(flow_run_id, address)
                outcome = await run_process(words, env, self._folder.log(each.run_id))
        except BaseException:
            self._record(each, RunState.STOPPED, time.monotonic() - began)
            raise
        state, reason = self._ended(each, outcome)
        self._has_failed |= state is RunState.FAILED
        self._record(each, state, outcome.seconds, reason)
        _log(f"{each.run_id} {state} after {outcome.seconds:.0f} s{f': {reason}' if reason else ''}")

    def _ended(self, each: Combination, outcome: Outcome) -> tuple[RunState, str]:
        """Return the state of a run whose process has ended, and the reason if it failed."""
        if outcome.code == 0 and self._folder.run(each.run_id).summary_path.exists():
            return RunState.FINISHED, ""
        if outcome.was_stopped:
            return RunState.STOPPED, ""
        return RunState.FAILED, outcome.reason

    def _record(self, each: Combination, state: RunState, seconds: float = 0.0, reason: str = "") -> None:
        self._folder.update(self._plan, each.run_id, state, seconds, reason)
        self.report()

    def _state(self, each: Combination) -> RunState:
        return self._folder.records[each.run_id].state


def check_concurrency(concurrency: int, config: RunConfig) -> None:
    """Check that the cluster has room for so many runs: two that hold a part of it each would wait for one another.

    Raises:
        ConfigError: It has not.
    """
    check_resources(config)
    have = ray.cluster_resources()
    for resource, needed in {"GPU": needed_gpus(config), "CPU": needed_cpus(config)}.items():
        if needed * concurrency > have.get(resource, 0.0):
            raise ConfigError(
                f"concurrency={concurrency}: so many runs need {needed * concurrency:g} {resource}s, the Ray cluster "
                f"has {have[resource]:g}; allowed are up to {int(have[resource] // needed)}"
            )


def _log(line: str) -> None:
    """Log a line, and print it in a terminal, where the log shows warnings only."""
    get_run_logger().info("%s", line)
    if sys.stderr.isatty():
        print(line, file=sys.stderr)
