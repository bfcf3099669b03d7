"""The command line in a separate process. Most mistakes are in ``tests/unit/config/test_bad_input.py``."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration

ROOT = Path(__file__).resolve().parents[3]
MISTAKES = {
    "experiment=embodyed": "experiment=embodyed: allowed are adroit_door, aloha, babyai, calculator, cart_pole",
    "rollout.num_groups=3 rollout.num_workers=4": "num_workers=4: must be at most num_groups=3",
    "resume=nope": "/runs/ has no such run; ",
}


@pytest.mark.core
@pytest.mark.parametrize(("words", "answer"), MISTAKES.items())
def test_a_mistake_is_reported_and_starts_nothing(words: str, answer: str, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    started = time.monotonic()
    process = subprocess.run(
        [sys.executable, "-m", "flows.grpo", *words.split(), f"run_root={tmp_path}/runs"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "HOME": str(home), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    print(f"{time.monotonic() - started:.1f} s")
    assert process.returncode == 2, process.stderr
    assert answer in process.stderr
    assert len(process.stderr.splitlines()) == 1
    assert process.stdout == ""
    assert [path.name for path in tmp_path.iterdir()] == ["home"]
    assert not any(path.is_file() for path in home.rglob("*"))


def test_the_console_script_finds_a_module_in_the_current_folder(tmp_path: Path) -> None:
    """As ``python -m`` does. For a script, Python adds the script's folder to the path instead."""
    script = tmp_path / "bin" / "embodyflow"
    script.parent.mkdir()
    script.write_text("import sys\nfrom embodyflow.cli.main import main\nsys.exit(main())\n")
    (tmp_path / "my_pipeline.py").write_text("from pipelines.grpo import embodied_grpo as graph\n")
    command = [sys.executable, str(script), "plan", "pipeline.custom_fn=my_pipeline:graph"]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "train_actor" in done.stdout
