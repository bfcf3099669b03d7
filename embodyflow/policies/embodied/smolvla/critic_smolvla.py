"""Critic of SmolVLA, as :class:`~embodyflow.policies.base.Critic`."""

from embodyflow.policies.embodied.flow_vla.checkpoint_flow_vla import Description
from embodyflow.policies.embodied.flow_vla.critic_flow_vla import FlowVLACritic
from embodyflow.policies.embodied.smolvla.checkpoint_smolvla import LAYOUT
from embodyflow.policies.embodied.smolvla.modeling_smolvla import ContextModel


class SmolVLACritic(FlowVLACritic):
    """Values the output of a vision-language model of its own for the state; it has no expert."""

    layout = LAYOUT

    def build_reader(self, description: Description) -> ContextModel:
        """Return the vision-language model."""
        return ContextModel(description)
