"""Where Hydra looks for configuration files: in the project's ``configs/``, then in the shipped ones."""

from pathlib import Path

import hydra.conf
from hydra.core.config_search_path import ConfigSearchPath
from hydra.plugins.search_path_plugin import SearchPathPlugin

from embodyflow.config.composition.config_source import ReadOnce
from embodyflow.project import config_folders


class ProjectConfigs(SearchPathPlugin):
    """Put the project's own configurations first, so that a file replaces the shipped file of the same name."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        """Prepend ``configs/`` of the current folder if that is a project other than the one that ships ours.

        Hydra names folders with the prefix ``file://`` or none, and the package of its own files with ``pkg://``.
        """
        *own, _ = config_folders()
        for folder in own:
            search_path.prepend("project", f"file://{folder}")
        for element in search_path.get_path():
            scheme, _, place = str(element.path).rpartition("://")
            if scheme in ("", "file"):
                element.path = f"{ReadOnce.scheme()}://{place}"
            elif place == hydra.conf.__name__:
                element.path = f"{ReadOnce.scheme()}://{Path(hydra.conf.__file__).parent}"
