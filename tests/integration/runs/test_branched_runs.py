"""Branches and offline training: what runs begin with, and what they go on with."""

import json
from pathlib import Path

import pytest
from small_runs import SMALL_SAC, Runs, training_records

from embodyflow.record.run_folder import RunFolder


def digests(runs: Runs, run_id: str) -> dict[int, str]:
    """Return the digest of the weights after each iteration."""
    records = RunFolder(runs.root / run_id).metrics.read()
    return {record["iteration"]: record["weights_digest"] for record in training_records(records)}


def start(runs: Runs, run_id: str, *words: str) -> None:
    process = runs.start(f"run_root={runs.root}", f"run_id={run_id}", *words, flow="sac")
    output, _ = process.communicate(timeout=600)
    assert process.returncode == 0, output[-4000:]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """A run by SAC for four iterations, in a folder for others."""
    made = Runs(tmp_path_factory.mktemp("branches"))
    start(made, "first", *SMALL_SAC, "iterations=4")
    return made


@pytest.mark.slow
def test_a_branch_repeats_its_run_or_begins_with_its_weights(runs: Runs) -> None:
    start(runs, "same", "branch.run=first", "branch.iteration=3", "branch.take=everything")
    start(runs, "other", "branch.run=first", "branch.iteration=3", "iterations=1", "trainer.learning_rate=1e-5")
    first = digests(runs, "first")
    assert digests(runs, "same") == first and list(first) == [1, 2, 3, 4]
    facts = json.loads((runs.root / "other/checkpoints/iteration-000000/commit.json").read_text())
    assert facts["weights_digest"] == first[3]
    assert digests(runs, "other")[1] not in first.values()


@pytest.mark.slow
def test_offline_training_goes_on_in_the_environment(runs: Runs) -> None:
    """Three iterations from another run's transitions, the last one after a resume; a branch then takes steps."""
    words = (
        "algorithm=iql",
        f"off_policy.demonstrations={runs.root}/first/replay",
        "off_policy.updates_per_iteration=9",
    )
    start(runs, "offline", *SMALL_SAC, *words, "iterations=2")
    start(runs, "whole", *SMALL_SAC, *words, "iterations=3")
    runs.resume("offline", f"run_root={runs.root}", "iterations=3", flow="sac")
    offline = digests(runs, "offline")
    assert offline == digests(runs, "whole") and len(set(offline.values())) == 3
    assert stored(runs, "offline", 3) == 0
    start(runs, "online", "branch.run=offline", "branch.take=models", "pipeline.name=sac", "iterations=2")
    facts = json.loads((runs.root / "online/checkpoints/iteration-000000/commit.json").read_text())
    assert facts["weights_digest"] == offline[3]
    assert len({*offline.values(), *digests(runs, "online").values()}) == 5
    assert [stored(runs, "online", each) for each in (1, 2)] == [120, 240], "two workers with two environments each"


def stored(runs: Runs, run_id: str, iteration: int) -> int:
    """Return the number of transitions in the replay buffer at a checkpoint."""
    folder: Path = RunFolder(runs.root / run_id).checkpoints.folder(iteration)
    length: int = json.loads((folder / "replay.json").read_text())["buffer"]["length"]
    return length
