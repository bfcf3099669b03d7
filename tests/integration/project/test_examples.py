"""The examples run by the commands in their READMEs, with fewer and smaller rollouts."""

import re
import shlex
from pathlib import Path

import pytest
from small_runs import ROOT, Runs
from waiting import finish

pytestmark = pytest.mark.integration

SHORT = (
    *("rollout.num_workers=1", "rollout.num_groups=8", "rollout.group_size=4", "rollout.envs_per_worker=8"),
    *("evaluation.num_goals=8", "evaluation.video=false", "tracking.tensorboard=false"),
)


def commands_of(readme: Path) -> list[list[str]]:
    """Return the words of each command in the README's code blocks."""
    blocks = re.findall(r"```sh\n(.*?)```", readme.read_text(encoding="utf-8"), re.DOTALL)
    return [shlex.split(line) for block in blocks for line in block.replace("\\\n", " ").splitlines()]


@pytest.mark.slow
def test_a_policy_of_your_own_starts_from_demonstrations_and_learns(tmp_path: Path, prefect_api: str) -> None:
    from safetensors.numpy import load_file

    [[python, option, flow, *words]] = commands_of(ROOT / "examples" / "own_policy" / "README.md")
    assert (python, option) == ("python", "-m")
    runs = Runs(tmp_path).served_by(prefect_api)
    process = runs.start(*words, *SHORT, f"run_root={runs.root}", "run_id=own", flow=flow.removeprefix("flows."))
    output = finish(process)
    assert process.returncode == 0, output[-4000:]
    iterations = [record for record in runs.records("own") if "weights_digest" in record]
    assert len(iterations) == 2
    assert all(record["groups/mixed_fraction"] > 0 and record["train/grad_norm"] > 0 for record in iterations)
    assert iterations[0]["weights_digest"] != iterations[1]["weights_digest"]
    assert all(record["parity/log_prob_gap"] < 1e-4 for record in iterations)
    assert iterations[0]["rollout/success_rate"] > 0.1, "nothing was learned from the demonstrations"
    weights = load_file(runs.root / "own" / "policy" / "model.safetensors")
    assert weights["std"].min() > 0 and (weights["std"] != 1).any(), "states are standardised by the demonstrations"
    runs.assert_nothing_runs(seconds=10)
