"""Model of OpenVLA-OFT with a regression head (Kim et al., 2025, arXiv:2502.19645, section 4).

The language model reads images, state and prompt, and blanks for a chunk of actions, as with action tokens. An MLP maps
the hidden states of each action to its numbers in [-1, 1]. The paper trains it by the absolute error, which is the
negative log-density of a Laplace distribution of a fixed scale; here the scale is a parameter, so that actions can be
sampled and RL has their densities. Parameters have the names of the published files.
"""

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional

from embodyflow.policies.embodied.openvla.checkpoint_openvla import HEADS, Description
from embodyflow.policies.embodied.openvla.modeling_openvla import Backbone, build_rotary_embedding
from embodyflow.policies.embodied.openvla_l1.checkpoint_openvla_l1 import (
    STATES,
    state_quantiles,
    weight_parts,
)
from embodyflow.policies.embodied.openvla_l1.configuration_openvla_l1 import OpenVLAL1Config
from embodyflow.policies.pretrained.checkpoints import load_weights
from embodyflow.policies.pretrained.weight_files import weight_paths

OWN = frozenset({"log_scale", "state_low", "state_high"})
"""Values that published files lack."""
NUM_BLOCKS = 2


class ResidualBlock(nn.Module):
    """A residual layer of the regression head."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.ffn = nn.Sequential(nn.LayerNorm(size), nn.Linear(size, size), nn.ReLU())

    def forward(self, hidden: Tensor) -> Tensor:
        """Map float [..., size] to the same."""
        added: Tensor = self.ffn(hidden)
        return hidden + added


class ResidualMLP(nn.Module):
    """Maps the hidden states of an action, A of them side by side, to its A numbers."""

    def __init__(self, in_size: int, size: int, out_size: int) -> None:
        super().__init__()
        self.layer_norm1, self.fc1 = nn.LayerNorm(in_size), nn.Linear(in_size, size)
        self.mlp_resnet_blocks = nn.ModuleList(ResidualBlock(size) for _ in range(NUM_BLOCKS))
        self.layer_norm2, self.fc2 = nn.LayerNorm(size), nn.Linear(size, out_size)

    def forward(self, hidden: Tensor) -> Tensor:
        """Map float [N, C, A·hidden] to [N, C, A]."""
        hidden = functional.relu(self.fc1(self.layer_norm1(hidden)))
        for block in self.mlp_resnet_blocks:
            hidden = block(hidden)
        numbers: Tensor = self.fc2(self.layer_norm2(hidden))
        return numbers


class ActionHead(nn.Module):
    """The regression head, with the name that published files give to its only part."""

    def __init__(self, in_size: int, size: int, action_dim: int) -> None:
        super().__init__()
        self.model = ResidualMLP(in_size * action_dim, size, action_dim)

    def forward(self, hidden: Tensor) -> Tensor:
        """Map float [N, C, A·hidden] to [N, C, A]."""
        numbers: Tensor = self.model(hidden)
        return numbers


class StateProjector(nn.Module):
    """Maps a state in [-1, 1] to an embedding."""

    def __init__(self, state_dim: int, size: int) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(state_dim, size), nn.Linear(size, size)

    def forward(self, state: Tensor) -> Tensor:
        """Map float [N, S] to [N, size]."""
        embedding: Tensor = self.fc2(functional.gelu(self.fc1(state)))
        return embedding


class OpenVLAL1(Backbone):
    """Maps images, states and prompts to the medians and the scale of a chunk of actions.

    Args:
        config: Configuration of state, chunk and head.
        description: Description of the checkpoint; weights are random.
    """

    forward_methods = ("features", "forward_with_features")
    state_low: Tensor
    state_high: Tensor

    def __init__(self, config: OpenVLAL1Config, description: Description) -> None:
        super().__init__(description)
        size = self.language_model.config.hidden_size
        self.action_head = ActionHead(size, config.head_hidden_size, config.action_dim)
        self.proprio_projector = StateProjector(config.state_dim, size) if config.state_dim else None
        self.log_scale = nn.Parameter(torch.full((config.action_dim,), math.log(config.initial_scale)))
        self.register_buffer("state_low", torch.full((config.state_dim,), -1.0))
        self.register_buffer("state_high", torch.ones(config.state_dim))
        self.language_model.lm_head.requires_grad_(False)  # unused, and part of the checkpoint
        self._num_tokens, self._chunk_size = config.num_action_tokens, config.chunk_size

    def forward(self, pixels: Tensor, prompt_ids: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return the medians of a chunk's numbers, float32 [N, C·A], and their scales, float32 [C·A].

        Args:
            pixels: Pixels, see :meth:`~embodyflow.policies.embodied.openvla.modeling_openvla.Backbone.embed_context`.
            prompt_ids: Prompt, see there.
            state: State, float32 [N, S]; ``None`` if S = 0.
        """
        medians, scales, _ = self.forward_with_features(pixels, prompt_ids, state)
        return medians, scales

    def forward_with_features(
        self, pixels: Tensor, prompt_ids: Tensor, state: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return medians, scales, and the hidden state before the chunk, float [N, hidden]; see :meth:`forward`."""
        hidden = self._read(pixels, prompt_ids, state)
        medians = self.action_head(hidden.unflatten(1, (self._chunk_size, -1)).flatten(2))
        scales = self.log_scale.float().exp().repeat(self._chunk_size)
        return medians.flatten(1).float(), scales, hidden[:, 0].clone()

    def features(self, pixels: Tensor, prompt_ids: Tensor, state: Tensor | None = None) -> Tensor:
        """Return the hidden state before the chunk, float [N, hidden]; see :meth:`forward`."""
        return self._read(pixels, prompt_ids, state)[:, 0].clone()

    @torch.no_grad()
    def set_state_quantiles(self, low: Tensor, high: Tensor) -> None:
        """Take the quantiles that scale states to [-1, 1], both ``[S]``."""
        self.state_low.copy_(low)
        self.state_high.copy_(high)

    def _read(self, pixels: Tensor, prompt_ids: Tensor, state: Tensor | None = None) -> Tensor:
        further = None
        if self.proprio_projector is not None and state is not None:
            extent = torch.where(self.state_high > self.state_low, self.state_high - self.state_low, 1.0)
            scaled = (2.0 * (state - self.state_low) / extent - 1.0).clamp(-1.0, 1.0)
            further = self.proprio_projector(scaled.to(self.proprio_projector.fc1.weight.dtype)).unsqueeze(1)
        return self.read_chunk(*self.embed_context(pixels, prompt_ids, further), self._num_tokens)


def build_model(config: OpenVLAL1Config, description: Description) -> OpenVLAL1:
    """Return the model in float32, with a checkpoint's weights, or random ones from torch's global generator.

    Raises:
        ConfigError: The weights are not those of an OpenVLA-OFT with a regression head of this description.
    """
    if description.folder is None:
        return OpenVLAL1(config, description).eval()
    with torch.device("meta"):
        model = OpenVLAL1(config, description).eval()
    build_rotary_embedding(model)
    model.log_scale = nn.Parameter(torch.full((config.action_dim,), math.log(config.initial_scale)))
    if STATES in weight_parts(description.folder):  # an export of ours
        model.state_low, model.state_high = torch.zeros(config.state_dim), torch.zeros(config.state_dim)
    else:
        model.state_low, model.state_high = state_quantiles(config, description)
    heads = [file for pattern in HEADS for file in sorted(description.folder.glob(pattern))]
    load_weights(model, [*weight_paths(description.folder), *heads], OWN, _with_parts)
    return model


def _with_parts(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Name the weights of a head's or a projector's own file by the part of the model that they belong to."""
    named = {}
    for name, value in weights.items():
        own = name.removeprefix("module.")  # the files are those of DistributedDataParallel
        if own.startswith("model."):
            own = f"action_head.{own}"
        elif own.startswith(("fc1.", "fc2.")):
            own = f"proprio_projector.{own}"
        named[own] = value
    return named
