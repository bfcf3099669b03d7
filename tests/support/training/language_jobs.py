"""Language jobs that are small enough for a test."""

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from trainers import free_address

from embodyflow.config.composition.compose import compose_config
from embodyflow.config.language import LanguageConfig
from embodyflow.data.batches import to_batch
from embodyflow.rollouts.language.language_rollout import LanguageRollout
from embodyflow.training.language_trainer import LanguageTrainer
from embodyflow.types import Batch

# Two groups of two responses, and a model with a hidden size of 16.
TINY = (
    *("experiment=math", "run_id=tiny", "iterations=4", "policy.scratch.hidden_size=16"),
    *("policy.scratch.intermediate_size=32", "policy.scratch.num_hidden_layers=2", "policy.scratch.head_dim=8"),
    *("rollout.num_workers=1", "rollout.num_groups=2", "rollout.group_size=2", "rollout.max_response_tokens=28"),
    *("trainer.num_minibatches=1", "trainer.schedule.warmup_iterations=0", "warm_start.num_demos=4"),
    *("warm_start.steps=3", "warm_start.until=null", "warm_start.batch_size=4", "evaluation.num_prompts=4"),
    "tracking.tensorboard=false",
)


@functools.cache  # the result is frozen, and many tests need the same one
def language_config(*overrides: str) -> LanguageConfig:
    """Compose the tiny run with further overrides, of which later ones win."""
    chosen = {override.partition("=")[0]: override for override in (*TINY, *overrides)}
    config = compose_config(list(chosen.values()))
    assert isinstance(config, LanguageConfig)
    return config


@contextmanager
def connected_trainer(config: LanguageConfig) -> Iterator[LanguageTrainer]:
    """Yield a trainer of one rank, which is closed at the end."""
    trainer = LanguageTrainer(config, 0, 1)
    trainer.connect(free_address())
    yield trainer
    trainer.close()


def sampled(rollout: LanguageRollout, iteration: int = 1) -> Batch:
    """Return the iteration's responses as the node ``rollout`` generates them."""
    questions = rollout.training_episodes(0, iteration)
    return to_batch(rollout.play(questions, "train", (0, iteration, "rollout")))


def rows_to_train_on(config: LanguageConfig, trainer: LanguageTrainer) -> Batch:
    """Return responses of different lengths with log-probs slightly off the policy's."""
    rollout, rng = LanguageRollout(config, 0, 1), np.random.default_rng(0)
    rollout.update_weights(trainer.weights() | trainer.probe(), version=0)
    rows = sampled(rollout)
    rollout.close()
    mask = rows["loss_mask"]
    noise = torch.from_numpy(rng.standard_normal((2, *mask.shape)).astype(np.float32)) * mask
    rows["old_log_probs"], rows["ref_log_probs"] = rows["log_probs"] + 0.1 * noise
    rows["advantages"] = torch.from_numpy(rng.standard_normal((len(rows), 1, 1)).astype(np.float32)) * mask
    return rows


def checkpoints_of(config: LanguageConfig, trainer: LanguageTrainer, number: int, root: Path) -> list[Path]:
    """Return a checkpoint of each version of the weights, a step of training apart."""
    rows, folders = rows_to_train_on(config, trainer), [root / str(version) for version in range(number)]
    for version, folder in enumerate(folders):
        folder.mkdir()
        trainer.save(str(folder))
        trainer.step(rows, positions=np.arange(len(rows)), total_rows=len(rows), seed=version)
    return folders
