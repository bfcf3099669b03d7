"""π0.5 as an :class:`~embodyflow.policies.base.ImitatingPolicy`."""

import numpy as np

from embodyflow.policies.embodied.flow_vla.modeling_flow_vla import FlowVLA
from embodyflow.policies.embodied.flow_vla.whole_chunk_flow_vla import WholeChunkPolicy
from embodyflow.policies.embodied.pi05.checkpoint_pi05 import LAYOUT
from embodyflow.policies.embodied.pi05.modeling_pi05 import build_model
from embodyflow.policies.embodied.pi05.prompt_pi05 import StatePrompt


class PI05Policy(WholeChunkPolicy):
    """Denoises as many actions as π0.5 was trained with, since each attends to all others; executes the first C."""

    layout = LAYOUT

    def build_model(self) -> FlowVLA:
        """Return the model; see :func:`~embodyflow.policies.embodied.pi05.modeling_pi05.build_model`."""
        self._prompt = StatePrompt(self.tokenizer)
        return build_model(self.description, self._prompt, self.config.train_expert_only)

    def encode_instruction(self, instruction: str) -> np.ndarray:
        """Return the prompt up to the state as int64 ``[I]``; 0 is padding."""
        num_features = int(self.description.config["max_state_dim"])
        return self._prompt.begin(instruction, num_features, self.config.max_prompt_tokens)
