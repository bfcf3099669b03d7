"""A run of SRPO, the replay of its episodes and the evaluation of its policy, by their commands."""

import json
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from small_runs import Runs, assert_trained, training_records
from waiting import finish

from embodyflow.cli.episodes.replay import replay
from embodyflow.record.episodes.episode_record import read_episodes
from embodyflow.record.ledger import Ledger
from embodyflow.record.run_folder import RunFolder

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, prefect_api: str, ray_env: dict[str, str]) -> Runs:
    return Runs(tmp_path_factory.mktemp("evaluate")).served_by(prefect_api, **ray_env)


@pytest.fixture(scope="module")
def mine(runs: Runs) -> Path:
    words = ("iterations=3", "rollout.keep_episodes=2", "filter.drop_uniform=false", "evaluation.num_goals=8")
    runs.run("mine", *words, flow="srpo")
    assert_trained(runs.metrics("mine"))
    return runs.root / "mine"


def test_srpo_rewards_failures_for_their_progress(runs: Runs, mine: Path) -> None:
    line = training_records(runs.metrics("mine"))[0]
    assert line["groups/num_kept_rows"] == 16
    assert line["progress/num_unreached_tasks"] == 0 < line["progress/num_centres"], "there are successes"
    rate, failure_score = line["rollout/success_rate"], line["progress/failure_score"]
    assert 0 < failure_score < 0.8
    assert line["reward/score"] == pytest.approx(rate + (1 - rate) * failure_score, abs=1e-6)


def test_the_newest_episodes_are_kept_and_replay_bit_identically(
    mine: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = dict(read_episodes(RunFolder(mine)))
    assert list(kept) == [2, 3]
    assert not list((mine / "stages").iterdir())
    for episodes in kept.values():
        assert len(episodes["uid"]) == 16 and episodes["trained"].all()
        assert (episodes["scores"][episodes["success"]] == 1).all()
        assert (episodes["scores"][~episodes["success"]] < 0.8).all()
    for row in (0, 15):
        assert replay(mine, int(kept[3]["uid"][row])) == 0
        assert "replay: bit-identical" in capsys.readouterr().out


def start(runs: Runs, run: Path, run_id: str) -> subprocess.Popen[str]:
    return runs.start(f"policy={run}", f"run_id={run_id}", flow="evaluate")


def assert_agrees_with_training(runs: Runs, run_id: str, output: str) -> None:
    result: dict[str, Any] = json.loads((runs.root / run_id / "evaluation.json").read_text())
    [after] = [r for r in runs.metrics("mine") if r["iteration"] == 3 and "eval/greedy_success_rate" in r]
    for mode in ("greedy", "sampled"):
        rate = result["tasks"]["reach-v3"][mode]
        assert (rate["episodes"], rate["success_rate"]) == (8, after[f"eval/{mode}_success_rate"])
        assert (rate["low"], rate["high"]) == (after[f"eval/{mode}_success_low"], after[f"eval/{mode}_success_high"])
        assert f"reach-v3 {mode}: {rate['successes']}/8 = " in output
    assert (result["iteration"], result["stand_in_assets"]) == (3, False)
    assert result["weights_digest"] == runs.summary("mine")["weights_digest"]


def test_an_evaluation_agrees_with_training(runs: Runs, mine: Path) -> None:
    process = start(runs, mine, "evaluated")
    output = finish(process)
    assert process.returncode == 0, output[-4000:]
    assert_agrees_with_training(runs, "evaluated", output)


@pytest.mark.slow
def test_a_killed_evaluation_continues(runs: Runs, mine: Path) -> None:
    ledger = runs.root / "killed" / "ledger.jsonl"
    first = start(runs, mine, "killed")
    deadline = time.monotonic() + 120
    while not ledger.exists() and first.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    first.send_signal(signal.SIGKILL)
    first.communicate(timeout=60)
    runs.assert_nothing_runs(seconds=30)
    known = [entry.facts["node_id"] for entry in Ledger(ledger).entries]
    second = start(runs, mine, "killed")
    output = finish(second)
    assert second.returncode == 0, output[-4000:]
    assert known and all(f"{node_id} was done before" in output for node_id in known)
    assert_agrees_with_training(runs, "killed", output)
