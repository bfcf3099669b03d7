"""Packages that data sets need; embodyflow works without them."""

import importlib
from typing import Any

from embodyflow.errors import ConfigError


def require(module: str) -> Any:
    """Return an imported module of the extras ``datasets`` and ``minari``.

    Raises:
        ConfigError: It is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        extra = "minari" if package == "minari" else "datasets"
        raise ConfigError(f"{package} is not installed; pip install 'embodyflow[{extra}]'") from error
