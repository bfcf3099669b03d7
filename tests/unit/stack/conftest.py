"""Parts that the tests of the stack share."""

from pathlib import Path

import pytest

from embodyflow.stack import stack as module
from embodyflow.stack.stack_folder import StackFolder


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StackFolder:
    """Return a project's folder for a stack that leaves the signals and children of the test process alone."""
    for name in ("PREFECT_API_URL", "RAY_ADDRESS"):
        monkeypatch.delenv(name, raising=False)
    for name in ("ignore_signals", "kill_descendants", "adopt_orphans"):
        monkeypatch.setattr(module, name, lambda: None)
    return StackFolder(tmp_path)
