"""Which GPU each worker uses where several share one.

Ray fills a GPU with fractions before it takes the next one, whoever asks. But two ranks of a trainer cannot be on the
same (NCCL refuses), and one GPU would be busy while others idle. So a run reserves whole GPUs and says who is on which.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import ray

from embodyflow.config import RunConfig
from embodyflow.config.run import GroupShape
from embodyflow.errors import ConfigError

Options = Mapping[str, Any]
"""Of a Ray actor."""


def gpu_of_each(shapes: Mapping[str, GroupShape], gpus_per_worker: float) -> dict[str, list[int]]:
    """Return the number of each worker's GPU, by group and rank: trainer ranks differ, and all GPUs have as much to do.

    Args:
        shapes: of the groups, one of which is ``trainer``.
        gpus_per_worker: more than 0, less than 1.
    """
    trainers = shapes["trainer"].num_ranks
    num_workers = sum(shape.num_ranks for shape in shapes.values())
    num_gpus = max(trainers, -(-num_workers // int(1 / gpus_per_worker)))
    places, taken = {"trainer": list(range(trainers))}, trainers
    for role, shape in shapes.items():
        if role != "trainer":
            places[role] = [place % num_gpus for place in range(taken, taken + shape.num_ranks)]
            taken += shape.num_ranks
    return places


def check_resources(config: RunConfig) -> None:
    """Refuse workers that would wait for ever for a place on the cluster.

    Raises:
        ConfigError: the cluster has not the CPUs or GPUs that so many workers ask for together.
    """
    have, cluster = ray.cluster_resources(), config.cluster
    num_workers = sum(shape.num_ranks for shape in config.groups.values())
    needs = {"CPU": num_workers * cluster.cpus_per_worker, "GPU": num_workers * cluster.gpus_per_worker}
    if 0 < cluster.gpus_per_worker < 1:
        needs["GPU"] = len(_loads(config))
    for resource, needed in needs.items():
        if needed > have.get(resource, 0.0):
            each = cluster.cpus_per_worker if resource == "CPU" else cluster.gpus_per_worker
            raise ConfigError(
                f"cluster.{resource.lower()}s_per_worker={each:g}: {num_workers} workers need "
                f"{needed:g} {resource}s, the Ray cluster has {have.get(resource, 0.0):g}"
            )


@contextmanager
def placed(config: RunConfig) -> Iterator[dict[str, Sequence[Options]]]:
    """Yield the options that put each worker in its place, by group and rank; what is reserved is given back after."""
    cluster = config.cluster
    if not 0 < cluster.gpus_per_worker < 1:
        yield {role: [{}] * shape.num_ranks for role, shape in config.groups.items()}
        return
    loads = _loads(config)
    bundles = [{"GPU": 1.0, "CPU": loads[gpu] * cluster.cpus_per_worker} for gpu in sorted(loads)]
    reserved = ray.util.placement_group(bundles, strategy="PACK")
    on = ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy
    try:
        yield {
            role: [{"scheduling_strategy": on(reserved, placement_group_bundle_index=gpu)} for gpu in gpus]
            for role, gpus in gpu_of_each(config.groups, cluster.gpus_per_worker).items()
        }
    finally:
        ray.util.remove_placement_group(reserved)


def _loads(config: RunConfig) -> Counter[int]:
    """Return how many workers each GPU has."""
    places = gpu_of_each(config.groups, config.cluster.gpus_per_worker)
    return Counter(gpu for gpus in places.values() for gpu in gpus)
