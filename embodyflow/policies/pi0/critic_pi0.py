"""π0's critic behind the interface of :mod:`embodyflow.policies.base`."""

from embodyflow.policies.flow_vla.checkpoint_flow_vla import Description
from embodyflow.policies.flow_vla.critic_flow_vla import FlowVLACritic
from embodyflow.policies.pi0.checkpoint_pi0 import LAYOUT
from embodyflow.policies.pi0.modeling_pi0 import ContextModel


class PI0Critic(FlowVLACritic):
    """Values what an expert of its own makes of the state, which attends to images and instruction and to no action."""

    layout = LAYOUT

    def build_reader(self, description: Description) -> ContextModel:
        """Return PaliGemma and expert."""
        return ContextModel(description)
