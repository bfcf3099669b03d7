"""Small SmolVLAs, of random weights and of weights by a rule, and what they see."""

from typing import Any

import numpy as np
import torch

from embodyflow.policies.smolvla.configuration_smolvla import SmolVLAConfig, SmolVLAScratchConfig
from embodyflow.policies.smolvla.policy_smolvla import SmolVLAPolicy

TOKENIZER = "embodyflow.policies.smolvla.tokenizer_smolvla:build_tokenizer"
INSTRUCTIONS = ("open the drawer", "push")
Array = np.ndarray


def new_config(**keys: Any) -> SmolVLAConfig:
    sizes = {"state_dim": 5, "action_dim": 3, "chunk_size": 4, "num_steps": 3, "cameras": ("image", "wrist_image")}
    means = {"normalization": "demonstrations", "train_expert_only": False}
    return SmolVLAConfig(**({"scratch": SmolVLAScratchConfig(), "tokenizer": TOKENIZER, **sizes, **means} | keys))


def new_policy(**keys: Any) -> SmolVLAPolicy:
    """Make a policy whose weights anybody can work out; its attention is far from even, as a trained one's is."""
    policy = SmolVLAPolicy(new_config(**keys), "cpu")
    if policy.config.path is None:
        policy.model.load_state_dict(by_rule(policy.model))
    return policy


def by_rule(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return weights that are sines: of a matrix as large as random ones, of a vector a tenth beside what it is."""
    state = {}
    for number, (name, value) in enumerate(sorted(model.state_dict().items())):
        waves = np.sin(0.7 * np.arange(value.numel()) ** 1.1 + number).reshape(value.shape)
        one = 1.0 if ("norm" in name and name.endswith("weight")) or name.endswith("_std") else 0.0
        scale = 0.1 if value.dim() == 1 else 2.0 / np.sqrt(value[0].numel())
        state[name] = torch.from_numpy(one + scale * waves).float()
    return state


def observe(policy: SmolVLAPolicy, num_rows: int, size: tuple[int, int] = (20, 26)) -> dict[str, Array]:
    rng = np.random.default_rng(0)
    instructions = [policy.encode_instruction(INSTRUCTIONS[row % len(INSTRUCTIONS)]) for row in range(num_rows)]
    cameras = policy.config.cameras
    images = {camera: rng.integers(256, size=(num_rows, *size, 3), dtype=np.uint8) for camera in cameras}
    state = rng.normal(size=(num_rows, policy.config.state_dim)).astype(np.float32)
    return {"instruction_ids": np.stack(instructions), "state": state, **images}
