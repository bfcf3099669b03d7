"""Ways to run the same iterations, of which a forecast names the fastest."""

from collections.abc import Iterator
from dataclasses import replace

from embodyflow.config import RunConfig
from embodyflow.config.grouped import GroupedConfig
from embodyflow.errors import ConfigError
from embodyflow.forecast.scaling import changed
from embodyflow.forecast.schedule import Shape

STALENESS = (0, 1, 2)
TRAINER_SHARES = (1 / 8, 1 / 4, 3 / 8, 1 / 2, 5 / 8, 3 / 4)
"""Shares of the devices that train, if rollouts and training have devices of their own."""


def other_orders(config: RunConfig, shape: Shape) -> Iterator[Shape]:
    """Yield a shape with rollouts up to two versions behind, as far as the job allows it, and by groups."""
    for staleness in STALENESS:
        if _is_allowed(config, staleness, "iterations"):
            yield replace(shape, staleness=staleness, num_groups=None)
        if staleness and isinstance(config, GroupedConfig) and _is_allowed(config, staleness, "streaming"):
            yield replace(shape, staleness=staleness, num_groups=config.rollout.num_groups)


def placements(config: GroupedConfig, num_devices: int, tensor: int) -> Iterator[Shape]:
    """Yield the ways to divide devices between rollouts and training, with :func:`other_orders` of each.

    A copy of the rollout model plays whole groups, and every rank trains on a row of each mini-batch. More devices than
    that have no work, so such a division is left out.

    Args:
        config: Rows of an iteration.
        num_devices: Number of devices.
        tensor: Ranks that share a copy of the rollout model.
    """
    most_ranks = config.full_batch // config.trainer.num_minibatches
    most_workers = config.rollout.num_groups * tensor
    if num_devices <= min(most_ranks, most_workers):
        yield Shape(num_devices, num_devices, takes_turns=True)
    for ranks in dict.fromkeys(max(round(share * num_devices), 1) for share in TRAINER_SHARES):
        workers = (num_devices - ranks) // tensor * tensor
        if workers and ranks <= most_ranks and workers <= most_workers:
            yield from other_orders(config, Shape(workers, ranks))


def _is_allowed(config: RunConfig, staleness: int, mode: str) -> bool:
    """Return False if the configuration would be refused with these keys."""
    values = {"rollout.max_staleness": str(staleness), "rollout.mode": mode}
    if config.algorithm.old_log_probs in ("recomputed", "proximal"):
        values["algorithm.old_log_probs"] = "proximal" if staleness else "recomputed"
    try:
        changed(config, values)
    except ConfigError:
        return False
    return True
