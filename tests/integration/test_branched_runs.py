"""A branch with everything and no change repeats its run bit by bit; one with the weights begins with them."""

import json
from pathlib import Path

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


def test_a_branch_repeats_its_run_or_begins_with_its_weights(tmp_path: Path) -> None:
    runs = Runs(tmp_path)
    start(runs, "first", *SMALL_SAC, "iterations=4")
    start(runs, "same", "branch.run=first", "branch.iteration=3", "branch.take=everything")
    start(runs, "other", "branch.run=first", "branch.iteration=3", "iterations=1", "trainer.learning_rate=1e-5")
    first = digests(runs, "first")
    assert digests(runs, "same") == first and list(first) == [1, 2, 3, 4]
    facts = json.loads((runs.root / "other/checkpoints/iteration-000000/commit.json").read_text())
    assert facts["weights_digest"] == first[3]
    assert digests(runs, "other")[1] not in first.values()
