"""Vision towers: DINOv2 with registers and SigLIP, with timm's parameter names, as in the checkpoints.

The language model gets the features of the *second to last* block, as in Prismatic VLMs (Karamcheti et al., 2024,
arXiv:2402.07865), whose towers OpenVLA has. Later parts have no effect. They belong to the checkpoints, so they are
kept frozen and exported.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

EPSILON = 1e-6
"""Epsilon of the towers' layer norms."""


@dataclass(frozen=True)
class TowerSizes:
    """A vision transformer's sizes.

    Attributes:
        family: Architecture. ``dinov2`` has a class token and registers before the patches and scales every residual;
            ``siglip`` has neither, and pools by attention.
        image_size: Pixels a side, a multiple of ``patch_size``.
        num_registers: Registers of ``dinov2``.
    """

    family: Literal["dinov2", "siglip"]
    image_size: int
    patch_size: int
    hidden_size: int
    mlp_size: int
    num_layers: int
    num_heads: int
    num_registers: int = 0

    @property
    def num_patches(self) -> int:
        """P, patches of one image."""
        return (self.image_size // self.patch_size) ** 2

    def described(self) -> dict[str, Any]:
        """Return the sizes in the form of ``config.json``."""
        return asdict(self)


_SIGLIP_SO400M = {"hidden_size": 1152, "mlp_size": 4304, "num_layers": 27, "num_heads": 16}
_DINOV2_LARGE = {"hidden_size": 1024, "mlp_size": 4096, "num_layers": 24, "num_heads": 16, "num_registers": 4}
PUBLISHED: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "vit_large_patch14_reg4_dinov2.lvd142m": {"family": "dinov2", "patch_size": 14, **_DINOV2_LARGE},
        "vit_so400m_patch14_siglip_224": {"family": "siglip", "patch_size": 14, **_SIGLIP_SO400M},
        "vit_so400m_patch14_siglip_384": {"family": "siglip", "patch_size": 14, **_SIGLIP_SO400M},
    }
)
"""Sizes by the models' names in timm."""


class Attention(nn.Module):
    """Self-attention over all patches."""

    def __init__(self, sizes: TowerSizes) -> None:
        super().__init__()
        self.num_heads = sizes.num_heads
        self.qkv = nn.Linear(sizes.hidden_size, 3 * sizes.hidden_size)
        self.proj = nn.Linear(sizes.hidden_size, sizes.hidden_size)

    def forward(self, hidden: Tensor) -> Tensor:
        """Map float [N, P, D] to the same."""
        query, key, value = self.qkv(hidden).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(query, key, value)  # [N, heads, P, D / heads]
        out: Tensor = self.proj(mixed.transpose(1, 2).flatten(2))
        return out


class MLP(nn.Module):
    """Two layers with an exact GELU between them."""

    def __init__(self, sizes: TowerSizes) -> None:
        super().__init__()
        self.fc1 = nn.Linear(sizes.hidden_size, sizes.mlp_size)
        self.fc2 = nn.Linear(sizes.mlp_size, sizes.hidden_size)

    def forward(self, hidden: Tensor) -> Tensor:
        """Map float [N, P, D] to the same."""
        out: Tensor = self.fc2(F.gelu(self.fc1(hidden)))
        return out


