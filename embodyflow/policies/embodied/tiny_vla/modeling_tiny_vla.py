"""Model of TinyVLA: OpenVLA's bins and OpenVLA-OFT's parallel decoding, with a residual MLP for the language model.

OpenVLA (Kim et al., 2024, arXiv:2406.09246) gives each action dimension a token out of 256 bins, and OpenVLA-OFT (Kim
et al., 2025, arXiv:2502.19645) predicts a whole chunk of actions in one forward pass.
"""

import torch
from huggingface_hub import PyTorchModelHubMixin
from torch import Tensor, nn
from torch.nn import functional as F

from embodyflow.policies.embodied.tiny_vla.configuration_tiny_vla import TinyVLAConfig
from embodyflow.policies.observations import MEMBER_KEY
from embodyflow.policies.running_statistics.running_normalizer import RunningNormalizer


class Encoder(nn.Module):
    """Maps observations to features.

    ``embed`` adds up the modalities; ``blocks``, the units that FSDP shards, refine the sum. Statistics of the
    demonstrations standardise the state and are saved with the weights. Without demonstrations states stay as they are.
    """

    def __init__(self, config: TinyVLAConfig) -> None:
        super().__init__()
        self.config = config
        self.embed = Embed(config)
        self.blocks = nn.ModuleList(Block(config.hidden_size) for _ in range(config.num_layers))
        self.norm = nn.LayerNorm(config.hidden_size)

    def encode(self, observation: dict[str, Tensor]) -> Tensor:
        """Return features, float32 [N, hidden].

        Args:
            observation: ``instruction_ids`` int64 [N, I]; ``state`` float32 [N, S] unless ``state_dim`` is 0; with
                ``image_size`` each camera's images, uint8 [N, H, W, 3].
        """
        hidden = self.embed(observation)
        for block in self.blocks:
            hidden = block(hidden)
        features: Tensor = self.norm(hidden)
        return features


CARD_TEMPLATE = """---
{{ card_data }}
---

A `tiny_vla` policy of embodyflow. The card of the run's own folder `policy/` has its task and its success rate.

```python
from embodyflow.policies.embodied.tiny_vla.modeling_tiny_vla import TinyVLA

model = TinyVLA.from_pretrained(folder)  # or the name of this repository
```
"""


