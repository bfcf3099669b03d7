"""SmolVLA's critic behind the interface of :mod:`embodyflow.policies.base`."""

from embodyflow.policies.flow_vla.checkpoint_flow_vla import Description
from embodyflow.policies.flow_vla.critic_flow_vla import FlowVLACritic
from embodyflow.policies.smolvla.checkpoint_smolvla import LAYOUT
from embodyflow.policies.smolvla.modeling_smolvla import ContextModel


class SmolVLACritic(FlowVLACritic):
    """Values what a vision-language model of its own makes of the state; the expert has no part in it."""

    layout = LAYOUT

    def build_reader(self, description: Description) -> ContextModel:
        """Return the vision-language model."""
        return ContextModel(description)
