"""Critic of π0, as :class:`~embodyflow.policies.base.Critic`."""

from embodyflow.policies.embodied.flow_vla.checkpoint_flow_vla import Description
from embodyflow.policies.embodied.flow_vla.critic_flow_vla import FlowVLACritic
from embodyflow.policies.embodied.pi0.checkpoint_pi0 import LAYOUT
from embodyflow.policies.embodied.pi0.modeling_pi0 import ContextModel


class PI0Critic(FlowVLACritic):
    """Values the output of an expert of its own for the state, which attends to images and instruction only."""

    layout = LAYOUT

    def build_reader(self, description: Description) -> ContextModel:
        """Return the PaliGemma and the expert."""
        return ContextModel(description)
