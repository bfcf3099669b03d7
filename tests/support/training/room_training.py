"""Training of any policy in the picture room, in one process or as a whole run."""

from pathlib import Path

import numpy as np
import torch
from picture_room import WORDS
from small_runs import Runs
from tensordict import TensorDict
from trainers import SEED, largest_gap, new_trainer
from waiting import finish

from embodyflow.config import RunConfig
from embodyflow.data.batches import to_batch
from embodyflow.rollouts.embodied.embodied_rollout import EmbodiedRollout
from embodyflow.training.fsdp_trainer import FSDPTrainer

SMALL = (
    *WORDS,
    *("run_id=small", "rollout.num_workers=1", "rollout.envs_per_worker=4", "rollout.num_groups=2"),
    *("rollout.group_size=2", "trainer.epochs=1", "warm_start.num_demos=2", "warm_start.steps=20"),
    *("warm_start.batch_size=8", "evaluation.num_goals=2", "trainer.learning_rate=1e-3"),
)
RUN = (
    *(*WORDS, "iterations=2", "rollout.num_groups=2", "rollout.group_size=4", "rollout.envs_per_worker=4"),
    *("trainer.num_ranks=2", "trainer.epochs=1", "warm_start.num_demos=2", "warm_start.steps=20"),
    *("warm_start.batch_size=16", "evaluation.num_goals=2", "filter.drop_uniform=false"),
    *("tracking.tensorboard=false", "seed=3"),
)


def play(rollout: EmbodiedRollout, trainer: FSDPTrainer, iteration: int = 1) -> TensorDict:
    """Play an iteration's four episodes with the trainer's weights; every second one gets a negative advantage."""
    rollout.update_weights(trainer.weights(), 1)
    rows = to_batch(rollout.play(rollout.training_episodes(SEED, iteration), "train", (SEED, "actions")))
    rows["old_log_probs"] = rows["ref_log_probs"] = rows["log_probs"].clone()
    rows["advantages"] = torch.tensor([1.0, -1.0, 1.0, -1.0])[:, None, None] * rows["loss_mask"]
    return rows


def step(trainer: FSDPTrainer, rows: TensorDict) -> None:
    trainer.step(rows, positions=np.arange(4), total_rows=4, seed=SEED)


def assert_learns(trainer: FSDPTrainer, rows: TensorDict, tolerance: float) -> None:
    """Check that the trainer reproduces the rollout's log-probs and that three steps change them as intended."""
    before = trainer.weights()
    assert (trainer.log_probs(rows, reference=False) - rows["log_probs"]).abs().max() < tolerance
    for _ in range(3):
        step(trainer, rows)
    risen = ((trainer.log_probs(rows, reference=False) - rows["log_probs"]) * rows["advantages"]).sum()
    assert risen > 0.1 and largest_gap(trainer.weights(), before) > 1e-4


def assert_resumes(
    trainer: FSDPTrainer, rows: TensorDict, config: RunConfig, close: list[FSDPTrainer], folder: Path
) -> None:
    """Check that a step after a checkpoint is bit-identical in a new trainer."""
    step(trainer, rows)
    trainer.save(str(folder))
    step(trainer, rows)
    expected = trainer.weights()
    trainer.close()
    close.append(again := new_trainer(config))
    again.load(str(folder))
    step(again, rows)
    assert largest_gap(again.weights(), expected) == 0


def run_and_export(runs: Runs, run_id: str, *words: str) -> Path:
    """Train for two iterations on two trainer ranks; return the folder of the exported policy."""
    process = runs.start(*RUN, *words, f"run_root={runs.root}", f"run_id={run_id}")
    output = finish(process)
    assert process.returncode == 0, output[-4000:]
    assert "no episode video: " in output, "the picture room cannot render"
    records = runs.metrics(run_id)
    digests = [record["weights_digest"] for record in records if "weights_digest" in record]
    assert len(set(digests)) == len(digests) == 2, "the weights never changed"
    gaps = [record["parity/log_prob_gap"] for record in records if "parity/log_prob_gap" in record]
    assert len(gaps) == 2 and max(gaps) < 1e-4, "two sharded ranks do not reproduce the rollout's log-probs"
    runs.assert_nothing_runs(seconds=10)
    return runs.root / run_id / "policy"
