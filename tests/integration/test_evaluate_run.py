"""A trained run evaluated by itself, its episodes listed and played again; all by the commands that people type."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from small_runs import ROOT, Runs

from embodyflow.episode_record import read_episodes
from embodyflow.ledger import Ledger
from embodyflow.run_folder import RunFolder

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, prefect_api: str) -> Runs:
    return Runs(tmp_path_factory.mktemp("evaluate"), prefect_api)


@pytest.fixture(scope="module")
def mine(runs: Runs) -> Path:
    words = ("iterations=3", "seed=7", "rollout.keep_episodes=2", "filter.drop_uniform=false", "evaluation.num_goals=8")
    runs.run("mine", *words, flow="srpo")
    return runs.root / "mine"


def evaluate(runs: Runs, *words: str) -> subprocess.Popen[str]:
    return runs.start(*words, flow="evaluate")


def embodyflow(*words: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "deployments.cli", *map(str, words)]
    return subprocess.run(command, cwd=ROOT, text=True, capture_output=True, timeout=120)


def test_the_newest_episodes_are_kept_and_play_again_as_they_were(mine: Path) -> None:
    kept = dict(read_episodes(RunFolder(mine)))
    assert list(kept) == [2, 3]
    assert not list((mine / "stages").iterdir())
    for episodes in kept.values():
        assert len(episodes["uid"]) == 16 and episodes["trained"].any()
        assert (episodes["scores"][episodes["trained"] & episodes["success"]] == 1).all()
    listed = embodyflow("episodes", mine).stdout.splitlines()
    assert len(listed) == 33
    for row in (0, 15):
        done = embodyflow("replay", mine, kept[3]["uid"][row])
        assert done.returncode == 0, done.stderr
        assert "replay: equal to the bit" in done.stdout


def test_an_evaluation_that_is_stopped_goes_on_and_says_what_training_said(runs: Runs, mine: Path) -> None:
    folder = runs.root / "evaluate-mine-000003"
    first = evaluate(runs, f"policy={mine}")
    deadline = time.monotonic() + 120
    while not (folder / "ledger.jsonl").exists() and first.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    first.send_signal(signal.SIGKILL)
    first.communicate(timeout=60)
    runs.assert_nothing_runs(seconds=30)
    known = [entry.facts["node_id"] for entry in Ledger(folder / "ledger.jsonl").entries]

    second = evaluate(runs, f"policy={mine}")
    output, _ = second.communicate(timeout=200)
    assert second.returncode == 0, output[-4000:]
    assert known and all(f"{node_id} was done before" in output for node_id in known)
    result = json.loads((folder / "evaluation.json").read_text())
    [after] = [r for r in runs.metrics("mine") if r["iteration"] == 3 and "eval/greedy_success_rate" in r]
    for mode in ("greedy", "sampled"):
        rate = result["tasks"]["reach-v3"][mode]
        assert (rate["episodes"], rate["success_rate"]) == (8, after[f"eval/{mode}_success_rate"])
        assert (rate["low"], rate["high"]) == (after[f"eval/{mode}_success_low"], after[f"eval/{mode}_success_high"])
    assert (result["iteration"], result["stand_in_assets"]) == (3, False)
    assert result["weights_digest"] == runs.summary("mine")["weights_digest"]
    assert f"reach-v3 greedy: {result['tasks']['reach-v3']['greedy']['successes']}/8 = " in output


def test_a_policy_that_would_see_something_else_is_not_evaluated(runs: Runs, mine: Path) -> None:
    noted = json.loads((mine / "observations.json").read_text())
    (mine / "observations.json").write_text(json.dumps({"reach-v3": {**noted["reach-v3"], "digest": "0" * 64}}))
    try:
        process = evaluate(runs, f"policy={mine}", "run_id=other")
        output, _ = process.communicate(timeout=120)
    finally:
        (mine / "observations.json").write_text(json.dumps(noted))
    assert process.returncode != 0
    assert f"policy={mine}: it would see reach-v3 otherwise than in training" in output
    assert not (runs.root / "other" / "evaluation.json").exists()
