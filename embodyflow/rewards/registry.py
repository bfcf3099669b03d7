"""Which reward manager a configuration means."""

from typing import assert_never

from embodyflow.rewards.configuration import (
    BatchConfig,
    DapoConfig,
    ModelConfig,
    NaiveConfig,
    ParallelConfig,
    RewardConfig,
)
from embodyflow.rewards.functions import build_reward_function
from embodyflow.rewards.interface import RewardManager
from embodyflow.rewards.managers import BatchRewardManager, NaiveRewardManager
from embodyflow.rewards.pool import ParallelRewardManager


def build_reward_manager(config: RewardConfig) -> RewardManager:
    """Build the manager; whoever builds it closes it.

    Raises:
        ConfigError: a library or a reward model is not there.
    """
    match config.manager:
        case DapoConfig():
            from embodyflow.rewards.shaped import DapoRewardManager  # torch, which the others do without

            scores = build_reward_manager(config.model_copy(update={"manager": config.manager.scores}))
            return DapoRewardManager(scores, config.manager)
        case ModelConfig():
            from embodyflow.rewards.model import ModelRewardManager

            return ModelRewardManager(config.manager)
        case _ if config.function is None:
            raise ValueError(f"manager.name={config.manager.name} without a function")
        case NaiveConfig():
            return NaiveRewardManager(build_reward_function(config.function))
        case BatchConfig():
            return BatchRewardManager(build_reward_function(config.function))
        case ParallelConfig():
            return ParallelRewardManager(config.function, config.manager)
        case _:
            assert_never(config.manager)
