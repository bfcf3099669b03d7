"""Critic of π0.5, as :class:`~embodyflow.policies.base.Critic`."""

from embodyflow.policies.embodied.flow_vla.checkpoint_flow_vla import Description
from embodyflow.policies.embodied.flow_vla.critic_flow_vla import FlowVLACritic
from embodyflow.policies.embodied.pi05.checkpoint_pi05 import LAYOUT
from embodyflow.policies.embodied.pi05.modeling_pi05 import ContextModel
from embodyflow.policies.embodied.pi05.prompt_pi05 import StatePrompt


class PI05Critic(FlowVLACritic):
    """Values the language model's output for the prompt's last token, which has read images, instruction and state."""

    layout = LAYOUT

    def build_reader(self, description: Description) -> ContextModel:
        """Return the PaliGemma."""
        return ContextModel(description, StatePrompt(self.tokenizer))
