"""What a process of ours has imported, each asked of a fresh interpreter."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    "module", ["embodyflow.config.compose", "embodyflow.orchestration.request.request", "embodyflow.cli.run"]
)
def test_a_configuration_is_checked_without_the_slow_libraries(module: str) -> None:
    """A mistake is told in a second or two; torch, Ray and tensordict take longer than that to import."""
    slow = "{'torch', 'ray', 'tensordict', 'mujoco'} & set(sys.modules)"
    command = f"import sys, {module}; print(sorted({slow}))"
    done = subprocess.run([sys.executable, "-c", command], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_flows_process_does_without_torch() -> None:
    """It holds names and numbers; the seconds of importing torch would come before the first worker starts."""
    command = (
        "import sys, embodyflow.orchestration.run.training; from pipelines import BUILT_IN, load_pipeline\n"
        "for name in BUILT_IN: load_pipeline(name)\n"
        "print(sorted({'torch', 'tensordict', 'transformers', 'sklearn', 'mujoco'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", command], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_workers_of_other_jobs_do_without_the_libraries_of_one() -> None:
    command = "import sys, tasks; print(sorted({'sklearn', 'pandas', 'mujoco', 'gymnasium'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", command], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
