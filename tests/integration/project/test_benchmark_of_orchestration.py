"""The benchmark of orchestration keeps up with the workers that it runs."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.integration, pytest.mark.slow]


def test_all_contenders_finish_their_iterations(tmp_path: Path) -> None:
    output = tmp_path / "orchestration.json"
    command = [sys.executable, "-m", "benchmarks.orchestration.orchestration", "--rounds", "1", "--block", "2"]
    found = subprocess.run([*command, "--output", str(output)], capture_output=True, text=True, timeout=300)
    assert found.returncode == 0, found.stdout[-2000:] + found.stderr[-4000:]
    milliseconds = json.loads(output.read_text())["milliseconds"]["SQLite"]
    assert all(milliseconds[kind]["median"] > 0 for kind in ("raw", "plain", "ours", "one"))
