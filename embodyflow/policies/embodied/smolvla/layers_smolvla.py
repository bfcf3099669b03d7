"""Layers of SmolVLA's language model and action expert: Llama's, some of which attend to the language model alone.

See Shukor et al., 2025, arXiv:2506.01844, section 3.1.
"""

import copy

from torch import Tensor
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaMLP, LlamaRMSNorm

from embodyflow.policies.embodied.flow_vla.layers_flow_vla import KeysAndValues, Layer, SelfAttention


class CrossAttention(SelfAttention):
    """Attention to the context alone, whose keys and values it maps once more."""

    is_cross_attention = True

    def keys_and_values(self, hidden: Tensor, rotary: Tensor, context: KeysAndValues | None) -> KeysAndValues:
        """Return the context's keys and values, mapped to keys and values of this layer."""
        assert context is not None, "attends to nothing else"
        keys, values = (each.transpose(1, 2).flatten(2) for each in context)
        return self._heads(self.k_proj(keys)), self._heads(self.v_proj(values))


class LlamaLayer(Layer):
    """A layer of the language model or of the expert.

    Args:
        config: Sizes.
        context_size: Features of the context's keys and of its values; ``None`` for self-attention.
    """

    def __init__(self, config: LlamaConfig, context_size: int | None = None) -> None:
        attention = (
            SelfAttention(config, config.hidden_size) if context_size is None else CrossAttention(config, context_size)
        )
        super().__init__(config, attention, LlamaRMSNorm, LlamaMLP)


def expert_config(text: LlamaConfig, width: float) -> LlamaConfig:
    """Return the sizes of an expert, ``width`` times as wide as the language model, with heads of the same size.

    Its MLP is 8/3 times as wide as the expert, in steps of 256, as in LeRobot.
    """
    config = copy.deepcopy(text)
    config.hidden_size = int(text.hidden_size * width)
    config.intermediate_size = 256 * -(-4 * int(2 * config.hidden_size / 3) // 256)
    return config
