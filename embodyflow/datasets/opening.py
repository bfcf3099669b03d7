"""Opening a data set by its folder."""

from pathlib import Path

from embodyflow.datasets.dataset import Dataset
from embodyflow.datasets.lerobot.info import INFO
from embodyflow.datasets.lerobot.reader import LeRobotReader
from embodyflow.datasets.minari_reader import METADATA, MinariReader
from embodyflow.errors import ConfigError


def open_dataset(folder: str | Path) -> Dataset:
    """Open the data set in a folder.

    Raises:
        ConfigError: The folder holds no data set of a known format; the message begins with the folder.
    """
    path = Path(folder).expanduser()
    if not path.is_dir():
        raise ConfigError(f"{folder}: there is no such folder; allowed is a local folder with a data set")
    if (path / INFO).is_file():
        return LeRobotReader(path)
    if (path / METADATA).is_file():
        return MinariReader(path)
    raise ConfigError(f"{folder}: has neither {INFO} nor {METADATA}; allowed is a LeRobot or Minari data set")
