"""Training and evaluation must see alike: what the policy is shown first of each task, compared by digest."""

from embodyflow.errors import ConfigError
from embodyflow.orchestration.run.nodes import Run, submit_node
from embodyflow.record.run_folder import RunFolder
from embodyflow.workers.calls import NodeWork

Observations = dict[str, dict[str, str | bool]]


async def observe(run: Run) -> Observations:
    """Ask a rollout worker what the policy sees of each task before its first decision."""
    return (await submit_node(NodeWork("observe", "tasks:observe", "rollout", 0))).info


def check_parity(trained: RunFolder, seen: Observations) -> None:
    """Compare what is seen now with what the run saw at its start, for the tasks of both.

    Raises:
        ConfigError: it differs; or the run made no note of it.
    """
    recorded = trained.observations()
    if recorded is None:
        raise ConfigError(
            f"policy={trained.path}: holds no observations.json; evaluate its export, {trained.path}/policy"
        )
    other = [task for task in seen.keys() & recorded.keys() if seen[task]["digest"] != recorded[task]["digest"]]
    if other:
        raise ConfigError(
            f"policy={trained.path}: it would see {', '.join(sorted(other))} otherwise than in training: env or the "
            "simulator's version is not the same; to evaluate it all the same name its export, "
            f"policy={trained.path}/policy"
        )
