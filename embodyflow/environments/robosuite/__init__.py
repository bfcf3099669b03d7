"""robosuite (Zhu et al., 2020, arXiv:2009.12293), imported without its renderer; needs the extra ``libero``.

robosuite loads EGL and overwrites ``MUJOCO_GL`` when it is imported. Its renderer is not used here, so an empty module
replaces its GL context during the import. Thus environments without cameras need no GL.
"""

import contextlib
import logging
import os
import sys
import types
from collections.abc import Iterator

import numpy as np

_CONTEXT = "robosuite.renderers.context.egl_context"


def _import_robosuite() -> None:
    logging.getLogger("robosuite_logs").setLevel(logging.ERROR)  # hides its warning about a missing private macro file
    before = os.environ.get("MUJOCO_GL")
    stand_in = types.ModuleType(_CONTEXT)
    stand_in.EGLGLContext = None  # type: ignore[attr-defined]
    sys.modules[_CONTEXT] = stand_in
    try:
        import robosuite  # noqa: F401
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f"{error}: robosuite needs the extra: make install EXTRAS=dev,libero") from error
    finally:
        del sys.modules[_CONTEXT]
        if before is None:
            os.environ.pop("MUJOCO_GL", None)
        else:
            os.environ["MUJOCO_GL"] = before


if "robosuite" not in sys.modules:
    _import_robosuite()


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed NumPy's global generator in the block, from which robosuite draws, and restore it afterwards."""
    before = np.random.get_state()
    np.random.seed(seed)
    try:
        yield
    finally:
        np.random.set_state(before)
