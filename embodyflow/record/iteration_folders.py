"""Folders with one subfolder per iteration: how they are named, listed and removed."""

import os
import shutil
from pathlib import Path


def folder_of(parent: Path, iteration: int) -> Path:
    """Return the folder of an iteration; whatever has this name is complete."""
    return parent / f"iteration-{iteration:06d}"


def unfinished_folder(parent: Path, iteration: int) -> Path:
    """Return the folder in which an iteration's files are written before they count."""
    return parent / f".iteration-{iteration:06d}"


def folders_in(parent: Path) -> dict[int, Path]:
    """Return the folders of all iterations by index, oldest first."""
    return {index_of(folder): folder for folder in sorted(parent.glob("iteration-*"), key=index_of)}


def index_of(folder: Path) -> int:
    """Return the iteration that a folder belongs to."""
    return int(folder.name.rpartition("-")[2])


def drop(folder: Path) -> None:
    """Remove an iteration's folder.

    It loses its name before it loses files, so a reader finds the whole folder or none.
    """
    dropped = folder.with_name(f".dropped-{index_of(folder):06d}")
    shutil.rmtree(dropped, ignore_errors=True)
    os.replace(folder, dropped)
    shutil.rmtree(dropped)


def dropped_in(parent: Path) -> list[Path]:
    """Return the folders whose removal a kill interrupted."""
    return list(parent.glob(".dropped-*"))
