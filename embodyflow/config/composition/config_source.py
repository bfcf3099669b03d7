"""Hydra's source of configuration files that reads an unchanged file once per process."""

import functools
import pickle
from pathlib import Path

from hydra._internal.core_plugins.file_config_source import FileConfigSource
from hydra.plugins.config_source import ConfigResult


class ReadOnce(FileConfigSource):
    """Files under ``once://<folder>``; to check a request composes some twenty files three times."""

    @staticmethod
    def scheme() -> str:
        """Return the prefix of the folders whose files this class reads."""
        return "once"

    def load_config(self, config_path: str) -> ConfigResult:
        """Return the contents of a file, a new copy each time, because Hydra changes it.

        Raises:
            ConfigLoadError: The file does not exist.
        """
        file = Path(self.path) / self._normalize_file_name(config_path)
        if not file.is_file():
            return super().load_config(config_path)
        return pickle.loads(_read(self.provider, self.path, config_path, file.stat().st_mtime_ns))


@functools.lru_cache(maxsize=1024)
def _read(provider: str, folder: str, config_path: str, changed: int) -> bytes:
    """Return the contents of the file that was last changed at the time ``changed``, pickled."""
    return pickle.dumps(FileConfigSource(provider, f"file://{folder}").load_config(config_path))
