"""Which reward function and which manager a configuration means."""

from functools import partial
from typing import Any, assert_never

from embodyflow.references import resolve
from embodyflow.rewards import verifiers
from embodyflow.rewards.configuration import (
    BatchConfig,
    CustomConfig,
    ExactMatchConfig,
    FunctionConfig,
    GSM8KConfig,
    NaiveConfig,
    RegexConfig,
    RewardConfig,
)
from embodyflow.rewards.interface import RewardManager
from embodyflow.rewards.managers import BatchRewardManager, NaiveRewardManager


def build_reward_manager(config: RewardConfig) -> RewardManager:
    """Build the manager; whoever builds it closes it."""
    match config.manager:
        case NaiveConfig():
            return NaiveRewardManager(build_reward_function(config.function))
        case BatchConfig():
            return BatchRewardManager(build_reward_function(config.function))
        case _:
            assert_never(config.manager)


def build_reward_function(config: FunctionConfig) -> Any:
    """Return the function of a sample; a custom one may be of many."""
    match config:
        case ExactMatchConfig():
            return partial(verifiers.exact_match, config=config)
        case RegexConfig():
            return partial(verifiers.regex, config=config)
        case GSM8KConfig():
            return verifiers.gsm8k
        case CustomConfig():
            return partial(resolve(config.function), **config.kwargs)
        case _:
            assert_never(config)
