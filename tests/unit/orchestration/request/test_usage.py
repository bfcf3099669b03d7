"""``python -m flows.<name> --help`` names the flow's own parameters."""

import os
import subprocess
import sys

import pytest

from embodyflow.orchestration.request.usage import answer_help, usage
from flows.evaluate import evaluate
from flows.grpo import grpo


def test_parameters_are_listed_with_their_descriptions() -> None:
    lines = usage(grpo, "Others are overrides.").splitlines()
    assert lines[0] == "usage: python -m flows.grpo [key=value …]"
    assert any(line.startswith("  experiment  Experiment, a file in configs/experiment") for line in lines)
    assert "drawer_open, embodied, fetch_reach, gemma_sums, gsm8k" in " ".join(usage(grpo, "").split())
    assert any(line.startswith("  resume      run_id of a run to resume from its last commit") for line in lines)
    assert lines[-1] == "Others are overrides."
    assert not any(line.startswith("  overrides") for line in lines)
    assert "runs/mine/policy (must be set)" in " ".join(usage(evaluate, "").split())


@pytest.mark.parametrize("word", ["-h", "--help"])
def test_help_exits_with_code_0(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        answer_help(grpo, ["experiment=push", word], "Others are overrides.")
    assert end.value.code == 0
    assert capsys.readouterr().out.startswith("usage: ")
    answer_help(grpo, ["experiment=push"], "")  # without a request for help it returns


@pytest.mark.parametrize("flow", ["grpo", "evaluate", "sweep"])
def test_a_flow_has_help_and_gives_its_own_server_time_to_start(flow: str) -> None:
    """Prefect keeps the settings that it finds when it is first imported."""
    program = (
        "import runpy\n"
        "try:\n"
        f"    runpy.run_module('flows.{flow}', run_name='__main__', alter_sys=True)\n"
        "finally:\n"
        "    from prefect.settings import get_current_settings as settings\n"
        "    print(settings().server.ephemeral.startup_timeout_seconds)"
    )
    env = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    done = subprocess.run([sys.executable, "-c", program, "--help"], env=env, capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.startswith(f"usage: python -m flows.{flow} "), done.stderr
    assert done.stdout.splitlines()[-1] == "120"
