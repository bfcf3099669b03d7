"""DAgger's data of all iterations, and fits to them that a resume repeats."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict
from trainer_runs import TrainerRun
from trainers import free_address

from embodyflow.config.composition.compose import compose_config
from embodyflow.data.batches import to_batch
from embodyflow.references import resolve
from embodyflow.training.imitation.imitation import Steps

WORDS = ("experiment=push", "algorithm=dagger", "policy.hidden_size=16", "warm_start.steps=2", "dagger.steps=3")
STATE, LENGTH = 30, 5


def columns(labels: np.ndarray, num_steps: list[int], name: str) -> dict[str, np.ndarray]:
    """Return episodes whose labels are these numbers ``[N, T]``, and whose states are ten times as many."""
    return {
        "uid": np.arange(len(labels)),
        "state": np.repeat(10 * labels[..., None], STATE, 2).astype(np.float32),
        name: np.repeat(labels[..., None], 4, 2).astype(np.float32),
        "num_steps": np.array(num_steps),
        "instruction_ids": np.ones((len(labels), 16), np.int64),
    }


def demonstrations() -> TensorDict:
    return to_batch(columns(np.arange(2 * LENGTH).reshape(2, LENGTH) / 100, [5, 3], "actions"))


def episodes(iteration: int) -> TensorDict:
    rows = columns((np.arange(2 * LENGTH).reshape(2, LENGTH) + 20 * iteration) / 100, [5, 4], "expert_actions")
    labelled = np.array([[True, True, False, True, True], [False, True, True, True, False]])
    return to_batch(rows | {"labelled": labelled})


def test_a_sample_is_a_labelled_step_with_the_labels_that_follow_without_a_gap() -> None:
    steps = Steps.of_labels(episodes(0), ["state"], 3)
    assert steps.observation["state"][:, 0].tolist() == pytest.approx([0, 0.1, 0.3, 0.4, 0.6, 0.7, 0.8])
    followed = [chunk[mask][:, 0].tolist() for chunk, mask in zip(steps.actions, steps.mask, strict=True)]
    hundredths = [[round(100 * label) for label in chunk] for chunk in followed]
    assert hundredths == [[0, 1], [1], [3, 4], [4], [6, 7, 8], [7, 8], [8]]
    assert (100 * steps.actions[1, :, 0]).round().tolist() == [1, 1, 1], "the last label is repeated"


class Run(TrainerRun):
    def __init__(self, config: Any, folder: Path, last: int | None = None) -> None:
        super().__init__(config, folder, demonstrations(), last)

    def iterate(self, iteration: int, *, commits: bool = True) -> Any:
        metrics = self.trainer.store(episodes(iteration), iteration) | self.trainer.imitate(iteration, iteration)
        if commits:
            self.commit(iteration)
        return metrics


@pytest.fixture(scope="module")
def config() -> Any:
    return compose_config(list(WORDS))


def test_data_of_all_iterations_follow_the_demonstrations(config: Any, tmp_path: Path) -> None:
    run = Run(config, tmp_path)
    before = [value.clone() for value in run.trainer.policy.model.parameters()]
    assert run.iterate(1)["dagger/num_samples"].value == 8 + 7
    metrics = run.iterate(2)
    assert metrics["dagger/num_samples"].value == 8 + 7 + 7 and metrics["train/optimizer_steps"].value == 3
    hundredths = (10 * run.trainer.steps.observation["state"][:, 0]).round().tolist()
    labelled = [0, 1, 3, 4, 6, 7, 8]
    assert hundredths == [0, 1, 2, 3, 4, 5, 6, 7, *(20 + each for each in labelled), *(40 + each for each in labelled)]
    assert not all(torch.equal(a, b) for a, b in zip(before, run.trainer.policy.model.parameters(), strict=True))
    with pytest.raises(RuntimeError, match="iteration 2: its labelled steps are stored already"):
        run.trainer.store(episodes(2), 2)


def test_rows_in_another_order_give_the_same_data(config: Any, tmp_path: Path) -> None:
    one, other = (Run(config, tmp_path / name).trainer for name in ("one", "other"))
    one.store(episodes(1), 1)
    other.store(episodes(1)[torch.tensor([1, 0])], 1)
    for name, column in one.steps.tensors().items():
        assert torch.equal(column, other.steps.tensors()[name]), name


def test_a_run_that_was_killed_ends_with_the_same_weights(config: Any, tmp_path: Path) -> None:
    run = Run(config, tmp_path / "whole")
    for iteration in (1, 2, 3):
        run.iterate(iteration)
    killed = Run(config, tmp_path / "killed")
    killed.iterate(1)
    killed.iterate(2, commits=False)
    again = Run(config, tmp_path / "killed", last=1)
    for iteration in (2, 3):
        again.iterate(iteration)
    assert again.trainer.fingerprint() == run.trainer.fingerprint()
    assert len(again.trainer.steps) == 8 + 3 * 7


def test_warm_started_weights_bring_their_demonstrations(config: Any, tmp_path: Path) -> None:
    run = Run(config, tmp_path / "first")
    run.trainer.save_weights_file(str(tmp_path / "weights"))
    other = resolve(config.groups["trainer"].engine)(config, 0, 1)
    other.connect(free_address())
    with pytest.raises(RuntimeError, match="there are no labelled steps before a warm start"):
        other.store(episodes(1), 1)
    other.load_weights_file(str(tmp_path / "weights"))
    assert other.fingerprint() == run.trainer.fingerprint()
    for name, column in run.trainer.steps.tensors().items():
        assert torch.equal(column, other.steps.tensors()[name]), name
    plain = compose_config(["experiment=push", "policy.hidden_size=16", "warm_start.steps=2"])
    assert plain.warm_start_facts() != config.warm_start_facts(), "the file of another algorithm has no demonstrations"


def test_an_iteration_without_labels_trains_on_the_data_before(config: Any, tmp_path: Path) -> None:
    trainer = Run(config, tmp_path).trainer
    rows = episodes(1)
    rows["labelled"][:] = False
    before = trainer.fingerprint()
    assert trainer.store(rows, 1)["dagger/num_samples"].value == 8
    trainer.imitate(1, 1)
    assert trainer.fingerprint() != before


def test_a_fit_begins_with_a_fresh_optimizer_at_the_schedule_s_rate(tmp_path: Path) -> None:
    """AdamW's first step moves each weight by at most the learning rate."""
    config: Any = compose_config(
        [*WORDS, "dagger.steps=1", "iterations=4", "trainer.learning_rate=0.01", "trainer.schedule.name=linear"]
    )
    trainer = Run(config, tmp_path).trainer
    for iteration, rate in ((1, 0.01), (3, 0.005)):
        before = [value.clone() for value in trainer.policy.model.parameters()]
        assert trainer.imitate(iteration, iteration)["train/learning_rate"].value == pytest.approx(rate)
        moved = [(a - b).abs().max() for a, b in zip(before, trainer.policy.model.parameters(), strict=True)]
        assert max(moved).item() == pytest.approx(rate, rel=1e-3)
