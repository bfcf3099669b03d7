"""Modules that our processes import, each checked in a fresh interpreter."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration

ROOT = Path(__file__).resolve().parents[3]

REQUESTS = [
    *(("grpo", "embodied"), ("ppo", "embodied"), ("dapo", "embodied"), ("ppo", "reacher")),
    ("grpo", "embodied", "algorithm.kl.coef=0.1"),
    *(("grpo", "math"), ("dapo", "math")),
]
"""Flow, experiment and further words of runs. A chat's template is tried by transformers, which imports torch."""


@pytest.mark.core
@pytest.mark.parametrize(
    "module",
    ["embodyflow.orchestration.request.request", "embodyflow.cli.config", "embodyflow.cli.run"],
)
def test_a_configuration_is_checked_without_the_slow_libraries(module: str) -> None:
    """A mistake is reported within a second or two; importing torch, Ray, tensordict and Prefect takes longer."""
    slow = "{'torch', 'ray', 'tensordict', 'mujoco', 'prefect', 'pandas'} & set(sys.modules)"
    command = f"import sys, {module}; print(sorted({slow}))"
    done = subprocess.run([sys.executable, "-c", command], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_an_agent_job_is_checked_without_torch() -> None:
    """Also its workflow and the template of its chats; to describe a tool, transformers imports torch."""
    command = (
        "import sys; from embodyflow.orchestration.request.request import RunRequest, check\n"
        "for experiment in ('self_correct', 'kuhn'): check(RunRequest(experiment=experiment))\n"
        "print(sorted({'torch', 'tensordict', 'prefect'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", command], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_flow_process_does_not_import_torch(tmp_path: Path) -> None:
    """The process holds only names and numbers, and importing torch would delay the first worker by seconds."""
    command = (
        "import sys, embodyflow.orchestration.run.training; from pipelines import BUILT_IN, load_pipeline\n"
        "from embodyflow.orchestration.request.request import RunRequest, check\n"
        f"for flow, experiment, *words in {REQUESTS}:\n"
        "    check(RunRequest(flow=flow, experiment=experiment, overrides=tuple(words)), starts=True)\n"
        "for name in BUILT_IN: load_pipeline(name)\n"
        "from pathlib import Path; from embodyflow.record.trackers import TensorBoardTracker\n"
        f"tracker = TensorBoardTracker(Path({str(tmp_path)!r})); tracker.log(1, {{'loss': 1.0}}); tracker.close()\n"
        "print(sorted({'torch', 'tensordict', 'transformers', 'sklearn', 'matplotlib'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", command], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_workers_do_not_import_the_libraries_of_other_jobs() -> None:
    command = "import sys, tasks; print(sorted({'sklearn', 'pandas', 'mujoco', 'gymnasium'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", command], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
