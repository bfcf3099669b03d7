"""π0 behind the interface of :mod:`embodyflow.policies.base`."""

import numpy as np

from embodyflow.policies.flow_vla.modeling_flow_vla import FlowVLA
from embodyflow.policies.flow_vla.policy_flow_vla import FlowVLAPolicy
from embodyflow.policies.flow_vla.tokenizer_flow_vla import prompt_ids
from embodyflow.policies.pi0.checkpoint_pi0 import LAYOUT
from embodyflow.policies.pi0.modeling_pi0 import build_model


class PI0Policy(FlowVLAPolicy):
    """π0; it denoises as many actions as it was trained with, since each heeds all others, and executes the first."""

    layout = LAYOUT

    def build_model(self) -> FlowVLA:
        """See :func:`~embodyflow.policies.pi0.modeling_pi0.build_model`."""
        return build_model(self.description, self.config.train_expert_only)

    @property
    def horizon(self) -> int:
        """H, the checkpoint's ``chunk_size``."""
        return int(self.description.config["chunk_size"])

    @property
    def num_imitated_dims(self) -> int:
        """A: LeRobot leaves the padding of π0 to itself."""
        return self.config.action_dim

    def encode_instruction(self, instruction: str) -> np.ndarray:
        """Return the prompt as int64 ``[I]``, begun as every prompt of a PaliGemma is; 0 is padding."""
        first: int | None = self.tokenizer.bos_token_id
        return prompt_ids(self.tokenizer, instruction, self.config.max_prompt_tokens, first)
