"""The reward manager of each configuration."""

import importlib.util
import logging
from typing import assert_never

from embodyflow.errors import ConfigError
from embodyflow.rewards.functions.function_registry import build_reward_function
from embodyflow.rewards.interface import RewardManager
from embodyflow.rewards.managers.inline import BatchRewardManager, NaiveRewardManager
from embodyflow.rewards.managers.pool import ParallelRewardManager
from embodyflow.rewards.reward_config import (
    BatchConfig,
    CodeConfig,
    DapoConfig,
    MathConfig,
    ModelConfig,
    NaiveConfig,
    ParallelConfig,
    RewardConfig,
)

logger = logging.getLogger(__name__)


def build_reward_manager(config: RewardConfig) -> RewardManager:
    """Build a reward manager; the caller closes it.

    Raises:
        ConfigError: A library is not installed, or a reward model cannot be loaded.
    """
    check_reward(config)
    match config.manager:
        case DapoConfig():
            from embodyflow.rewards.managers.overlong import (
                DapoRewardManager,  # imports torch, which other managers do not need
            )

            scores = build_reward_manager(config.model_copy(update={"manager": config.manager.scores}))
            return DapoRewardManager(scores, config.manager)
        case ModelConfig():
            from embodyflow.rewards.managers.reward_model import ModelRewardManager

            return ModelRewardManager(config.manager)
        case _ if config.function is None:
            raise ValueError(f"manager.name={config.manager.name}: needs a function")
        case NaiveConfig():
            return NaiveRewardManager(build_reward_function(config.function))
        case BatchConfig():
            return BatchRewardManager(build_reward_function(config.function))
        case ParallelConfig():
            return ParallelRewardManager(config.function, config.manager)
        case _:
            assert_never(config.manager)


def check_reward(config: RewardConfig) -> None:
    """Check that the library of a reward function is installed, and that this machine can isolate programs.

    Raises:
        ConfigError: The library is not installed, or the isolation is not permitted; the message says what to do.
    """
    for key, function in config.functions.items():
        if isinstance(function, MathConfig) and importlib.util.find_spec("math_verify") is None:
            raise ConfigError(f"reward.{key}.name=math: math-verify is not installed; pip install 'embodyflow[math]'")
        if isinstance(function, CodeConfig):
            from embodyflow.rewards.sandbox.sandbox import choose_isolation

            try:
                isolation = choose_isolation(function.isolation)
            except ConfigError as error:
                raise ConfigError(f"reward.{key}.{error}") from error
            if isolation == "guard":
                logger.warning("reward.%s.isolation=guard: a weaker isolation of programs (SECURITY.md)", key)
