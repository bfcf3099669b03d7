"""The reward manager of each configuration."""

import importlib.util
import logging
from pathlib import Path
from typing import assert_never

from embodyflow.errors import ConfigError
from embodyflow.policies.pretrained.weight_files import check_tokenizer, check_weights, read_object
from embodyflow.policies.pretrained.whole_models import check_whole
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

DEFAULT_LABELS = 2
"""Outputs of a sequence classifier of transformers whose configuration does not say."""

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

    A reward model in a local folder must be whole and have one output.

    Raises:
        ConfigError: The library is not installed, the isolation is not permitted, or the model cannot be loaded; the
            message says what to do.
    """
    scores = config.manager.scores if isinstance(config.manager, DapoConfig) else config.manager
    if isinstance(scores, ModelConfig) and (Path(scores.path).is_dir() or scores.path.startswith(("/", "."))):
        key = "reward.manager.scores.path" if scores is not config.manager else "reward.manager.path"
        _check_reward_model(Path(scores.path), f"{key}={scores.path}")
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


def _check_reward_model(folder: Path, key: str) -> None:
    file = folder / "config.json"
    if not file.is_file():
        raise ConfigError(f"{key}: has no config.json; allowed are a classifier's folder and a name on the hub")
    values = read_object(file, key)
    labels = values.get("id2label")
    num_outputs = len(labels) if isinstance(labels, dict) else values.get("num_labels", DEFAULT_LABELS)
    if num_outputs != 1:
        raise ConfigError(f"{key}: has {num_outputs} outputs; allowed is one")
    check_weights(folder, key)
    check_tokenizer(folder, key, "use a folder that has one")
    from transformers import AutoModelForSequenceClassification  # imports torch

    check_whole(AutoModelForSequenceClassification, folder, key)
