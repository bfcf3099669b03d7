"""LIBERO whose steps take very different times: a stand-in of ``benchmarks/robots/slow_environments.py``."""

import gymnasium as gym

from benchmarks.robots.slow_steps import SlowSteps
from embodyflow.environments.libero.environment import LiberoEnv


class SlowLibero(SlowSteps, LiberoEnv):
    """LIBERO with slow steps."""


gym.register("SlowLIBERO-v0", "benchmarks.robots.slow_libero:SlowLibero", disable_env_checker=True, order_enforce=False)
