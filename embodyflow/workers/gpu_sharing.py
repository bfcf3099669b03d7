"""Placement of workers on GPUs that they share.

Ray fills one GPU with fractions before it takes the next. But NCCL refuses two ranks of a trainer on one GPU, and the
other GPUs would idle. So a run reserves whole GPUs and assigns its workers to them.
"""

from collections import Counter
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import ray
from ray._private.accelerators import get_accelerator_manager_for_resource

from embodyflow.config import RunConfig
from embodyflow.config.run import GroupShape
from embodyflow.errors import ConfigError

Options = Mapping[str, Any]
"""Options of a Ray actor."""


def gpu_of_each(shapes: Mapping[str, GroupShape], gpus_per_worker: float) -> dict[str, list[int]]:
    """Return the index of each worker's GPU, by group and rank.

    Trainer ranks are on different GPUs, and the workers are spread evenly.

    Args:
        shapes: Shape of each group, one of which is ``trainer``.
        gpus_per_worker: Share of a GPU, between 0 and 1, both exclusive.
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
    """Check that the cluster has room for all workers, which would otherwise wait forever.

    Raises:
        ConfigError: The workers need more CPUs or GPUs than the cluster has.
    """
    have, cluster = ray.cluster_resources(), config.cluster
    num_workers = sum(shape.num_ranks for shape in config.largest_groups.values())
    needs = {"GPU": needed_gpus(config), "CPU": needed_cpus(config)}
    for resource, needed in needs.items():
        if needed > have.get(resource, 0.0):
            each = cluster.cpus_per_worker if resource == "CPU" else cluster.gpus_per_worker
            raise ConfigError(
                f"cluster.{resource.lower()}s_per_worker={each:g}: {num_workers} workers need "
                f"{needed:g} {resource}s, the Ray cluster has {have.get(resource, 0.0):g}"
            )


def has_room_without(nodes: Container[str], config: RunConfig) -> bool:
    """Return True if a run's workers fit on the live Ray nodes other than these.

    Workers that share GPUs do not: Ray moves their reserved GPUs only once a node is dead.

    Args:
        nodes: Ids of Ray nodes.
        config: Run configuration.
    """
    if 0 < config.cluster.gpus_per_worker < 1:
        return False
    others = [node["Resources"] for node in ray.nodes() if node["Alive"] and node["NodeID"] not in nodes]
    needs = {"GPU": needed_gpus(config), "CPU": needed_cpus(config)}
    return all(sum(each.get(name, 0.0) for each in others) >= needed for name, needed in needs.items())


def check_own_gpus(config: RunConfig) -> None:
    """Check that this machine has the GPUs of a run whose workers all start here, before anything starts.

    Raises:
        ConfigError: The workers need more GPUs than this machine has.
    """
    needed, cluster = needed_gpus(config), config.cluster
    if needed == 0:
        return
    have = _num_own_gpus()
    if needed > have:
        num_workers = sum(shape.num_ranks for shape in config.largest_groups.values())
        raise ConfigError(
            f"cluster.gpus_per_worker={cluster.gpus_per_worker:g}: with cluster.device={cluster.device} {num_workers} "
            f"workers need {needed:g} GPUs, this machine has {have}; allowed are cluster=local, and "
            "RAY_ADDRESS=<address> of a cluster that has them"
        )


def _num_own_gpus() -> int:
    """Return the number of GPUs that Ray finds on this machine, without importing torch, which takes seconds."""
    found = get_accelerator_manager_for_resource("GPU")
    visible = found.get_current_process_visible_accelerator_ids()
    return int(found.get_current_node_num_accelerators()) if visible is None else len(visible)


def needed_gpus(config: RunConfig) -> float:
    """Return the number of GPUs that the workers of a run need; 0 without any."""
    each = config.cluster.gpus_per_worker
    if 0 < each < 1:
        return len(_workers_per_gpu(config))
    return each * sum(shape.num_ranks for shape in config.largest_groups.values())


def needed_cpus(config: RunConfig) -> float:
    """Return the number of CPUs that the workers of a run reserve."""
    return config.cluster.cpus_per_worker * sum(shape.num_ranks for shape in config.largest_groups.values())


@contextmanager
def placed(config: RunConfig) -> Iterator[dict[str, Sequence[Options]]]:
    """Yield the Ray options of each worker, by group and rank; release the reserved GPUs afterwards."""
    cluster = config.cluster
    if not 0 < cluster.gpus_per_worker < 1:
        yield {role: [{}] * shape.num_ranks for role, shape in config.largest_groups.items()}
        return
    loads = _workers_per_gpu(config)
    bundles = [{"GPU": 1.0, "CPU": loads[gpu] * cluster.cpus_per_worker} for gpu in sorted(loads)]
    reserved = ray.util.placement_group(bundles, strategy="PACK")
    on = ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy
    try:
        yield {
            role: [{"scheduling_strategy": on(reserved, placement_group_bundle_index=gpu)} for gpu in gpus]
            for role, gpus in gpu_of_each(config.largest_groups, cluster.gpus_per_worker).items()
        }
    finally:
        ray.util.remove_placement_group(reserved)


def _workers_per_gpu(config: RunConfig) -> Counter[int]:
    """Return the number of workers on each GPU."""
    places = gpu_of_each(config.largest_groups, config.cluster.gpus_per_worker)
    return Counter(gpu for gpus in places.values() for gpu in gpus)
