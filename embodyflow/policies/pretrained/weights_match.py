"""Whether a local checkpoint has the weights of the model that its description makes, from the headers of its files."""

from pathlib import Path

from embodyflow.policies.policy_registry import build_policy
from embodyflow.policies.pretrained.configuration import WeightsConfig


def check_weights_match(config: WeightsConfig) -> None:
    """Refuse a local checkpoint whose weights are not those of its description, without reading them.

    Raises:
        ConfigError: One line that names the key and the first such weight.
    """
    if config.path is None or not Path(config.path).is_dir():
        return
    from embodyflow.policies.pretrained.checkpoints import outline  # imports torch

    with outline():
        build_policy(config, "meta")
