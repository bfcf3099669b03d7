"""LIBERO (Liu et al., 2023, arXiv:2306.03310) as Gymnasium environments; needs the extra ``libero``.

robosuite loads EGL and overwrites ``MUJOCO_GL`` when it is imported. Its renderer is not used here, so an empty module
replaces its GL context during the import. Thus environments without cameras need no GL.
"""

import logging
import os
import sys
import types

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
        raise ModuleNotFoundError(f"{error}: LIBERO needs the extra: make install EXTRAS=dev,libero") from error
    finally:
        del sys.modules[_CONTEXT]
        if before is None:
            os.environ.pop("MUJOCO_GL", None)
        else:
            os.environ["MUJOCO_GL"] = before


if "robosuite" not in sys.modules:
    _import_robosuite()
