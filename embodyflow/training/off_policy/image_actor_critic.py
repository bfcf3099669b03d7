"""Soft actor-critic on replayed images, which are shifted at random (DrQ; Kostrikov et al. 2020, arXiv:2004.13649).

The policy's encoder maps images to the features that critics and policy take in place of a state. The critics' loss
trains it, and so does imitation; the policy's loss does not. Next features are the same encoder's, as in DrQ-v2 (Yarats
et al. 2021, arXiv:2107.09645), so that there is no target of the encoder.
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch

from embodyflow.config.robots.off_policy import ImageActorCriticConfig
from embodyflow.policies.base import ActionCritics, ImageOffPolicy
from embodyflow.training.off_policy.gradient_step import Metrics
from embodyflow.training.off_policy.learner import FEATURES, OffPolicyRun
from embodyflow.training.off_policy.replay.replay_buffer import Images, Transitions
from embodyflow.training.off_policy.soft_actor_critic import SoftActorCritic


class ImageActorCritic(SoftActorCritic):
    """Soft actor-critic that may imitate demonstrated transitions, on features of images.

    Args:
        policy: Policy in training, with the encoder.
        critics: Its critics of features; a copy of them becomes the target.
        config: Run configuration.
    """

    def __init__(self, policy: ImageOffPolicy, critics: ActionCritics, config: OffPolicyRun) -> None:
        super().__init__(policy, critics, config)
        assert isinstance(config.off_policy, ImageActorCriticConfig)
        self._shift, self._image_policy = config.off_policy.shift, policy
        self._cameras = list(config.policy.replayed_images)
        self._add_step("critics", self._image_loss, "policy")  # whose encoder it trains

    def _train_critics(self, batch: Transitions, *further: torch.Tensor) -> Metrics:
        images = (images[camera] for images in (batch.images, batch.next_images) for camera in self._cameras)
        metrics, (norm, _) = self._steps["critics"].take(*batch.tensors, *images, *further)
        return {**metrics, "critic/grad_norm": norm}

    def update(self, batch: Transitions, rng: np.random.Generator, index: int) -> Metrics:
        """Take an update on images that are shifted at random; see :meth:`MaximumEntropyLearner.update`."""
        images, next_images = (
            {camera: shifted(each, self._shift, rng) for camera, each in images.items()}
            for images in (batch.images, batch.next_images)
        )
        return super().update(replace(batch, images=images, next_images=next_images), rng, index)

    def _image_loss(self, *columns: torch.Tensor) -> tuple[torch.Tensor, Metrics]:
        """Return the loss of critics and encoder, its metrics, and the features as :data:`FEATURES`."""
        state, action, returns, discounts, next_state, *rest = columns
        further = iter(rest)
        images, next_images = self._by_camera(further), self._by_camera(further)
        features = self._image_policy.encode(state, images)
        with torch.no_grad():
            next_features = self._image_policy.encode(next_state, next_images)
        batch = Transitions(features, action, returns, discounts, next_features)
        loss, metrics = self._critics_loss(batch, *further)
        return loss, metrics | {FEATURES: features}

    def _by_camera(self, columns: Iterator[torch.Tensor]) -> Images:
        return {camera: next(columns) for camera in self._cameras}


def shifted(images: torch.Tensor, most: int, rng: np.random.Generator) -> torch.Tensor:
    """Return images, uint8 ``[B, H, W, 3]``, each shifted by up to ``most`` pixels along each side.

    Shifts are whole numbers, each equally likely. Pixels beyond the border are the nearest ones within.
    """
    num_images, height, width, _ = images.shape
    corners = rng.integers(0, 2 * most + 1, (num_images, 2)).tolist()
    padded = np.pad(images.numpy(), ((0, 0), (most, most), (most, most), (0, 0)), mode="edge")
    moved = [image[top : top + height, left : left + width] for image, (top, left) in zip(padded, corners, strict=True)]
    return torch.from_numpy(np.stack(moved))
