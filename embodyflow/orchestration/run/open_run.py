"""The workers, trackers and kept rows of a run from start to stop, for training and evaluation."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

from embodyflow.config import RunConfig
from embodyflow.config.grouped import GroupedConfig
from embodyflow.graph import TaskGraph
from embodyflow.orchestration.display.artifacts import open_artifacts
from embodyflow.orchestration.evaluation.beside_training import BesideTraining
from embodyflow.orchestration.evaluation.between_iterations import BetweenIterations
from embodyflow.orchestration.health.roll_back import with_roll_backs
from embodyflow.orchestration.run.cluster import ray_cluster
from embodyflow.orchestration.run.evaluations import Evaluations
from embodyflow.orchestration.run.iterations.iteration import iteration
from embodyflow.orchestration.run.iterations.nodes import CURRENT_RUN, Run
from embodyflow.orchestration.run.iterations.turns import Turns
from embodyflow.orchestration.run.processes import write_processes
from embodyflow.orchestration.run.recovery import record_processes
from embodyflow.orchestration.run.scaling.autoscaling import Autoscaling
from embodyflow.orchestration.run.scaling.scaling import FixedNumber, Scaling
from embodyflow.orchestration.run.stages import Stages
from embodyflow.orchestration.run.streaming.generating_node import generating_node
from embodyflow.orchestration.run.streaming.rollouts import Rollouts, WholeIterations
from embodyflow.orchestration.run.streaming.stream import Stream
from embodyflow.orchestration.run.traced import traced
from embodyflow.orchestration.server.iteration_runs import iteration_runs
from embodyflow.record.ledger import Ledger
from embodyflow.record.run_folder import RunFolder
from embodyflow.record.trackers import open_trackers
from embodyflow.workers.ray_nodes import while_cluster_lives
from embodyflow.workers.session import Session, open_session


@asynccontextmanager
async def open_run(folder: RunFolder, config: RunConfig, graph: TaskGraph) -> AsyncIterator[Run]:
    """Start the processes of a run; all of them have ended when the block exits, even by an exception.

    Args:
        folder: Folder of the run, locked by the caller.
        config: Run configuration. The values that roll-backs have given to keys replace its own.
        graph: Graph that an iteration runs.

    Raises:
        ClusterLostError: No Ray node is alive, or the head is gone; the message has the command to resume.
    """
    ledger = Ledger(folder.ledger_path)
    config = with_roll_backs(config, ledger)
    stages = Stages(
        folder,
        ledger,
        config.kept_checkpoints,
        repeatable_iterations=config.repeatable_iterations,
        kept_iterations=config.kept_iterations,
    )
    folder.write_status("start", 0, config.iterations)
    # The order of nesting matters: workers end before anything waits for the Prefect server.
    goes_on = bool(ledger.roll_backs())
    async with (
        open_artifacts(str(config.run_id), goes_on=goes_on) as artifacts,
        iteration_runs(iteration) as iterations,
    ):
        with traced(folder, config), ray_cluster(config):
            watch = while_cluster_lives(partial(_after_loss, folder), config.cluster.head_timeout)
            async with watch as cluster, open_session(config) as session:
                trackers = open_trackers(config)
                try:
                    turns = Turns(config.rollout.max_staleness, swaps_weights=config.rollout.swaps_weights)
                    rollouts = _rollouts_of(config, graph, session, stages, folder, turns)
                    evaluations = evaluations_of(config)
                    scaling = _scaling_of(config, session, stages, folder, rollouts)
                    shared = session, folder, trackers, graph, iterations, stages, artifacts
                    run = Run(*shared, turns, rollouts, evaluations, scaling, cluster)
                    CURRENT_RUN.set(run)
                    await record_processes(run)
                    yield run
                finally:
                    for tracker in trackers:
                        tracker.close()
                    await stages.drain()


def _rollouts_of(
    config: RunConfig, graph: TaskGraph, session: Session, stages: Stages, folder: RunFolder, turns: Turns
) -> Rollouts:
    """Return the source of the iterations' rollouts."""
    if not config.streams:
        return WholeIterations(session)
    assert isinstance(config, GroupedConfig)
    return Stream(config, session, stages, folder.groups, turns, generating_node(graph))


def _scaling_of(config: RunConfig, session: Session, stages: Stages, folder: RunFolder, rollouts: Rollouts) -> Scaling:
    """Return the rule of the number of rollout workers."""
    settings = config.rollout.autoscale if isinstance(config, GroupedConfig) else None
    if settings is None:
        return FixedNumber(config)
    record = partial(write_processes, folder, session)
    return Autoscaling(settings, config.rollout.num_workers, session, stages, rollouts, record)


def evaluations_of(config: RunConfig) -> Evaluations[Run]:
    """Return the place of the run's evaluations."""
    return BesideTraining() if config.has_evaluations_beside else BetweenIterations()


def _after_loss(folder: RunFolder) -> str:
    """Return the hint for the user after the loss of the cluster."""
    return f"start Ray, then {f'resume={folder.path.name}' if folder.checkpoints.committed() else 'restart the run'}"
