"""The diffusion policy in rollout and trainer: episodes of states, steps, demonstrations, checkpoints."""

from pathlib import Path

import numpy as np
import pytest
import torch
from room_training import SMALL, assert_learns, assert_resumes, play, step
from safetensors.numpy import load_file, save_file
from tensordict import TensorDict
from trainers import SEED, free_address, largest_gap, new_trainer, spawn_ranks

from embodyflow.config import RunConfig
from embodyflow.config.composition.compose import compose_config
from embodyflow.data.batches import to_batch
from embodyflow.rollouts.embodied.embodied_rollout import EmbodiedRollout
from embodyflow.training.fsdp_trainer import FSDPTrainer

WORDS = (*SMALL, "policy=diffusion", "policy.chunk_size=4", "policy.hidden_size=32", "policy.num_layers=1")


@pytest.fixture(scope="module")
def config() -> RunConfig:
    return compose_config(WORDS)


def test_the_trainer_reproduces_the_rollouts_log_probs_and_learns(
    config: RunConfig, rollout: EmbodiedRollout, close: list[FSDPTrainer]
) -> None:
    close.append(trainer := new_trainer(config))
    rows = play(rollout, trainer)
    assert rows["action_tokens"].dtype == torch.float32 and rows["action_tokens"].shape == (4, 4, 4 * 11 * 2)
    assert rows["loss_mask"].shape == rows["log_probs"].shape == (4, 4, 4 * 5)
    assert rows["actions"].abs().max() <= 1.0, "actions exceed the room's bounds"
    assert_learns(trainer, rows, config.trainer.parity_tolerance)


@pytest.mark.parametrize("words", [("trainer.precision=bfloat16", "trainer.parity_tolerance=0.5")], ids=["bfloat16"])
def test_it_trains_in_less_precision(
    rollout: EmbodiedRollout, close: list[FSDPTrainer], words: tuple[str, ...]
) -> None:
    close.append(trainer := new_trainer(compose_config([*WORDS, *words])))
    assert_learns(trainer, play(rollout, trainer), 0.5)


def test_a_fit_trains_all_steps_and_reinforcement_learning_the_last_ones(
    rollout: EmbodiedRollout, close: list[FSDPTrainer]
) -> None:
    close.append(trainer := new_trainer(compose_config([*WORDS, "trainer.weight_decay=0.1"])))
    demos = to_batch(rollout.demonstrate())
    start = trainer.weights()
    first, second = (trainer.fit(demos, SEED) for _ in range(2))
    assert second["sft/loss"].value < first["sft/loss"].value
    fitted = trainer.weights()
    counted = torch.arange(demos["state"].shape[1]) < demos["num_steps"][:, None]
    for name, column in (("standardize", "state"), ("scale", "actions")):
        np.testing.assert_allclose(fitted[f"{name}.mean"], demos[column][counted].mean(0), atol=1e-6)
    step(trainer, play(rollout, trainer))
    trained = trainer.weights()
    for name, value in fitted.items():
        if name.startswith("early."):
            assert not np.array_equal(value, start[name]) and np.array_equal(value, trained[name]), name
        if name.startswith("late.") and name.endswith("weight"):
            assert not np.array_equal(value, trained[name]), name


def test_a_checkpoint_restores_weights_statistics_and_optimizer(
    config: RunConfig, rollout: EmbodiedRollout, close: list[FSDPTrainer], tmp_path: Path
) -> None:
    close.append(trainer := new_trainer(config))
    trainer.fit(to_batch(rollout.demonstrate()), SEED)
    assert_resumes(trainer, play(rollout, trainer), config, close, tmp_path)


def fit_and_step(
    rank: int, config: RunConfig, num_ranks: int, address: str, demos: TensorDict, rows: TensorDict, folder: Path
) -> None:
    """Fit on the demonstrations, take a step on this rank's share of the rows, and save the weights after each."""
    trainer = FSDPTrainer(config, rank, num_ranks)
    trainer.connect(address)
    trainer.fit(demos, SEED)
    fitted = trainer.weights()
    mine = np.array_split(np.arange(len(rows)), num_ranks)[rank]
    trainer.step(rows[mine], positions=mine, total_rows=len(rows), seed=SEED)
    trained = trainer.weights()
    if rank == 0:
        save_file(fitted, folder / f"{num_ranks}-fitted.safetensors")
        save_file(trained, folder / f"{num_ranks}-trained.safetensors")
    trainer.close()


def test_two_ranks_train_as_one(
    config: RunConfig, rollout: EmbodiedRollout, close: list[FSDPTrainer], tmp_path: Path
) -> None:
    close.append(trainer := new_trainer(config))
    rows, demos = play(rollout, trainer), to_batch(rollout.demonstrate())
    for num_ranks in (1, 2):
        spawn_ranks(fit_and_step, config, num_ranks, free_address(), demos, rows, tmp_path, num_ranks=num_ranks)
    one, two = (
        {moment: load_file(tmp_path / f"{ranks}-{moment}.safetensors") for moment in ("fitted", "trained")}
        for ranks in (1, 2)
    )
    assert largest_gap(one["fitted"], one["trained"]) > 1e-4
    for moment in ("fitted", "trained"):
        assert largest_gap(one[moment], two[moment]) < 1e-4, moment
    early = [name for name in two["fitted"] if name.startswith("early.")]
    assert early and all(np.array_equal(two["fitted"][name], two["trained"][name]) for name in early)
