"""Small π0.5s, with random weights or weights by a formula."""

from typing import Any

from flow_vla_models import MEANS, SIZES, TOKENIZER, with_weights_by_rule
from pi0_models import SCRATCH
from pi0_models import VLM as VLM
from pi0_models import unused as unused

from embodyflow.policies.embodied.pi05.checkpoint_pi05 import LAYOUT as LAYOUT
from embodyflow.policies.embodied.pi05.configuration_pi05 import PI05Config
from embodyflow.policies.embodied.pi05.critic_pi05 import PI05Critic
from embodyflow.policies.embodied.pi05.policy_pi05 import PI05Policy

Config, Policy = PI05Config, PI05Policy
LENGTHS = (72, 90)
"""Two lengths of prompts that are long enough."""
NUM_TOKENS = len("Task: , State:") + 8 * len(" 255") + len(";\nAction: ")
"""Tokens of the longest prompt beside the instruction's, one of each character."""
GOLDEN = [
    [
        [-1.46122718, 2.33303428, 1.05433512],
        [-1.75864577, 0.71364874, 1.87852812],
        [0.15136158, 0.94235879, -0.03147262],
        [-1.55402708, 2.16705751, 0.91586274],
    ],
    [
        [-1.60888004, 0.16185170, 1.34767509],
        [-0.34441006, 0.91730911, -0.22176707],
        [-1.47838151, 1.98281288, 1.02376008],
        [-0.95535439, 0.56018788, 1.61888719],
    ],
]
"""Actions of LeRobot 0.4.4's PI05Policy and its processors, by ``tests/support/lerobot_play/play_pi05.py``."""
GOLDEN_LOSS = 2.22879672
TOLERANCE = 2e-5


def new_config(**keys: Any) -> PI05Config:
    return PI05Config(**({"scratch": SCRATCH, "tokenizer": TOKENIZER, "max_prompt_tokens": 80} | SIZES | MEANS | keys))


def random_policy(**keys: Any) -> PI05Policy:
    return Policy(new_config(**keys), "cpu")


def new_policy(**keys: Any) -> PI05Policy:
    return with_weights_by_rule(random_policy(**keys))


def new_critic() -> PI05Critic:
    return PI05Critic(new_config(), "cpu")
