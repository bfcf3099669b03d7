"""Critics of the policy of images and chunks, as :class:`~embodyflow.policies.base.ActionCritics`."""

from embodyflow.policies.control.mlp_squashed.critic_mlp_squashed import MLPSquashedCritic
from embodyflow.policies.embodied.cnn_chunks.configuration_cnn_chunks import CNNChunksConfig


class CNNChunksCritic(MLPSquashedCritic):
    """Values decisions with ``num_critics`` networks of features, which the policy's encoder computes.

    Args:
        config: Configuration of the policy, for its sizes.
        device: Device of the model.
    """

    def __init__(self, config: CNNChunksConfig, device: str) -> None:
        super().__init__(config.head_sizes, device)
