"""Small ACTs, with random weights or weights by a formula, and what LeRobot computes with the latter."""

from typing import Any

import numpy as np
import torch
from flow_vla_models import by_rule

from embodyflow.policies.embodied.act.configuration_act import ACTConfig, ACTScratchConfig
from embodyflow.policies.embodied.act.policy_act import ACTPolicy

SCRATCH = ACTScratchConfig(
    dim_model=16,
    n_heads=2,
    dim_feedforward=24,
    n_encoder_layers=2,
    n_decoder_layers=2,
    n_vae_encoder_layers=1,
    latent_dim=4,
)
SIZES = {"state_dim": 5, "action_dim": 2, "chunk_size": 3, "normalization": "demonstrations"}
STATES: dict[str, Any] = {"robot_state_dim": 2}
IMAGES: dict[str, Any] = {"robot_state_dim": 3, "cameras": ("image",)}
GOLDEN = {
    "states": [
        [
            2.085700035095215,
            -2.3885693550109863,
            2.228989601135254,
            -2.376922369003296,
            2.164452075958252,
            -2.53503155708313,
        ],
        [
            -0.2123647928237915,
            3.3207058906555176,
            -0.21193361282348633,
            3.3244900703430176,
            -0.2061079740524292,
            3.3118579387664795,
        ],
    ],
    "images": [
        [
            -1.1361416578292847,
            3.6517887115478516,
            -1.1766881942749023,
            3.6790149211883545,
            -1.1561439037322998,
            3.6653969287872314,
        ],
        [
            2.5896482467651367,
            -3.266829013824463,
            2.8394522666931152,
            -3.517160415649414,
            2.5075621604919434,
            -3.5639419555664062,
        ],
    ],
}
"""Standardised actions of LeRobot 0.4.4's ACTPolicy and torchvision 0.28, strictly loaded from what we export."""
GOLDEN_LOSSES = {"states": (1.0615222454071045, 6.527048587799072), "images": (1.7566534280776978, 15.219291687011719)}
"""Its absolute error, as a mean over all numbers, and its divergence, without dropout; see :func:`golden_imitation`."""


def new_config(**keys: Any) -> ACTConfig:
    return ACTConfig(**({"scratch": SCRATCH} | SIZES | STATES | keys))


def new_policy(**keys: Any) -> ACTPolicy:
    torch.manual_seed(0)
    return ACTPolicy(new_config(**keys), "cpu")


def golden_policy(kind: str) -> ACTPolicy:
    policy = new_policy(**(IMAGES if kind == "images" else STATES))
    weights = by_rule(policy.model)
    variances = {name: value.abs() + 0.5 for name, value in weights.items() if name.endswith("running_var")}
    policy.model.load_state_dict(weights | variances)
    return policy


def golden_observation(kind: str) -> dict[str, torch.Tensor]:
    seen = {"state": torch.from_numpy(np.cos(0.9 * np.arange(10)).reshape(2, 5)).float()}
    if kind == "images":
        waves = (127.5 * (1 + np.sin(0.01 * np.arange(2 * 40 * 70 * 3)))).astype(np.uint8)
        seen["image"] = torch.from_numpy(waves).view(2, 40, 70, 3)
    return seen


def golden_imitation(policy: ACTPolicy) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return actions, a mask that leaves out the last one, and uniforms of the latents."""
    target = torch.from_numpy(np.cos(0.7 * np.arange(12)).reshape(2, 3, 2)).float()
    mask = torch.ones(2, 3, dtype=torch.bool)
    mask[1, 2] = False
    normals = torch.from_numpy(np.sin(1.3 * np.arange(8)).reshape(2, 4)).float()
    return policy.model.statistics.actions(target), mask, torch.special.ndtr(normals)


def export(policy: ACTPolicy, folder: Any) -> dict[str, np.ndarray]:
    """Export a policy's weights into a folder and return them."""
    weights = {name: value.numpy() for name, value in policy.model.state_dict().items()}
    policy.export(weights, folder)
    return weights
