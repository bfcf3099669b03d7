"""Small SmolVLAs, with random weights or weights by a formula."""

from typing import Any

from flow_vla_models import MEANS, SIZES, TOKENIZER, with_weights_by_rule

from embodyflow.policies.embodied.smolvla.checkpoint_smolvla import LAYOUT as LAYOUT
from embodyflow.policies.embodied.smolvla.configuration_smolvla import SmolVLAConfig, SmolVLAScratchConfig
from embodyflow.policies.embodied.smolvla.critic_smolvla import SmolVLACritic
from embodyflow.policies.embodied.smolvla.policy_smolvla import SmolVLAPolicy

Config, Policy = SmolVLAConfig, SmolVLAPolicy
VLM = ".vlm."
"""Part of the names of the vision-language model's weights."""
SCRATCH = SmolVLAScratchConfig()
LENGTHS = (16, 40)
"""Two lengths of prompts that are long enough."""
NUM_TOKENS = 1
"""Tokens of the longest prompt beside the instruction's, one of each character."""
GOLDEN = [
    [
        [-0.39483476, 0.08359122, -0.03420590],
        [-0.15407315, -1.02731204, -1.60406983],
        [1.60317469, -0.85597628, -2.72379088],
        [-1.18995178, 0.44899175, 2.15225959],
    ],
    [
        [0.65146708, -2.25634933, -2.32482529],
        [1.89609110, -1.50114560, -3.12910986],
        [-1.29863465, 0.82271326, 0.78370386],
        [0.18700612, -2.06666803, -1.73861063],
    ],
]
"""Actions of LeRobot 0.4.4's SmolVLAPolicy and its processors, loaded from what `new_policy` exports.

The vision tower of transformers 4.57.6, which counts patches 0, 0, 1, 2 (its issue 41190), was made to count 0 to 3.
"""
TOLERANCE = 2e-5
GOLDEN_LOSS = 2.87983513


def new_config(**keys: Any) -> SmolVLAConfig:
    return SmolVLAConfig(**({"scratch": SCRATCH, "tokenizer": TOKENIZER} | SIZES | MEANS | keys))


def random_policy(**keys: Any) -> SmolVLAPolicy:
    return Policy(new_config(**keys), "cpu")


def new_policy(**keys: Any) -> SmolVLAPolicy:
    return with_weights_by_rule(random_policy(**keys))


def new_critic() -> SmolVLACritic:
    return SmolVLACritic(new_config(), "cpu")


def unused() -> tuple[str, ...]:
    """Return the beginnings of the names of weights that have no effect."""
    text = "model.vlm_with_expert.vlm.model.text_model"
    layer = ("self_attn.q_proj", "self_attn.o_proj", "post_attention_layernorm", "mlp.")
    return (*(f"{text}.layers.1.{part}" for part in layer), f"{text}.norm", "model.vlm_with_expert.vlm.lm_head")
