"""Preparation of images for the vision tower."""

from torch import Tensor
from torch.nn import functional as F


def prepare_images(images: Tensor, size: tuple[int, int] | None, *, centred: bool) -> Tensor:
    """Return images for the vision tower, float32 ``[n, 3, H, W]`` in [-1, 1].

    Images are scaled to fit ``size`` with their proportions kept, and padded by black.

    Args:
        images: Images, uint8 ``[n, h, w, 3]``.
        size: Width and height to scale to; ``None`` keeps the images' size.
        centred: Whether to pad on both sides, an odd pixel below or right; otherwise above and left.
    """
    pixels = images.permute(0, 3, 1, 2).float() / 255.0
    if size is not None:
        width, height = size
        ratio = max(pixels.shape[3] / width, pixels.shape[2] / height)
        inner = (int(pixels.shape[2] / ratio), int(pixels.shape[3] / ratio))
        pixels = F.interpolate(pixels, size=inner, mode="bilinear", align_corners=False)
        above, left = height - inner[0], width - inner[1]
        if centred:
            pixels = F.pad(pixels, (left // 2, left - left // 2, above // 2, above - above // 2))
        else:
            pixels = F.pad(pixels, (left, 0, above, 0))
    return pixels * 2.0 - 1.0
