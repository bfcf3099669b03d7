"""Configuration of the Gaussian policy with bounded means and its critics."""

from typing import ClassVar, Literal

from embodyflow.policies.control.mlp_squashed.configuration_mlp_squashed import MLPWithActionCriticsConfig


class MLPBoundedConfig(MLPWithActionCriticsConfig):
    """Configuration of :class:`~embodyflow.policies.control.mlp_bounded.modeling_mlp_bounded.MLPBounded`."""

    off_policy: ClassVar[str | None] = "iql"
    compiles: ClassVar[bool] = True
    entropy_varies: ClassVar[bool] = False
    entropy_is_density: ClassVar[bool] = True

    name: Literal["mlp_bounded"] = "mlp_bounded"
