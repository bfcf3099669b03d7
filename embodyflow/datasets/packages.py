"""Packages that data sets need; embodyflow works without them."""

import importlib
from typing import Any

from embodyflow.errors import ConfigError


def require(module: str) -> Any:
    """Return an imported module of the extra ``datasets``.

    Raises:
        ConfigError: It is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise ConfigError(f"{package} is not installed; pip install 'embodyflow[datasets]'") from error
