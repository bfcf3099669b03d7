"""The critic of such a policy behind the interface of :mod:`embodyflow.policies.base`."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from tensordict import TensorDict

from embodyflow.policies.decisions import at_decisions, decisions
from embodyflow.policies.flow_vla.checkpoint_flow_vla import Description, Layout, describe
from embodyflow.policies.flow_vla.configuration_flow_vla import FlowVLAConfig
from embodyflow.policies.flow_vla.modeling_flow_vla import ContextModel, FlowVLAValue
from embodyflow.policies.flow_vla.policy_flow_vla import pixels


class FlowVLACritic(ABC):
    """Values what the policy sees, by a model of its own that reads it and a head of one number.

    Args:
        config: the policy's own.
        device: where the model lies.

    Attributes:
        layout: of the policy's checkpoints.
    """

    layout: ClassVar[Layout]

    def __init__(self, config: FlowVLAConfig, device: str) -> None:
        self._description, _ = describe(self.layout, config)
        # Random weights, also beside a checkpoint: the policy's come by `start_from`.
        reader = self.build_reader(self._description)
        self.model: torch.nn.Module = FlowVLAValue(reader, self._description, config.train_expert_only).to(device)
        self._config, self._device = config, device

    @abstractmethod
    def build_reader(self, description: Description) -> ContextModel:
        """Return who reads, of random weights."""

    @property
    def blocks(self) -> Sequence[torch.nn.Module]:
        """The transformer blocks of who reads."""
        return list(self.model.blocks)  # type: ignore[arg-type]

    def evaluate(self, batch: TensorDict) -> torch.Tensor:
        """Return the value before each decision, float32 ``[N, T]``; zero where none was taken."""
        decided, seen = decisions(batch, self._config.observation_keys, self._device)
        images = pixels(self.layout, self._config, self._description, seen)
        return at_decisions(self.model(images, seen["instruction_ids"], seen["state"]), decided, decided)

    def start_from(self, policy_state: Mapping[str, Any]) -> None:
        """Take over the policy's weights and statistics, as far as they have to do with reading."""
        own = self.model.state_dict()
        self.model.load_state_dict({name: policy_state.get(name, value) for name, value in own.items()})
