"""Parts of small policies that denoise by flow matching, and observations for them."""

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from embodyflow.errors import ConfigError
from embodyflow.policies.embodied.flow_vla.checkpoint_flow_vla import check_checkpoint

TOKENIZER = "embodyflow.policies.embodied.flow_vla.tokenizer_flow_vla:build_tokenizer"
INSTRUCTIONS = ("open the drawer", "push")
SIZES = {"state_dim": 5, "action_dim": 3, "chunk_size": 4, "num_steps": 3, "cameras": ("image", "wrist_image")}
MEANS = {"normalization": "demonstrations", "train_expert_only": False}
Array = np.ndarray


def with_weights_by_rule(policy: Any) -> Any:
    """Give a policy weights by a formula; its attention is far from even, like a trained policy's."""
    if policy.config.path is None:
        policy.model.load_state_dict(by_rule(policy.model))
    return policy


def by_rule(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return sines as weights: in matrices as large as random weights, in vectors up to 0.1 around their default."""
    state = {}
    for number, (name, value) in enumerate(sorted(model.state_dict().items())):
        waves = np.sin(0.7 * np.arange(value.numel()) ** 1.1 + number).reshape(value.shape)
        is_scale = value.dim() == 1 and "norm" in name and name.endswith("weight")
        one = 1.0 if is_scale or name.endswith(("_std", "_q99")) else -1.0 if name.endswith("_q01") else 0.0
        scale = 0.1 if value.dim() == 1 else 2.0 / np.sqrt(value[0].numel())
        state[name] = torch.from_numpy(one + scale * waves).float()
    return state


def observe(policy: Any, num_rows: int, size: tuple[int, int] = (20, 26)) -> dict[str, Array]:
    rng = np.random.default_rng(0)
    instructions = [policy.encode_instruction(INSTRUCTIONS[row % len(INSTRUCTIONS)]) for row in range(num_rows)]
    cameras = policy.config.cameras
    images = {camera: rng.integers(256, size=(num_rows, *size, 3), dtype=np.uint8) for camera in cameras}
    state = rng.normal(size=(num_rows, policy.config.state_dim)).astype(np.float32)
    return {"instruction_ids": np.stack(instructions), "state": state, **images}


def tensors(observation: dict[str, Array]) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(values) for name, values in observation.items()}


def golden_noise() -> torch.Tensor:
    return torch.from_numpy(np.sin(1.3 * np.arange(64)).reshape(2, 4, 8)).float()


def golden_uniforms() -> Array:
    """Return uniforms, float32 [2, H, K + 1, Amax], of the golden noise, with none in the steps."""
    uniforms = np.full((2, 4, 4, 8), 0.5, np.float32)
    uniforms[:, :, 0] = torch.special.ndtr(golden_noise()).numpy()
    return uniforms


def golden_imitation(policy: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return actions, mask and uniforms of the golden noise, for two samples at times 0.3 and 0.8."""
    targets = torch.from_numpy(np.cos(0.9 * np.arange(24)).reshape(2, 4, 3)).float()
    times = torch.tensor([[0.3], [0.8]])
    uniforms = torch.cat([torch.special.ndtr(golden_noise()).flatten(1), ((times - 0.001) / 0.999) ** 1.5], dim=1)
    return policy.model.statistics.actions(targets), torch.ones(2, 4, dtype=torch.bool), uniforms


def write_checkpoint(models: ModuleType, folder: Path) -> Any:
    """Write a folder in LeRobot's layout, in bfloat16 where LeRobot uses it; return a configuration for it."""
    policy = models.new_policy()
    policy.export({name: value.numpy() for name, value in policy.model.state_dict().items()}, folder)
    state = load_file(folder / "model.safetensors")
    halved = {name: value.bfloat16() if models.VLM in name else value for name, value in state.items()}
    save_file(halved, folder / "model.safetensors")
    return models.new_config(scratch=None, tokenizer=None, path=str(folder), normalization="checkpoint")


def nothing(folder: Path) -> None:
    """Leave the folder as it is."""


def assert_refused(
    models: ModuleType, folder: Path, spoil: Callable[[Path], object], keys: dict[str, Any], message: str
) -> None:
    """Check that a spoiled checkpoint, or one with other keys, is refused in one line without reading weights."""
    config = write_checkpoint(models, folder)
    check_checkpoint(models.LAYOUT, config)
    spoil(folder)
    with pytest.raises(ConfigError, match=message) as error:
        check_checkpoint(models.LAYOUT, models.Config.model_validate(config.model_dump() | keys))
    assert "\n" not in str(error.value)
