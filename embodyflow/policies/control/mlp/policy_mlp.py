"""The parts of a policy of small MLPs that do not depend on its distribution."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from safetensors.numpy import save_file

from embodyflow.policies.policy_config import ControlPolicyConfig, EmbodiedPolicyConfig


class MLPPolicy:
    """Base of policies of small MLPs, which execute all actions of a decision and read no instruction.

    Args:
        config: Sizes.
        model: Network of the policy, with a list ``blocks`` of hidden layers.
        device: Device that the model is moved to.
    """

    def __init__(self, config: ControlPolicyConfig | EmbodiedPolicyConfig, model: torch.nn.Module, device: str) -> None:
        self.config = config
        self.num_tokens, self.num_draws = config.num_action_tokens, config.decision_dim
        self.model = model.to(device)
        self._device = device

    @property
    def horizon(self) -> int:
        """H = C."""
        return self.config.chunk_size

    @property
    def blocks(self) -> Sequence[torch.nn.Module]:
        """The network's layers."""
        return list(self.model.blocks)  # type: ignore[arg-type]

    def encode_instruction(self, instruction: str) -> np.ndarray:
        """Return int64 ``[1]``, padding: the policy reads no instruction."""
        del instruction
        return np.zeros(1, np.int64)

    def export(self, weights: Mapping[str, np.ndarray], folder: Path) -> None:
        """Write ``model.safetensors`` and ``config.json``."""
        folder.mkdir(parents=True, exist_ok=True)
        save_file(dict(weights), folder / "model.safetensors")
        (folder / "config.json").write_text(self.config.model_dump_json(indent=2) + "\n")
