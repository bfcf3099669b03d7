"""Configurations of runs that an earlier version started, brought up to date.

Modules have moved since version 0.1.0. A run's ``config.yaml`` may name one of them as ``module:name``.
"""

from typing import Any

MOVED = {
    "embodyflow.data.arithmetic": "embodyflow.prompts.arithmetic",
    "embodyflow.data.datasets": "embodyflow.prompts.files.datasets",
    "embodyflow.policies.flow_vla.tokenizer_flow_vla": "embodyflow.policies.embodied.flow_vla.tokenizer_flow_vla",
    "embodyflow.policies.openvla.tokenizer_openvla": "embodyflow.policies.embodied.openvla.tokenizer_openvla",
    "envs.adapter": "embodyflow.environments.adapter",
    "envs.libero.expert": "embodyflow.environments.libero.expert",
    "envs.metaworld": "embodyflow.environments.metaworld",
    "envs.mujoco_xml": "embodyflow.environments.mujoco_xml",
    "pipelines.embodied_dapo": "pipelines.dapo",
    "pipelines.embodied_grpo": "pipelines.grpo",
    "pipelines.embodied_srpo": "pipelines.srpo",
    "pipelines.grpo_kl_reward": "pipelines.grpo",
    "pipelines.language_grpo": "pipelines.grpo",
    "pipelines.ppo_control": "pipelines.control",
    "pipelines.ppo_kl_reward": "pipelines.ppo",
}
"""Modules that references name and that have moved, old name to new."""


def upgrade(values: Any) -> Any:
    """Return a configuration in which every reference to a moved module names its new place."""
    if isinstance(values, dict):
        return {key: upgrade(value) for key, value in values.items()}
    if isinstance(values, list):
        return [upgrade(value) for value in values]
    if isinstance(values, str):
        module, colon, name = values.partition(":")
        return f"{MOVED[module]}:{name}" if colon and module in MOVED else values
    return values
