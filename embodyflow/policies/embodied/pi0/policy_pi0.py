"""π0 as an :class:`~embodyflow.policies.base.ImitatingPolicy`."""

import numpy as np

from embodyflow.policies.embodied.flow_vla.modeling_flow_vla import FlowVLA
from embodyflow.policies.embodied.flow_vla.tokenizer_flow_vla import prompt_ids
from embodyflow.policies.embodied.flow_vla.whole_chunk_flow_vla import WholeChunkPolicy
from embodyflow.policies.embodied.pi0.checkpoint_pi0 import LAYOUT
from embodyflow.policies.embodied.pi0.modeling_pi0 import build_model


class PI0Policy(WholeChunkPolicy):
    """Denoises as many actions as π0 was trained with, since each attends to all others; executes the first C."""

    layout = LAYOUT

    def build_model(self) -> FlowVLA:
        """Return the model; see :func:`~embodyflow.policies.embodied.pi0.modeling_pi0.build_model`."""
        return build_model(self.description, self.config.train_expert_only)

    def encode_instruction(self, instruction: str) -> np.ndarray:
        """Return the prompt as int64 ``[I]``, with PaliGemma's first token in front; 0 is padding."""
        first: int | None = self.tokenizer.bos_token_id
        return prompt_ids(self.tokenizer, instruction, self.config.max_prompt_tokens, first)
