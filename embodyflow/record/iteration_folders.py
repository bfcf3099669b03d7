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
    """Return the folders of all iterations by index, oldest first.

    Files, and folders with other names such as a copy ``iteration-000005.bak`` of the user's, do not count.
    """
    found = {int(each.name[10:]): each for each in parent.glob("iteration-*") if each.name[10:].isdecimal()}
    return {index: found[index] for index in sorted(found) if found[index].is_dir()}


def index_of(folder: Path) -> int:
    """Return the iteration that a folder belongs to."""
    return int(folder.name.rpartition("-")[2])


def drop(folder: Path) -> None:
    """Remove an iteration's folder.

    It loses its name before it loses files, so a reader finds the whole folder or none.
    """
    dropped = folder.with_name(f".dropped-{index_of(folder):06d}")
    remove(dropped, ignore_errors=True)
    os.replace(folder, dropped)
    remove(dropped)


def remove(folder: Path, *, ignore_errors: bool = False) -> None:
    """Remove a folder; of a link, such as to a checkpoint that was moved to another disk, only the link.

    Args:
        folder: The folder.
        ignore_errors: Whether it may be missing, or stay in part.
    """
    if folder.is_symlink():
        folder.unlink()
    else:
        shutil.rmtree(folder, ignore_errors=ignore_errors)


def dropped_in(parent: Path) -> list[Path]:
    """Return the folders whose removal a kill interrupted."""
    return [folder for folder in parent.glob(".dropped-*") if folder.name[9:].isdecimal()]
