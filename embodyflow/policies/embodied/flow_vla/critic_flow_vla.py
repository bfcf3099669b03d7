"""Critic of a policy that denoises, as :class:`~embodyflow.policies.base.Critic`."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from tensordict import TensorDict

from embodyflow.policies.decisions import at_decisions, decisions
from embodyflow.policies.embodied.flow_vla.checkpoint_flow_vla import Description, Layout, describe
from embodyflow.policies.embodied.flow_vla.configuration_flow_vla import FlowVLAConfig
from embodyflow.policies.embodied.flow_vla.modeling_flow_vla import ContextModel, FlowVLAValue
from embodyflow.policies.embodied.flow_vla.policy_flow_vla import pixels


class FlowVLACritic(ABC):
    """Values the policy's observations, by a context model of its own with a head of one number.

    Args:
        config: Configuration of the policy.
        device: Device of the model.

    Attributes:
        layout: Layout of the policy's checkpoints.
        tokenizer: Tokenizer of ``transformers``.
    """

    layout: ClassVar[Layout]

    def __init__(self, config: FlowVLAConfig, device: str) -> None:
        self._description, self.tokenizer = describe(self.layout, config)
        # Weights are random even with a checkpoint: `start_from` brings the policy's.
        self._config, self._device = config, device
        reader = self.build_reader(self._description)
        self.model: torch.nn.Module = FlowVLAValue(reader, self._description, config.train_expert_only).to(device)

    @abstractmethod
    def build_reader(self, description: Description) -> ContextModel:
        """Return the context model, of random weights."""

    @property
    def blocks(self) -> Sequence[torch.nn.Module]:
        """Transformer blocks of the context model."""
        return list(self.model.blocks)  # type: ignore[arg-type]

    def evaluate(self, batch: TensorDict) -> torch.Tensor:
        """Return the value before each decision, float32 ``[N, T]``; zero without a decision."""
        decided, seen = decisions(batch, self._config.observation_keys, self._device)
        images = pixels(self.layout, self._config, self._description, seen)
        return at_decisions(self.model(images, seen["instruction_ids"], seen["state"]), decided, decided)

    def start_from(self, policy_state: Mapping[str, Any]) -> None:
        """Take over the weights and statistics of the policy's context model."""
        own = self.model.state_dict()
        self.model.load_state_dict({name: policy_state.get(name, value) for name, value in own.items()})
