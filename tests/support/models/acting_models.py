"""Every policy that acts, in small: the shipped ones, and the example of another package's."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import openvla_models
import pi0_models
import pi05_models
import pytest
import smolvla_models
import torch
from flow_vla_models import MEANS, SIZES, TOKENIZER
from safetensors.torch import load_file

from embodyflow.errors import ConfigError
from embodyflow.policies.embodied.tiny_vla.modeling_tiny_vla import TinyVLA
from embodyflow.policies.policy_config import ActingPolicyConfig
from embodyflow.policies.policy_registry import build_acting_policy, find_policy, validate_policy

INSTRUCTIONS = ("open the drawer", "push")
OWN_POLICY = "examples.own_policy.policy:Policy"


@dataclass(frozen=True)
class ActingModel:
    """A small policy.

    Attributes:
        make: Builds it.
        load: Builds it again, from its configuration and the folder of its export.
    """

    make: Callable[[], Any]
    load: Callable[[Any, Path], Any]


def assert_weights_refused(config: ActingPolicyConfig, message: str) -> None:
    """Check that a local checkpoint is refused before a start, from the headers of its files, and when it is loaded."""
    uses: tuple[Callable[[], object], ...] = (
        lambda: find_policy(config.name).run_check(config, None),
        lambda: build_acting_policy(config, "cpu"),
    )
    for use in uses:
        with pytest.raises(ConfigError, match=message) as error:
            use()
        assert "\n" not in str(error.value)


def observe(policy: Any, num_rows: int) -> dict[str, np.ndarray]:
    """Make observations of the shapes that the policy's configuration states; images of any size are 20 × 26."""
    rng = np.random.default_rng(0)
    instructions = [policy.encode_instruction(INSTRUCTIONS[row % len(INSTRUCTIONS)]) for row in range(num_rows)]
    observation = {"instruction_ids": np.stack(instructions)}
    for name, shape in policy.config.observation_shapes.items():
        if len(shape) == 1:
            observation[name] = rng.normal(size=(num_rows, *shape)).astype(np.float32)
        else:
            size = [side or default for side, default in zip(shape, (20, 26, 3), strict=True)]
            observation[name] = rng.integers(256, size=(num_rows, *size), dtype=np.uint8)
    return observation


def _plain(name: str, load: Callable[[Any, Path], Any], **section: Any) -> ActingModel:
    """Return a policy that is built by its section of a configuration."""

    def make() -> Any:
        torch.manual_seed(0)
        return build_acting_policy(validate_policy({"name": name, **section}, ActingPolicyConfig), "cpu")

    return ActingModel(make, load)


def _load_weights(config: Any, folder: Path) -> Any:
    read = validate_policy(config.model_validate_json((folder / "config.json").read_text()).model_dump(), type(config))
    assert read == config
    policy = build_acting_policy(read, "cpu")
    policy.model.load_state_dict(load_file(folder / "model.safetensors"))
    return policy


def _load_tiny_vla(config: Any, folder: Path) -> Any:
    policy = build_acting_policy(config, "cpu")
    policy.model = TinyVLA.from_pretrained(folder)
    return policy


def _load_checkpoint(config: Any, folder: Path, **keys: Any) -> Any:
    section = config.model_dump() | {"path": str(folder), "scratch": None, "tokenizer": None} | keys
    return build_acting_policy(validate_policy(section, ActingPolicyConfig), "cpu")


_tiny_vla = partial(_plain, "tiny_vla", _load_tiny_vla, action_dim=2, chunk_size=3, num_bins=8, hidden_size=16)
_load_flow_vla = partial(_load_checkpoint, normalization="checkpoint")


def _load_act(config: Any, folder: Path) -> Any:
    section = config.model_dump() | {"path": str(folder), "scratch": None, "normalization": "checkpoint"}
    return build_acting_policy(validate_policy(section, ActingPolicyConfig), "cpu")


_SMALL_ACT = {
    **{"dim_model": 16, "n_heads": 2, "dim_feedforward": 24, "n_encoder_layers": 1, "n_vae_encoder_layers": 1},
    **{"latent_dim": 4, "backbone_width": 4},
}
_ACT = {"state_dim": 5, "action_dim": 2, "chunk_size": 3, "normalization": "demonstrations"}
_NORMALISED = {"normalize_observations": True, "normalize_returns": True}
_EXPERT = {"train_expert_only": True, "cameras": ("image",), "chunk_size": 1}
_STEERED = SIZES | MEANS | {"tokenizer": TOKENIZER, "hidden_size": 16, "num_critics": 3}
_DENOISED = {
    **{"state_dim": 3, "action_dim": 2, "chunk_size": 3, "hidden_size": 16, "num_layers": 1},
    **{"num_noise_levels": 12, "num_steps": 4, "min_noise": 0.2, "min_log_prob_noise": 0.2},
}
_PICTURED = {
    **{"state_dim": 3, "action_dim": 2, "chunk_size": 3, "hidden_size": 16},
    **{"image_size": 16, "channels": 4, "image_features": 6},
}
_TWO_CAMERAS = {"decoding": "parallel", "chunk_size": 2, "cameras": ("image", "wrist_image")}

