"""A run's workers, trackers and kept rows, from start to stop: what training and evaluation share."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from embodyflow.config import RunConfig
from embodyflow.graph import TaskGraph
from embodyflow.orchestration.run.cluster import ray_cluster
from embodyflow.orchestration.run.iteration import iteration
from embodyflow.orchestration.run.nodes import CURRENT_RUN, Run
from embodyflow.orchestration.run.recovery import note_processes
from embodyflow.orchestration.run.stages import Stages
from embodyflow.orchestration.run.turns import Turns
from embodyflow.orchestration.server.artifacts import showing
from embodyflow.orchestration.server.iteration_runs import iteration_runs
from embodyflow.record.ledger import Ledger
from embodyflow.record.run_folder import RunFolder
from embodyflow.record.trackers import open_trackers
from embodyflow.workers.session import open_session


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
