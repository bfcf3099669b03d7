"""Simulators behind ``envs``; nothing else in the library imports them, as they are built by Gymnasium id."""

import os
import sys

if sys.platform == "linux":
    os.environ.setdefault("MUJOCO_GL", "egl")  # renders without a display; mujoco reads it when it is imported
