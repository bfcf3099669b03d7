"""LIBERO's tasks, their files and their recorded initial states."""

import contextlib
import importlib.util
import os
import sys
import tempfile
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodyflow.environments.libero.array_files import read_array

SUITES = MappingProxyType(
    {"libero_spatial": 10, "libero_object": 10, "libero_goal": 10, "libero_10": 10, "libero_90": 90}
)
"""Number of tasks by suite; a task is named ``suite/number``."""

TASKS = tuple(f"{suite}/{number}" for suite, size in SUITES.items() for number in range(size))

ASSETS_VARIABLE = "LIBERO_ASSETS"
ASSET_FOLDERS = ("articulated_objects", "scenes", "stable_hope_objects", "stable_scanned_objects", "turbosquid_objects")
FLAT_TEXTURE_BYTES = 1024
"""Size below which a PNG file has a single colour and is not a photograph of an object."""


@cache
def package_folder() -> Path:
    """Return the folder of LIBERO's files.

    Raises:
        ModuleNotFoundError: LIBERO is not installed.
    """
    spec = importlib.util.find_spec("libero")
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError("No module named 'libero': LIBERO needs the extra: make install EXTRAS=dev,libero")
    return Path(next(iter(spec.submodule_search_locations))) / "libero"


@cache
def _task_map() -> dict[str, list[str]]:
    """Read LIBERO's table of tasks from its file; importing its package would import torch."""
    path = package_folder() / "benchmark" / "libero_suite_task_map.py"
    spec = importlib.util.spec_from_file_location("_libero_suite_task_map", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    table: dict[str, list[str]] = module.libero_task_map
    return table


def task_file(task: str) -> Path:
    """Return the BDDL file of a task; its stem is LIBERO's name of the task."""
    suite, _, number = task.partition("/")
    return package_folder() / "bddl_files" / suite / f"{_task_map()[suite][int(number)]}.bddl"


def initial_states(task: str) -> NDArray[np.float64]:
    """Return the task's recorded initial states, float64 ``[50, 1 + nq + nv]``: time, positions, velocities.

    Raises:
        ValueError: A file is damaged, or holds something else than an array.
    """
    bddl = task_file(task)
    path = package_folder() / "init_files" / bddl.parent.name / f"{bddl.stem}.pruned_init"
    return read_array(path)


@cache
def import_libero() -> Any:
    """Import LIBERO without its prompt for a folder, point it at the assets and return ``libero.libero``.

    LIBERO asks for a folder of data sets on standard input unless a configuration file exists. Nothing here reads that
    file, so if it is missing, an empty one replaces it during the import.

    Raises:
        ModuleNotFoundError: LIBERO is not installed.
        FileNotFoundError: The assets are missing.
    """
    package_folder()
    home = Path(os.environ.get("LIBERO_CONFIG_PATH") or Path.home() / ".libero")
    with contextlib.ExitStack() as stack:
        if not (home / "config.yaml").exists():
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            (Path(folder) / "config.yaml").write_text("{}\n")
            stack.enter_context(_environment_variable("LIBERO_CONFIG_PATH", folder))
        stack.enter_context(contextlib.redirect_stdout(sys.stderr))
        import libero.libero

        libero.libero._assets_path_cache = str(assets())
        import libero.libero.envs
    return libero.libero


@cache
def assets() -> Path:
    """Return the folder of meshes and textures: ``LIBERO_ASSETS``, or else hf-libero's own, downloaded if needed.

    Raises:
        FileNotFoundError: The assets are missing.
    """
    variable = os.environ.get(ASSETS_VARIABLE)
    folder = Path(variable) if variable else _default_assets()
    missing = [name for name in ASSET_FOLDERS if not (folder / name).is_dir()]
    if missing:
        raise FileNotFoundError(
            f"{ASSETS_VARIABLE}={variable or '(not set)'}: {folder} has no {', '.join(missing)}; set it to a copy of "
            "LIBERO's assets, or unset it on a machine where hf-libero can download them"
        )
    return folder


def _default_assets() -> Path:
    import libero.libero

    return Path(libero.libero.get_assets_path())


@cache
def stand_in_textures() -> tuple[str, ...]:
    """Return the textures of a single colour among the assets, which are placeholders for photographs.

    With such textures, results from images are not comparable with the published benchmark; results from states are.
    """
    folder = assets()
    textures = (path for path in folder.rglob("*.png") if path.stat().st_size < FLAT_TEXTURE_BYTES)
    return tuple(sorted(str(path.relative_to(folder)) for path in textures))


@contextlib.contextmanager
def _environment_variable(name: str, value: str) -> Any:
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before
