"""Critic of a language model, as :class:`~embodyflow.policies.base.Critic`."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from tensordict import TensorDict

from embodyflow.policies.language.causal_lm.configuration_causal_lm import CausalLMConfig
from embodyflow.policies.language.causal_lm.modeling_causal_lm import blocks_of, build_value_model
from embodyflow.policies.language.causal_lm.policy_causal_lm import before_responses, pack
from embodyflow.policies.language.causal_lm.tokenizer_causal_lm import build_tokenizer


class CausalLMCritic:
    """Values the text so far, with a model of the policy's architecture and a head of one number.

    Args:
        config: Configuration of the policy.
        device: Device of the model.
    """

    def __init__(self, config: CausalLMConfig, device: str) -> None:
        self.model: torch.nn.Module = build_value_model(config, build_tokenizer(config)).to(device)
        self._device = device

    @property
    def blocks(self) -> Sequence[torch.nn.Module]:
        """Layers of the decoder."""
        return blocks_of(self.model)

    def evaluate(self, batch: TensorDict) -> torch.Tensor:
        """Return the value before each token of the responses, float32 ``[N, R]``; zero after their ends."""
        packed = pack(batch, self.model, self._device)
        values = before_responses(self.model, packed)[:, 0]
        blank = values.new_zeros(batch["loss_mask"].shape[:2])
        if not len(packed.targets):
            return values.sum() * 0.0 + blank
        return blank.index_put((packed.rows, packed.steps), values)

    def start_from(self, policy_state: Mapping[str, Any]) -> None:
        """Take over the policy's weights, except its head."""
        own = self.model.state_dict()
        self.model.load_state_dict({name: policy_state.get(name, value) for name, value in own.items()})
