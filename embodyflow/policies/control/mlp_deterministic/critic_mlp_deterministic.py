"""Critics of the deterministic policy: those of the squashed Gaussian."""

from embodyflow.policies.control.mlp_squashed.critic_mlp_squashed import MLPSquashedCritic


class MLPDeterministicCritic(MLPSquashedCritic):
    """Values actions with ``num_critics`` networks."""
