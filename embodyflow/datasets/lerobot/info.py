"""The description of a LeRobot data set, ``meta/info.json``."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from embodyflow.datasets.dataset import Feature
from embodyflow.errors import ConfigError

INFO = "meta/info.json"
_NUMBERS = {"bool", *(f"{kind}{bits}" for kind in ("int", "uint", "float") for bits in (8, 16, 32, 64))}
V21, V30 = "v2.1", "v3.0"


@dataclass(frozen=True)
class Info:
    """A description.

    Attributes:
        version: Version of the format, ``v2.1`` or ``v3.0``.
        fps: Frames per second.
        features: Features by name.
        videos: Names of the features that are kept in mp4 files.
        data_path: Pattern of the parquet files.
        video_path: Pattern of the mp4 files; ``None`` without videos.
        chunks_size: Number of episodes in a folder, in v2.1.
    """

    version: str
    fps: float
    features: Mapping[str, Feature]
    videos: frozenset[str]
    data_path: str
    video_path: str | None
    chunks_size: int


def read_info(folder: Path) -> Info:
    """Read the description.

    Raises:
        ConfigError: It is damaged or incomplete, or has a version that is not read.
    """
    try:
        values = json.loads((folder / INFO).read_text())
        version = str(values["codebase_version"])
        if version not in (V21, V30):
            raise ConfigError(f"{folder}: has the version {version}; allowed are LeRobot's {V21} and {V30}")
        features, fps = values["features"], float(values["fps"])
        if not 0 < fps < math.inf:
            raise ConfigError(f"{folder}: {INFO} has fps={fps:g}; allowed are positive numbers")
        return Info(
            version,
            fps,
            {name: _feature(folder, name, about) for name, about in features.items()},
            frozenset(name for name, about in features.items() if about["dtype"] == "video"),
            str(values["data_path"]),
            values.get("video_path"),
            max(int(values.get("chunks_size", 1000)), 1),
        )
    except KeyError as error:
        raise ConfigError(f"{folder}: {INFO} has no {error.args[0]}") from error
    except (ValueError, TypeError, AttributeError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"{folder}: {INFO} is damaged: {error}") from error


def _feature(folder: Path, name: str, about: Mapping[str, Any]) -> Feature:
    shape = tuple(int(size) for size in about["shape"])
    if about["dtype"] not in ("image", "video"):
        return Feature(shape, is_text=about["dtype"] not in _NUMBERS)
    if len(shape) != 3 or 3 not in (shape[0], shape[2]):
        raise ConfigError(f"{folder}: {name} has the shape {list(shape)}; allowed are images of three colours")
    channels_first = (about.get("names") or [None])[0] in ("channel", "channels", "c") or shape[2] != 3
    return Feature((*shape[1:], 3) if channels_first else shape, is_image=True)
