"""A check that this machine can render, made in a child process."""

import functools
import subprocess
import sys

PROBE = "import mujoco; context = mujoco.GLContext(16, 16); context.make_current(); context.free()"


@functools.cache
def rendering_problem() -> str | None:
    """Return why MuJoCo cannot render here, or ``None`` if it can.

    A missing or broken GL library can crash the process in native code, so a child process tries it.
    """
    try:
        probe = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, text=True, timeout=60)
    except subprocess.TimeoutExpired:
        return "creating a GL context took longer than 60 s"
    if probe.returncode == 0:
        return None
    lines = probe.stderr.strip().splitlines() or [f"exit code {probe.returncode}"]
    return lines[-1]
