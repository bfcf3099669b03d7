"""Critics of states and noise, as :class:`~embodyflow.policies.base.ActionCritics`."""

from embodyflow.policies.embodied.mlp_chunks.critic_mlp_chunks import MLPChunksCritic
from embodyflow.policies.embodied.steered.modeling_steered import NoiseCritics


class SteeredCritic(MLPChunksCritic):
    """Values noise, in parts of its bound; the statistics of states are those of the frozen model."""

    networks = NoiseCritics