class TinyVLA(
    Encoder,
    PyTorchModelHubMixin,
    library_name="embodyflow",
    tags=["robotics"],
    model_card_template=CARD_TEMPLATE,
    coders={TinyVLAConfig: (lambda config: config.model_dump(mode="json"), TinyVLAConfig.model_validate)},
):
    """Maps observations to the logits of a chunk of action tokens."""

    forward_methods = ("features", "forward_with_features")

    def __init__(self, config: TinyVLAConfig) -> None:
        super().__init__(config)
        self.head = Head(config) if config.num_choices is None else ChoiceHead(config)

    def forward(self, observation: dict[str, Tensor]) -> Tensor:
        """Return the logits of every action token of one decision, float32 [N, L, bins] or [N, L, choices].

        Tokens are ordered (chunk step, dimension); see :meth:`Encoder.encode` for the observation.
        """
        logits: Tensor = self.head(self.encode(observation))
        return logits

    def features(self, observation: dict[str, Tensor]) -> Tensor:
        """Return the features before the head, float32 [N, hidden]."""
        return self.encode(observation)

    def forward_with_features(self, observation: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Return logits and features."""
        features = self.encode(observation)
        return self.head(features), features


class TinyVLAValue(Encoder):
    """Maps observations to their values, which are 0 before any training."""

    def __init__(self, config: TinyVLAConfig) -> None:
        super().__init__(config)
        self.value = nn.Linear(config.hidden_size, 1)
        nn.init.zeros_(self.value.weight)
        nn.init.zeros_(self.value.bias)

    def forward(self, observation: dict[str, Tensor]) -> Tensor:
        """Return the value of each observation, float32 [N, 1]; see :meth:`Encoder.encode` for the observation."""
        values: Tensor = self.value(self.encode(observation))
        return values.to(_at_least_float32(values.dtype))


class Embed(nn.Module):
    """The sum of the embeddings of state, instruction and images."""

    state_mean: Tensor
    state_std: Tensor

    def __init__(self, config: TinyVLAConfig) -> None:
        super().__init__()
        size = config.hidden_size
        self.words = nn.Embedding(config.vocab_size, size, padding_idx=0)
        self.state = nn.Linear(config.state_dim, size) if config.state_dim else None
        self.images = nn.ModuleDict({camera: image_encoder(size) for camera in config.seen_cameras})
        dims = config.member_action_dims
        shape = (config.state_dim,) if dims is None else (len(dims), config.state_dim)
        self.register_buffer("state_mean", torch.zeros(shape))
        self.register_buffer("state_std", torch.ones(shape))
        self.normalize = (
            RunningNormalizer(config.state_dim, config.observation_clip) if config.normalize_observations else None
        )

    def forward(self, observation: dict[str, Tensor]) -> Tensor:
        """Return the embedding of N observations, float32 [N, hidden]."""
        ids = observation["instruction_ids"]
        num_words = (ids != 0).sum(-1, keepdim=True).clamp(min=1)
        hidden: Tensor = self.words(ids).sum(1) / num_words
        if self.state is not None:
            hidden = hidden + self.state(self._standardised(observation).to(hidden.dtype))
        for camera, encoder in self.images.items():
            pixels = observation[camera].movedim(-1, 1).float() / 127.5 - 1.0
            hidden = hidden + encoder(pixels.to(hidden.dtype))
        return hidden

    @torch.no_grad()
    def set_statistics(self, states: Tensor) -> None:
        """Take the mean and deviation of ``states``, [n, S]; running statistics go on from there."""
        if self.normalize is not None:
            self.normalize.restart_from(states)
            return
        self.state_mean.copy_(states.mean(0))
        deviation = states.std(0, correction=min(len(states) - 1, 1))  # a single state has no deviation
        self.state_std.copy_(deviation.clamp(min=1e-2))

    def load_statistics(self, count: int, mean: Tensor, std: Tensor) -> None:
        """Take the mean and deviation of ``count`` states, [S] each; running statistics go on from there."""
        if self.normalize is not None:
            self.normalize.load(count, mean, std.square())
            return
        self.state_mean.copy_(mean)
        self.state_std.copy_(std.clamp(min=1e-2))

    @torch.no_grad()
    def set_member_statistics(self, states: Tensor, members: Tensor) -> None:
        """Take the mean and deviation of the states of each member, [n, S], whose members are int64 [n].

        The padding of a member's states keeps the value 0 when they are standardised.
        """
        for member in members.unique().tolist():
            own = states[members == member]
            self.state_mean[member] = own.mean(0)
            self.state_std[member] = own.std(0, correction=min(len(own) - 1, 1)).clamp(min=1e-2)

    def _standardised(self, observation: dict[str, Tensor]) -> Tensor:
        """Return states in standard deviations of the demonstrations, at most 5; unchanged without demonstrations.

        The demonstrations are those of the same member, if there are members.
        """
        state = observation["state"]
        if self.normalize is not None:
            normalized: Tensor = self.normalize(state)
            return normalized
        mean, std = self.state_mean, self.state_std
        if mean.dim() > 1:
            member = observation[MEMBER_KEY].squeeze(-1)
            mean, std = mean[member], std[member]
        # A feature that hardly varied in the demonstrations must not explode when it does vary. A mean of exactly 0
        # with a deviation of exactly 1 was never set.
        unset = (mean == 0.0) & (std == 1.0)
        bound = torch.where(unset, torch.inf, 5.0)
        return ((state - mean) / std).clamp(-bound, bound)


class Head(nn.Module):
    """Maps features to logits that are smooth over the bins: a weighted sum of a few broad bumps.

    Neighbouring bins are neighbouring actions. If each bin had a logit of its own, an update of one sampled bin would
    leave its neighbours behind. The distribution would grow rough, and the greedy action, its peak, would drift.
    """

    basis: Tensor

    def __init__(self, config: TinyVLAConfig) -> None:
        super().__init__()
        self.num_tokens = config.num_action_tokens
        self.coefficients = nn.Linear(config.hidden_size, config.num_action_tokens * config.num_bumps)
        centres = torch.linspace(0, config.num_bins - 1, config.num_bumps)
        width = (config.num_bins - 1) / (config.num_bumps - 1)
        distance = torch.arange(config.num_bins) - centres.unsqueeze(-1)
        self.register_buffer("basis", torch.exp(-0.5 * (distance / width) ** 2))  # [bumps, bins]

    def forward(self, hidden: Tensor) -> Tensor:
        """Return logits, float32 [N, L, bins], of features [N, hidden]."""
        coefficients = self.coefficients(hidden).unflatten(-1, (self.num_tokens, -1))
        return coefficients.to(_at_least_float32(coefficients.dtype)) @ self.basis


class ChoiceHead(nn.Module):
    """Maps features to the logits of discrete actions, one logit per choice.

    Neighbouring choices have nothing in common, so each has a logit of its own. A dimension with fewer choices than the
    largest one gets ``ABSENT`` at the others, whose probability and gradient are then exactly 0.
    """

    ABSENT = -1e9
    """Logit of an absent choice. It is finite, because an entropy would multiply a probability of 0 by infinity."""

    offset: Tensor

    def __init__(self, config: TinyVLAConfig) -> None:
        super().__init__()
        assert config.num_choices is not None
        self.num_tokens, most = config.num_action_tokens, max(config.num_choices)
        self.logits = nn.Linear(config.hidden_size, self.num_tokens * most)
        choices = torch.tensor(config.num_choices).repeat(config.chunk_size)  # ordered (chunk step, dimension)
        absent = torch.arange(most) >= choices.unsqueeze(-1)
        self.register_buffer("offset", torch.where(absent, self.ABSENT, 0.0))  # [L, choices]

    def forward(self, hidden: Tensor) -> Tensor:
        """Return logits, float32 [N, L, choices], of features [N, hidden]."""
        logits = self.logits(hidden).unflatten(-1, (self.num_tokens, -1))
        return logits.to(_at_least_float32(logits.dtype)) + self.offset


class Block(nn.Module):
    """A pre-norm residual MLP."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(size)
        self.up = nn.Linear(size, 2 * size)
        self.down = nn.Linear(2 * size, size)

    def forward(self, hidden: Tensor) -> Tensor:
        """Refine float32 [N, hidden]."""
        return hidden + self.down(F.gelu(self.up(self.norm(hidden))))


def _at_least_float32(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)


def image_encoder(size: int) -> nn.Sequential:
    """Return three strided convolutions and an average over a 4 × 4 grid, which map images of any size to [N, size]."""
    return nn.Sequential(
        nn.Conv2d(3, 16, 5, stride=2, padding=2),
        nn.GELU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1),
        nn.GELU(),
        nn.Conv2d(32, 64, 3, stride=2, padding=1),
        nn.GELU(),
        nn.AdaptiveAvgPool2d(4),
        nn.Flatten(),
        nn.Linear(64 * 16, size),
    )
