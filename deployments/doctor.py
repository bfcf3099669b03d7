"""``embodyflow doctor``: what this machine offers, and what to do where something is missing."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import psutil

from deployments.processes import free_port
from deployments.services import num_cores

_GIB = 2**30
_RENDER = "import mujoco; context = mujoco.GLContext(8, 8); context.make_current(); context.free()"


def report() -> str:
    """Return the report, a line per item."""
    memory, disk = psutil.virtual_memory(), shutil.disk_usage(Path.cwd())
    items = {
        "Python": sys.version.split()[0],
        "cores": str(num_cores()),
        "memory": f"{memory.available / _GIB:.0f} of {memory.total / _GIB:.0f} GiB free",
        "disk": f"{disk.free / _GIB:.0f} GiB free here",
        "torch": _torch(),
        "rendering": _rendering(),
        "ports": ", ".join(f"{name} {_port(port)}" for name, port in {"Prefect": 4200, "Ray": 6379}.items()),
    }
    return "\n".join(f"{name:<12}{value}" for name, value in items.items())


def _torch() -> str:
    import torch

    devices = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return f"{torch.__version__}, {', '.join(devices) or 'no GPU: CPU'}"


def _rendering() -> str:
    """Try the OpenGL back ends in processes of their own: a missing library may end the process."""
    asked = os.environ.get("MUJOCO_GL")
    for backend in [asked] if asked else ["egl", "osmesa"]:
        environment = {**os.environ, "MUJOCO_GL": backend, "PYOPENGL_PLATFORM": backend}
        tried = subprocess.run([sys.executable, "-c", _RENDER], env=environment, capture_output=True, check=False)
        if tried.returncode == 0:
            return f"works (MUJOCO_GL={backend})"
    return "none, so no videos: `apt-get install libegl1 libgles2 libgl1 libosmesa6` brings it"


def _port(port: int) -> str:
    free = free_port(port)
    return f"{port}" if free == port else f"{port} is taken: another is chosen"
