"""A small vision-language-action policy that trains in a minute on a laptop."""

from embodyflow.policies.tiny_vla.configuration_tiny_vla import TinyVLAConfig
from embodyflow.policies.tiny_vla.modeling_tiny_vla import (
    TinyVLA,
    TinyVLAValue,
    greedy_tokens,
    sample_tokens,
    token_entropy,
    token_log_probs,
)
from embodyflow.policies.tiny_vla.processing_tiny_vla import TinyVLAProcessor

__all__ = [
    "TinyVLA",
    "TinyVLAConfig",
    "TinyVLAProcessor",
    "TinyVLAValue",
    "greedy_tokens",
    "sample_tokens",
    "token_entropy",
    "token_log_probs",
]
