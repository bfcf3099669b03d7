"""Small π0s, with random weights or weights by a formula."""

from typing import Any

from flow_vla_models import MEANS, SIZES, TOKENIZER, with_weights_by_rule

from embodyflow.policies.embodied.flow_vla.configuration_flow_vla import PaliGemmaScratchConfig
from embodyflow.policies.embodied.pi0.checkpoint_pi0 import LAYOUT as LAYOUT
from embodyflow.policies.embodied.pi0.configuration_pi0 import PI0Config
from embodyflow.policies.embodied.pi0.critic_pi0 import PI0Critic
from embodyflow.policies.embodied.pi0.policy_pi0 import PI0Policy

Config, Policy = PI0Config, PI0Policy
VLM = ".paligemma."
"""Part of the names of the vision-language model's weights."""
SCRATCH = PaliGemmaScratchConfig(num_attention_heads=8, num_key_value_heads=1, head_dim=8)
"""Sizes with the eight heads that LeRobot's π0 assumes."""
LENGTHS = (16, 40)
"""Two lengths of prompts that are long enough."""
NUM_TOKENS = 1
"""Tokens of the longest prompt beside the instruction's, one of each character."""
GOLDEN = [
    [
        [-3.56155324, 3.76742077, 3.03193474],
        [-1.10363042, -3.58611655, 0.48592052],
        [-1.07324266, 0.05228338, 1.48532331],
        [1.70298398, 0.03936363, 0.89592081],
    ],
    [
        [5.24272013, -3.64046216, -2.74000311],
        [3.63383865, 0.96833062, -1.33033419],
        [5.15266085, -1.86933374, -0.75108093],
        [2.40987253, -2.46303487, -3.49858189],
    ],
]
"""Actions of LeRobot 0.4.4's PI0Policy and its processors, loaded from what `new_policy` exports.

transformers 4.57.6 was changed as LeRobot requires (language models scale neither embeddings nor images). Images were
padded by black: LeRobot 0.4.4 pads images in [0, 1] by -1, which is black only in [-1, 1] (its issue 2218).
"""
GOLDEN_OF_ONE_CAMERA = [
    [
        [-3.71089005, 4.32214499, 3.85101295],
        [-0.15177689, -3.14010262, 0.14993438],
        [-1.02344477, 2.12856650, 2.13637328],
        [-0.28687289, 1.60026455, 1.23336112],
    ],
    [
        [5.10203791, -3.03344083, -2.71801710],
        [2.58335423, 1.71500647, 0.26545429],
        [4.31406832, -2.71188235, -0.52476138],
        [0.77909327, -0.60541058, -1.08392167],
    ],
]
"""The same actions without the second of the checkpoint's cameras."""
TOLERANCE = 1e-4
"""Tolerance of the actions, which are larger than SmolVLA's."""
GOLDEN_LOSS = 11.10897541
FEATURES = {
    "input_features": {"observation.state": {"type": "STATE", "shape": [32]}},
    "output_features": {"action": {"type": "ACTION", "shape": [32]}},
}
"""States and actions of the published checkpoints, π0 and π0.5."""
PREFIX = "model.paligemma_with_expert."
WORDS = f"{PREFIX}paligemma.model.language_model.embed_tokens.weight"
HEAD = f"{PREFIX}paligemma.lm_head.weight"


def new_config(**keys: Any) -> PI0Config:
    return PI0Config(**({"scratch": SCRATCH, "tokenizer": TOKENIZER} | SIZES | MEANS | keys))


def random_policy(**keys: Any) -> PI0Policy:
    return Policy(new_config(**keys), "cpu")


def new_policy(**keys: Any) -> PI0Policy:
    return with_weights_by_rule(random_policy(**keys))


def new_critic() -> PI0Critic:
    return PI0Critic(new_config(), "cpu")


def unused() -> tuple[str, ...]:
    """Return the beginnings of the names of weights that have no effect."""
    text = "model.paligemma_with_expert.paligemma.model.language_model"
    layer = ("self_attn.q_proj", "self_attn.o_proj", "post_attention_layernorm", "mlp.")
    return (*(f"{text}.layers.1.{part}" for part in layer), f"{text}.norm")
