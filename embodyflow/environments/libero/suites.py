"""Which tasks there are, where their files lie, and the initial states that LIBERO recorded."""

import contextlib
import importlib.util
import os
import pickle
import sys
import tempfile
import zipfile
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

SUITES = MappingProxyType(
    {"libero_spatial": 10, "libero_object": 10, "libero_goal": 10, "libero_10": 10, "libero_90": 90}
)
"""Suite to number of tasks; a task is named ``suite/number``."""

TASKS = tuple(f"{suite}/{number}" for suite, size in SUITES.items() for number in range(size))

ASSETS_VARIABLE = "LIBERO_ASSETS"
ASSET_FOLDERS = ("articulated_objects", "scenes", "stable_hope_objects", "stable_scanned_objects", "turbosquid_objects")
FLAT_TEXTURE_BYTES = 1024
"""A PNG file below that is of one colour: no photograph of an object."""


@cache
def package() -> Path:
    """Return the folder of LIBERO's files.

    Raises:
        ModuleNotFoundError: it is not installed.
    """
    spec = importlib.util.find_spec("libero")
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError("No module named 'libero': LIBERO needs the extra: make install EXTRAS=dev,libero")
    return Path(next(iter(spec.submodule_search_locations))) / "libero"


@cache
def _task_map() -> dict[str, list[str]]:
    """Read LIBERO's own table; importing it as a package would import torch."""
    path = package() / "benchmark" / "libero_suite_task_map.py"
    spec = importlib.util.spec_from_file_location("_libero_suite_task_map", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    table: dict[str, list[str]] = module.libero_task_map
    return table


def task_file(task: str) -> Path:
    """Return the BDDL file of a task, whose stem is LIBERO's name for it."""
    suite, _, number = task.partition("/")
    return package() / "bddl_files" / suite / f"{_task_map()[suite][int(number)]}.bddl"


def initial_states(task: str) -> NDArray[np.float64]:
    """Return the task's recorded initial states, float64 ``[50, 1 + nq + nv]``: time, positions, velocities.

    They lie in torch's file format, which without tensors is a pickled array in a zip file.
    """
    bddl = task_file(task)
    path = package() / "init_files" / bddl.parent.name / f"{bddl.stem}.pruned_init"
    with zipfile.ZipFile(path) as archive:
        [name] = [name for name in archive.namelist() if name.endswith("data.pkl")]
        states: NDArray[np.float64] = pickle.loads(archive.read(name))
    return states


@cache
def import_libero() -> Any:
    """Import LIBERO without its question for a folder, and point it at the assets; return ``libero.libero``.

    LIBERO asks for a folder of data sets on standard input unless a configuration file exists. Nothing here reads
    that file, so where there is none, an empty one stands in during the import.

    Raises:
        ModuleNotFoundError: it is not installed.
        FileNotFoundError: there are no assets.
    """
    package()
    home = Path(os.environ.get("LIBERO_CONFIG_PATH") or Path.home() / ".libero")
    with contextlib.ExitStack() as stack:
        if not (home / "config.yaml").exists():
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            (Path(folder) / "config.yaml").write_text("{}\n")
            stack.enter_context(_environment("LIBERO_CONFIG_PATH", folder))
        stack.enter_context(contextlib.redirect_stdout(sys.stderr))
        import libero.libero

        libero.libero._assets_path_cache = str(assets())
        import libero.libero.envs
    return libero.libero


@cache
def assets() -> Path:
    """Return the folder of meshes and textures: ``LIBERO_ASSETS``, else where hf-libero has them or downloads them.

    Raises:
        FileNotFoundError: they are not there.
    """
    named = os.environ.get(ASSETS_VARIABLE)
    folder = Path(named) if named else _own_assets()
    missing = [name for name in ASSET_FOLDERS if not (folder / name).is_dir()]
    if missing:
        raise FileNotFoundError(
            f"{ASSETS_VARIABLE}={named or '(not set)'}: {folder} lacks {', '.join(missing)}; set it to a copy of "
            "LIBERO's assets, or unset it on a machine where hf-libero can download them"
        )
    return folder


def _own_assets() -> Path:
    import libero.libero

    return Path(libero.libero.get_assets_path())


@cache
def stand_ins() -> tuple[str, ...]:
    """Return the textures of one colour among the assets, which are no photographs but stand for them.

    With any of them, what a policy sees is not the published benchmark; success from states is.
    """
    folder = assets()
    textures = (path for path in folder.rglob("*.png") if path.stat().st_size < FLAT_TEXTURE_BYTES)
    return tuple(sorted(str(path.relative_to(folder)) for path in textures))


@contextlib.contextmanager
def _environment(name: str, value: str) -> Any:
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before
