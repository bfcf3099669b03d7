"""Check of a checkpoint of OpenVLA-OFT with a regression head, and its statistics of states.

A checkpoint is one of OpenVLA with ``action_head--<step>_checkpoint.pt`` and, where it reads the state,
``proprio_projector--<step>_checkpoint.pt``, such as https://huggingface.co/moojink/openvla-7b-oft-finetuned-libero-object.
A policy exported here has all weights in safetensors.
"""

from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from embodyflow.errors import ConfigError
from embodyflow.policies.embodied.openvla.checkpoint_openvla import (
    WEIGHTS,
    Description,
    check_files,
    data_set_of,
    read_checkpoint,
)
from embodyflow.policies.embodied.openvla_l1.configuration_openvla_l1 import OpenVLAL1Config

FILM = "vision_backbone"
HEAD, PROJECTOR, STATES = "action_head", "proprio_projector", "state_low"
"""Parts of the model by the beginnings of the names of files, or of weights in an export."""


def check_checkpoint(config: OpenVLAL1Config, path: str) -> None:
    """Refuse a checkpoint that the policy cannot load, without reading weights.

    Args:
        config: Configuration of the policy.
        path: Its folder, or its name on the hub.

    Raises:
        ConfigError: One line that names the key and what is allowed.
    """
    names = check_files(config, path)
    published = {name.partition("--")[0] for name in names if name.endswith(".pt")}
    parts = published | (weight_parts(Path(path)) if Path(path).is_dir() else set())
    if FILM in published:
        raise ConfigError(f"policy.path={path}: modulates vision by the instruction (FiLM), which is not supported")
    if names and HEAD not in parts:
        raise ConfigError(
            f"policy.path={path}: has no regression head ({HEAD}…); policy=openvla_oft reads checkpoints fine-tuned "
            "on action tokens"
        )
    if names and (PROJECTOR in parts) != (config.state_dim > 0):
        must = f"0: {path} does not read" if config.state_dim else f"the number of features of the state: {path} reads"
        raise ConfigError(f"policy.state_dim={config.state_dim}: must be {must} the state")
    if STATES not in parts:
        state_quantiles(config, read_checkpoint(path, weights=False))


def state_quantiles(config: OpenVLAL1Config, description: Description) -> tuple[Tensor, Tensor]:
    """Return the 1% and 99% quantiles of the states in a published checkpoint, both float32 ``[S]``.

    They are -1 and 1, which scales nothing, where the mask of the statistics is false.

    Raises:
        ConfigError: The checkpoint has none, or those of another number of features.
    """
    if not config.state_dim:
        return torch.zeros(0), torch.zeros(0)
    key, what = data_set_of(config, description), f"policy.state_dim={config.state_dim}: the checkpoint"
    known = description.states.get(key, {})
    if not {"q01", "q99"} <= known.keys():
        raise ConfigError(f"{what} has no quantiles of the states of {key}")
    if len(known["q01"]) != config.state_dim:
        raise ConfigError(f"{what}'s states of {key} have {len(known['q01'])}")
    mask = torch.tensor(known.get("mask", [True] * config.state_dim))
    return torch.where(mask, torch.tensor(known["q01"]), -1.0), torch.where(mask, torch.tensor(known["q99"]), 1.0)


def weight_parts(folder: Path) -> set[str]:
    """Return the first parts of the names of the weights in a folder's safetensors, from their headers."""
    parts: set[str] = set()
    for path in folder.glob(WEIGHTS):
        with safe_open(path, "pt") as file:
            names = file.keys()
            parts |= {name.partition(".")[0] for name in names}
    return parts - {FILM}
