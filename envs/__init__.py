"""The environments of this project, reached by id: ``gym.make("envs:embodyflow/MetaWorld-v0", task="reach-v3")``.

Each module registers one. Import a module of your own here, and ``env.id=envs:<its id>`` finds it.
"""

import envs.adapted
import envs.libero
import envs.metaworld
import envs.mujoco  # noqa: F401
