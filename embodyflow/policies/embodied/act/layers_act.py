"""Layers of ACT's transformers, those of DETR (Carion et al., 2020, arXiv:2005.12872), by LeRobot's parameter names.

Positions are added to queries and keys of each layer and not to values. Layers normalise after each residual sum.
There is no dropout: RL compares log-probs of rollout and trainer, and a forward pass must draw nothing.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

WAVELENGTH = 10_000.0
"""Ratio of the wavelengths of the slowest and the fastest pair of features of a position."""


class Attention(nn.Module):
    """Attention with the parameters of ``torch.nn.MultiheadAttention``.

    Args:
        size: D, features of a token.
        num_heads: Heads.
    """

    def __init__(self, size: int, num_heads: int) -> None:
        super().__init__()
        self.in_proj_weight = nn.Parameter(torch.empty(3 * size, size))
        self.in_proj_bias = nn.Parameter(torch.zeros(3 * size))
        self.out_proj = nn.Linear(size, size)
        nn.init.xavier_uniform_(self.in_proj_weight)
        nn.init.zeros_(self.out_proj.bias)
        self._num_heads = num_heads

    def forward(self, queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return the outputs, float [N, q, D].

        Args:
            queries: Tokens that attend, float [N, q, D].
            keys: Tokens attended to, with positions, float [N, k, D].
            values: The same without positions.
            mask: Tokens that may be attended to, bool [N, k]; ``None`` for all.
        """
        weights, biases = self.in_proj_weight.chunk(3), self.in_proj_bias.chunk(3)
        parts = zip((queries, keys, values), weights, biases, strict=True)
        query, key, value = (self._heads(F.linear(each, weight, bias)) for each, weight, bias in parts)
        seen = None if mask is None else mask[:, None, None, :]
        mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=seen)
        output: Tensor = self.out_proj(mixed.transpose(1, 2).flatten(2))
        return output

    def _heads(self, features: Tensor) -> Tensor:
        return features.unflatten(-1, (self._num_heads, -1)).transpose(1, 2)


class EncoderLayer(nn.Module):
    """A layer in which tokens attend to each other.

    Args:
        size: D, features of a token.
        num_heads: Heads.
        inner_size: Features inside the MLP.
    """

    def __init__(self, size: int, num_heads: int, inner_size: int) -> None:
        super().__init__()
        self.self_attn = Attention(size, num_heads)
        self.linear1, self.linear2 = nn.Linear(size, inner_size), nn.Linear(inner_size, size)
        self.norm1, self.norm2 = nn.LayerNorm(size), nn.LayerNorm(size)

    def forward(self, tokens: Tensor, positions: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return refined tokens, float [N, k, D], given positions [k, D] and a mask of tokens, bool [N, k]."""
        placed = tokens + positions
        tokens = self.norm1(tokens + self.self_attn(placed, placed, tokens, mask))
        refined: Tensor = self.norm2(tokens + self.linear2(F.relu(self.linear1(tokens))))
        return refined


class DecoderLayer(nn.Module):
    """A layer in which the tokens of actions attend to each other, then to the encoder's outputs.

    Args:
        size: D, features of a token.
        num_heads: Heads.
        inner_size: Features inside the MLP.
    """

    def __init__(self, size: int, num_heads: int, inner_size: int) -> None:
        super().__init__()
        self.self_attn, self.multihead_attn = Attention(size, num_heads), Attention(size, num_heads)
        self.linear1, self.linear2 = nn.Linear(size, inner_size), nn.Linear(inner_size, size)
        self.norm1, self.norm2, self.norm3 = nn.LayerNorm(size), nn.LayerNorm(size), nn.LayerNorm(size)

    def forward(self, tokens: Tensor, places: Tensor, context: Tensor, positions: Tensor) -> Tensor:
        """Return refined tokens, float [N, H, D].

        Args:
            tokens: Tokens of actions, float [N, H, D].
            places: Learned positions of the actions, float [H, D].
            context: Outputs of the encoder, float [N, k, D].
            positions: Positions of the encoder's tokens, float [k, D].
        """
        placed = tokens + places
        tokens = self.norm1(tokens + self.self_attn(placed, placed, tokens))
        tokens = self.norm2(tokens + self.multihead_attn(tokens + places, context + positions, context))
        refined: Tensor = self.norm3(tokens + self.linear2(F.relu(self.linear1(tokens))))
        return refined


class Encoder(nn.Module):
    """Layers in which tokens attend to each other; see :class:`EncoderLayer`."""

    def __init__(self, num_layers: int, size: int, num_heads: int, inner_size: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(EncoderLayer(size, num_heads, inner_size) for _ in range(num_layers))

    def forward(self, tokens: Tensor, positions: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return refined tokens; see :meth:`EncoderLayer.forward`."""
        for layer in self.layers:
            tokens = layer(tokens, positions, mask)
        return tokens


class Decoder(nn.Module):
    """Layers from the encoder's outputs to the tokens of actions; see :class:`DecoderLayer`."""

    def __init__(self, num_layers: int, size: int, num_heads: int, inner_size: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(DecoderLayer(size, num_heads, inner_size) for _ in range(num_layers))
        self.norm = nn.LayerNorm(size)

    def forward(self, places: Tensor, context: Tensor, positions: Tensor) -> Tensor:
        """Return the tokens of H actions, float [N, H, D], which begin as zeros."""
        tokens = context.new_zeros(len(context), *places.shape)
        for layer in self.layers:
            tokens = layer(tokens, places, context, positions)
        normalised: Tensor = self.norm(tokens)
        return normalised


def sinusoids(num_positions: int, size: int) -> Tensor:
    """Return embeddings of the positions from 0, float32 [num_positions, D].

    Sines and cosines alternate (Vaswani et al., 2017, arXiv:1706.03762, section 3.5).
    """
    pairs = 2 * (torch.arange(size, dtype=torch.float64) // 2)
    angles = torch.arange(num_positions, dtype=torch.float64)[:, None] / WAVELENGTH ** (pairs / size)
    return torch.where(torch.arange(size) % 2 == 0, angles.sin(), angles.cos()).float()


def image_positions(features: Tensor) -> Tensor:
    """Return embeddings of the places in feature maps [N, D, height, width], row by row, float32 [height·width, D].

    The first half of the features is the row's, the second the column's; both are counted from 1 and scaled to 2π.
    """
    _, size, height, width = features.shape
    half, device = size // 2, features.device
    pairs = 2 * (torch.arange(half, dtype=torch.float32, device=device) // 2)
    periods = WAVELENGTH ** (pairs / half)
    rows, columns = (
        torch.arange(1, count + 1, dtype=torch.float32, device=device) / (count + 1e-6) * 2 * torch.pi
        for count in (height, width)
    )
    is_even = torch.arange(half, device=device) % 2 == 0
    first, second = (
        torch.where(is_even, angles.sin(), angles.cos())
        for angles in (rows[:, None] / periods, columns[:, None] / periods)
    )
    grid = (first[:, None].expand(-1, width, -1), second[None].expand(height, -1, -1))
    return torch.cat(grid, dim=-1).flatten(0, 1)
