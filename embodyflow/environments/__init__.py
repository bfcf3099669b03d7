"""The simulators behind ``envs``: a leaf of the library, reached by Gymnasium id only."""

import os
import sys

if sys.platform == "linux":
    os.environ.setdefault("MUJOCO_GL", "egl")  # renders without a display; read when mujoco is first imported
