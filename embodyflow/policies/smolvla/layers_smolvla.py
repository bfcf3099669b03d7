"""Layers of SmolVLA's language model and action expert: Llama's, of which some attend to the language model alone.

(Shukor et al., 2025, arXiv:2506.01844, section 3.1.)
"""

import copy

from torch import Tensor
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaMLP, LlamaRMSNorm

from embodyflow.policies.flow_vla.layers_flow_vla import KeysAndValues, Layer, SelfAttention


class CrossAttention(SelfAttention):
    """Attends to what came before alone, whose keys and values it maps once more."""

    crosses = True

    def keys_and_values(self, hidden: Tensor, turn: Tensor, before: KeysAndValues | None) -> KeysAndValues:
        """Return keys and values made from keys and from values."""
        assert before is not None, "attends to nothing else"
        keys, values = (each.transpose(1, 2).flatten(2) for each in before)
        return self._heads(self.k_proj(keys)), self._heads(self.v_proj(values))


class LlamaLayer(Layer):
    """A layer of the language model or of the expert.

    Args:
        config: sizes.
        context_size: features of the keys, and of the values, that it attends to; ``None`` where it attends to itself.
    """

    def __init__(self, config: LlamaConfig, context_size: int | None = None) -> None:
        attention = (
            SelfAttention(config, config.hidden_size) if context_size is None else CrossAttention(config, context_size)
        )
        super().__init__(config, attention, LlamaRMSNorm, LlamaMLP)


def expert_config(text: LlamaConfig, width: float) -> LlamaConfig:
    """Return the sizes of an expert: the language model's, ``width`` times as wide but with heads of the same size.

    Its MLP is 8/3 as wide, in steps of 256, as LeRobot has it.
    """
    config = copy.deepcopy(text)
    config.hidden_size = int(text.hidden_size * width)
    config.intermediate_size = 256 * -(-4 * int(2 * config.hidden_size / 3) // 256)
    return config