class LayerScale(nn.Module):
    """One factor for each feature of a residual."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.scale_factor = nn.Parameter(torch.ones(size))

    def forward(self, hidden: Tensor) -> Tensor:
        """Scale float [N, P, D]."""
        return hidden * self.scale_factor


class VisionBlock(nn.Module):
    """A pre-norm transformer block."""

    def __init__(self, sizes: TowerSizes) -> None:
        super().__init__()
        scales = sizes.family == "dinov2"
        self.norm1 = nn.LayerNorm(sizes.hidden_size, eps=EPSILON)
        self.attn = Attention(sizes)
        self.ls1: nn.Module = LayerScale(sizes.hidden_size) if scales else nn.Identity()
        self.norm2 = nn.LayerNorm(sizes.hidden_size, eps=EPSILON)
        self.mlp = MLP(sizes)
        self.ls2: nn.Module = LayerScale(sizes.hidden_size) if scales else nn.Identity()

    def forward(self, hidden: Tensor) -> Tensor:
        """Refine float [N, P, D]."""
        hidden = hidden + self.ls1(self.attn(self.norm1(hidden)))
        refined: Tensor = hidden + self.ls2(self.mlp(self.norm2(hidden)))
        return refined


class PatchEmbed(nn.Module):
    """Linear map of each patch."""

    def __init__(self, sizes: TowerSizes) -> None:
        super().__init__()
        self.proj = nn.Conv2d(3, sizes.hidden_size, sizes.patch_size, stride=sizes.patch_size)

    def forward(self, pixels: Tensor) -> Tensor:
        """Map float [N, 3, S, S] to [N, P, D], in the precision of the weights."""
        out: Tensor = self.proj(pixels.to(self.proj.weight.dtype)).flatten(2).transpose(1, 2)
        return out


class AttentionPool(nn.Module):
    """Parameters of SigLIP's pooling head, which OpenVLA does not use."""

    def __init__(self, sizes: TowerSizes) -> None:
        super().__init__()
        size = sizes.hidden_size
        self.latent = nn.Parameter(torch.randn(1, 1, size) * size**-0.5)
        self.q, self.kv, self.proj = nn.Linear(size, size), nn.Linear(size, 2 * size), nn.Linear(size, size)
        self.norm, self.mlp = nn.LayerNorm(size, eps=EPSILON), MLP(sizes)


class Tower(nn.Module):
    """A vision transformer up to its second to last block."""

    def __init__(self, sizes: TowerSizes) -> None:
        super().__init__()
        self.sizes = sizes
        self.patch_embed = PatchEmbed(sizes)
        self.pos_embed = nn.Parameter(0.02 * torch.randn(1, sizes.num_patches, sizes.hidden_size))
        if sizes.family == "dinov2":
            self.cls_token = nn.Parameter(0.02 * torch.randn(1, 1, sizes.hidden_size))
            self.reg_token = nn.Parameter(0.02 * torch.randn(1, sizes.num_registers, sizes.hidden_size))
        self.blocks = nn.ModuleList(VisionBlock(sizes) for _ in range(sizes.num_layers))
        self.norm = nn.LayerNorm(sizes.hidden_size, eps=EPSILON)
        self.attn_pool = AttentionPool(sizes) if sizes.family == "siglip" else None
        for unused in (self.blocks[-1], self.norm, self.attn_pool):
            if unused is not None:
                unused.requires_grad_(False)

    @property
    def used_blocks(self) -> list[nn.Module]:
        """Blocks that the features come from."""
        return list(self.blocks[:-1])

    def forward(self, pixels: Tensor) -> Tensor:
        """Return the features of the patches, float [N, P, D], of standardised images, float [N, 3, S, S]."""
        hidden = self.patch_embed(pixels) + self.pos_embed
        if self.sizes.family == "dinov2":
            before = torch.cat([self.cls_token, self.reg_token], dim=1).expand(len(pixels), -1, -1)
            hidden = torch.cat([before, hidden], dim=1)
        for block in self.used_blocks:
            hidden = block(hidden)
        return hidden[:, -self.sizes.num_patches :]


class VisionBackbone(nn.Module):
    """One tower, or two whose features of a patch are concatenated."""

    def __init__(self, towers: Sequence[TowerSizes]) -> None:
        super().__init__()
        self.featurizer = Tower(towers[0])
        self.fused_featurizer = Tower(towers[1]) if len(towers) > 1 else None

    @property
    def towers(self) -> list[Tower]:
        """The towers, in the order of their features."""
        return [self.featurizer] if self.fused_featurizer is None else [self.featurizer, self.fused_featurizer]

    def forward(self, pixels: Tensor) -> Tensor:
        """Return features, float [N, P, D], of images float [N, 3·towers, S, S], standardised for each tower."""
        each = pixels.split(3, dim=1)
        return torch.cat([tower(own) for tower, own in zip(self.towers, each, strict=True)], dim=-1)
