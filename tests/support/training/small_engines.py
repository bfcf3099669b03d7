"""Engines of every kind of job, built small in one process, for the tests that all of them must pass."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from language_jobs import TINY as TINY_LANGUAGE
from trainers import free_address

import tasks
from embodyflow.config import RunConfig
from embodyflow.config.composition.compose import compose_config
from embodyflow.data.batches import Columns, to_batch
from embodyflow.nodes.engines import ControlEngine, EmbodiedEngine, EpisodeEngine, RolloutEngine, TrainerEngine
from embodyflow.references import resolve
from embodyflow.types import Batch

TINY_CONTROL = (
    *("experiment=reacher", "flow=ppo", "rollout.num_workers=1", "rollout.envs_per_worker=2", "rollout.num_steps=6"),
    *("trainer.num_minibatches=1", "trainer.epochs=1", "critic.epochs=1", "env.max_steps=4"),
)
TINY_EMBODIED = (
    *("experiment=embodied", "run_id=tiny", "env.max_steps=20", "policy.hidden_size=32", "policy.num_layers=1"),
    *("rollout.num_workers=1", "rollout.envs_per_worker=2", "rollout.num_groups=2", "rollout.group_size=2"),
    *("trainer.epochs=1", "trainer.num_minibatches=1"),
)
TWO_WORKERS = "rollout.num_workers=2"


def play(engine: Any, iteration: int) -> Columns:
    """Play the training episodes of an iteration."""
    return engine.play(engine.training_episodes(0, iteration), "train", (0, iteration, "rollout"))


def collect(engine: Any, iteration: int) -> Columns:
    """Step the environments of a control job for an iteration."""
    rows, _ = engine.collect(iteration, (0, iteration, "rollout"))
    return rows


@dataclass(frozen=True)
class Job:
    """A kind of job, small.

    Attributes:
        words: Overrides of its configuration.
        protocol: Protocol of its rollout engine.
        gather: Function that has a rollout engine gather the rows of an iteration.
        trains_decisions: Whether its pipeline makes every decision a row before it trains.
    """

    words: tuple[str, ...]
    protocol: type[RolloutEngine]
    gather: Callable[[Any, int], Columns]
    trains_decisions: bool = False

    def config(self, *words: str) -> RunConfig:
        """Compose the configuration with further overrides, later ones winning."""
        chosen = {word.partition("=")[0]: word for word in (*self.words, *words)}
        return compose_config(list(chosen.values()))


JOBS = {
    "control": Job(TINY_CONTROL, ControlEngine, collect, trains_decisions=True),
    "embodied": Job(TINY_EMBODIED, EmbodiedEngine, play),
    "language": Job(TINY_LANGUAGE, EpisodeEngine, play),
}


def build_rollout(config: RunConfig, rank: int = 0, world_size: int = 1) -> Any:
    """Build the rollout engine that the job names."""
    torch.manual_seed(0)
    return resolve(config.rollout_engine)(config, rank, world_size)


@contextmanager
def connected_trainer(config: RunConfig) -> Iterator[Any]:
    """Yield the trainer engine that the job names, alone in its process group."""
    trainer = resolve(config.trainer_engine)(config, 0, 1)
    trainer.connect(free_address())
    try:
        yield trainer
    finally:
        trainer.close()


def published(trainer: TrainerEngine) -> dict[str, Any]:
    """Return the arrays that a rollout engine's ``update_weights`` gets from a trainer."""
    return trainer.weights() | trainer.probe()


def rows_to_train_on(job: Job, rows: Columns) -> Batch:
    """Return gathered rows with the columns that the steps of policy and critic read."""
    batch, draws = to_batch(rows), torch.Generator().manual_seed(0)
    mask, normal = batch["loss_mask"], partial(torch.randn, generator=draws)
    decided = mask.any(-1)
    batch["advantages"] = normal(len(batch), 1, 1) * mask
    batch["values"], batch["returns"] = normal(decided.shape) * decided, normal(decided.shape) * decided
    batch = tasks.split_decisions(batch).batch if job.trains_decisions else batch
    batch["old_log_probs"] = batch["ref_log_probs"] = batch["log_probs"].clone()
    return batch
