"""Gymnasium environments, reached by id: ``gym.make("envs:embodyflow/MetaWorld-v0", task="reach-v3")``."""

import os
import sys

from gymnasium.envs.registration import register

if sys.platform == "linux":
    os.environ.setdefault("MUJOCO_GL", "egl")  # renders without a display; read when mujoco is first imported

register(
    id="embodyflow/MetaWorld-v0",
    entry_point="envs.metaworld:MetaWorldEnv",
    disable_env_checker=True,  # it would inspect every step
)
register(
    id="embodyflow/Adapted-v0",
    entry_point="envs.adapter:AdaptedEnv",
    disable_env_checker=True,
    order_enforce=False,  # the adapted environment's own wrapper does
)
register(id="embodyflow/MuJoCo-v0", entry_point="envs.mujoco_xml:MujocoXMLEnv")
register(
    id="embodyflow/LIBERO-v0",
    entry_point="envs.libero.environment:LiberoEnv",
    disable_env_checker=True,
    order_enforce=False,
)
