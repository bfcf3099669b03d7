"""Statistics by which ACT standardises states, actions and images, kept as buffers of the model."""

import torch
from torch import Tensor

from embodyflow.policies.embodied.flow_vla.statistics_flow_vla import EPSILON, Moments

IMAGE_MEAN, IMAGE_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Mean and deviation of ImageNet's channels, which LeRobot takes for images by default."""


class ACTStatistics(Moments):
    """Mean and deviation of states, actions and the channels of K cameras.

    Args:
        state_dim: S, features of a state.
        action_dim: A, dimensions of an action.
        num_cameras: K; without cameras there are no buffers of images.
    """

    image_mean: Tensor
    image_std: Tensor

    def __init__(self, state_dim: int, action_dim: int, num_cameras: int) -> None:
        super().__init__(state_dim, action_dim)
        for name, values in (("image_mean", IMAGE_MEAN), ("image_std", IMAGE_STD)):
            if num_cameras:
                self.register_buffer(name, torch.tensor(values).repeat(num_cameras, 1))

    def images(self, pixels: Tensor) -> Tensor:
        """Return standardised images, float32 [N, K, 3, h, w], of pixels, uint8 [N, K, h, w, 3]."""
        shares = pixels.movedim(-1, 2).float() / 255.0
        return (shares - self.image_mean[:, :, None, None]) / (self.image_std[:, :, None, None] + EPSILON)
