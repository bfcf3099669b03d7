"""Models are sized from a configuration, without weights."""

from collections.abc import Callable

import pytest
import torch
from torch.utils._device import _device_constructors
from transformers.initialization import meta_device_safe_creation_ops

from embodyflow.config import RunConfig
from embodyflow.policies.embodied.smolvla.configuration_smolvla import SmolVLAConfig, SmolVLAScratchConfig
from embodyflow.policies.embodied.smolvla.policy_smolvla import SmolVLAPolicy
from embodyflow.policies.policy_registry import build_policy
from embodyflow.training.lora import Adapters
from embodyflow.training.model_sizes import count_critic, count_policy


def smolvla(config: RunConfig, *, train_expert_only: bool = True) -> RunConfig:
    policy = SmolVLAConfig(
        action_dim=2,
        chunk_size=4,
        normalization="demonstrations",
        path=None,
        scratch=SmolVLAScratchConfig(hidden_size=32),
        tokenizer="embodyflow.policies.embodied.flow_vla.tokenizer_flow_vla:build_tokenizer",
        train_expert_only=train_expert_only,
    )
    return config.model_copy(update={"policy": policy})


@pytest.mark.parametrize("train_expert_only", [True, False])
def test_counts_are_those_of_the_built_policy(tiny_config: Callable[..., RunConfig], train_expert_only: bool) -> None:
    config = smolvla(tiny_config(), train_expert_only=train_expert_only)
    counts, weights = count_policy(config), list(build_policy(config.policy, "cpu").model.parameters())
    assert counts.num_params == sum(each.numel() for each in weights)
    assert counts.num_trained == sum(each.numel() for each in weights if each.requires_grad)
    assert (counts.num_trained < counts.num_params / 2) == train_expert_only


def test_models_that_transformers_built_before_do_not_matter(tiny_config: Callable[..., RunConfig]) -> None:
    """transformers replaces torch.linspace for a while, and torch may list its constructors at that time."""
    _device_constructors.cache_clear()
    with meta_device_safe_creation_ops(), torch.device("meta"):
        torch.empty(1)
    assert torch.linspace not in _device_constructors()
    assert count_policy(tiny_config()).num_params > 0


def test_activations_by_hand(tiny_config: Callable[..., RunConfig]) -> None:
    """Of 1 image of 4 x 4 patches, a prompt of 48 tokens and 4 actions in 10 steps; the expert has 24 features."""
    config = smolvla(tiny_config())
    policy = build_policy(config.policy, "cpu")
    assert isinstance(policy, SmolVLAPolicy)
    assert list(policy.block_tokens) == [16, 4 + 48 + 1, 4 + 48 + 1, 40, 40]
    query_and_output, mlp = 2 * (24 + 32), 3 * (24 + 256)
    to_itself, to_context = 2 * (24 + 16), 2 * (16 + 16)
    expert = 2 * (query_and_output + mlp) + to_itself + to_context
    assert count_policy(config).training_activations == 4 * 40 * expert
    language_layer = 2 * (32 + 32) + 2 * (32 + 16) + 3 * (32 + 96)
    expert_layer = query_and_output + mlp + to_itself
    assert count_policy(config).acting_activations == 4 * max(53 * language_layer, 40 * expert_layer)


def test_only_adapters_are_trained_without_a_warm_start(tiny_config: Callable[..., RunConfig]) -> None:
    config = smolvla(tiny_config("trainer.lora.rank=2", "warm_start=null"))
    policy = build_policy(config.policy, "cpu")
    assert config.trainer.lora is not None
    Adapters(policy, config.trainer.lora, 0, None)
    adapters = sum(each.numel() for each in policy.model.parameters() if each.requires_grad)
    assert count_policy(config).num_trained == adapters


def test_a_critic_is_counted_where_the_algorithm_has_one(tiny_config: Callable[..., RunConfig]) -> None:
    assert count_critic(tiny_config()) is None
    critic = count_critic(tiny_config("algorithm.advantage=gae"))
    assert critic is not None and 0 < critic.num_trained <= critic.num_params
