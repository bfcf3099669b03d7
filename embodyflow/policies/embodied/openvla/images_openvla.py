"""Preparation of camera images for the vision towers, in batches, on any device, without torchvision and TensorFlow.

The published evaluations resize with a Lanczos filter, crop the middle 90% of the area by bilinear interpolation and
resize it back. The published processor resizes bicubically. Each step is a linear map of rows and then of columns.
"""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from embodyflow.errors import ConfigError
from embodyflow.policies.embodied.openvla.configuration_openvla import Resample
from embodyflow.policies.embodied.openvla.vision_openvla import TowerSizes

CROPPED_AREA = 0.9
STANDARDISATION: Mapping[str, tuple[Sequence[float], Sequence[float]]] = {
    "dinov2": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "siglip": ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
}
"""Default mean and deviation of the colours, for checkpoints that state none."""


class ImageProcessor:
    """Prepares images for the towers.

    Args:
        towers: Sizes of the towers.
        preprocessing: Preprocessing of the checkpoint; ``means`` and ``stds`` by tower may be missing.
        strategy: Treatment of images that are not square: ``resize-naive`` squeezes them, ``letterbox`` adds borders.
        resample: Filter that resizes images to the towers' size.
        center_crop: Whether to crop images to their middle.

    Raises:
        ConfigError: The towers have different image sizes, or the strategy is unknown.
    """

    def __init__(
        self,
        towers: Sequence[TowerSizes],
        preprocessing: Mapping[str, Any],
        strategy: str,
        resample: Resample,
        center_crop: bool,
    ) -> None:
        sizes = {tower.image_size for tower in towers}
        if len(sizes) > 1 or strategy not in ("resize-naive", "letterbox"):
            raise ConfigError(
                f"policy.path: image_sizes={sorted(sizes)} with image_resize_strategy={strategy!r}; "
                "allowed are equal sizes with 'resize-naive' or 'letterbox'"
            )
        defaults = [STANDARDISATION[tower.family] for tower in towers]
        self._means = preprocessing.get("means", [mean for mean, _ in defaults])
        self._stds = preprocessing.get("stds", [std for _, std in defaults])
        self._size, self._letterbox = sizes.pop(), strategy == "letterbox"
        self._resample, self._center_crop = resample, center_crop

    def __call__(self, images: Tensor) -> Tensor:
        """Return the pixels of images uint8 ``[N, H, W, 3]``, float32 ``[N, 3·towers, S, S]`` on their device."""
        pixels = images.movedim(-1, 1).float()
        if self._letterbox:
            pixels = self._padded(pixels)
        if pixels.shape[-2:] != (self._size, self._size):
            pixels = resize(pixels, self._size, self._resample)
        if self._center_crop:
            pixels = crop_center(pixels, CROPPED_AREA)
        standardised = []
        for mean, std in zip(self._means, self._stds, strict=True):
            shift, scale = (pixels.new_tensor(values)[:, None, None] for values in (mean, std))
            standardised.append((pixels / 255.0 - shift) / scale)
        return torch.cat(standardised, dim=1)

    def _padded(self, pixels: Tensor) -> Tensor:
        """Pad the images to squares, with the mean colour."""
        height, width = pixels.shape[-2:]
        side = max(height, width)
        top, left = (side - height) // 2, (side - width) // 2
        fill = pixels.new_tensor([int(255 * value) for value in self._means[-1]])
        square = fill[:, None, None].expand(len(pixels), 3, side, side).clone()
        square[..., top : top + height, left : left + width] = pixels
        return square


def resize(pixels: Tensor, size: int, resample: Resample) -> Tensor:
    """Resize images float [N, 3, H, W] from 0 to 255 to squares, as Pillow does: columns first, each pass rounded."""
    rows, columns = (_resizing(length, size, resample).to(pixels) for length in pixels.shape[-2:])
    narrowed = (pixels @ columns.T).round().clamp(0, 255)
    return (rows @ narrowed).round().clamp(0, 255)


def crop_center(pixels: Tensor, area: float) -> Tensor:
    """Crop the middle of squares float [N, 3, S, S] from 0 to 255, and enlarge it bilinearly to their size."""
    matrix = _cropping(pixels.shape[-1], math.sqrt(area)).to(pixels)
    # TensorFlow converts fractions to bytes by a factor of 255.5, rounded down.
    return ((matrix @ pixels @ matrix.T).clamp(0, 255) * (255.5 / 255.0)).floor()


def _lanczos(x: np.ndarray) -> np.ndarray:
    return np.where(np.abs(x) < 3.0, np.sinc(x) * np.sinc(x / 3.0), 0.0)


def _bicubic(x: np.ndarray) -> np.ndarray:
    x = np.abs(x)
    near, far = (1.5 * x - 2.5) * x * x + 1.0, ((-0.5 * x + 2.5) * x - 4.0) * x + 2.0
    return np.where(x < 1.0, near, np.where(x < 2.0, far, 0.0))


FILTERS: Mapping[Resample, Callable[[np.ndarray], np.ndarray]] = {"lanczos": _lanczos, "bicubic": _bicubic}


@functools.cache
def _resizing(length: int, size: int, resample: Resample) -> Tensor:
    """Return the map from ``length`` to ``size`` pixels, float64 [size, length]; shrinking widens the filter."""
    ratio = length / size
    centres = (np.arange(size) + 0.5) * ratio
    distance = (np.arange(length) + 0.5 - centres[:, None]) / max(ratio, 1.0)
    weights = FILTERS[resample](distance)
    return torch.from_numpy(weights / weights.sum(axis=1, keepdims=True))


@functools.cache
def _cropping(size: int, fraction: float) -> Tensor:
    """Return the map from ``size`` pixels to as many over their middle ``fraction``, float64 [size, size]."""
    first, last = (1.0 - fraction) / 2.0 * (size - 1), (1.0 + fraction) / 2.0 * (size - 1)
    position = np.linspace(first, last, size)
    return torch.from_numpy(np.maximum(0.0, 1.0 - np.abs(np.arange(size) - position[:, None])))
