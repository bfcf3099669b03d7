"""Environments of this project, built by id: ``gym.make("envs:embodyflow/MetaWorld-v0", task="reach-v3")``.

Each module registers one environment. To add your own, import its module here and set ``env.id=envs:<its id>``.
"""

import envs.adapted
import envs.aloha
import envs.brax
import envs.env_pool
import envs.libero
import envs.metaworld
import envs.mujoco
import envs.pusht
import envs.robosuite  # noqa: F401
