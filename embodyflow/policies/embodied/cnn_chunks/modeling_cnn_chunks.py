"""Network of the policy of images and chunks.

An encoder maps an observation to features, and small networks map features to decisions and to values. Only the
critics' loss and imitation train the encoder, as in DrQ (Kostrikov et al. 2020, arXiv:2004.13649): the policy's loss
takes the features as they are.
"""

from collections.abc import Mapping
from itertools import pairwise

import torch
from torch import Tensor, nn

from embodyflow.policies.control.mlp_squashed.modeling_mlp_squashed import MLPSquashed
from embodyflow.policies.embodied.cnn_chunks.configuration_cnn_chunks import CNNChunksConfig
from embodyflow.policies.embodied.mlp_chunks.modeling_mlp_chunks import Standardization, tanh_in_lanes


class ObservationEncoder(nn.Module):
    """Maps images and state to features: those of the images, in (-1, 1), then the standardised state.

    Args:
        config: Sizes, cameras, and the features of the state that are read.
    """

    indices: Tensor

    def __init__(self, config: CNNChunksConfig) -> None:
        super().__init__()
        self.convolutions = nn.ModuleDict({camera: _convolutions(config) for camera in config.cameras})
        side = config.image_size
        for _ in range(config.num_convolutions):
            side = -(-side // 2)
        num_inputs = len(config.cameras) * config.channels * side**2
        self.project = nn.Sequential(nn.Linear(num_inputs, config.image_features), nn.LayerNorm(config.image_features))
        self.standardize = Standardization(config.state_dim)
        self.register_buffer("indices", torch.tensor(config.read_features, dtype=torch.int64), persistent=False)

    def forward(self, state: Tensor, images: Mapping[str, Tensor]) -> Tensor:
        """Return features, float32 ``[n, F]``.

        Args:
            state: States, float32 ``[n, S]``.
            images: Images by camera, uint8 ``[n, H, W, 3]``.
        """
        seen = [convolve(_pixels(images[camera])) for camera, convolve in self.convolutions.items()]
        known = self.standardize(state)[:, self.indices]
        return torch.cat([tanh_in_lanes(self.project(torch.cat(seen, -1))), known], -1)


class CNNChunks(MLPSquashed):
    """Maps features to the Gaussian over C·A numbers whose samples are squashed by tanh; has the encoder, too."""

    def __init__(self, config: CNNChunksConfig) -> None:
        super().__init__(config.head_sizes)
        self.encoder = ObservationEncoder(config)

    @property
    def standardize(self) -> Standardization:
        """The standardisation of states."""
        return self.encoder.standardize


def _convolutions(config: CNNChunksConfig) -> nn.Sequential:
    """Return strided convolutions of 3 × 3 pixels with ReLU that map images to flat features."""
    sizes = [3] + [config.channels] * config.num_convolutions
    layers: list[nn.Module] = []
    for num_inputs, num_outputs in pairwise(sizes):
        layers += [nn.Conv2d(num_inputs, num_outputs, 3, 2, padding=1), nn.ReLU()]
        nn.init.orthogonal_(layers[-2].weight, nn.init.calculate_gain("relu"))  # type: ignore[arg-type]
    return nn.Sequential(*layers, nn.Flatten())


def _pixels(images: Tensor) -> Tensor:
    """Return images ``[n, H, W, 3]`` as numbers from -1 to 1, float32 ``[n, 3, H, W]``."""
    return images.movedim(-1, 1).float() / 127.5 - 1.0
