"""Memory that MuJoCo keeps after models are built, of which simulation reads nothing."""

import ctypes

import mujoco

_SMALLEST_MODEL = "<mujoco/>"


def free_build_memory() -> None:
    """Return to the system what building this process's models has left behind; after that a call does nothing.

    MuJoCo caches decoded meshes and textures, and it keeps the sources of the last model for ``mj_saveLastXML``. For a
    task of LIBERO both are larger than the model itself. An environment calls this at a reset, when all models of the
    process have been built from the cache as a rule; a later model decodes its files again.
    """
    cache = mujoco.mj_getCache()
    if not mujoco.mj_getCacheSize(cache):
        return
    mujoco.mj_clearCache(cache)
    mujoco.MjModel.from_xml_string(_SMALLEST_MODEL)  # its sources replace the last model's
    library = ctypes.CDLL(None)
    if hasattr(library, "malloc_trim"):  # glibc keeps freed memory otherwise
        library.malloc_trim(0)
