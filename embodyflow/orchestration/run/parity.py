"""A check that training and evaluation see the same: the digests of each task's first observation are compared."""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence

from prefect.logging import get_run_logger

from embodyflow.errors import ConfigError
from embodyflow.orchestration.run.iterations.nodes import Run, submit_node
from embodyflow.record.run_folder import RunFolder
from embodyflow.workers.calls import NodeWork

Observations = dict[str, dict[str, str | bool]]


async def observe(run: Run) -> Observations:
    """Ask the rollout workers for the first observation of each task; return the digests of rank 0 by task.

    A difference between workers is logged: an environment may depend on its process, or machines render differently.
    """
    info = (await submit_node(NodeWork("observe", "tasks:observe", "rollout", 0))).info
    if tasks := differing_tasks(info["digests"]):
        get_run_logger().warning(
            "first observations of %s differ between rollout workers, and so may replays in another process; look for "
            "hash(), time or the process id in the environment, and for renderers that differ between machines",
            ", ".join(tasks),
        )
    seen: Observations = info["tasks"]
    return seen


def differing_tasks(digests: Iterable[Sequence[str]]) -> list[str]:
    """Return the tasks that have several digests, from pairs of task and digest."""
    count = Counter(task for task, _ in {(task, digest) for task, digest in digests})
    return sorted(task for task, number in count.items() if number > 1)


def check_parity(trained: RunFolder, seen: Observations, unrestorable: Collection[str] = ()) -> None:
    """Check that the tasks which the run and the evaluation share look as they did when the run started.

    Args:
        trained: Folder of the run.
        seen: First observations of the evaluation's tasks.
        unrestorable: Tasks that are not compared, because no two of their first observations are alike.

    Raises:
        ConfigError: An observation differs, or the run did not record any.
    """
    recorded = trained.observations()
    if recorded is None:
        raise ConfigError(
            f"policy={trained.path}: has no observations.json; evaluate its export, policy={trained.path}/policy"
        )
    shared = (seen.keys() & recorded.keys()) - set(unrestorable)
    other = [task for task in shared if seen[task]["digest"] != recorded[task]["digest"]]
    if other:
        raise ConfigError(
            f"policy={trained.path}: first observations of {', '.join(sorted(other))} differ from training, so env or "
            f"the simulator's version has changed; to evaluate anyway, name its export, policy={trained.path}/policy"
        )
