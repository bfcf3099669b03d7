"""The ResNets that read ACT's images (He et al., 2015, arXiv:1512.03385), by torchvision's parameter names.

Batch normalisation is frozen: its statistics and factors are constants of the checkpoint.
"""

from collections.abc import Mapping
from types import MappingProxyType

import torch
from torch import Tensor, nn
from torch.nn import functional as F

DEPTHS: Mapping[str, tuple[int, ...]] = MappingProxyType({"resnet18": (2, 2, 2, 2), "resnet34": (3, 4, 6, 3)})
"""Residual blocks of each of the four stages."""
EPSILON = 1e-5
BRANCH_FACTOR = 0.2
"""Factor of a random block's convolutions, so that features do not double from block to block."""


class FrozenBatchNorm(nn.Module):
    """Scales and shifts channels by constants."""

    weight: Tensor
    bias: Tensor
    running_mean: Tensor
    running_var: Tensor

    def __init__(self, size: int) -> None:
        super().__init__()
        for name, value in (("weight", 1.0), ("bias", 0.0), ("running_mean", 0.0), ("running_var", 1.0)):
            self.register_buffer(name, torch.full((size,), value))

    def forward(self, features: Tensor) -> Tensor:
        """Map float [N, size, h, w] to the same."""
        scale = self.weight * (self.running_var + EPSILON).rsqrt()
        shift = self.bias - self.running_mean * scale
        return features * scale[:, None, None] + shift[:, None, None]


class BasicBlock(nn.Module):
    """Two convolutions beside an identity, or beside a projection where sizes change."""

    def __init__(self, in_size: int, size: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_size, size, 3, stride, padding=1, bias=False)
        self.conv2 = nn.Conv2d(size, size, 3, padding=1, bias=False)
        self.bn1, self.bn2 = FrozenBatchNorm(size), FrozenBatchNorm(size)
        self.bn2.weight.fill_(BRANCH_FACTOR)
        self.downsample: nn.Module | None = None
        if stride > 1 or in_size != size:
            self.downsample = nn.Sequential(nn.Conv2d(in_size, size, 1, stride, bias=False), FrozenBatchNorm(size))

    def forward(self, features: Tensor) -> Tensor:
        """Map float [N, in_size, h, w] to [N, size, h / stride, w / stride]."""
        kept = features if self.downsample is None else self.downsample(features)
        inner = F.relu(self.bn1(self.conv1(features)))
        return F.relu(kept + self.bn2(self.conv2(inner)))


class ResNet(nn.Module):
    """Maps images to the features of its last stage, each of 32 × 32 pixels.

    Args:
        name: Key of :data:`DEPTHS`.
        width: Features of the first stage; each further stage has twice as many.

    Attributes:
        size: Features of the last stage.
    """

    def __init__(self, name: str, width: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 7, 2, padding=3, bias=False)
        self.bn1 = FrozenBatchNorm(width)
        in_size = width
        for stage, depth in enumerate(DEPTHS[name]):
            size = width * 2**stage
            blocks = (
                BasicBlock(size if block else in_size, size, 2 if stage and not block else 1) for block in range(depth)
            )
            self.add_module(f"layer{stage + 1}", nn.Sequential(*blocks))
            in_size = size
        self.size = in_size
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images: Tensor) -> Tensor:
        """Map normalised images, float [N, 3, h, w], to features, float [N, size, h / 32, w / 32], rounded up."""
        features = F.max_pool2d(F.relu(self.bn1(self.conv1(images))), 3, 2, padding=1)
        for stage in range(1, 5):
            features = self.get_submodule(f"layer{stage}")(features)
        return features
