"""The import path of processes that tests start."""

import os
from pathlib import Path

_SUPPORT = Path(__file__).resolve().parent

SUPPORT_PATH = os.pathsep.join(map(str, (*sorted(_SUPPORT.glob("[a-z]*/")), _SUPPORT, _SUPPORT.parents[1])))
"""``PYTHONPATH`` with the modules that tests share and the checkout; pyproject.toml gives pytest the same."""
