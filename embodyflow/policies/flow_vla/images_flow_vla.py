"""Images as the vision tower sees them."""

from torch import Tensor
from torch.nn import functional as F


def prepare_images(images: Tensor, size: tuple[int, int] | None, *, centred: bool) -> Tensor:
    """Return images for the vision tower, float32 ``[n, 3, H, W]`` in [-1, 1].

    They are scaled, as they are proportioned, until they fit; what is left is black.

    Args:
        images: uint8 ``[n, h, w, 3]``.
        size: width and height that they are brought to; ``None`` leaves them.
        centred: what is left lies on all sides, an odd pixel of it below or on the right; else above and on the left.
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
