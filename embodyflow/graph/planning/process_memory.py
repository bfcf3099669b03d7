"""Estimate the memory of a run's processes on machines without GPUs, where models lie in the processes' own memory.

For N parameters of the policy, T of them trained, and with the models' bytes of
:mod:`embodyflow.graph.planning.memory_estimate`:

===============  ===========================================================================================
rollout worker   0.4 GiB + its model
trainer, rank 0  0.4 GiB + its models + 4 T, and on several ranks 4 N in place of the activations if that is more
``/dev/shm``     4 (N - T) + 2 · 4 T: the frozen weights, the published ones, and the segment of those before, which
                 the next publication reuses; 2 · 4 N with adapters, which are merged before publication
===============  ===========================================================================================

Rollout workers compute with the frozen weights in ``/dev/shm``, so these are counted twice here, in both processes'
memory; they read the others one by one and do not hold them. The trainer keeps its T trained weights aside while the
reference is evaluated, unless the reference is the policy without adapters. They and the gradients are not needed at
the same time; that the heap reuses no memory between them is an assumption. At the end of a run rank 0 gathers the
weights of all ranks to export the policy.

0.4 GiB is the proportional set size of a Python process that has imported the modules of a worker and of SmolVLA:
0.41 GiB with torch 2.13 and Ray 2.60. Excluded are environments, of which a rollout worker opens one of each task, the
rows of an iteration in ``/dev/shm``, freed memory that a process keeps, and the driver with its servers.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from embodyflow.graph.node import NodeRole
from embodyflow.graph.planning.memory_estimate import FORWARD_BYTES
from embodyflow.graph.planning.planner import Plan

PROCESS_BYTES = 0.4 * 2**30
VERSIONS = 2
"""Versions of the trained weights in ``/dev/shm`` at a time."""


@dataclass(frozen=True)
class ProcessMemory:
    """Bytes of a run's processes at their peaks.

    Attributes:
        rollout: Bytes of a rollout worker; 0 if nothing rolls out.
        trainer: Bytes of the trainer's rank 0; 0 if nothing trains.
        shared: Bytes in ``/dev/shm`` on a machine with rollout workers.
    """

    rollout: float
    trainer: float
    shared: float


def process_memory(plan: Plan) -> ProcessMemory:
    """Return the memory of a plan's processes; see the module."""
    model = plan.settings.model
    full = FORWARD_BYTES * model.num_params
    by_rank = [plan.bytes_on(rank) for rank in range(plan.cluster.num_workers)]
    rollout = max((each[NodeRole.ROLLOUT] for each in by_rank if NodeRole.ROLLOUT in each), default=None)
    trained = [sum(size for role, size in each.items() if role is not NodeRole.ROLLOUT) for each in by_rank]
    num_ranks, has_adapters = _num_training_ranks(by_rank), plan.settings.has_adapters
    aside = 0.0 if has_adapters else FORWARD_BYTES * model.trained / num_ranks
    gathered = full if num_ranks > 1 else 0.0
    beyond = aside + max(0.0, gathered - model.training_activations)
    changing = full if has_adapters else FORWARD_BYTES * model.trained
    return ProcessMemory(
        rollout=0.0 if rollout is None else PROCESS_BYTES + rollout,
        trainer=PROCESS_BYTES + max(trained) + beyond if max(trained) else 0.0,
        shared=full + (VERSIONS - 1) * changing,
    )


def _num_training_ranks(by_rank: Sequence[Mapping[NodeRole, float]]) -> int:
    return sum(NodeRole.ACTOR in each for each in by_rank) or 1
