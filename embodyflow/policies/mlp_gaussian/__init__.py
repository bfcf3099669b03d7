"""A Gaussian policy for continuous control, and its critic: two small networks over the state."""

from embodyflow.policies.mlp_gaussian.configuration_mlp_gaussian import MLPGaussianConfig

__all__ = ["MLPGaussianConfig"]
