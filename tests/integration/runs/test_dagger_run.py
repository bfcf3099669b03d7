"""A run by DAgger: its data grow in every iteration, a resume has the same weights, and a branch goes on with RL."""

from pathlib import Path

import pytest
from small_runs import Runs, training_records
from waiting import finish

from embodyflow.record.run_folder import RunFolder

WORDS = (
    *("algorithm=dagger", "rollout.group_size=1", "warm_start.num_demos=2", "warm_start.steps=10"),
    *("dagger.steps=10", "dagger.beta=0.5", "policy.hidden_size=32", "evaluation.num_goals=2"),
)


@pytest.mark.slow
def test_a_resumed_run_ends_with_the_weights_of_a_whole_one_and_a_branch_reinforces_them(tmp_path: Path) -> None:
    runs = Runs(tmp_path)
    runs.run("whole", *WORDS, "iterations=3")
    runs.run("halved", *WORDS, "iterations=2")
    runs.resume("halved", f"run_root={runs.root}", "iterations=3")
    whole, halved = (training_records(RunFolder(runs.root / name).metrics.read()) for name in ("whole", "halved"))
    digests = [record["weights_digest"] for record in whole]
    assert digests == [record["weights_digest"] for record in halved] and len(set(digests)) == 3
    samples = [record["dagger/num_samples"] for record in whole]
    assert samples[1:] == [samples[each] + whole[each + 1]["dagger/num_labels"] for each in (0, 1)]
    assert all(record["dagger/num_labels"] == record["rollout/num_steps"] for record in whole)
    process = runs.start(
        *(f"run_root={runs.root}", "branch.run=whole", "run_id=reinforced", "dagger=null", "iterations=1"),
        *("pipeline.name=embodied_grpo", "rollout.group_size=4"),
    )
    output = finish(process)
    assert process.returncode == 0, output[-4000:]
    (branched,) = training_records(RunFolder(runs.root / "reinforced").metrics.read())
    assert "groups/mixed_fraction" in branched and "dagger/num_samples" not in branched
