"""The sizes of the models that a run trains, from its configuration and without their weights.

Models are built on torch's meta device, whose tensors have shapes and no values; of a checkpoint only its description
is read.

*Activations* are those of a policy that states the tokens of its blocks (``block_tokens``, as SmolVLA and π0 do); they
are 0 for others. A block takes 4 bytes for each token and each feature that a linear layer of it reads or writes. For a
vision transformer that is 18 numbers for each token and feature of the residual stream; the backward pass keeps 17 of
them and a forward pass alone takes 15.5, as measured with SmolVLM's tower. Attention matrices are not stored. In
training the activations of all blocks with trained weights are kept; in acting those of one block are there at a time.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from torch import nn

from embodyflow.config import RunConfig
from embodyflow.errors import ConfigError
from embodyflow.policies.base import Critic, Policy
from embodyflow.policies.policy_config import PolicyConfig
from embodyflow.policies.policy_registry import build_policy
from embodyflow.policies.pretrained.checkpoints import outline
from embodyflow.training.value_head import build_critic_for

FLOAT_BYTES = 4
Built = TypeVar("Built", Policy, Critic)


@dataclass(frozen=True)
class ModelCounts:
    """Size of one model.

    Attributes:
        num_params: Number of weights, without adapters.
        num_trained: Number of weights that are trained, with adapters.
        training_activations: Bytes that a decision keeps in a forward pass for the backward pass; 0 if unknown.
        acting_activations: Bytes that a decision takes where it is only computed; 0 if unknown.
    """

    num_params: int
    num_trained: int
    training_activations: int = 0
    acting_activations: int = 0


def count_policy(config: RunConfig) -> ModelCounts:
    """Return the size of the run's policy.

    With ``trainer.lora`` only the adapters are trained, rank · (inputs + outputs) weights for each adapted layer, and
    what a warm start trains.

    Raises:
        ConfigError: The checkpoint is refused, or the policy's class cannot be built without weights.
    """
    policy = _build("policy", config, build_policy)
    trained = _num_trained(policy.model)
    if config.trainer.lora is not None:
        adapters = _num_in_adapters(policy, config)
        trained = adapters + (0 if config.warm_start is None else trained)
    tokens: Sequence[int] = getattr(policy, "block_tokens", ())
    blocks = list(zip(policy.blocks, tokens, strict=True)) if tokens else []
    kept = [FLOAT_BYTES * each * sum(_features(block)) for block, each in blocks if _num_trained(block)]
    passed = [FLOAT_BYTES * each * sum(_features(block)) for block, each in blocks]
    return ModelCounts(_num_params(policy.model), trained, sum(kept), max(passed, default=0))


def count_critic(config: RunConfig) -> ModelCounts | None:
    """Return the size of the run's critic, without its activations; ``None`` if the algorithm has none.

    Raises:
        ConfigError: See :func:`count_policy`.
    """
    if not config.algorithm.needs_critic:
        return None
    critic = _build(
        "critic", config, lambda policy, device: build_critic_for(config, build_policy(policy, device), device)
    )
    return ModelCounts(_num_params(critic.model), _num_trained(critic.model))


def _build(what: str, config: RunConfig, build: Callable[[PolicyConfig, str], Built]) -> Built:
    try:
        with outline():
            return build(config.policy, "meta")
    # torch's errors about tensors without values, and those of files that are missing
    except (NotImplementedError, RuntimeError, OSError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(
            f"policy.name={config.policy.name}: its {what} cannot be sized, so --model must give "
            f"the number of parameters ({reason})"
        ) from error


def _num_params(model: nn.Module) -> int:
    return sum(value.numel() for value in model.parameters())


def _num_trained(model: nn.Module) -> int:
    return sum(value.numel() for value in model.parameters() if value.requires_grad)


def _num_in_adapters(policy: Policy, config: RunConfig) -> int:
    from embodyflow.training.lora import adapted_layers  # takes seconds to import

    assert config.trainer.lora is not None
    layers = [policy.model.get_submodule(name) for name in adapted_layers(policy, config.trainer.lora)]
    return config.trainer.lora.rank * sum(sum(_features(layer)) for layer in layers)


def _features(module: nn.Module) -> list[int]:
    """Return the features that each linear layer reads and writes."""
    linear = [each for each in module.modules() if isinstance(each, nn.Linear)]
    return [each.in_features + each.out_features for each in linear]
