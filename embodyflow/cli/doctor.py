"""``embodyflow doctor``: the resources of this machine, and advice if something is missing."""

import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import psutil
from packaging.version import Version

from embodyflow.process.ports import free_port
from embodyflow.stack.services import num_cores

_GIB = 2**30
_RENDER = """
import mujoco
xml = "<mujoco><worldbody><light pos='0 0 3'/><geom type='box' size='1 1 .1' rgba='1 0 0 1'/></worldbody></mujoco>"
model = mujoco.MjModel.from_xml_string(xml)
data = mujoco.MjData(model)
mujoco.mj_forward(model, data)
context = mujoco.GLContext(64, 64)
context.make_current()
renderer = mujoco.Renderer(model, 64, 64)
renderer.update_scene(data)
red = renderer.render()[..., 0]
assert red.max() > red.min(), "the frame is blank"
from OpenGL.GL import GL_RENDERER, glGetString
print((glGetString(GL_RENDERER) or b"?").decode())
"""
_MEMORY = """
import gc, json, sys
import gymnasium, psutil
env_id, kwargs, number = json.loads(sys.argv[1])
rss = lambda: psutil.Process().memory_info().rss
envs = [gymnasium.make(env_id, **kwargs)]
envs[0].reset(seed=0)
first = rss()
for seed in range(1, number):
    envs.append(gymnasium.make(env_id, **kwargs))
    envs[-1].reset(seed=seed)
print(json.dumps([first, max(rss() - first, 0) / (number - 1)]))
"""
_ENVIRONMENTS: dict[str, tuple[str, dict[str, object], int]] = {
    "Meta-World": ("envs:embodyflow/MetaWorld-v0", {}, 5),
    "LIBERO": ("envs:embodyflow/LIBERO-v0", {}, 5),
}

BREAKING = {
    "sqlalchemy": ("2.1", "Prefect's scheduler stops silently"),
    "prefect": ("3.8", "needs a fastapi version that vLLM does not accept"),
    "fastapi": ("0.137", "not accepted by vLLM"),
    "mujoco": ("3.9", "breaks Meta-World, robosuite 1.4 and gymnasium-robotics"),
    "robosuite": ("1.5", "lacks modules that LIBERO imports"),
    "torch": ("2.14", "vLLM is built against 2.13"),
}
"""First version of each package that does not work here, and why."""


def report() -> str:
    """Return the report, one line per item."""
    memory, disk = psutil.virtual_memory(), shutil.disk_usage(Path.cwd())
    items = {
        "Python": sys.version.split()[0],
        "cores": str(num_cores()),
        "memory": f"{memory.available / _GIB:.0f} of {memory.total / _GIB:.0f} GiB free",
        "disk": f"{disk.free / _GIB:.0f} GiB free here",
        "torch": _torch(),
        "versions": versions(),
        "rendering": _rendering(),
        **{name: _environment_capacity(name, memory.available) for name in _ENVIRONMENTS},
        "ports": ", ".join(f"{name} {_port(port)}" for name, port in {"Prefect": 4200, "Ray": 6379}.items()),
    }
    return "\n".join(f"{name:<12}{value}" for name, value in items.items())


def versions() -> str:
    """Return the installed versions that are known to break, and why."""
    broken = []
    for package, (bound, why) in BREAKING.items():
        try:
            version = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
        if Version(version) >= Version(bound):
            broken.append(f"{package} {version}: {why}; pip install '{package}<{bound}'")
    return "; ".join(broken) or "no version that is known to break"


def _torch() -> str:
    import torch

    devices = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return f"{torch.__version__}, {', '.join(devices) or 'no GPU: CPU'}"


def _rendering() -> str:
    """Render with each OpenGL back end in a separate process, since a missing library may crash it."""
    asked = os.environ.get("MUJOCO_GL")
    for backend in [asked] if asked else ["egl", "osmesa"]:
        environment = {**os.environ, "MUJOCO_GL": backend, "PYOPENGL_PLATFORM": backend}
        try:
            drawn = subprocess.run(
                [sys.executable, "-c", _RENDER], env=environment, capture_output=True, text=True, timeout=60
            )
        except subprocess.TimeoutExpired:
            return f"MUJOCO_GL={backend} hangs: no frame within 60 s"
        if drawn.returncode == 0:
            return f"works: MUJOCO_GL={backend}, {drawn.stdout.strip()}"
    return "does not work, so no videos: `apt-get install libegl1 libgles2 libgl1 libosmesa6` provides it"


def _environment_capacity(name: str, free: int) -> str:
    """Build a few environments in a separate process; return how many fit into the free memory."""
    command = [sys.executable, "-c", _MEMORY, json.dumps(_ENVIRONMENTS[name])]
    built = subprocess.run(command, capture_output=True, text=True, check=False)
    if built.returncode != 0:
        return "not available: " + (built.stderr.strip().splitlines() or [f"exit code {built.returncode}"])[-1]
    first, more = json.loads(built.stdout.strip().splitlines()[-1])
    per_core = max(1 + int((free / num_cores() - first) // max(more, 2**20)), 0)
    return (
        f"{first / 2**20:.0f} MiB for a process with one, {more / 2**20:.0f} MiB for each more: "
        f"{per_core} fit with one process per core"
    )


def _port(port: int) -> str:
    free = free_port(port)
    return f"{port}" if free == port else f"{port} is in use, so another is chosen"
