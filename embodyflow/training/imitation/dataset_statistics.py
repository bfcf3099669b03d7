"""Normalization statistics of the data set that a policy is cloned from."""

import numpy as np
import torch

from embodyflow.config.robots.embodied import EmbodiedConfig
from embodyflow.config.robots.warm_start import DatasetConfig
from embodyflow.datasets.demonstrations import Column, DatasetDemonstrations
from embodyflow.datasets.opening import open_dataset
from embodyflow.policies.base import NormalizationStatistics


def dataset_statistics(config: EmbodiedConfig, chosen: DatasetConfig) -> NormalizationStatistics:
    """Return the statistics of the states and actions of a data set.

    Args:
        config: Run configuration of a policy that reads a state.
        chosen: Data set of its warm start.

    Raises:
        ConfigError: The data set is gone, or has no such statistics.
    """
    [state_dim] = config.policy.observation_shapes["state"]
    assert state_dim is not None
    columns = {
        name: Column(chosen.features(name), (size,), np.dtype(np.float32))
        for name, size in (("state", state_dim), ("actions", config.policy.action_dim))
    }
    demonstrations = DatasetDemonstrations(open_dataset(chosen.path), columns)
    state, actions = demonstrations.statistics("state"), demonstrations.statistics("actions")
    numbers = [state.mean, state.std, actions.mean, actions.std]
    if config.policy.needs_quantiles:
        numbers += [*demonstrations.quantiles("state"), *demonstrations.quantiles("actions")]
    return NormalizationStatistics(state.count, *map(torch.from_numpy, numbers))
