"""A run's workers, trackers and kept rows, from start to stop: what training and evaluation share."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from embodyflow.config import RunConfig
from embodyflow.ledger import Ledger
from embodyflow.run_folder import RunFolder
from embodyflow.trackers import open_trackers
from embodyflow.workers.session import open_session
from flows.artifacts import showing
from flows.cluster import ray_cluster
from flows.iteration import iteration
from flows.iteration_runs import iteration_runs
from flows.nodes import CURRENT_RUN, Run
from flows.recovery import note_processes
from flows.stages import Stages
from flows.turns import Turns
from pipelines import TaskGraph


@asynccontextmanager
async def opened(folder: RunFolder, config: RunConfig, graph: TaskGraph) -> AsyncIterator[Run]:
    """Start all that works on a run; whatever way the block is left, all of it has ended then.

    Args:
        folder: of the run, locked by the caller.
        config: of the run.
        graph: what an iteration runs.
    """
    stages = Stages(folder, Ledger(folder.ledger_path), config.kept_checkpoints, config.kept_iterations)
    folder.write_status("start", 0, config.iterations)
    # From the inside out: workers end first, however long the Prefect server takes to be told.
    async with showing(str(config.run_id)) as artifacts, iteration_runs(iteration) as iterations:
        with ray_cluster(config):
            async with open_session(config) as session:
                trackers = open_trackers(config)
                try:
                    turns = Turns(config.rollout.max_staleness)
                    run = Run(session, folder, trackers, graph, iterations, stages, artifacts, turns)
                    CURRENT_RUN.set(run)
                    await note_processes(run)
                    yield run
                finally:
                    for tracker in trackers:
                        tracker.close()
                    await stages.settle()
