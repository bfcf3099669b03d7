"""Patterns of file names, such as ``data/train-*.parquet``."""

import glob
from collections.abc import Sequence
from pathlib import Path

from embodyflow.errors import ConfigError


def expand_patterns(key: str, names: Sequence[str]) -> tuple[str, ...]:
    """Return the paths that names and patterns stand for; the matches of a pattern are sorted.

    ``*``, ``?`` and ``[…]`` match within a folder, ``**`` matches folders. A name that exists is never a pattern.

    Args:
        key: Key of the configuration, for the error message.
        names: Paths and patterns.

    Raises:
        ConfigError: A pattern matches nothing.
    """
    paths: list[str] = []
    for name in names:
        path = str(Path(name).expanduser()) if name.startswith("~") else name
        if not glob.has_magic(path) or Path(path).exists():
            paths.append(path)
            continue
        matches = sorted(glob.glob(path, recursive=True))
        if not matches:
            raise ConfigError(f"{key}={name}: matches no file; allowed are paths, and patterns that match a file")
        paths += matches
    return tuple(paths)
