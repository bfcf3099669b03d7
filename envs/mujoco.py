"""A MuJoCo scene from an XML file, for tasks that bring one body near another."""

from gymnasium.envs.registration import register

register(id="embodyflow/MuJoCo-v0", entry_point="embodyflow.environments.mujoco_xml:MujocoXMLEnv")