MODELS = {
    "TinyVLA of states": _tiny_vla(state_dim=6),
    "TinyVLA that normalises": _tiny_vla(state_dim=6, normalize_observations=True),
    "TinyVLA of states and images": _tiny_vla(state_dim=6, image_size=16),
    "TinyVLA of images": _tiny_vla(state_dim=0, image_size=16),
    "TinyVLA of choices": _plain(
        "tiny_vla", _load_tiny_vla, state_dim=6, action_dim=2, chunk_size=3, num_choices=[5, 3], hidden_size=16
    ),
    "OpenVLA": ActingModel(openvla_models.new_policy, _load_checkpoint),
    "OpenVLA-OFT": ActingModel(partial(openvla_models.new_policy, decoding="parallel", chunk_size=2), _load_checkpoint),
    "OpenVLA-OFT of two cameras": ActingModel(partial(openvla_models.new_policy, **_TWO_CAMERAS), _load_checkpoint),
    "OpenVLA-OFT with a regression head": ActingModel(openvla_models.new_l1_policy, _load_checkpoint),
    "OpenVLA-OFT with a regression head, of two cameras alone": ActingModel(
        partial(openvla_models.new_l1_policy, state_dim=0, cameras=("image", "wrist_image")), _load_checkpoint
    ),
    "SmolVLA": ActingModel(smolvla_models.new_policy, _load_flow_vla),
    "SmolVLA's expert": ActingModel(partial(smolvla_models.new_policy, **_EXPERT), _load_flow_vla),
    "π0": ActingModel(pi0_models.new_policy, _load_flow_vla),
    "π0's expert": ActingModel(partial(pi0_models.new_policy, **_EXPERT), _load_flow_vla),
    "π0.5": ActingModel(pi05_models.new_policy, _load_flow_vla),
    "π0.5's expert": ActingModel(partial(pi05_models.new_policy, **_EXPERT), _load_flow_vla),
    "MLPGaussian": _plain("mlp_gaussian", _load_weights, state_dim=3, action_dim=2, hidden_size=8),
    "MLPGaussian that normalises": _plain(
        "mlp_gaussian", _load_weights, state_dim=3, action_dim=2, hidden_size=8, **_NORMALISED
    ),
    "MLPCategorical": _plain("mlp_categorical", _load_weights, state_dim=3, num_actions=5, hidden_size=8),
    "MLPCategorical that normalises": _plain(
        "mlp_categorical", _load_weights, state_dim=3, num_actions=5, hidden_size=8, **_NORMALISED
    ),
    "MLPSquashed": _plain("mlp_squashed", _load_weights, state_dim=3, action_dim=2, hidden_size=8),
    "MLPDeterministic": _plain("mlp_deterministic", _load_weights, state_dim=3, action_dim=2, hidden_size=8),
    "MLPBounded": _plain("mlp_bounded", _load_weights, state_dim=3, action_dim=2, hidden_size=8),
    "MLPRenorm": _plain("mlp_renorm", _load_weights, state_dim=3, action_dim=2, hidden_size=8, critic_hidden_size=16),
    "MLPChunks": _plain("mlp_chunks", _load_weights, state_dim=3, action_dim=2, chunk_size=3, hidden_size=8),
    "CNNChunks": _plain("cnn_chunks", _load_weights, cameras=("image", "wrist_image"), **_PICTURED),
    "CNNChunks of images alone": _plain("cnn_chunks", _load_weights, state_features=[], **_PICTURED),
    "SmolVLA that is steered": _plain("steered_smolvla", _load_weights, scratch={}, **_STEERED),
    "π0 that is steered": _plain(
        "steered_pi0", _load_weights, scratch=pi0_models.SCRATCH.model_dump(), share_noise=False, **_STEERED
    ),
    "Diffusion": _plain("diffusion", _load_weights, **_DENOISED, num_trained_steps=2),
    "Diffusion whose steps are all trained": _plain("diffusion", _load_weights, **_DENOISED, num_trained_steps=4),
    "ACT of states": _plain("act", _load_act, scratch=_SMALL_ACT, robot_state_dim=2, **_ACT),
    "ACT without an encoder of chunks": _plain(
        "act", _load_act, scratch=_SMALL_ACT | {"use_vae": False}, robot_state_dim=2, **_ACT
    ),
    "ACT of states and images": _plain(
        "act", _load_act, scratch=_SMALL_ACT, cameras=("image", "wrist_image"), robot_state_dim=3, **_ACT
    ),
    "a policy of your own": _plain(OWN_POLICY, _load_weights, state_dim=5, action_dim=2, chunk_size=2, num_bins=7),
}
"""Each policy by a name for people."""
